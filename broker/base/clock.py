"""The broker's real clock: the system's time of day, its monotonic time, and the loop's timers.

Not `loop.time()`: uvloop counts in whole milliseconds, and what is measured here takes
microseconds. Its timers are rounded to the same grain, so a timer is asked for a grain later: a
callback that looks at the clock must find its time reached.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from skylarkmq.common.clock import TimerHandle

TIMER_GRAIN_S: Final = 0.0015  # a truncated millisecond, and half of one by rounding


class SystemClock:
    """A `Clock` over a running event loop. Loop thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def call_at(self, when_s: float, callback: Callable[..., object], *args: object) -> TimerHandle:
        delay_s = when_s - time.monotonic()
        if delay_s <= 0:
            return self._loop.call_soon(callback, *args)
        return self._loop.call_later(delay_s + TIMER_GRAIN_S, callback, *args)
