"""What a service may ask of time; the types alone, so that each test owns its clock.

A composition root makes the clock and hands it in; nothing else reads the system's time.
"""

from collections.abc import Callable
from typing import Protocol


class TimerHandle(Protocol):
    """A call that is planned."""

    def cancel(self) -> None:
        """Forget the call; nothing happens when it already ran."""
        ...


class Clock(Protocol):
    """The time of day, a clock that only goes forward, and planned calls on it."""

    def now_ms(self) -> int:
        """Return the time of day in milliseconds since the epoch; it may step either way."""
        ...

    def monotonic(self) -> float:
        """Return seconds of a clock that never goes back; its zero means nothing."""
        ...

    def call_at(self, when_s: float, callback: Callable[..., object], *args: object) -> TimerHandle:
        """Call `callback(*args)` on the loop thread once `monotonic()` has reached `when_s`."""
        ...
