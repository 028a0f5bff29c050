"""Removal of the oldest log files: those whose time is over, and others when the disk is full.

One file at a time, the oldest first, never the last one:

    1  worker  how full the disk is, when the file was last written to
    2  loop    whether the file may go: old enough, or forced; synced, and its queue units as well
    3  worker  unlink, sync of the folder
    4  loop    the log begins at the next file; queues and key index follow
    5  worker  the mapping and the descriptor are dropped, which frees the blocks
    6          `deleteCommitLogFilesInterval` later the next one, `FILES_A_RUN` at most

A reader that holds the file, or bytes of it on their way to a client, keeps the blocks until it is
done. They count as free already, so that a forced run does not take file after file in vain.

Age does not follow the wall clock once the store runs, which may step by days. A file of an earlier
run was so old at the start as the times of file and start say (0 when that is less), and ages with
the monotonic clock; a file of this run ages from when the next one was begun.

Crash story: names go in order, each durably before the next one, and before anything that depends
on it. A crash between leaves the log a file longer at its start, and its queues begin in front of
it.

Unlike RocketMQ, whose queues may lose queue offsets for good, a file stays until the checkpoint
says that its queue units are on the disk.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../MappedFileQueue.java (deleteExpiredFileByTime)
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.common.files import Files
from skylarkmq.common.worker import Worker
from skylarkmq.store.config import StoreConfig
from skylarkmq.store.log.commit_log import CommitLog
from skylarkmq.store.log.mapped_file import MappedFile
from skylarkmq.store.queue.queue_table import QueueTable
from skylarkmq.store.stats import StoreStats
from skylarkmq.store.upkeep.disk_watch import Spaces

log = logging.getLogger(__name__)

FILES_A_RUN: Final = 10


class _Look(NamedTuple):
    """What the disk says before a file goes."""

    spaces: Spaces
    modified_ms: int | None  # None: the file's time is of no interest


class LogCleaner:
    """Removes log files in runs. Loop thread, but for its jobs."""

    def __init__(
        self,
        files: Files,
        worker: Worker,
        clock: Clock,
        stats: StoreStats,
        commit_log: CommitLog,
        queues: QueueTable,
        config: StoreConfig,
        *,
        measure: Callable[[], Spaces],
        is_forced: Callable[[Spaces, int], bool],
        may_remove: Callable[[int], bool],
        on_removed: Callable[[int], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Make a cleaner; `begin` comes before the first run.

        Args:
            measure: asks the disk; blocks.
            is_forced: whether age does not count, given how full the disk is and how many files
                this run has removed.
            may_remove: whether nothing below a place of the log is needed any more, asked of files
                that would go otherwise.
            on_removed: called with the new start of the log.
            on_failure: called when a folder could not be synced.
        """
        self._files = files
        self._worker = worker
        self._clock = clock
        self._stats = stats
        self._log = commit_log
        self._queues = queues
        self._config = config
        self._interval_s = config.delete_commit_log_files_interval / 1000
        self._retry_s = config.redelete_hanged_file_interval / 1000  # after a failed removal
        self._measure = measure
        self._is_forced = is_forced
        self._may_remove = may_remove
        self._on_removed = on_removed
        self._on_failure = on_failure
        self._started_ms = self._first_of_run = 0
        self._started_s = self._retry_at_s = 0.0
        self._full_since: dict[int, float] = {}  # start offset -> monotonic, s; of this run
        self._lingering: list[tuple[weakref.ref[object], int]] = []  # mappings and their bytes
        self._timer: TimerHandle | None = None
        self._removed = 0  # by this run
        self.running = False

    def begin(self) -> None:
        """Note the time from which on files age."""
        self._started_ms = self._clock.now_ms()
        self._started_s = self._clock.monotonic()
        last = self._log.mapped_files.last
        self._first_of_run = 0 if last is None else last.start_offset

    def end(self) -> None:
        """Remove no more files."""
        self.running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def lingering_bytes(self) -> int:
        """Bytes of removed files whose blocks readers still keep."""
        self._lingering = [(ref, size) for ref, size in self._lingering if ref() is not None]
        return sum(size for _, size in self._lingering)

    def note_full_files(self) -> None:
        """See which files have become full; to be called now and then."""
        now_s = self._clock.monotonic()
        for mapped in reversed(self._log.mapped_files.mapped[:-1]):
            start = mapped.start_offset
            if start < self._first_of_run or start in self._full_since:
                break
            self._full_since[start] = now_s

    def run(self, finished: Callable[[], None]) -> None:
        """Remove what has to go; `finished` is called once nothing more has to, or may."""
        if self.running or self._clock.monotonic() < self._retry_at_s:
            return
        self.running = True
        self._removed = 0
        self._finished = finished
        self._step()

    def _stop(self) -> None:
        self.running = False
        self._finished()

    def _candidate(self) -> MappedFile | None:
        """The oldest file, when losing it would lose nothing but its messages."""
        mapped_files = self._log.mapped_files.mapped
        if len(mapped_files) < 2 or self._removed >= FILES_A_RUN:
            return None
        first = mapped_files[0]
        covered = self._queues.covered
        synced = min(self._log.flushed_offset, covered.commit_log_offset if covered else 0)
        return first if first.start_offset + first.size <= synced else None

    def _step(self) -> None:
        self._timer = None
        if not self.running:
            return
        first = self._candidate()
        if first is None:
            self._stop()
            return
        self.note_full_files()
        path = first.file.path if first.start_offset < self._first_of_run else None

        def look() -> _Look:
            return _Look(self._measure(), None if path is None else _modified_ms(self._files, path))

        def looked(found: _Look | None, error: BaseException | None) -> None:
            if not self.running:
                return
            if found is None:
                self._give_up(first, error)
                return
            forced = self._is_forced(found.spaces, self._removed)
            reserved_s = self._config.file_reserved_time * 3600
            is_due = forced or self._age_s(first, found.modified_ms) >= reserved_s
            if is_due and self._may_remove(first.start_offset + first.size):
                self._remove(first, forced=forced)
            else:
                self._stop()

        self._worker.submit(look, looked)

    def _age_s(self, mapped: MappedFile, modified_ms: int | None) -> float:
        now_s = self._clock.monotonic()
        if modified_ms is None:
            return now_s - self._full_since.get(mapped.start_offset, now_s)
        return max(0, self._started_ms - modified_ms) / 1000 + now_s - self._started_s

    def _remove(self, mapped: MappedFile, *, forced: bool) -> None:
        path = mapped.file.path

        def removed(error_of_unlink: OSError | None, error: BaseException | None) -> None:
            if error is not None:
                self.end()
                self._on_failure(error)
            elif error_of_unlink is not None:
                self._give_up(mapped, error_of_unlink)
            else:
                self._removed += 1
                self._stats.log_files_deleted += 1
                why = "the disk is too full" if forced else "its time is over"
                log.info("removed %s: %s", path, why)
                self._let_go(mapped)
                if self.running:
                    when_s = self._clock.monotonic() + self._interval_s
                    self._timer = self._clock.call_at(when_s, self._step)

        self._worker.submit(lambda: _unlink(self._files, path), removed)

    def _let_go(self, mapped: MappedFile) -> None:
        self._log.mapped_files.drop_first()
        self._full_since.pop(mapped.start_offset, None)
        with contextlib.suppress(TypeError):  # memory of a kind that nobody can watch
            self._lingering.append((weakref.ref(mapped.view.obj), mapped.size))
        mapped.close(lambda drop: self._worker.submit(drop, _closed))  # with the last reader
        self._on_removed(self._log.min_offset)

    def _give_up(self, mapped: MappedFile, error: BaseException | None) -> None:
        log.error(
            "cannot remove %s, trying again in %g s: %s", mapped.file.path, self._retry_s, error
        )
        self._retry_at_s = self._clock.monotonic() + self._retry_s
        if self.running:
            self._stop()


def _modified_ms(files: Files, path: Path) -> int:
    """When a file was last written to; long ago when somebody has removed it. Blocks."""
    try:
        return files.modified_ms(path)
    except FileNotFoundError:
        return 0


def _unlink(files: Files, path: Path) -> OSError | None:
    """Remove a file durably; the error when it could not be removed. Blocks.

    Raises:
        OSError: its folder could not be synced.
    """
    try:
        files.unlink(path)
    except FileNotFoundError:
        pass  # somebody else was faster
    except OSError as error:
        return error
    files.sync_folder(path.parent)
    return None


def _closed(_: None, error: BaseException | None) -> None:
    if error is not None:
        log.error("closing a removed log file failed: %s", error)
