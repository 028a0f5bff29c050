"""A clock that runs as time does and can be set forward: the broker's, in a test.

    clock = VirtualClock()
    clock.advance(60)       # the broker has waited for a minute

It runs by itself between two calls of `advance`, so whatever is not worth a jump (flushing, held
pulls, heartbeats) goes on as ever and nothing hangs. `advance` moves from timer to timer, so each
runs at its own time, in order, and both faces (`now_ms`, `monotonic`) move together.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Final

TIMER_GRAIN_S: Final = 0.0015  # uvloop rounds its timers to whole milliseconds
CANCELLED_MIN: Final = 1000  # so many timers may lie cancelled before the heap is built anew


class _Timer:
    """A planned call."""

    __slots__ = ("_clock", "args", "callback", "is_cancelled", "owner")

    def __init__(
        self,
        clock: VirtualClock,
        owner: object,
        callback: Callable[..., object],
        args: tuple[object, ...],
    ) -> None:
        self._clock = clock
        self.owner = owner
        self.callback = callback
        self.args = args
        self.is_cancelled = False

    def cancel(self) -> None:
        """Forget the call; may be called at any time."""
        if not self.is_cancelled:
            self.is_cancelled = True
            self._clock.note_cancelled()


class VirtualClock:
    """Implements `skylarkmq.common.clock.Clock`. Thread of the loop that the broker runs in."""

    def __init__(self) -> None:
        self._skew_s = 0.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._order = itertools.count()
        self._wake: asyncio.TimerHandle | None = None
        self._wake_s = 0.0  # when `_wake` is due, on this clock
        self._cancelled_count = 0

    def now_ms(self) -> int:
        """Return the time of day in ms since the epoch, with all that it was set forward."""
        return (time.time_ns() + int(self._skew_s * 1_000_000_000)) // 1_000_000

    def monotonic(self) -> float:
        """Return seconds since some moment, with all that the clock was set forward."""
        return time.monotonic() + self._skew_s

    def call_at(self, when_s: float, callback: Callable[..., object], *args: object) -> _Timer:
        """Call `callback(*args)` on the loop thread once `monotonic()` has reached `when_s`."""
        return self.plan(None, when_s, callback, args)

    def plan(
        self,
        owner: object,
        when_s: float,
        callback: Callable[..., object],
        args: tuple[object, ...],
    ) -> _Timer:
        """Plan a call in the name of `owner`, for `forget_timers`."""
        timer = _Timer(self, owner, callback, args)
        heapq.heappush(self._timers, (when_s, next(self._order), timer))
        self._plan()
        return timer

    def next_timer_s(self) -> float | None:
        """Return when the next timer is due, on `monotonic()`; None when none waits."""
        timers = self._timers
        while timers and timers[0][2].is_cancelled:
            heapq.heappop(timers)
            self._cancelled_count -= 1
        return timers[0][0] if timers else None

    def set_forward(self, when_s: float) -> None:
        """Let `monotonic()` reach `when_s` now and run what is due then; never goes back."""
        self._skew_s += max(0.0, when_s - self.monotonic())
        self._run_due()

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`, from timer to timer; what they set in motion may still go on."""
        target_s = self.monotonic() + seconds
        while (due_s := self.next_timer_s()) is not None and due_s <= target_s:
            self.set_forward(due_s)
        self.set_forward(target_s)

    def forget_timers(self, owner: object) -> None:
        """Drop every call that `owner` planned: it is dead."""
        for _, _, timer in self._timers:
            timer.is_cancelled = timer.is_cancelled or timer.owner is owner
        self._drop_cancelled()
        if not self._timers and self._wake is not None:
            self._wake.cancel()
            self._wake = None

    def note_cancelled(self) -> None:
        """Note that a timer was cancelled that may still lie in the heap."""
        self._cancelled_count += 1
        if self._cancelled_count > max(CANCELLED_MIN, len(self._timers) // 2):
            self._drop_cancelled()

    def _drop_cancelled(self) -> None:
        self._timers = [entry for entry in self._timers if not entry[2].is_cancelled]
        heapq.heapify(self._timers)
        self._cancelled_count = 0

    def _run_due(self) -> None:
        """Run what is due by now, but not what that plans for now: a loop would never end."""
        now_s = self.monotonic()
        due: list[_Timer] = []
        while self._timers and self._timers[0][0] <= now_s:
            due.append(heapq.heappop(self._timers)[2])
        loop = asyncio.get_running_loop()
        for timer in due:
            if timer.is_cancelled:
                self._cancelled_count = max(0, self._cancelled_count - 1)
                continue
            try:
                timer.callback(*timer.args)
            except Exception as error:
                loop.call_exception_handler(
                    {"message": "a timer of the broker failed", "exception": error}
                )
        self._plan()

    def _plan(self) -> None:
        """Have the loop wake this clock for its first timer."""
        due_s = self.next_timer_s()
        if due_s is None or (self._wake is not None and self._wake_s <= due_s):
            return
        if self._wake is not None:
            self._wake.cancel()
        wait_s = due_s - self.monotonic()
        loop = asyncio.get_running_loop()
        self._wake_s = due_s
        self._wake = loop.call_later(wait_s + TIMER_GRAIN_S if wait_s > 0 else 0, self._woken)

    def _woken(self) -> None:
        self._wake = None
        self._run_due()


class OwnTimers:
    """A VirtualClock as one life of a broker sees it: its timers end with it, no one else's do."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.now_ms = clock.now_ms
        self.monotonic = clock.monotonic

    def call_at(self, when_s: float, callback: Callable[..., object], *args: object) -> _Timer:
        """As `VirtualClock.call_at`."""
        return self._clock.plan(self, when_s, callback, args)

    def forget_timers(self) -> None:
        """Drop every call that was planned here."""
        self._clock.forget_timers(self)
