"""Prometheus metrics, collected at scrape from plain counters and from what the broker tells.

Nothing here runs between two scrapes. Two namespaces:

    rocketmq_*    names, labels and units of RocketMQ 5's brokers, so that its boards and alerts
                  work; a gauge with a unit also has its bare name
    skylarkmq_*   ours: base units, `_total` on counters, `broker` and `cluster` on every series

A family without a series is left out: an absent series is honest, a zero would claim that
something was counted.

Source: apache/rocketmq@rocketmq-all-5.3.3 broker/.../metrics/BrokerMetricsConstant.java,
store/.../metrics/DefaultStoreMetricsConstant.java
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from platform import machine, python_implementation, python_version, system
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric

from skylarkmq import __version__
from skylarkmq.broker.health import HealthChecks, run_checks
from skylarkmq.broker.metrics.families import FamilyMaker
from skylarkmq.broker.metrics.stats import BrokerStats, Traffic
from skylarkmq.broker.metrics.store_metrics import StoreFamilies, StoreSources
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.flags import is_system_topic
from skylarkmq.protocol.frame import SerializeType

STORE_FORMAT: Final = "rocketmq-4.9"

MetricsPart = Callable[[FamilyMaker], Iterator[Metric]]
TrafficRows = list[tuple[tuple[str, str, str], Traffic]]


def _nothing() -> Mapping[str, int]:
    return {}


def _zero() -> int:
    return 0


@dataclass(frozen=True, slots=True)
class MetricsSources:
    """Where the collector finds its figures. The callables run on the loop, touch no disk."""

    cluster: str
    broker: str  # brokerName
    loop: str  # uvloop or asyncio
    broker_stats: BrokerStats
    store: StoreSources
    health: HealthChecks
    started_at_ms: Callable[[], int] = _zero  # when serving began; 0 before
    connections: Callable[[], Mapping[str, int]] = _nothing  # by role
    longpoll_waiting: Callable[[], int] = _zero
    topic_count: Callable[[], int] = _zero
    group_count: Callable[[], int] = _zero
    filters: Callable[[], Mapping[str, int]] = _nothing  # SQL92 filters of groups by state
    differing: Callable[[], Mapping[str, int]] = _nothing  # subscriptions of a group, if several
    permission: Callable[[], int] = _zero  # 2 write, 4 read, 6 both
    more: tuple[MetricsPart, ...] = ()  # families of the broker's services
    system_topics: bool = False  # show the series of system topics too


def build_registry(sources: MetricsSources) -> CollectorRegistry:
    """Return a registry with the broker's metrics and those of its process."""
    registry = CollectorRegistry()
    registry.register(BrokerCollector(sources))
    ProcessCollector(registry=registry)
    return registry


