"""Time for threads that block: Spark's tasks, its driver and the jobs have no event loop.

Handed in like the loop's clock, so that a test's clock passes hours in no time. Only this file
below spark asks the system for the time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from skylarkmq.common.clock import TimerHandle


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


class LoopClock:
    """A blocking clock as the SDK's parts want it, with timers of a loop; implements `Clock`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: BlockingClock) -> None:
        self._loop = loop
        self.now_ms: Callable[[], int] = clock.now_ms
        self.monotonic: Callable[[], float] = clock.monotonic

    def call_at(self, when_s: float, callback: Callable[..., object], *args: object) -> TimerHandle:
        return self._loop.call_later(max(0.0, when_s - self.monotonic()), callback, *args)
