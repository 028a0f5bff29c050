"""The broker's real clock: the system's time of day, and the loop's monotonic time and timers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from skylarkmq.protocol.clock import TimerHandle


class SystemClock:
    """A `Clock` over a running event loop. Loop thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return self._loop.time()

    def call_at(self, when_s: float, callback: Callable[..., object], *args: object) -> TimerHandle:
        return self._loop.call_at(when_s, callback, *args)
