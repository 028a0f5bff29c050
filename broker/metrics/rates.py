"""Rates of what the whole broker takes in and hands out, from counters noted every 10 s.

Loop thread.
Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../StoreStatsService.java, BrokerStats.java
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import Final, NamedTuple

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.common.clock import Clock
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.store.stats import StoreStats

SAMPLE_INTERVAL_S: Final = 10.0
SPANS: Final = (1, 6, 60)
"""Notes back from the newest one: 10 s, a minute, ten minutes."""


class Totals(NamedTuple):
    """What was counted since the start."""

    put: int = 0  # messages stored
    found: int = 0  # pulls that were answered with messages
    missed: int = 0  # other pulls
    transferred: int = 0  # messages handed to consumers


class BrokerRates:
    """Rates over 10 s, a minute and ten minutes, and the counts as they were at two midnights.

    Attributes:
        yesterday: the counts as they were at the midnight before the last.
        today: the counts as they were at the last midnight, local time.
    """

    def __init__(self, stats: BrokerStats, store_stats: StoreStats, clock: Clock) -> None:
        self.yesterday = Totals()
        self.today = Totals()
        self._stats = stats
        self._store_stats = store_stats
        self._clock = clock
        # Full from the beginning, so that it never grows; the first `_count` from the end are real.
        size = max(SPANS) + 1
        self._notes: deque[tuple[float, Totals]] = deque(
            [(0.0, Totals()) for _ in range(size)], size
        )
        self._count = 0
        self._day: int | None = None  # of the newest note
        self._timer = IntervalTimer(clock, SAMPLE_INTERVAL_S, self.sample)

    def start(self) -> None:
        """Note from now on."""
        self.sample()
        self._timer.start()

    def stop(self) -> None:
        """Note no more."""
        self._timer.stop()

    def now(self) -> Totals:
        """Return what was counted up to now."""
        results = self._stats.pull_results
        found = results["found"]
        return Totals(
            self._store_stats.messages_appended,
            found,
            sum(results.values()) - found,
            self._stats.messages_out,
        )

    def sample(self) -> None:
        """Note every counter once."""
        totals = self.now()
        self._notes.append((self._clock.monotonic(), totals))
        self._count = min(self._count + 1, len(self._notes))
        day = datetime.fromtimestamp(self._clock.now_ms() / 1000).toordinal()
        if self._day is not None and day != self._day:
            self.yesterday, self.today = self.today, totals
        self._day = day

    def per_second(self, *names: str) -> list[float | None]:
        """Return the growth a second of some counters over each of SPANS; None before its end."""
        rates: list[float | None] = []
        for span in SPANS:
            if self._count <= span:
                rates.append(None)
                continue
            (begin_s, first), (end_s, last) = self._notes[-1 - span], self._notes[-1]
            grown = sum(getattr(last, name) - getattr(first, name) for name in names)
            rates.append(grown / (end_s - begin_s))
        return rates
