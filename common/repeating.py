"""A call that repeats on the handed-in clock."""

from __future__ import annotations

from collections.abc import Callable

from skylarkmq.common.clock import Clock, TimerHandle


class IntervalTimer:
    """Calls `action` every `interval_s` seconds between `start` and `stop`. Loop thread."""

    def __init__(self, clock: Clock, interval_s: float, action: Callable[[], object]) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._action = action
        self._handle: TimerHandle | None = None

    def start(self) -> None:
        """Plan the first call, one interval from now."""
        self._handle = self._clock.call_at(self._clock.monotonic() + self._interval_s, self._fire)

    def stop(self) -> None:
        """Plan no more calls."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self.start()  # first: an action that fails must not end the repetition
        self._action()
