"""How late the event loop runs its timers: a tick every 100 ms, each lateness counted.

A loop that is busy or blocked shows here before clients notice, whatever the cause.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.common.histogram import Histogram

TICK_S: Final = 0.1


class LoopLagService:
    """Feeds a histogram with the lateness of its own timer, s. Loop thread."""

    def __init__(
        self, clock: Clock, lag: Histogram, listener: Callable[[float, float], None] | None = None
    ) -> None:
        """Make the service; `start` begins.

        Args:
            listener: called at each tick with when it was due and when it runs, both s on the
                monotonic clock.
        """
        self._listener = listener
        self._clock = clock
        self._lag = lag
        self._due_s = 0.0
        self._timer: TimerHandle | None = None

    def silence_s(self) -> float:
        """Return how long there was no tick, s; 0 while none is expected. Any thread."""
        return 0.0 if self._timer is None else self._clock.monotonic() - self._due_s + TICK_S

    def start(self) -> None:
        """Begin to tick."""
        self._plan()

    def stop(self) -> None:
        """End the ticks; may be called twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self) -> None:
        self._due_s = self._clock.monotonic() + TICK_S
        self._timer = self._clock.call_at(self._due_s, self._tick)

    def _tick(self) -> None:
        # A loop may round a timer down to its own grain: early counts as on time.
        now_s = self._clock.monotonic()
        self._lag.observe(max(0.0, now_s - self._due_s))
        if self._listener is not None:
            self._listener(self._due_s, now_s)
        self._plan()