class BrokerCollector:
    """A prometheus-client collector over `MetricsSources`. Loop thread."""

    def __init__(self, sources: MetricsSources) -> None:
        self._sources = sources
        self._stats = sources.broker_stats
        node = {"cluster": sources.cluster, "node_type": "broker", "node_id": sources.broker}
        self._ours = FamilyMaker({"broker": sources.broker, "cluster": sources.cluster})
        self._rocketmq = FamilyMaker(node)
        storage = FamilyMaker({**node, "storage_type": "local", "storage_medium": "disk"})
        self._store = StoreFamilies(sources.store, self._ours, storage)

    def describe(self) -> Iterable[Metric]:
        """No names ahead of the scrape: a family appears with its first series."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the families that have a series, one by one: the caller may let the loop run."""
        return (family for family in self.families() if family.samples)

    def families(self) -> Iterator[Metric]:
        """Yield every family, also those that have no series yet."""
        parts: list[Callable[[], Iterator[Metric]]] = [
            self._broker,
            self._connections,
            self._wire,
            self._requests,
            self._messages,
        ]
        parts += [partial(part, self._ours) for part in self._sources.more]
        for part in (*parts, *self._store.parts):
            yield from part()

    def _broker(self) -> Iterator[Metric]:
        sources, ours, rocketmq = self._sources, self._ours, self._rocketmq
        yield ours.info(
            "skylarkmq_build",
            "What runs here; always 1.",
            {
                "version": __version__,
                "python": f"{python_implementation()} {python_version()}",
                "loop": sources.loop,
                "platform": f"{system()} {machine()}",
                "store_format": STORE_FORMAT,
            },
        )
        if started_at_ms := sources.started_at_ms():
            yield ours.gauge(
                "skylarkmq_start_time_seconds",
                "Unix time at which the broker began to serve.",
                started_at_ms / 1000,
            )
        yield ours.gauges(
            "skylarkmq_ready",
            "Whether a part of the broker is ready for clients.",
            ("component",),
            [((name,), not why) for name, why in run_checks(sources.health.ready).items()],
        )
        yield ours.histograms(
            "skylarkmq_event_loop_lag_seconds",
            "How late a 100 ms tick of the event loop ran.",
            (),
            [((), self._stats.loop_lag)],
        )
        yield ours.counters(
            "skylarkmq_metrics_series_dropped",
            "Look-ups folded into __other__ because a family had too many series.",
            ("family",),
            [((name,), count) for name, count in self._stats.series_dropped.items()],
        )
        yield rocketmq.gauge(
            "rocketmq_broker_permission", "2 write, 4 read, 6 both.", sources.permission()
        )
        yield rocketmq.gauge("rocketmq_topic_number", "Topics.", sources.topic_count())
        yield rocketmq.gauge(
            "rocketmq_consumer_group_number", "Consumer groups.", sources.group_count()
        )
        yield ours.gauges(
            "skylarkmq_consumer_group_differing_subscriptions",
            "Different subscriptions among the members of a group; only groups that differ.",
            ("consumer_group",),
            [((group,), count) for group, count in sorted(sources.differing().items())],
        )
        yield ours.gauges(
            "skylarkmq_consumer_filters",
            "SQL92 filters of consumer groups; a dead one's group is gone.",
            ("state",),
            [((state,), count) for state, count in sources.filters().items()],
        )

    def _connections(self) -> Iterator[Metric]:
        yield self._ours.gauges(
            "skylarkmq_connections",
            "Open client connections by what their heartbeats say.",
            ("role",),
            [((role,), count) for role, count in self._sources.connections().items()],
        )
        yield self._ours.counter(
            "skylarkmq_connections_opened",
            "Accepted client connections.",
            self._stats.connections_opened,
        )
        yield self._ours.counters(
            "skylarkmq_connections_closed",
            "Ended client connections.",
            ("reason",),
            [((reason,), count) for reason, count in self._stats.connections_closed.items()],
        )

        yield self._ours.counter(
            "skylarkmq_heartbeats_refused",
            "Heartbeats that were refused: such a client receives nothing; the log names it.",
            self._stats.heartbeats_refused,
        )

    def _wire(self) -> Iterator[Metric]:
        rows = [
            ((direction, SerializeType(kind).name.lower()), traffic)
            for direction, table in (
                ("in", self._stats.frames_in),
                ("out", self._stats.frames_out),
            )
            for kind, traffic in table.items()
        ]
        yield self._ours.counters(
            "skylarkmq_network_bytes",
            "Bytes of whole frames on client connections.",
            ("direction", "codec"),
            [(labels, traffic.bytes) for labels, traffic in rows],
        )
        yield self._ours.counters(
            "skylarkmq_frames",
            "Frames on client connections.",
            ("direction", "codec"),
            [(labels, traffic.count) for labels, traffic in rows],
        )
        yield self._ours.counters(
            "skylarkmq_protocol_errors",
            "Traffic that breaks the protocol.",
            ("kind",),
            [((kind,), count) for kind, count in self._stats.protocol_errors.items()],
        )

    def _requests(self) -> Iterator[Metric]:
        busy = self._sources.store.stats.busy_refusals
        yield self._ours.counters(
            "skylarkmq_requests_rejected",
            "Requests refused for overload, by kind of request and by cause.",
            ("kind", "cause"),
            [
                *self._stats.rejections.items(),
                *((("send", cause), count) for cause, count in busy.items()),
            ],
        )
        yield self._ours.histograms(
            "skylarkmq_request_duration_seconds",
            "Time from a request's arrival to its answer; without the wait of held pulls, and "
            "without sends: see skylarkmq_store_append_duration and skylarkmq_store_ack_wait.",
            ("request", "outcome"),
            [
                ((RequestCode(code).name.lower(), outcome), durations)
                for (code, outcome), durations in sorted(self._stats.requests.items())
            ],
        )
        yield self._ours.gauge(
            "skylarkmq_longpoll_waiting",
            "Pulls that are held until a message comes.",
            self._sources.longpoll_waiting(),
        )
        yield self._ours.counters(
            "skylarkmq_pull_results",
            "Outcomes of pulls.",
            ("result",),
            [((result,), count) for result, count in self._stats.pull_results.items()],
        )

    def _messages(self) -> Iterator[Metric]:
        labels = ("topic", "message_type", "is_system")
        rows = self._traffic(self._stats.topics_in)
        yield self._rocketmq.counters(
            "rocketmq_messages_in",
            "Messages stored.",
            labels,
            [(values, traffic.count) for values, traffic in rows],
        )
        yield self._rocketmq.counters(
            "rocketmq_throughput_in",
            "Bytes stored.",
            labels,
            [(values, traffic.bytes) for values, traffic in rows],
        )
        labels = ("topic", "consumer_group", "is_system")
        rows = self._traffic(self._stats.topics_out)
        yield self._rocketmq.counters(
            "rocketmq_messages_out",
            "Messages handed to consumers.",
            labels,
            [(values, traffic.count) for values, traffic in rows],
        )
        yield self._rocketmq.counters(
            "rocketmq_throughput_out",
            "Bytes handed to consumers.",
            labels,
            [(values, traffic.bytes) for values, traffic in rows],
        )

    def _traffic(self, table: Mapping[tuple[str, str], Traffic]) -> TrafficRows:
        rows: TrafficRows = []
        for (topic, label), traffic in sorted(table.items(), key=_by_labels):
            is_system = is_system_topic(topic)
            if self._sources.system_topics or not is_system:
                rows.append(((topic, label, "true" if is_system else "false"), traffic))
        return rows


def _by_labels(item: tuple[tuple[str, str], Traffic]) -> tuple[str, str]:
    return item[0]
