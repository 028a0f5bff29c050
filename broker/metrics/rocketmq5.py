"""The families of RocketMQ 5's brokers: its names, labels and units, so that its boards work here.

What the real thing does and its sources do not say, seen on a broker of 5.3.3:

    - the unit of a gauge or a histogram is put after its name (`_milliseconds`, `_bytes`); its own
      documentation and alert files leave that out, so gauges have both names here
    - `rocketmq_finish_message_latency_milliseconds` counts whole seconds
    - `rocketmq_storage_size_bytes` is what is used of the disk, by whatever

Its sources do say that throughput is of whole records, as is `rocketmq_message_size`, which has no
unit in its name and counts a batch once, by the average of its messages.

Half messages, timed messages and their counters have no `topic` here: they are not told apart by
topic. Sums over all topics are the same.

Absent, because the broker has nothing of the kind or does not count it: POP, RocksDB, the sizes of
thread pools' queues (`rocketmq_processor_watermark`), durations by response code
(`rocketmq_rpc_latency_milliseconds`).

Source: apache/rocketmq@rocketmq-all-5.3.3 broker/.../metrics/BrokerMetricsManager.java,
ConsumerLagCalculator.java, store/.../metrics/DefaultStoreMetricsManager.java,
broker/.../processor/EndTransactionProcessor.java
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeVar

from prometheus_client.core import Metric

from skylarkmq.broker.base.stats import FINISH_BOUNDS_S, SIZE_BOUNDS, Traffic
from skylarkmq.broker.groups.consumer_manager import ConsumerManager
from skylarkmq.broker.groups.memberships import ClientChannelInfo
from skylarkmq.broker.groups.producer_manager import ProducerManager
from skylarkmq.broker.metrics.families import FamilyMaker, lines_of
from skylarkmq.broker.metrics.lag import Lag
from skylarkmq.broker.metrics.sources import MetricsSources, parts_of
from skylarkmq.broker.timer.service import TimerMessageService
from skylarkmq.common.histogram import Histogram
from skylarkmq.protocol.codes import MQVersion, RequestCode
from skylarkmq.protocol.flags import CID_RMQ_SYS_PREFIX, is_retry_topic, is_system_topic

CREATE_BOUNDS_MS: Final = (10.0, 100.0, 1000.0, 5000.0)
"""RocketMQ's, without 3000: our durations have no such bound."""
_CREATED_BY: Final = (
    ("rocketmq_topic_create_execution_time", RequestCode.UPDATE_AND_CREATE_TOPIC),
    (
        "rocketmq_consumer_group_create_execution_time",
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    ),
)
_INVOCATIONS: Final = {"ok": "success", "error": "failure"}
_MODES: Final = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push"}
_LAG_LABELS: Final = ("consumer_group", "topic", "is_retry", "is_system")
# Name, what it tells, the attribute of a row.
_LAG_GAUGES: Final = (
    (
        "rocketmq_consumer_lag_messages",
        "Messages that a group has not confirmed, in the queues that it has offsets of.",
        "messages",
    ),
    (
        "rocketmq_consumer_lag_latency_milliseconds",
        "How long the oldest message that a group has not confirmed has been stored.",
        "latency_ms",
    ),
    (
        "rocketmq_consumer_inflight_messages",
        "Messages that members of a group were handed and have not confirmed.",
        "in_flight",
    ),
    (
        "rocketmq_consumer_ready_messages",
        "Messages that a group was not handed yet.",
        "ready",
    ),
    (
        "rocketmq_consumer_queueing_latency_milliseconds",
        "How long the oldest message that a group was not handed yet has been stored.",
        "queueing_ms",
    ),
)
_MILLISECONDS: Final = "_milliseconds"
_FIRST_REGULAR: Final = 213  # V4_0_0; from here on, two numbers for each release
_LAST_REGULAR: Final = 613  # V5_9_9 and one more

_Labels = tuple[str, str, str]
_AnyTraffic = TypeVar("_AnyTraffic", bound=Traffic)


