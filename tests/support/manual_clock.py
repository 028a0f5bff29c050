"""A clock that moves only when a test says so; takes the place of the system clock anywhere.

    clock = ManualClock()
    service = Service(clock)
    clock.advance(5)        # every timer that came due has run, in the order of its time

Both faces move together: `advance(1.5)` adds 1.5 s to `monotonic()` and 1500 ms to `now_ms()`.
`step_wall(seconds)` moves the wall clock alone, as an administrator or NTP does.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Any

START_MS = 1_700_000_000_000


class ManualTimer:
    """A timer that waits for `advance`; `cancel` may be called at any time, also twice."""

    __slots__ = ("args", "callback", "cancelled", "when_s")

    def __init__(self, when_s: float, callback: Callable[..., object], args: tuple[Any, ...]):
        self.when_s = when_s
        self.callback = callback
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualClock:
    """Implements `skylarkmq.common.clock.Clock`."""

    def __init__(self, start_ms: int = START_MS, start_s: float = 1000.0) -> None:
        self._wall_ms = float(start_ms)
        self._monotonic_s = start_s
        self._timers: list[tuple[float, int, ManualTimer]] = []
        self._order = itertools.count()

    def now_ms(self) -> int:
        return int(self._wall_ms)

    def monotonic(self) -> float:
        return self._monotonic_s

    def call_at(self, when_s: float, callback: Callable[..., object], *args: Any) -> ManualTimer:
        timer = ManualTimer(when_s, callback, args)
        heapq.heappush(self._timers, (when_s, next(self._order), timer))
        return timer

    @property
    def pending_count(self) -> int:
        """How many timers still wait; a test of a `stop` expects 0."""
        return sum(not timer.cancelled for _, _, timer in self._timers)

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`, running each timer at its own time; timers may set new ones.

        With 0, what is due now runs.
        """
        target_s = self._monotonic_s + seconds
        while self._timers and self._timers[0][0] <= target_s:
            when_s, _, timer = heapq.heappop(self._timers)
            if timer.cancelled:
                continue
            self._move_to(max(when_s, self._monotonic_s))
            timer.callback(*timer.args)
        self._move_to(target_s)

    def next_timer_s(self) -> float | None:
        """When the next timer is due, on the monotonic clock; None when none waits."""
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def step_wall(self, seconds: float) -> None:
        """Step the wall clock alone, back or forth; timers do not notice."""
        self._wall_ms += seconds * 1000

    def pass_time(self, seconds: float) -> None:
        """Let time go by within a call, as a slow disk does: timers run with the next `advance`."""
        self._move_to(self._monotonic_s + seconds)

    def _move_to(self, monotonic_s: float) -> None:
        self._wall_ms += (monotonic_s - self._monotonic_s) * 1000
        self._monotonic_s = monotonic_s


async def settle(turns: int = 20) -> None:
    """Let the loop run `turns` turns, so that woken tasks reach their next await."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def advance_async(clock: ManualClock, seconds: float) -> None:
    """Move the clock timer by timer and let woken tasks run in between, as real time would."""
    target_s = clock.monotonic() + seconds
    await settle()
    while True:
        due_s = clock.next_timer_s()
        if due_s is None or due_s > target_s:
            break
        clock.advance(max(0.0, due_s - clock.monotonic()))
        await settle()
    clock.advance(max(0.0, target_s - clock.monotonic()))
    await settle()
