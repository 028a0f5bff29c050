"""Cleaning: what is too old goes, and the disk does not fill up.

Each `cleanResourceInterval` the partitions are measured. Messages are refused while one of them is
over `diskSpaceWarningLevelRatio`. Then log files go (`log_cleaner.py`), when

    expired   older than `fileReservedTime` hours, and it is an hour of `deleteWhen`, or the disk is
              over `diskMaxUsedSpaceRatio`, or somebody asked for it
    forced    whatever their age, while the disk is over `diskSpaceCleanForciblyRatio`, unless
              `cleanFileForciblyEnable` says no; a higher `diskMaxUsedSpaceRatio` counts instead, up
              to where messages are refused

and queues and key index follow the new start of the log (`queue_cleaner.py`). The first files go a
minute after the start, so that a wrong configuration can be noticed.

A forced run stops as soon as the disk is back under the ratio. Where only the partition of the
queues is too full, one log file goes, and the next one when the queues have followed.

Unlike RocketMQ: the two higher ratios are keys, as in RocketMQ 5; forced removal stops in between.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java
(CleanCommitLogService, CleanConsumeQueueService)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple

from skylarkmq.common.clock import TimerHandle
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.store.config import StoreConfig, delete_hours
from skylarkmq.store.environment import Environment
from skylarkmq.store.log.commit_log import CommitLog
from skylarkmq.store.queue.queue_table import QueueTable
from skylarkmq.store.upkeep.disk_watch import Spaces, clamped_max_used, measure, used_percent
from skylarkmq.store.upkeep.log_cleaner import LogCleaner
from skylarkmq.store.upkeep.queue_cleaner import QueueCleaner

log = logging.getLogger(__name__)

FIRST_MEASURE_S: Final = 1.0  # after the start
FIRST_RUN_S: Final = 60.0
MANUAL_RUNS: Final = 20


class CleanRules(NamedTuple):
    """What the configuration says; ratios in percent."""

    max_used_ratio: int
    forcible_ratio: int
    warning_ratio: int
    may_force: bool
    hours: frozenset[int]  # of the day, local time

    @classmethod
    def of(cls, config: StoreConfig) -> CleanRules:
        """The rules of a configuration."""
        max_used = clamped_max_used(config.disk_max_used_space_ratio)
        warning = config.disk_space_warning_level_ratio
        return cls(
            max_used,
            max(config.disk_space_clean_forcibly_ratio, min(max_used, warning)),
            warning,
            config.clean_file_forcibly_enable,
            delete_hours(config.delete_when),
        )


class CleanService:
    """The cleaning of a running store. Loop thread, but for its jobs."""

    def __init__(
        self,
        env: Environment,
        commit_log: CommitLog,
        queues: QueueTable,
        expire_index: Callable[[int], None],
    ) -> None:
        """Make the service.

        Args:
            expire_index: told where the log begins, each time that a file has gone.
        """
        files, clock, stats, config = env.files, env.clock, env.stats, env.config
        worker, paths, on_failure = env.workers.tables, env.paths, env.fail
        self._worker = worker
        self._clock = clock
        self._stats = stats
        self._expire_index = expire_index
        self._measure = partial(measure, files, paths.commit_log, paths.consume_queue, paths.root)
        self._config = config
        self._logs = LogCleaner(
            files,
            worker,
            clock,
            stats,
            commit_log,
            queues,
            config,
            measure=self._measure,
            is_forced=self._is_forced,
            may_remove=self._may_remove,
            on_removed=self._removed,
            on_failure=on_failure,
        )
        self._queues = QueueCleaner(
            files,
            worker,
            clock,
            stats,
            queues,
            interval_s=config.delete_consume_queue_files_interval / 1000,
            on_failure=on_failure,
        )
        # Asked before a log file goes, each with the place of the log behind it; who says no makes
        # sure that it can say yes in one of the next rounds.
        self.keepers: list[Callable[[int], bool]] = []
        self._timer = IntervalTimer(clock, config.clean_resource_interval / 1000, self._tick)
        self._first: TimerHandle | None = None
        self._first_run_s = 0.0
        self._manual_runs = 0
        self._asked: object | None = None  # the disk, and it has not answered yet
        self._running = False
        self.disk_full = False

    # Life cycle

    def start(self) -> None:
        """Begin; the log has its last file."""
        now_s = self._clock.monotonic()
        self._running = True
        self._first_run_s = now_s + FIRST_RUN_S
        self._logs.begin()
        self._first = self._clock.call_at(now_s + FIRST_MEASURE_S, self._tick)
        self._timer.start()

    def stop(self) -> None:
        """Remove nothing more."""
        self._running = False
        if self._first is not None:
            self._first.cancel()
        self._timer.stop()
        self._logs.end()
        self._queues.end()

    @property
    def _rules(self) -> CleanRules:
        return CleanRules.of(self._config)  # they may change while the store runs

    def refusal(self) -> str | None:
        """Why messages are not taken now, None when they are."""
        return self._why_full() if self.disk_full else None

    def _used(self) -> str:
        used = self._stats.disk_used_percent
        return ", ".join(f"{kind} {percent} %" for kind, percent in used.items())

    def _why_full(self) -> str:
        return (
            f"the disk is too full ({self._used()} used, diskSpaceWarningLevelRatio is "
            f"{self._rules.warning_ratio}); free some space"
        )

    def clean_now(self) -> None:
        """Remove expired log files in the next runs, the first of them now, whatever the hour."""
        self._manual_runs = MANUAL_RUNS
        self._first_run_s = self._clock.monotonic()
        self._tick()

    # Looking

    def _tick(self) -> None:
        self._logs.note_full_files()
        self._look(self._clean)

    def _look(self, then: Callable[[Spaces], None]) -> None:
        if self._asked is not None or not self._running:
            return
        asked = self._asked = object()

        def measured(spaces: Spaces | None, error: BaseException | None) -> None:
            if asked is not self._asked:
                return
            self._asked = None
            if spaces is None:
                log.error("the disk cannot be measured: %s", error)
            elif self._running:
                then(spaces)

        self._worker.submit(self._measure, measured)

    def judge_now(self) -> None:
        """Measure and judge; an answer that is on its way is older, and is not used. Blocks."""
        self._asked = None
        self._judge(self._measure())

    def _judge(self, spaces: Spaces) -> None:
        """Refuse messages, or take them again."""
        percents = {
            "commitlog": used_percent(spaces.log),
            "consumequeue": used_percent(spaces.queues),
        }
        self._stats.disk_used_percent = percents
        full = max(percents.values()) > self._rules.warning_ratio
        if full and not self.disk_full:
            log.error("messages are refused: %s", self._why_full())
        elif self.disk_full and not full:
            log.warning("messages are taken again: the disk has room (%s used)", self._used())
        self.disk_full = full

    def _percents(self, spaces: Spaces) -> tuple[int, int]:
        """How full log and queues would be if readers let go what was removed."""
        lingering = self._logs.lingering_bytes
        of_log = used_percent(spaces.log, less=lingering)
        return of_log, of_log if spaces.is_shared else used_percent(spaces.queues)

    def _is_forced(self, spaces: Spaces, removed: int) -> bool:
        self._judge(spaces)
        if not self._rules.may_force:
            return False
        of_log, of_queues = self._percents(spaces)
        if of_log > self._rules.forcible_ratio:
            return True
        return of_queues > self._rules.forcible_ratio and not removed and not self._queues.running

    def _may_remove(self, end_offset: int) -> bool:
        return all([keeper(end_offset) for keeper in self.keepers])

    # Cleaning

    def _clean(self, spaces: Spaces) -> None:
        self._judge(spaces)
        if self._logs.running or self._clock.monotonic() < self._first_run_s:
            return
        hour = datetime.fromtimestamp(self._clock.now_ms() / 1000).hour  # local, as RocketMQ's
        over = max(self._percents(spaces)) > self._rules.max_used_ratio
        if self._manual_runs:
            self._manual_runs -= 1
        elif hour not in self._rules.hours and not over and not self._is_forced(spaces, 0):
            return
        self._logs.run(self._run_ended)

    def _removed(self, log_min_offset: int) -> None:
        self._queues.expire(log_min_offset)
        self._expire_index(log_min_offset)

    def _run_ended(self) -> None:
        self._look(self._judge)  # messages need not wait for the next round
