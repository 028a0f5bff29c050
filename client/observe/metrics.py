# pyright: reportPrivateUsage=false
"""Prometheus metrics of a client, in a registry that the program hands in.

    skylarkmq_client_send_duration_seconds        topic, outcome         call to end, tries included
    skylarkmq_client_send_retries_total           reason                 an error's class
    skylarkmq_client_consume_duration_seconds     topic, consumer_group, outcome     of the handler
    skylarkmq_client_receive_to_process_seconds   topic, consumer_group  arrival to handler
    skylarkmq_client_receive_duration_seconds     consumer_group, outcome          its wait included
    skylarkmq_client_received_messages_total      topic, consumer_group
    skylarkmq_client_settle_duration_seconds      topic, consumer_group, operation, outcome
    skylarkmq_client_receive_to_ack_seconds       topic, consumer_group
    skylarkmq_client_buffered_messages            topic, consumer_group  held, at work included
    skylarkmq_client_buffered_bytes               topic, consumer_group
    skylarkmq_client_reconnects_total             peer_kind
    skylarkmq_client_rebalances_total             consumer_group

Those from receive to ack are of SimpleConsumers: the outcome of a receive is `ok`, `empty` or an
error's class, the operations that settle a message are `ack` and `change_invisible_duration`.

All clients of one registry share the families. Topics and groups are the only labels that grow; a
family takes LABELS_MAX combinations of them and counts the rest under `__other__`. The buffered
gauges are read when the registry is scraped, from whatever thread does so.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final, Generic, Literal, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from skylarkmq.client.observe.hooks import (
    ClientHook,
    ConsumeContext,
    ReceiveContext,
    SendContext,
    SettleContext,
)
from skylarkmq.client.popped_message import PoppedMessage
from skylarkmq.client.received_message import ConsumeOutcome, ReceivedMessage
from skylarkmq.client.send_result import SendResult
from skylarkmq.client.services import Services

PREFIX: Final = "skylarkmq_client_"
BUCKETS: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0
)  # fmt: skip
LABELS_MAX: Final = 10_000
OTHER: Final = "__other__"

M = TypeVar("M", Counter, Histogram)


class _Family(Generic[M]):
    """One family, with its children bound once."""

    def __init__(self, metric: M, label_count: int) -> None:
        self._metric: M = metric
        self._other = (OTHER,) * label_count
        self._children: dict[tuple[str, ...], M] = {}

    def of(self, *labels: str) -> M:
        """Return the child with these label values."""
        child = self._children.get(labels)
        if child is None:
            if len(self._children) >= LABELS_MAX and labels != self._other:
                return self.of(*self._other)
            child = self._children[labels] = self._metric.labels(*labels)
        return child


class Families:
    """The families of one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.clients: WeakSet[Services] = WeakSet()
        self.send_duration = _histogram(
            registry, "send_duration_seconds", "Time of sends, tries included", "topic", "outcome"
        )
        self.consume_duration = _histogram(
            registry,
            "consume_duration_seconds",
            "Time that handlers take",
            "topic",
            "consumer_group",
            "outcome",
        )
        self.receive_to_process = _histogram(
            registry,
            "receive_to_process_seconds",
            "Time from the arrival of a message to its handler",
            "topic",
            "consumer_group",
        )
        self.receive_duration = _histogram(
            registry,
            "receive_duration_seconds",
            "Time of a SimpleConsumer's receives, their waits included",
            "consumer_group",
            "outcome",
        )
        self.received_messages = _counter(
            registry,
            "received_messages",
            "Messages that a SimpleConsumer's receives returned",
            "topic",
            "consumer_group",
        )
        self.settle_duration = _histogram(
            registry,
            "settle_duration_seconds",
            "Time of a SimpleConsumer's acknowledgements and changes of invisible times",
            "topic",
            "consumer_group",
            "operation",
            "outcome",
        )
        self.receive_to_ack = _histogram(
            registry,
            "receive_to_ack_seconds",
            "Time from the receive of a message to its acknowledgement",
            "topic",
            "consumer_group",
        )
        self.send_retries = _counter(
            registry, "send_retries", "Tries of sends that failed", "reason"
        )
        self.reconnects = _counter(
            registry, "reconnects", "Lost connections that stand again", "peer_kind"
        )
        self.rebalances = _counter(
            registry, "rebalances", "Changes of a member's queues", "consumer_group"
        )
        registry.register(self)

    def describe(self) -> list[Metric]:
        """Return the gauges without values; Prometheus' registry asks for their names."""
        return [*_buffered({})]

    def collect(self) -> Iterator[Metric]:
        """Return what the consumers of all clients hold now. Any thread."""
        held: dict[tuple[str, str], tuple[int, int]] = {}
        for services in list(self.clients):
            for member in list(services.members.values()):
                for topic, (count, size) in member.buffered().items():
                    known = held.get((topic, member.group), (0, 0))
                    held[topic, member.group] = known[0] + count, known[1] + size
        yield from _buffered(held)


