"""Cleaning: what is too old goes, and the disk does not fill up.

Each `cleanResourceInterval` the disk is measured (`disk_watch.py`):

    over, percent                    what follows
    diskMaxUsedSpaceRatio 75         expired log files go at any hour
    diskSpaceCleanForciblyRatio 85   log files go before they are expired, the oldest first, unless
                                     `cleanFileForciblyEnable` is false; a higher
                                     `diskMaxUsedSpaceRatio` counts instead, up to the next ratio
    diskSpaceWarningLevelRatio 90    messages are refused until it is less

A log file is expired when it is older than `fileReservedTime` hours. Expired files go in the hours
of `deleteWhen`, over the first ratio, and when an administrator asks for it. The first ones go a
minute after the start, so that a wrong configuration can be noticed.

One file at a time, the oldest first, never the last one:

    1  worker  how full the disk is, when the file was last written to
    2  loop    may the file go: old enough, or forced; synced, and its queue units as well
    3  worker  unlink, sync of the folder
    4  loop    the log begins at the next file; queues (`queue_cleaner.py`) and key index follow
    5  worker  the mapping and the descriptor are dropped, which frees the blocks
    6          `deleteCommitLogFilesInterval` later the next one, at most FILES_A_RUN

A forced run stops as soon as the disk is back under the ratio. Where only the partition of the
queues is too full, one log file goes, and the next one when the queues have followed.

Age does not follow the wall clock while the store runs, because that may step by days. The age of a
file of an earlier run is, at the start, the difference of the two times (0 if negative), and grows
with the monotonic clock; a file of this run ages from when the next one was begun.

Crash story: names go in order, each durably before the next one, and before anything that depends
on it. A crash in between leaves the log one file longer at its start; its queues begin before it.

Unlike RocketMQ: a file stays until the checkpoint says that its queue units are on the disk, so no
queue offset is lost for good; the two higher ratios are keys, as in RocketMQ 5; forced removal
stops in between.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java
(CleanCommitLogService, CleanConsumeQueueService), MappedFileQueue.java
(deleteExpiredFileByTime)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.common.files import Files
from skylarkmq.common.refusal import is_no_space, refusal
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.common.worker import Call, Done, run_job, start
from skylarkmq.store.config import delete_hours
from skylarkmq.store.environment import Environment
from skylarkmq.store.log.commit_log import CommitLog
from skylarkmq.store.log.mapped_file import MappedFile
from skylarkmq.store.queue.queue_table import QueueTable
from skylarkmq.store.upkeep.disk_watch import DiskWatch, Spaces
from skylarkmq.store.upkeep.queue_cleaner import QueueCleaner

log = logging.getLogger(__name__)

FIRST_MEASURE_S: Final = 1.0  # after the start
FIRST_RUN_S: Final = 60.0
MANUAL_RUNS: Final = 20
FILES_A_RUN: Final = 10
# diskMaxUsedSpaceRatio counts as one of these when it lies outside of them.
MAX_USED_LIMITS: Final = (10, 95)


def clamped_max_used(ratio: int) -> int:
    """Return `diskMaxUsedSpaceRatio` within its limits."""
    low, high = MAX_USED_LIMITS
    return min(max(ratio, low), high)


class FileAges:
    """How old log files are, whatever the wall clock does meanwhile. Loop thread."""

    def __init__(self, clock: Clock, first_of_run: int) -> None:
        self._clock = clock
        self._started_ms, self._started_s = clock.now_ms(), clock.monotonic()
        self._first_of_run = first_of_run  # start offset of the first file that this run fills
        self._full_since: dict[int, float] = {}  # start offset -> monotonic, s; of this run

    def is_of_earlier_run(self, mapped: MappedFile) -> bool:
        """Return whether the file's age goes by the time when it was last written to."""
        return mapped.start_offset < self._first_of_run

    def note_full(self, mapped_files: Sequence[MappedFile]) -> None:
        """Note which of all files have become full."""
        now_s = self._clock.monotonic()
        for mapped in reversed(mapped_files[:-1]):
            if self.is_of_earlier_run(mapped) or mapped.start_offset in self._full_since:
                break
            self._full_since[mapped.start_offset] = now_s

    def age_s(self, mapped: MappedFile, modified_ms: int | None) -> float:
        """Return the age of a file; of an earlier run's by when it was last written to."""
        now_s = self._clock.monotonic()
        if modified_ms is None:
            return now_s - self._full_since.get(mapped.start_offset, now_s)
        return max(0, self._started_ms - modified_ms) / 1000 + now_s - self._started_s

    def forget(self, mapped: MappedFile) -> None:
        """Forget a file that has gone."""
        self._full_since.pop(mapped.start_offset, None)


