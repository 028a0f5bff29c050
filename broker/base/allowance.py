"""How often something may happen: some times at once, and at a rate over long.

For what a client can cause again and again and the broker must not follow: lines in the log,
messages of its own. Loop thread.
"""

from __future__ import annotations

from skylarkmq.common.clock import Clock


class Allowance:
    """Counts what may happen and what had to be left out."""

    def __init__(self, clock: Clock, burst: float, per_s: float) -> None:
        """Start with a full burst.

        Args:
            burst: times at once.
            per_s: times a second over long.
        """
        self._clock = clock
        self._burst = burst
        self._per_s = per_s
        self._left = burst
        self._filled_s = clock.monotonic()
        self._left_out = 0

    def take(self) -> bool:
        """Return whether it may happen now."""
        now_s = self._clock.monotonic()
        self._left = min(self._burst, self._left + (now_s - self._filled_s) * self._per_s)
        self._filled_s = now_s
        if self._left < 1.0:
            self._left_out += 1
            return False
        self._left -= 1.0
        return True

    def left_out(self) -> int:
        """Return how often it was not allowed since the last question."""
        count, self._left_out = self._left_out, 0
        return count
