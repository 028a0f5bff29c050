"""A token bucket: how often something may happen, some times at once and at a rate over long.

For what a client can cause again and again and the broker must not follow: lines in the log,
messages of its own. Loop thread.
"""

from __future__ import annotations

from skylarkmq.common.clock import Clock


class TokenBucket:
    """A token bucket that also counts what it refused."""

    def __init__(self, clock: Clock, burst: float, per_s: float) -> None:
        """Start with a full bucket.

        Args:
            burst: tokens that the bucket holds: times at once.
            per_s: tokens that come back a second: times a second over long.
        """
        self._clock = clock
        self._burst = burst
        self._per_s = per_s
        self._tokens = burst
        self._filled_s = clock.monotonic()
        self._left_out = 0

    def take(self) -> bool:
        """Take a token; False when there is none: it may not happen now."""
        now_s = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now_s - self._filled_s) * self._per_s)
        self._filled_s = now_s
        if self._tokens < 1.0:
            self._left_out += 1
            return False
        self._tokens -= 1.0
        return True

    def left_out(self) -> int:
        """Return how often there was no token since the last question."""
        count, self._left_out = self._left_out, 0
        return count
