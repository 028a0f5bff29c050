"""A histogram of plain integers: adding a value costs one search and one addition.

The hot path adds to it, nothing more: no lock, no label lookup, no callback. The figures
are read on the same thread.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate, pairwise
from typing import Final

# Upper bounds in seconds.
LATENCY_BOUNDS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip


class Histogram:
    """Counts of values by fixed upper bounds; a value equal to a bound lies below it."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BOUNDS) -> None:
        if not bounds or any(low >= high for low, high in pairwise(bounds)):
            raise ValueError("histogram bounds must rise")
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # by bound, not cumulated; the last one is +Inf
        self.sum: float = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_many(self, value: float, count: int) -> None:
        """Count the same value `count` times, as for the messages of one read."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """Counts at or below each bound; the last one, +Inf, is the count of all."""
        return list(accumulate(self.counts))
