"""The spans of one scenario, what they say of it, and the context that joins them."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the SDK of OpenTelemetry is in the extra dev")

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from skylarkmq.client import Consumer, Message, Producer, StartFrom
from skylarkmq.client.errors import BrokerError, NotSupported, RequestTimeout
from skylarkmq.client.observe.otel import OPT_IN_VARIABLE, error_type, prefixes, server_attributes
from tests.client.consumer.support import GROUP
from tests.client.observed import Observed


class Recorded:
    """A tracer provider and the spans that ended."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


async def test_a_send_says_where_it_went(recorded: Recorded) -> None:
    it = Observed(tracer_provider=recorded.provider)
    await it.scenario()
    first, plain, refused = recorded.spans("send orders")
    assert first.kind is SpanKind.PRODUCER
    attributes = dict(first.attributes or {})
    assert attributes.pop("messaging.client.id").startswith("192.0.2.1@member-")
    assert len(attributes.pop("messaging.message.id")) == 32
    assert attributes == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "broker-a:0",
        "messaging.message.body.size": 4,
        "messaging.rocketmq.client_group": "shop",
        "messaging.rocketmq.message.type": "fifo",
        "messaging.rocketmq.message.tag": "new",
        "messaging.rocketmq.message.keys": ("k-1", "k-2"),
        "messaging.rocketmq.message.group": "order-1",
        "server.address": it.broker.address.partition(":")[0],
        "server.port": int(it.broker.address.partition(":")[2]),
    }
    assert (plain.attributes or {})["messaging.rocketmq.message.type"] == "normal"
    assert (refused.attributes or {})["error.type"] == "MESSAGE_ILLEGAL"
    assert refused.status.status_code is StatusCode.ERROR


async def test_a_handler_belongs_to_the_trace_of_its_sender(recorded: Recorded) -> None:
    await Observed(tracer_provider=recorded.provider).scenario()
    sends = {span.context.span_id: span for span in recorded.spans("send orders")}
    good, bad, again = recorded.spans("process orders")
    for span in (good, bad, again):
        assert span.kind is SpanKind.CONSUMER
        assert span.parent is not None
        sender = sends[span.parent.span_id]
        assert span.context.trace_id == sender.context.trace_id
        assert [link.context.span_id for link in span.links] == [span.parent.span_id]
    attributes = good.attributes or {}
    assert attributes["messaging.consumer.group.name"] == GROUP
    assert attributes["messaging.rocketmq.consumption_model"] == "clustering"
    assert attributes["skylarkmq.outcome"] == "ok"
    assert (bad.attributes or {})["error.type"] == "ValueError"
    assert (bad.attributes or {})["skylarkmq.outcome"] == "retry"
    assert again.status.status_code is not StatusCode.ERROR
    received = recorded.spans("receive orders")
    assert sum(len(span.links) for span in received) == 3
    assert {span.kind for span in received} == {SpanKind.CLIENT}


async def test_the_span_is_the_current_one_in_the_handler(recorded: Recorded) -> None:
    it = Observed(tracer_provider=recorded.provider)
    await it.send(b"x")
    seen: list[int] = []

    async def handle(message: object) -> None:
        seen.append(get_current_span().get_span_context().span_id)
        await consumer.stop()

    consumer = await it.consumer()
    await it.wait(consumer.run(handle, concurrency=1))
    [span] = recorded.spans("process orders")
    assert seen == [span.context.span_id]
    assert not get_current_span().get_span_context().is_valid


async def test_the_programs_own_context_is_left_alone(recorded: Recorded) -> None:
    it = Observed(tracer_provider=recorded.provider)
    own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with Producer(client=it.client()) as producer:
        await it.wait(producer.send(Message("orders", b"x", properties={"traceparent": own})))
        await it.wait(producer.send(Message("orders", b"y", properties={"a": "b"})))
        await it.wait(producer.stop())
    mine, made = it.broker.topics["orders"].queues[0]
    assert mine.properties["traceparent"] == own
    assert made.properties["traceparent"].startswith("00-")
    assert made.properties["a"] == "b"


async def test_a_batch_has_one_span_and_a_handler_of_many_has_links(recorded: Recorded) -> None:
    it = Observed(tracer_provider=recorded.provider)
    producer = Producer(client=it.client())
    await it.wait(producer.start())
    await it.wait(producer.send_batch([Message("orders", b"1"), Message("orders", b"2")]))
    await it.wait(producer.stop())
    [span] = recorded.spans("send orders")
    assert (span.attributes or {})["messaging.batch.message_count"] == 2
    consumer = Consumer("orders", group=GROUP, start_from=StartFrom.FIRST)
    consumer._client = it.client()

    async def handle(messages: object) -> None:
        await consumer.stop()

    await it.wait(consumer.start())
    await it.pass_time(1)
    await it.wait(consumer.run(handle, concurrency=1, max_batch=10))
    [process] = recorded.spans("process orders")
    assert process.parent is None
    assert [link.context.span_id for link in process.links] == [span.context.span_id] * 2


async def test_names_that_the_program_opts_into(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OPT_IN_VARIABLE, "http,messaging/dup")
    await Observed(tracer_provider=recorded.provider).scenario()
    attributes = recorded.spans("send orders")[0].attributes or {}
    assert attributes["messaging.rocketmq.message.tag"] == "new"
    assert attributes["rocketmq.message.tag"] == "new"


def test_the_prefixes_of_an_opt_in() -> None:
    assert prefixes("") == prefixes("http/dup") == ["messaging.rocketmq."]
    assert prefixes("database, messaging") == ["rocketmq."]


def test_addresses_and_errors_as_attributes() -> None:
    assert server_attributes("[::1]:10911") == {"server.address": "::1", "server.port": 10911}
    assert server_attributes("") == {}
    assert error_type(BrokerError(2, "busy", "b:1")) == "SYSTEM_BUSY"
    assert error_type(BrokerError(9999, "?", "b:1")) == "9999"
    assert error_type(RequestTimeout("x")) == "skylarkmq.client.errors.RequestTimeout"
    assert error_type(ValueError("x")) == "ValueError"


async def test_without_the_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, recorded: Recorded
) -> None:
    monkeypatch.setitem(sys.modules, "skylarkmq.client.observe.otel", None)
    with pytest.raises(NotSupported, match=r"\[otel\]"):
        await Observed(tracer_provider=recorded.provider).scenario()
