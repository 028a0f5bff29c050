"""Time for threads that block: Spark's tasks, its driver and the jobs have no event loop.

Handed in like the loop's clock, so that a test's clock passes hours in no time. Only this file
below spark asks the system for the time.
"""

from __future__ import annotations

import time
from typing import Protocol


class BlockingClock(Protocol):
    """The time of day, a clock that only goes forward, and waiting on it."""

    def now_ms(self) -> int:
        """Return the time of day in milliseconds since the epoch; it may step either way."""
        ...

    def monotonic(self) -> float:
        """Return seconds of a clock that never goes back; its zero means nothing."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block this thread for `seconds`; not at all with 0 or less."""
        ...


class SystemClock:
    """The system's time; implements `BlockingClock`. Holds nothing, so it pickles; any thread."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)
