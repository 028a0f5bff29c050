"""Rates over three spans, and counts at midnight."""

from __future__ import annotations

from datetime import datetime

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.metrics.rates import BrokerRates, Totals
from skylarkmq.store.stats import StoreStats
from tests.support.manual_clock import ManualClock


class Rig:
    def __init__(self, start: datetime = datetime(2026, 5, 4, 12)) -> None:
        self.clock = ManualClock(int(start.timestamp() * 1000))
        self.stats, self.store = BrokerStats(), StoreStats()
        self.rates = BrokerRates(self.stats, self.store, self.clock)
        self.rates.start()

    def work(self, seconds: int, puts: int) -> None:
        """So many messages a second, for so long."""
        for _ in range(seconds // 10):
            self.store.messages_appended += puts * 10
            self.clock.advance(10)


def test_a_rate_is_known_when_its_span_has_passed() -> None:
    rig = Rig()
    assert rig.rates.per_second("put") == [None, None, None]
    rig.work(10, 5)
    assert rig.rates.per_second("put") == [5.0, None, None]
    rig.work(50, 5)
    assert rig.rates.per_second("put") == [5.0, 5.0, None]
    rig.work(540, 0)
    assert rig.rates.per_second("put") == [0.0, 0.0, 0.5]
    rig.work(600, 0)
    assert rig.rates.per_second("put") == [0.0, 0.0, 0.0]


def test_pulls_and_what_they_carried() -> None:
    rig = Rig()
    rig.stats.pull_results["found"] += 3
    rig.stats.pull_results["no_new"] += 2
    rig.stats.pull_results["offset_moved"] += 1
    for topic in ("T", "U"):
        rig.stats.topic_out(topic, "g").count += 50
    assert rig.rates.now() == Totals(0, 3, 3, 100)
    rig.clock.advance(10)
    assert rig.rates.per_second("found", "missed")[0] == 0.6
    assert rig.rates.per_second("transferred")[0] == 10.0


def test_counts_at_the_last_two_midnights() -> None:
    rig = Rig(datetime(2026, 5, 4, 23, 59, 55))
    rig.store.messages_appended = 7
    rig.clock.advance(10)
    assert (rig.rates.yesterday.put, rig.rates.today.put) == (0, 7)
    rig.store.messages_appended = 9
    rig.clock.advance(86_400)
    assert (rig.rates.yesterday.put, rig.rates.today.put) == (7, 9)


def test_it_ends() -> None:
    rig = Rig()
    rig.rates.stop()
    assert rig.clock.pending_count == 0
