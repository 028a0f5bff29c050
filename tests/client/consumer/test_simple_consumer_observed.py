"""What metrics, spans and RocketMQ's trace tell of a SimpleConsumer; no hook does it any harm."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from skylarkmq.client import (
    PoppedMessage,
    ReceiptExpired,
    RouteNotFound,
    SimpleConsumer,
    SystemBusy,
)
from skylarkmq.client.instance import services_of
from skylarkmq.client.observe.hooks import ClientHook, ReceiveContext, SettleContext
from skylarkmq.client.producer.trace import TRACE_TOPIC
from skylarkmq.client.producer.trace_records import (
    SubAfterTrace,
    SubBeforeTrace,
    TraceContextCode,
    TraceRecord,
    decode_traces,
)
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.client.consumer.support import GROUP
from tests.client.observed import Observed

WORK_S = 3.0
WHO = f'consumer_group="{GROUP}"'
CHANGE = "change_invisible_duration"


class Simple(Observed):
    """A cluster with one consumer, which is observed."""

    async def begin(self, **settings: Any) -> SimpleConsumer:
        self.consumer_ = SimpleConsumer("orders", group=GROUP, await_duration=1, **settings)
        self.consumer_._client = self.client()
        await self.wait(self.consumer_.start())
        return self.consumer_

    async def end(self) -> None:
        await self.wait(self.consumer_.stop())

    async def scenario(self) -> None:
        """Take two; one is done, and that once more; the other is given back and done then."""
        consumer = await self.begin()
        await self.send(b"done", b"bad")
        done, bad = await self.wait(consumer.receive())
        await self.pass_time(WORK_S)
        await self.wait(consumer.ack(done))
        await self.wait(consumer.change_invisible_duration(bad, 60))
        await self.wait(consumer.change_invisible_duration(bad, 0))
        with pytest.raises(ReceiptExpired):
            await self.wait(consumer.ack(done))
        (again,) = await self.wait(consumer.receive())
        await self.wait(consumer.ack(again))
        assert await self.wait(consumer.receive(timeout=0)) == []
        await self.end()


def lines_of(registry: CollectorRegistry, name: str) -> list[str]:
    """The values of one family's counts, without its name and the times of their making."""
    prefix = f"skylarkmq_client_{name}"
    found = [line for line in generate_latest(registry).decode().splitlines()]
    return [line.removeprefix(prefix) for line in found if line.startswith(prefix + "{")]


async def test_metrics_to_the_letter() -> None:
    registry = CollectorRegistry()
    await Simple(metrics=registry).scenario()
    assert lines_of(registry, "receive_duration_seconds_count") == [
        f'{{{WHO},outcome="ok"}} 2.0',
        f'{{{WHO},outcome="empty"}} 1.0',
    ]
    of = f'{WHO},operation="{{}}",outcome="{{}}",topic="orders"'
    assert lines_of(registry, "settle_duration_seconds_count") == [
        "{" + of.format("ack", "ok") + "} 2.0",
        "{" + of.format(CHANGE, "ok") + "} 2.0",
        "{" + of.format("ack", "ReceiptExpired") + "} 1.0",
    ]
    assert lines_of(registry, "received_messages_total") == [f'{{{WHO},topic="orders"}} 3.0']
    assert lines_of(registry, "receive_to_ack_seconds_count") == [f'{{{WHO},topic="orders"}} 2.0']
    (held,) = lines_of(registry, "receive_to_ack_seconds_sum")
    assert WORK_S <= float(held.split()[-1]) < WORK_S + 1
    assert lines_of(registry, "consume_duration_seconds_count") == [], "it has no handlers"


async def test_what_fails_counts_as_its_error() -> None:
    registry = CollectorRegistry()
    it = Simple(metrics=registry)
    consumer = await it.begin()
    it.broker.refuse(RequestCode.POP_MESSAGE, ResponseCode.SYSTEM_ERROR)
    with suppress(Exception):
        await it.wait(consumer.receive(timeout=0))
    waiting = asyncio.ensure_future(consumer.receive())
    await it.pass_time(0.5)
    waiting.cancel()
    await it.pass_time(0.1)
    outcomes = [line.split('outcome="')[1].split('"')[0] for line in
                lines_of(registry, "receive_duration_seconds_count")]  # fmt: skip
    assert outcomes == ["BrokerError", "CancelledError"]
    await it.end()


async def test_spans() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="the SDK of OpenTelemetry is in the extra dev")
    from tests.client.test_otel import Recorded

    recorded = Recorded()
    it = Simple(tracer_provider=recorded.provider)
    with recorded.provider.get_tracer("program").start_as_current_span("work") as work:
        await it.scenario()
    sends = [span.context.span_id for span in recorded.spans("send orders")]
    received, _ = recorded.spans("receive orders")
    assert [link.context.span_id for link in received.links] == sends
    attributes = dict(received.attributes or {})
    assert attributes["messaging.consumer.group.name"] == GROUP
    assert attributes["messaging.batch.message_count"] == 2
    assert attributes["messaging.operation.type"] == "receive"
    done, late, _ = recorded.spans("ack orders")
    assert len(recorded.spans(f"{CHANGE} orders")) == 2
    for span in (received, done, late):
        assert span.parent is not None
        assert span.parent.span_id == work.get_span_context().span_id
    assert [link.context.span_id for link in done.links] == sends[:1]
    attributes = dict(done.attributes or {})
    assert attributes["messaging.operation.name"] == "ack"
    assert attributes["messaging.operation.type"] == "settle"
    assert attributes["messaging.destination.partition.id"].startswith("broker-a:")
    assert "error.type" not in attributes
    assert (late.attributes or {})["error.type"] == "NO_MESSAGE"
    assert recorded.spans("receive") == [], "one that brings nothing has no span"


