"""What was counted over a minute, an hour and a day, by topic and group (315).

A timer notes the counters of `base/stats.py` every 10 s, some in each turn of the loop; nothing
else happens until somebody asks:

    window   notes kept   one every   reaches back
    minute   7            10 s        60 to 70 s
    hour     7            10 min      60 to 70 min
    day      25           1 h         24 to 25 h

A window goes from its oldest note to this moment. What a counter held before its first note counts
as zero, so that a new topic or group is in all windows at once. A counter and its notes take 0.9
KB; there are as many as `stats.py` has series, which is bounded.

    name                           key             counted here
    TOPIC_PUT_NUMS, _SIZE          topic           messages that clients sent, and their bytes
    GROUP_GET_NUMS, _SIZE          topic@group     messages handed to a group, and their bytes
    SNDBCK_PUT_NUMS                topic@group     messages that a group gave back (36)
    BROKER_PUT_NUMS                cluster name    records written, by anybody
    BROKER_GET_NUMS                cluster name    messages handed to all groups

As in RocketMQ, bytes are those of records, and the topics of delayed and of half messages have in
TOPIC_PUT_* what waits or waited there; unlike there, it also counts for the topic that it was sent
to, and not a second time when it is delivered. Other names of RocketMQ's do not exist here: reads
are not told apart by what they cost the disk, nor timed by group.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../stats/BrokerStatsManager.java,
common/.../stats/StatsItem.java (samplingInSeconds, samplingInMinutes, samplingInHour,
computeStatsData)
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from skylarkmq.broker.base.stats import MESSAGE_TYPES, BrokerStats, Traffic
from skylarkmq.broker.metrics.rates import SAMPLE_INTERVAL_S, BrokerRates
from skylarkmq.common.clock import Clock
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.protocol.flags import RMQ_SYS_SCHEDULE_TOPIC, RMQ_SYS_TRANS_HALF_TOPIC
from skylarkmq.store.stats import StoreStats

PARKED: Final = {RMQ_SYS_SCHEDULE_TOPIC: "delay", RMQ_SYS_TRANS_HALF_TOPIC: "transaction"}
"""Topics in which messages for others wait, and the type by which those are counted."""


class Span(NamedTuple):
    """One window: how many notes it keeps, one of how many, and where they begin among all."""

    kept: int
    every: int
    start: int


MINUTE: Final = Span(7, 1, 0)
HOUR: Final = Span(7, 60, 7)
DAY: Final = Span(25, 360, 14)
SPANS: Final = (MINUTE, HOUR, DAY)
NOTES: Final = 39
SLICE: Final = 1024
"""Counters noted in one turn of the loop: about a millisecond."""
assert DAY.start + DAY.kept == NOTES


class Growth(NamedTuple):
    """What was added over a window: so many messages, so many bytes, in so many seconds."""

    messages: int
    size: int
    seconds: float


class _Noted:
    """A counter and what it was at each note: counts, then bytes."""

    __slots__ = ("notes", "traffic")

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.notes = array("q", bytes(8 * 2 * NOTES))


_Table = dict[Any, _Noted]


class StatsWindows:
    """Notes the counters of a broker between `start` and `stop`. Loop thread."""

    def __init__(
        self,
        stats: BrokerStats,
        store_stats: StoreStats,
        totals: BrokerRates,
        cluster: str,
        clock: Clock,
    ) -> None:
        self._stats = stats
        self._store_stats = store_stats
        self._totals = totals
        self._cluster = cluster
        self._clock = clock
        self._times = [0.0] * NOTES  # monotonic, s
        self._rounds = 0
        # Invariant: as many entries as the counters have, which are bounded.
        self._in: _Table = {}  # by (topic, message type)
        self._out: _Table = {}  # by (topic, group)
        self._back: _Table = {}  # by (topic, group)
        self._broker: _Table = {}  # by name
        self._broker_put, self._broker_get = Traffic(), Traffic()
        self._steps: Iterator[int] = iter(())
        self._timer = IntervalTimer(clock, SAMPLE_INTERVAL_S, self._begin)

    @property
    def noted_count(self) -> int:
        """How many counters there are notes of."""
        return len(self._in) + len(self._out) + len(self._back) + len(self._broker)

    def start(self) -> None:
        """Note from now on."""
        self.sample()
        self._timer.start()

    def stop(self) -> None:
        """Note no more."""
        self._timer.stop()
        self._steps = iter(())

    def sample(self) -> None:
        """Note every counter once, and forget those that are gone."""
        for _ in self._noting():
            pass

    def _begin(self) -> None:
        self._steps = self._noting()
        self._go_on()

    def _go_on(self) -> None:
        """Note some counters, and the next ones when the loop has turned."""
        if next(self._steps, None) is not None:
            self._clock.call_at(self._clock.monotonic(), self._go_on)

    def _noting(self) -> Iterator[int]:
        """Note all counters; yield after each slice of them."""
        slots = [
            span.start + self._rounds // span.every % span.kept
            for span in SPANS
            if self._rounds % span.every == 0
        ]
        now_s = self._clock.monotonic()
        for slot in slots:
            self._times[slot] = now_s
        self._rounds += 1  # at once: what is the oldest note now is not written any more
        stats = self._stats
        for table, counters in (
            (self._broker, self._of_the_broker()),
            (self._in, stats.topics_in),
            (self._out, stats.topics_out),
            (self._back, stats.sent_back),
        ):
            keys = [*counters, *(key for key in table if key not in counters)]
            for first in range(0, len(keys), SLICE):
                _note(table, counters, keys[first : first + SLICE], slots)
                yield first

    def per_second(self, topic: str, group: str) -> float:
        """Return messages a second that a group took of a topic over the last minute."""
        traffic = self._stats.topics_out.get((topic, group))
        if traffic is None:
            return 0.0
        growth = self._growth(MINUTE, [(self._out.get((topic, group)), traffic)])
        return growth.messages / growth.seconds if growth.seconds else 0.0

    def growth(self, name: str, key: str) -> tuple[Growth, ...] | None:
        """Return what a statistic grew by over a minute, an hour and a day.

        None when there is no such statistic, or nothing was counted for the key.
        """
        counters = self._find(name, key)
        if not counters:
            return None
        return tuple(self._growth(span, counters) for span in SPANS)

    def _find(self, name: str, key: str) -> list[tuple[_Noted | None, Traffic]]:
        stats = self._stats
        if name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"):
            keys = [(key, message_type) for message_type in MESSAGE_TYPES]
            if parked := PARKED.get(key):
                keys += [each for each in stats.topics_in if each[1] == parked and each[0] != key]
            return _known(self._in, stats.topics_in, keys)
        if name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE"):
            return _known(self._out, stats.topics_out, [_topic_and_group(key)])
        if name == "SNDBCK_PUT_NUMS":
            return _known(self._back, stats.sent_back, [_topic_and_group(key)])
        if name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS") and key == self._cluster:
            return _known(self._broker, self._of_the_broker(), [name])
        return []

    def _growth(self, span: Span, counters: list[tuple[_Noted | None, Traffic]]) -> Growth:
        rounds = -(-self._rounds // span.every)  # of this span
        oldest = span.start + max(0, rounds - span.kept) % span.kept
        count = size = 0
        for noted, traffic in counters:
            count += traffic.count
            size += traffic.bytes
            if noted is not None and noted.traffic is traffic:
                count -= noted.notes[oldest]
                size -= noted.notes[oldest + NOTES]
        since_s = self._times[oldest] if rounds else self._clock.monotonic()
        return Growth(count, size, self._clock.monotonic() - since_s)

    def _of_the_broker(self) -> Mapping[str, Traffic]:
        totals = self._totals.now()
        self._broker_put.count = totals.put
        self._broker_put.bytes = self._store_stats.bytes_appended
        self._broker_get.count = totals.transferred
        return {"BROKER_PUT_NUMS": self._broker_put, "BROKER_GET_NUMS": self._broker_get}


def _note(
    table: _Table, counters: Mapping[Any, Traffic], keys: list[Any], slots: list[int]
) -> None:
    for key in keys:
        traffic = counters.get(key)
        if traffic is None:
            table.pop(key, None)
            continue
        noted = table.get(key)
        if noted is None or noted.traffic is not traffic:
            noted = table[key] = _Noted(traffic)
        notes = noted.notes
        for slot in slots:
            notes[slot] = traffic.count
            notes[slot + NOTES] = traffic.bytes


def _known(
    table: _Table, counters: Mapping[Any, Traffic], keys: Iterable[Any]
) -> list[tuple[_Noted | None, Traffic]]:
    return [(table.get(key), counters[key]) for key in keys if key in counters]


def _topic_and_group(key: str) -> tuple[str, str]:
    topic, _, group = key.partition("@")
    return topic, group
