"""A store with several log files, whose age, disk and hour a test sets."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from typing import Any

from skylarkmq.common.files import DiskSpace
from skylarkmq.store.results import PutMessageStatus
from tests.store.support import LOG_SIZE, MESSAGE_MAX, StoreRig
from tests.support.crash_disk import CrashDisk
from tests.support.manual_clock import ManualClock

HOUR_S = 3600.0
FIRST_RUN_S = 61.0
RARE_TIMERS = {
    "flush_interval_commit_log": 5000,
    "flush_interval_consume_queue": 5000,
    "flush_consume_queue_thorough_interval": 20_000,
    "flush_delay_offset_interval": 60_000,
}


class CleanRig(StoreRig):
    """See above; the disk has the share of used space that `percent` says, as far as it matters."""

    def __init__(self, files: CrashDisk | None = None, *, age_h: float = 0, **config: Any) -> None:
        defaults: dict[str, Any] = {
            **RARE_TIMERS,
            "disk_space_warning_level_ratio": 90,
            "disk_space_clean_forcibly_ratio": 85,
            "delete_when": f"{other_hour(age_h):02d}",
        }
        super().__init__(files or CrashDisk(), **{**defaults, **config})
        self.clock.step_wall(age_h * HOUR_S)
        self.files.now_ms = self.clock.now_ms
        self.percent: int | None = None
        self.log_percent: int | None = None  # of a partition of its own
        self.files.space = self._space  # type: ignore[method-assign]

    def start(self) -> CleanRig:
        super().start()
        return self

    def _space(self, path: Any) -> DiskSpace:
        self.files.faults.check("space", path)
        if self.log_percent is not None and path == self.store.paths.commit_log:
            return DiskSpace(self.log_percent * 1000, (100 - self.log_percent) * 1000)
        used = 1 if self.percent is None else self.percent
        return DiskSpace(used * 10**6, (100 - used) * 10**6)

    def fill(self, file_count: int, topic: str = "orders") -> CleanRig:
        """Write until the log has so many files."""
        while len(self.names()) < file_count:
            result = self.put(topic, 0, bytes(MESSAGE_MAX))
            assert result is not None and result.status is PutMessageStatus.PUT_OK
        return self

    def settle(self) -> CleanRig:
        """Have everything on the disk, and a checkpoint that says so."""
        self.spend(21)
        return self

    def spend(self, seconds: float) -> CleanRig:
        """Let time pass from timer to timer, and the workers work in between."""
        target_s = self.clock.monotonic() + seconds
        while self.clock.monotonic() < target_s:
            self.step(target_s)
        return self

    def spend_until(self, reached: Callable[[], bool]) -> CleanRig:
        """Let time pass until something is so, five minutes at most."""
        limit_s = self.clock.monotonic() + 300
        while not reached():
            assert self.clock.monotonic() < limit_s, "it never comes to it"
            self.step(limit_s)
        return self

    def step(self, limit_s: float = math.inf) -> None:
        """Go on to the next timer."""
        self.workers.run_all()
        due_s = self.clock.next_timer_s()
        when_s = limit_s if due_s is None else min(due_s, limit_s)
        self.clock.advance(max(0.0, when_s - self.clock.monotonic()))
        self.workers.run_all()

    def again(self, age_h: float, **config: Any) -> CleanRig:
        """Stop, and start so many hours after the first start of all."""
        self.stop()
        return CleanRig(self.files, age_h=age_h, **config).start()

    def names(self) -> list[int]:
        """Numbers of the log files that the store knows."""
        files = self.store.commit_log.mapped_files.mapped
        return [mapped.start_offset // LOG_SIZE for mapped in files]

    def on_disk(self) -> list[int]:
        """Numbers of the log files in the folder, but for those made ahead."""
        names = self.files.list(self.store.paths.commit_log)
        return [
            int(name) // LOG_SIZE for name in names if int(name) // LOG_SIZE <= self.names()[-1]
        ]

    def readable(self, topic: str = "orders") -> list[int]:
        """Queue offsets of all messages that can be read."""
        found: list[int] = []
        offset = self.store.min_offset(topic, 0)
        while offset < self.store.max_offset(topic, 0):
            result = self.store.get_message(topic, 0, offset, 32)
            assert result.count > 0, result.status
            found += range(offset, offset + result.count)
            offset = result.next_begin_offset
        return found


def hour_at(age_h: float) -> int:
    """The hour of the day, so many hours after a clock's start."""
    return datetime.fromtimestamp(ManualClock().now_ms() / 1000 + age_h * HOUR_S).hour


def other_hour(age_h: float) -> int:
    """An hour of the day that will not come soon."""
    return (hour_at(age_h) + 12) % 24