async def test_the_span_of_a_receive_that_fails() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="the SDK of OpenTelemetry is in the extra dev")
    from tests.client.test_otel import Recorded

    recorded = Recorded()
    it = Simple(tracer_provider=recorded.provider)
    consumer = await it.begin()
    waiting = asyncio.ensure_future(consumer.receive())
    await it.pass_time(0.5)
    waiting.cancel()
    await it.pass_time(0.1)
    await it.wait(consumer.unsubscribe("orders"))
    await it.wait(consumer.subscribe("nowhere"))
    with pytest.raises(RouteNotFound):
        await it.wait(consumer.receive())
    (failed,) = recorded.spans("receive")
    attributes = dict(failed.attributes or {})
    assert attributes["error.type"] == "skylarkmq.client.errors.RouteNotFound"
    assert "messaging.destination.name" not in attributes
    await it.end()


async def test_the_trace_topic() -> None:
    it = Simple({"orders": 1, TRACE_TOPIC: 1})
    it.broker.add("orders", 0, b"good", KEYS="k")
    it.broker.add("orders", 0, b"bad")
    it.broker.add("orders", 0, b"late")
    it.broker.add("orders", 0, b"private", TRACE_ON="false")
    consumer = await it.begin(trace=True)
    good, bad, late, private = await it.wait(consumer.receive())
    await it.wait(consumer.change_invisible_duration(good, 60))
    await it.pass_time(WORK_S)
    await it.wait(consumer.ack(good))
    with pytest.raises(ReceiptExpired):
        await it.wait(consumer.ack(good))
    await it.wait(consumer.change_invisible_duration(bad, 0))
    it.broker.refuse(RequestCode.ACK_MESSAGE, ResponseCode.SYSTEM_BUSY, ResponseCode.NO_MESSAGE)
    with pytest.raises(SystemBusy):
        await it.wait(consumer.ack(late))
    with pytest.raises(ReceiptExpired):
        await it.wait(consumer.ack(late))
    await it.wait(consumer.ack(private))
    await it.end()
    records: list[TraceRecord] = []
    for message in it.broker.topics[TRACE_TOPIC].queues[0]:
        records += decode_traces(message.body)
    before = [record for record in records if isinstance(record, SubBeforeTrace)]
    after = [record for record in records if isinstance(record, SubAfterTrace)]
    assert [(each.msg_id, each.keys) for each in before] == [("U0", "k"), ("U1", ""), ("U2", "")]
    code = TraceContextCode
    assert [(each.msg_id, each.success, each.context_code) for each in after] == [
        ("U0", True, code.SUCCESS),
        ("U1", False, code.FAILED),
        ("U2", False, code.TIME_OUT),
    ]
    assert {each.request_id for each in after} == {before[0].request_id}
    assert {each.group for each in after} == {GROUP}
    assert after[0].cost_ms >= WORK_S * 1000


class Noted(ClientHook):
    """Notes what it is told of."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def before_receive(self, context: ReceiveContext) -> None:
        self.told.append("receive")

    def after_receive(
        self,
        context: ReceiveContext,
        messages: Sequence[PoppedMessage],
        error: BaseException | None,
    ) -> None:
        self.told.append(f"received {len(messages)}")

    def before_settle(self, context: SettleContext) -> None:
        self.told.append(context.operation)

    def after_settle(self, context: SettleContext, error: BaseException | None) -> None:
        self.told.append(f"settled, {context.invisible_ms} ms, {type(error).__name__}")
        raise ValueError("no use")


async def test_hooks_are_told_of_what_the_program_calls(caplog: pytest.LogCaptureFixture) -> None:
    it = Simple()
    consumer = await it.begin()
    hook = Noted()
    services_of(consumer._client).hooks.append(hook)
    it.broker.add("orders", 0, b"a")
    waiting = asyncio.ensure_future(consumer.receive(1))  # its message goes to the next receive
    await asyncio.sleep(0)
    waiting.cancel()
    (message,) = await it.wait(consumer.receive())
    with caplog.at_level(logging.CRITICAL, "skylarkmq.client.observe.hooks"):
        await it.wait(consumer.change_invisible_duration(message, 2))
        await it.wait(consumer.ack(message))
    assert hook.told == [
        "receive", "received 0", "receive", "received 1",
        CHANGE, "settled, 2000 ms, NoneType", "ack", "settled, 0 ms, NoneType",
    ]  # fmt: skip
    it.broker.add("orders", 0, b"b")
    await it.wait(consumer.receive())
    hook.told.clear()
    await it.end()
    assert hook.told == [], "what the consumer does by itself is none of it"
