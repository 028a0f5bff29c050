"""A clock for a process that a test kills inside its own: what is planned on it ends with it."""

from __future__ import annotations

from collections.abc import Callable

from skylarkmq.common.clock import Clock, TimerHandle


class LifeClock:
    """A `Clock` over another one, until `end`. Loop thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_over = False

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def call_at(self, when_s: float, callback: Callable[..., object], *args: object) -> TimerHandle:
        return self._clock.call_at(when_s, self._call, callback, *args)

    def _call(self, callback: Callable[..., object], *args: object) -> None:
        if not self._is_over:
            callback(*args)

    def end(self) -> None:
        """Call nothing any more, whether it is planned already or not."""
        self._is_over = True