class RocketMQ5Families:
    """Makes the families from `MetricsSources`. Loop thread."""

    def __init__(self, sources: MetricsSources) -> None:
        self._sources = sources
        self._stats = sources.broker_stats
        node = {"cluster": sources.cluster, "node_type": "broker", "node_id": sources.broker}
        self._node = FamilyMaker(node)
        self._storage = FamilyMaker({**node, "storage_type": "local", "storage_medium": "disk"})

    def families(self) -> Iterator[Metric]:
        """Yield every family, also those that have no series yet; large ones come in parts."""
        yield from self._broker()
        for part in self._sources.node:
            yield from part(self._node)
        yield from self._messages()
        yield from self._lag()
        yield from self._dead_letters()
        yield from self._transactions()
        yield from self._creations()
        yield from self._store()
        for part in self._sources.storage:
            yield from part(self._storage)

    def _broker(self) -> Iterator[Metric]:
        sources, node = self._sources, self._node
        yield node.gauge(
            "rocketmq_broker_permission", "2 write, 4 read, 6 both.", sources.permission()
        )
        yield node.gauge("rocketmq_topic_number", "Topics.", sources.topic_count())
        yield node.gauge(
            "rocketmq_consumer_group_number", "Consumer groups.", sources.group_count()
        )

    def _messages(self) -> Iterator[Metric]:
        rows_in = self._rows(self._stats.topics_in)
        labels = ("topic", "message_type", "is_system")
        yield from self._traffic(
            "rocketmq_messages_in", "Messages stored.", "count", labels, rows_in
        )
        yield from self._traffic(
            "rocketmq_throughput_in", "Bytes of records stored.", "bytes", labels, rows_in
        )
        for part in parts_of(rows_in, lines_of(SIZE_BOUNDS)):
            yield self._node.histograms(
                "rocketmq_message_size",
                "Sizes of records in bytes; a batch counts once, by the average of its messages.",
                labels,
                [(each, traffic.sizes) for each, traffic in part],
            )
        rows_out = self._rows(self._stats.topics_out)
        labels = ("topic", "consumer_group", "is_system")
        yield from self._traffic(
            "rocketmq_messages_out", "Messages handed to consumers.", "count", labels, rows_out
        )
        yield from self._traffic(
            "rocketmq_throughput_out", "Bytes handed to consumers.", "bytes", labels, rows_out
        )

    def _traffic(
        self,
        name: str,
        text: str,
        attribute: str,
        labels: tuple[str, ...],
        rows: Sequence[tuple[_Labels, Traffic]],
    ) -> Iterator[Metric]:
        for part in parts_of(rows):
            values = [(each, getattr(traffic, attribute)) for each, traffic in part]
            yield self._node.counters(name, text, labels, values)

    def _rows(
        self, table: Mapping[tuple[str, str], _AnyTraffic]
    ) -> list[tuple[_Labels, _AnyTraffic]]:
        rows: list[tuple[_Labels, _AnyTraffic]] = []
        for (topic, label), traffic in sorted(table.items(), key=lambda item: item[0]):
            if not is_system_topic(topic):
                rows.append(((topic, label, "false"), traffic))
        return rows

    def _lag(self) -> Iterator[Metric]:
        rows = self._sources.lag()
        for name, text, attribute in _LAG_GAUGES:
            known = [row for row in rows if getattr(row, attribute) is not None]
            for alias in dict.fromkeys((name, name.removesuffix(_MILLISECONDS))):
                for part in parts_of(known):
                    yield self._node.gauges(
                        alias,
                        text,
                        _LAG_LABELS,
                        [(_lag_labels(row), getattr(row, attribute)) for row in part],
                    )

    def _dead_letters(self) -> Iterator[Metric]:
        rows = self._rows(self._stats.dead_letters)
        for part in parts_of(rows):
            yield self._node.counters(
                "rocketmq_send_to_dlq_messages",
                "Messages that went to a group's dead letters, by the topic that they were for.",
                ("topic", "consumer_group", "is_system"),
                [(labels, traffic.count) for labels, traffic in part],
            )

    def _transactions(self) -> Iterator[Metric]:
        rows = sorted(self._stats.transactions.items())
        for name, text, attribute in (
            ("rocketmq_commit_messages", "Transactions that were committed.", "committed"),
            ("rocketmq_rollback_messages", "Transactions that were rolled back.", "rolled_back"),
        ):
            for part in parts_of(rows):
                values = [((topic,), getattr(ends, attribute)) for topic, ends in part]
                yield self._node.counters(name, text, ("topic",), values)
        for part in parts_of(rows, lines_of(FINISH_BOUNDS_S)):
            yield self._node.histograms(
                "rocketmq_finish_message_latency_milliseconds",
                "Whole seconds, in spite of the name, from a half message's birth to its commit.",
                ("topic",),
                [((topic,), ends.finish_s) for topic, ends in part if ends.committed],
            )
        yield self._node.gauges(
            "rocketmq_half_messages",
            "Half messages that are neither committed nor rolled back, of all topics together.",
            (),
            [((), self._sources.half_messages())] if rows or self._sources.half_messages() else (),
        )

    def _creations(self) -> Iterator[Metric]:
        requests = self._stats.requests
        for name, code in _CREATED_BY:
            yield self._node.histograms(
                f"{name}{_MILLISECONDS}",
                "Time from an administrator's request to its answer; counts changes, too.",
                ("invocation_status", "is_system"),
                [
                    ((status, "false"), _in_ms(requests[code, outcome]))
                    for outcome, status in _INVOCATIONS.items()
                    if (code, outcome) in requests
                ],
            )

    def _store(self) -> Iterator[Metric]:
        offsets, space = self._sources.store_offsets(), self._sources.store_stats.disk_space
        figures = [
            (
                "rocketmq_storage_size",
                "bytes",
                "Bytes that are used of the disk of the commit log, by whatever.",
                space["commitlog"].used if "commitlog" in space else None,
            ),
            (
                "rocketmq_storage_flush_behind",
                "bytes",
                "Bytes not flushed.",
                _distance(offsets, "max", "flushed"),
            ),
            (
                "rocketmq_storage_dispatch_behind",
                "bytes",
                "Bytes not dispatched.",
                _distance(offsets, "max", "dispatched"),
            ),
            (
                "rocketmq_storage_message_reserve_time",
                "milliseconds",
                "How long the oldest message of the log has been stored.",
                self._sources.reserve_ms(),
            ),
        ]
        for name, unit, text, value in figures:
            rows = [] if value is None else [((), float(value))]
            yield self._storage.gauges(f"{name}_{unit}", text, (), rows)
            yield self._storage.gauges(name, text, (), rows)