class MetricsHook(ClientHook):
    """Counts and times what one client does. Loop thread."""

    def __init__(self, services: Services, registry: CollectorRegistry) -> None:
        self._now_s = services.clock.monotonic
        self._families = families = families_of(registry)
        families.clients.add(services)

    def after_send(
        self, context: SendContext, result: SendResult | None, error: BaseException | None
    ) -> None:
        """Time the send; a batch counts once."""
        if error is None:
            outcome = "ok" if result is None else result.status.name.lower()
            outcome = "ok" if outcome == "send_ok" else outcome
        else:
            outcome = type(error).__name__
        took_s = self._now_s() - context.started_s
        self._families.send_duration.of(context.topic, outcome).observe(took_s)

    def send_retried(self, topic: str, reason: str) -> None:
        """Count it by its reason."""
        self._families.send_retries.of(reason).inc()

    def received(self, group: str, messages: Sequence[ReceivedMessage]) -> None:
        """Remember when the messages came."""
        now_s = self._now_s()
        for message in messages:
            message._received_s = now_s

    def before_consume(self, context: ConsumeContext) -> None:
        """Time the waiting of each message."""
        for message in context.messages:
            if message._received_s:
                waited_s = context.started_s - message._received_s
                family = self._families.receive_to_process
                family.of(message.topic, context.group).observe(waited_s)

    def after_consume(
        self, context: ConsumeContext, outcome: ConsumeOutcome, error: BaseException | None
    ) -> None:
        """Time the handler; a batch counts once."""
        took_s = self._now_s() - context.started_s
        topic = context.messages[0].topic
        self._families.consume_duration.of(topic, context.group, outcome).observe(took_s)

    def after_receive(
        self,
        context: ReceiveContext,
        messages: Sequence[PoppedMessage],
        error: BaseException | None,
    ) -> None:
        """Time the receive, and count what it returned."""
        outcome = "ok" if messages else "empty"
        if error is not None:
            outcome = type(error).__name__
        took_s = self._now_s() - context.started_s
        self._families.receive_duration.of(context.group, outcome).observe(took_s)
        if messages:
            family = self._families.received_messages
            family.of(messages[0].topic, context.group).inc(len(messages))

    def after_settle(self, context: SettleContext, error: BaseException | None) -> None:
        """Time the call, and how long its consumer had a message that is done."""
        outcome = "ok" if error is None else type(error).__name__
        message, now_s = context.message, self._now_s()
        labels = message.topic, context.group
        family = self._families.settle_duration
        family.of(*labels, context.operation, outcome).observe(now_s - context.started_s)
        if outcome == "ok" and context.operation == "ack" and message._received_s:
            self._families.receive_to_ack.of(*labels).observe(now_s - message._received_s)

    def reconnected(self, peer_kind: Literal["broker", "namesrv"]) -> None:
        """Count it."""
        self._families.reconnects.of(peer_kind).inc()

    def rebalanced(self, group: str, topic: str) -> None:
        """Count it."""
        self._families.rebalances.of(group).inc()


_families: WeakKeyDictionary[CollectorRegistry, Families] = WeakKeyDictionary()
_making = threading.Lock()


def families_of(registry: CollectorRegistry) -> Families:
    """Return the families of a registry, made with its first client. Any thread."""
    with _making:
        found = _families.get(registry)
        if found is None:
            found = _families[registry] = Families(registry)
        return found


def _histogram(
    registry: CollectorRegistry, name: str, text: str, *labels: str
) -> _Family[Histogram]:
    metric = Histogram(PREFIX + name, text, labels, buckets=BUCKETS, registry=registry)
    return _Family(metric, len(labels))


def _counter(registry: CollectorRegistry, name: str, text: str, *labels: str) -> _Family[Counter]:
    return _Family(Counter(PREFIX + name, text, labels, registry=registry), len(labels))


def _buffered(held: dict[tuple[str, str], tuple[int, int]]) -> Iterator[Metric]:
    parts: tuple[tuple[str, str, int], ...] = (
        ("messages", "Messages that consumers hold, at work included", 0),
        ("bytes", "Bytes of those messages, as stored", 1),
    )
    for name, text, place in parts:
        metric: Any = GaugeMetricFamily(
            f"{PREFIX}buffered_{name}", text, labels=["topic", "consumer_group"]
        )
        for (topic, group), values in sorted(held.items()):
            metric.add_metric([topic, group], values[place])
        yield metric