class CleanService:
    """The removal of files from a running store. Loop thread, except its jobs.

    Attributes:
        disk: how full it is.
        keepers: called before a log file goes, each with the place of the log after it; one that
            returns False makes sure that it can return True in one of the next rounds.
    """

    def __init__(
        self,
        env: Environment,
        commit_log: CommitLog,
        queues: QueueTable,
        expire_index: Callable[[int], None],
    ) -> None:
        """Make the service.

        Args:
            expire_index: called with the new start of the log after each file that has gone.
        """
        self._env = env
        self._worker = env.workers.tables
        self._log = commit_log
        self._queues = queues
        self._expire_index = expire_index
        self._queue_cleaner = QueueCleaner(env, queues)
        self.disk = DiskWatch(env)
        self._ages: FileAges | None = None  # while it runs
        self.keepers: list[Callable[[int], bool]] = []
        interval_s = env.config.clean_resource_interval / 1000
        self._timer = IntervalTimer(env.clock, interval_s, self._tick)
        self._wait: TimerHandle | None = None  # until the first measuring, or the next file
        self._first_run_s = self._retry_at_s = 0.0  # monotonic
        self._manual_runs = 0
        self._removing = False

    def start(self) -> None:
        """Begin, after the log has its last file."""
        last, now_s = self._log.mapped_files.last, self._env.clock.monotonic()
        self._ages = FileAges(self._env.clock, 0 if last is None else last.start_offset)
        self._first_run_s = now_s + FIRST_RUN_S
        self._wait = self._env.clock.call_at(now_s + FIRST_MEASURE_S, self._tick)
        self._timer.start()

    def stop(self) -> None:
        """Remove nothing more."""
        self._ages, self._removing = None, False
        self.disk.forget()
        if self._wait is not None:
            self._wait.cancel()
        self._timer.stop()
        self._queue_cleaner.end()

    def clean_now(self) -> None:
        """Remove expired log files in the next runs, the first of them now, whatever the hour."""
        self._manual_runs = MANUAL_RUNS
        self._first_run_s = self._env.clock.monotonic()
        self._tick()

    def clean_queues_now(self) -> None:
        """Let the queues follow the log's start, as after each log file that goes."""
        self._queue_cleaner.expire(self._log.min_offset)

    def _is_forced(self, spaces: Spaces, removed: int) -> bool:
        """Return whether age does not count after a run has removed so many files."""
        config = self._env.config
        if not config.clean_file_forcibly_enable:
            return False
        max_used = clamped_max_used(config.disk_max_used_space_ratio)
        lowest = min(max_used, config.disk_space_warning_level_ratio)
        ratio = max(config.disk_space_clean_forcibly_ratio, lowest)
        of_log, of_queues = self.disk.percents(spaces)
        if of_log > ratio:
            return True
        return of_queues > ratio and not removed and not self._queue_cleaner.running

    def _tick(self) -> None:
        if self._ages is not None:
            self._ages.note_full(self._log.mapped_files.mapped)
            start(self._round())

    async def _round(self) -> None:
        """Judge how full the disk is, and remove what has to go."""
        spaces = await self.disk.look()
        if spaces is None:
            return
        now_s = self._env.clock.monotonic()
        if self._removing or now_s < self._first_run_s:
            return
        hour = datetime.fromtimestamp(self._env.clock.now_ms() / 1000).hour  # local, as RocketMQ's
        config = self._env.config  # whose values may change while the store runs
        max_used = clamped_max_used(config.disk_max_used_space_ratio)
        over = max(self.disk.percents(spaces)) > max_used
        if self._manual_runs:
            self._manual_runs -= 1
        elif (
            hour not in delete_hours(config.delete_when)
            and not over
            and not self._is_forced(spaces, 0)
        ):
            return
        if now_s < self._retry_at_s:
            return
        self._removing = True
        try:
            await self._remove_files()
        except Exception:  # a keeper failed, for instance; the next round tries again
            log.exception("log files cannot be removed now")
        finally:
            self._removing = False
        if self._ages is not None:
            await self.disk.look()  # messages need not wait for the next round

    async def _remove_files(self) -> None:
        """Remove log files until no more has to go, or may."""
        removed = 0
        while (ages := self._ages) is not None and (mapped := self._candidate(removed)) is not None:
            ages.note_full(self._log.mapped_files.mapped)
            path = mapped.file.path if ages.is_of_earlier_run(mapped) else None
            try:
                found = await run_job(self._worker, partial(self._measure_with_age, path))
            except Exception as error:
                self._give_up(mapped, error)
                return
            if self._ages is not ages:
                return
            spaces, modified_ms = found
            self.disk.judge(spaces)
            forced = self._is_forced(spaces, removed)
            reserved_s = self._env.config.file_reserved_time * 3600
            is_due = forced or ages.age_s(mapped, modified_ms) >= reserved_s
            end = mapped.start_offset + mapped.size
            if not is_due or not all([keeper(end) for keeper in self.keepers]):
                return
            if not await self._remove(mapped, forced=forced):
                return
            removed += 1
            await self._pause(self._env.config.delete_commit_log_files_interval / 1000)

    def _candidate(self, removed: int) -> MappedFile | None:
        """Return the oldest file, when losing it would lose nothing but its messages."""
        mapped_files = self._log.mapped_files.mapped
        if len(mapped_files) < 2 or removed >= FILES_A_RUN:
            return None
        first = mapped_files[0]
        covered = self._queues.flusher.covered
        synced = min(self._log.flushed_offset, covered.commit_log_offset if covered else 0)
        return first if first.start_offset + first.size <= synced else None

    def _measure_with_age(self, path: Path | None) -> tuple[Spaces, int | None]:
        """Measure the disk, and read when a file was last written to, ms. Blocks."""
        spaces = self.disk.measure()
        if path is None:
            return spaces, None
        try:
            return spaces, self._env.files.modified_ms(path)
        except FileNotFoundError:  # removed by hand: long ago
            return spaces, 0

    async def _remove(self, mapped: MappedFile, *, forced: bool) -> bool:
        """Remove the oldest file; False when it could not be removed."""
        path = mapped.file.path
        try:
            refusal = await run_job(self._worker, partial(_unlink, self._env.files, path))
        except Exception as error:
            self._env.fail(error)
            return False
        if refusal is not None:
            self._give_up(mapped, refusal)
            return False
        self._env.stats.log_files_deleted += 1
        log.info("removed %s: %s", path, "the disk is too full" if forced else "its time is over")
        self._log.mapped_files.drop_first()
        if self._ages is not None:
            self._ages.forget(mapped)
        self.disk.note_removed(mapped)
        mapped.close(lambda drop: self._worker.submit(drop, _closed))  # with the last reader
        self._queue_cleaner.expire(self._log.min_offset)
        self._expire_index(self._log.min_offset)
        return True

    async def _pause(self, seconds: float) -> None:
        def begin(done: Done[None]) -> None:
            when_s = self._env.clock.monotonic() + seconds
            self._wait = self._env.clock.call_at(when_s, done, None, None)

        if self._ages is not None:
            await Call(begin)

    def _give_up(self, mapped: MappedFile, error: BaseException) -> None:
        retry_s = self._env.config.redelete_hanged_file_interval / 1000
        log.error("cannot remove %s, trying again in %g s: %s", mapped.file.path, retry_s, error)
        self._retry_at_s = self._env.clock.monotonic() + retry_s


def _unlink(files: Files, path: Path) -> OSError | None:
    """Remove a file durably; return the error when it could not be removed. Blocks.

    Raises:
        OSError: its folder could not be synced.
    """
    try:
        files.unlink(path)
    except FileNotFoundError:
        pass  # removed by hand
    except OSError as error:
        return error
    try:
        files.sync_folder(path.parent)
    except OSError as error:
        if refusal(error) is None or is_no_space(error):
            raise
        return error  # the folder could not be opened
    return None


def _closed(_: None, error: BaseException | None) -> None:
    if error is not None:
        log.error("closing a removed log file failed: %s", error)