def connection_families(
    producers: ProducerManager, consumers: ConsumerManager, limit: int, node: FamilyMaker
) -> Iterator[Metric]:
    """Yield the connected clients by what they say of themselves.

    A client counts once for each of its groups, as in RocketMQ.

    Args:
        limit: consumer groups that are shown, at most.
    """
    counts = Counter(
        _describe(client)
        for group in producers.groups
        for client in producers.clients(group).values()
    )
    yield node.gauges(
        "rocketmq_producer_connections",
        "Memberships of producers.",
        ("language", "version", "protocol_type"),
        [((*labels, "remoting"), count) for labels, count in sorted(counts.items())],
    )
    rows: list[tuple[tuple[str, ...], float]] = []
    for group in sorted(consumers.groups)[:limit]:
        info = consumers.group(group)
        mode = _MODES.get(info.consume_type, "") if info is not None else ""
        is_system = _word(group.lower().startswith(CID_RMQ_SYS_PREFIX.lower()))
        described = Counter(_describe(client) for client in consumers.clients(group).values())
        rows += [
            ((group, *labels, mode, "remoting", is_system), count)
            for labels, count in sorted(described.items())
        ]
    for part in parts_of(rows):
        yield node.gauges(
            "rocketmq_consumer_connections",
            "Members of a consumer group.",
            ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"),
            part,
        )


def timer_families(timers: TimerMessageService, storage: FamilyMaker) -> Iterator[Metric]:
    """Yield how far the delivery of timed messages is; nothing while they are switched off."""
    if not timers.enabled:
        return
    yield storage.gauge(
        "rocketmq_timer_enqueue_lag",
        "Timed messages that were stored and not looked at yet.",
        timers.unread_count,
    )
    behind_ms = timers.unread_ms()
    for name in ("rocketmq_timer_enqueue_latency_milliseconds", "rocketmq_timer_enqueue_latency"):
        yield storage.gauges(
            name,
            "How long the first timed message that was not looked at has been stored.",
            (),
            [] if behind_ms is None else [((), behind_ms)],
        )
    waiting = timers.waiting_count
    yield storage.gauge(
        "rocketmq_timer_dequeue_lag",
        "Timed messages that were looked at and wait for their time.",
        max(0, waiting - timers.unread_count),
    )
    for name in ("rocketmq_timer_dequeue_latency_milliseconds", "rocketmq_timer_dequeue_latency"):
        yield storage.gauge(
            name, "How long the most overdue timed message has been due.", timers.lag_s * 1000
        )
    yield storage.gauge("rocketmq_timing_messages", "Timed messages that wait.", waiting)
    yield storage.counter(
        "rocketmq_timer_enqueue", "Timed messages that were looked at.", timers.reading.count
    )
    yield storage.counter(
        "rocketmq_timer_dequeue",
        "Timed messages that were delivered.",
        timers.deliveries.delivered_count,
    )


def version_name(version: int) -> str:
    """Return what RocketMQ calls a version that a client says it has; few, whatever it says."""
    if version >= _LAST_REGULAR:
        return "higher_version"
    number, is_next = divmod(version - _FIRST_REGULAR, 2)
    if number < 0:
        known = version in MQVersion.__members__.values()
        return MQVersion(version).name.lower() if known else "lower_version"
    number += is_next
    name = f"v{4 + number // 100}_{number // 10 % 10}_{number % 10}"
    return f"{name}_snapshot" if is_next else name


def _describe(client: ClientChannelInfo) -> tuple[str, str]:
    return client.language.name.lower(), version_name(client.version)


def _lag_labels(row: Lag) -> tuple[str, str, str, str]:
    return row.group, row.topic, _word(is_retry_topic(row.topic)), "false"


def _word(is_so: bool) -> str:
    return "true" if is_so else "false"


def _distance(offsets: Mapping[str, int], ahead: str, behind: str) -> int | None:
    if ahead not in offsets or behind not in offsets:
        return None
    return offsets[ahead] - offsets[behind]


def _in_ms(seconds: Histogram) -> Histogram:
    """Return durations by RocketMQ's bounds, each of which is one of ours."""
    durations = Histogram(CREATE_BOUNDS_MS)
    for bound, count in zip((*seconds.bounds, float("inf")), seconds.counts, strict=True):
        place = sum(limit < bound * 1000 for limit in CREATE_BOUNDS_MS)
        durations.counts[place] += count
    durations.sum = seconds.sum * 1000
    return durations
