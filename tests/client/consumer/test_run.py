"""`run` at its edges: what hooks see, and stops from every place."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import re
from datetime import timedelta
from typing import Any

import pytest

from skylarkmq.client import (
    BrokerError,
    Client,
    Consumer,
    FilterRefused,
    MessageQueue,
    ReceivedMessage,
    StartFrom,
)
from skylarkmq.client.instance import services_of
from skylarkmq.client.observe.hooks import ClientHook, ConsumeContext, ConsumeOutcome
from skylarkmq.client.refusals import REFUSED_S
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.client.consumer.support import GROUP, Group
from tests.client.consumer.test_orderly import Ordered
from tests.support.manual_clock import settle

span: contextvars.ContextVar[str] = contextvars.ContextVar("span", default="none")


class Watching(ClientHook):
    """Notes every call of a handler, and sets a context variable around it."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[bytes], ConsumeOutcome, str]] = []

    def before_consume(self, context: ConsumeContext) -> None:
        assert context.group == GROUP
        span.set(f"span of {context.messages[0].queue_offset}")

    def after_consume(
        self, context: ConsumeContext, outcome: ConsumeOutcome, error: BaseException | None
    ) -> None:
        bodies = [message.body for message in context.messages if not message.reconsume_times]
        if not bodies:
            return
        self.seen.append((bodies, outcome, type(error).__name__))


async def test_hooks_see_each_call_of_the_handler_and_reach_into_it() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"good", b"bad", b"nacked", b"dead", b"hangs")
    consumer = await it.consumer()
    hook = Watching()
    services_of(consumer._client).hooks.append(hook)
    spans: list[str] = []

    async def handle(message: ReceivedMessage) -> None:
        if message.reconsume_times:
            return
        spans.append(span.get())
        match message.body:
            case b"bad":
                raise KeyError("bad")
            case b"nacked":
                await message.nack(delay=timedelta(seconds=1))
            case b"dead":
                await message.dead_letter()
            case b"hangs":
                await asyncio.Event().wait()

    running = asyncio.create_task(consumer.run(handle, concurrency=1))
    await it.pass_time(1)
    assert spans[:5] == [f"span of {number}" for number in range(5)]
    assert hook.seen == [
        ([b"good"], "ok", "NoneType"),
        ([b"bad"], "retry", "KeyError"),
        ([b"nacked"], "retry", "NoneType"),
        ([b"dead"], "dead_letter", "NoneType"),
    ]
    await it.wait(consumer.stop(timeout=1))
    await running
    assert hook.seen[4:] == [([b"hangs"], "cancelled", "CancelledError")]


async def test_an_ordered_failure_is_seen_as_suspended() -> None:
    it = Ordered({"orders": 1})
    it.broker.add("orders", 0, b"bad")
    consumer = await it.consumer()
    hook = Watching()
    services_of(consumer._client).hooks.append(hook)

    async def fail(message: ReceivedMessage) -> None:
        raise KeyError("bad")

    running = asyncio.create_task(consumer.run(fail))
    await it.pass_time(0.5)
    assert hook.seen == [([b"bad"], "suspended", "KeyError")]
    await it.stop(consumer)
    await running


async def test_a_cancelled_stop_goes_on_without_the_drain() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"a", b"b")
    consumer = await it.consumer()
    ends: list[str] = []

    async def handle(message: ReceivedMessage) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    running = asyncio.create_task(consumer.run(handle))
    await it.pass_time(1)
    stopping = asyncio.create_task(consumer.stop(timeout=1000))
    await it.pass_time(1)
    assert ends == []
    stopping.cancel()
    await it.pass_time(1)
    assert stopping.cancelled()
    assert ends == ["cancelled"] * 2
    await it.stop(consumer)
    await running
    assert it.broker.clients[GROUP] == {}


async def test_a_handler_that_does_not_end_when_cancelled_holds_up_no_stop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"a")
    consumer = await it.consumer()
    release = asyncio.Event()

    async def stubborn(message: ReceivedMessage) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    running = asyncio.create_task(consumer.run(stubborn))
    await it.pass_time(1)
    with caplog.at_level(logging.ERROR):
        await it.wait(consumer.stop(timeout=2))
    assert "go on after their cancellation" in caplog.text
    assert it.broker.clients[GROUP] == {}, "it has left"
    assert it.offset(0) in (None, 0)
    release.set()
    await running


async def test_a_stopping_consumer_takes_nothing_more() -> None:
    it = Group({"orders": 2})
    it.broker.add("orders", 0, b"a")
    it.broker.add("orders", 1, b"b")
    consumer, other = await it.consumer(), await it.consumer()
    await it.pass_time(1)
    release = asyncio.Event()
    running = asyncio.create_task(consumer.run(lambda message: release.wait()))
    await it.pass_time(1)
    stopping = asyncio.create_task(consumer.stop())
    await it.pass_time(1)
    pulls = len(it.broker.of_code(RequestCode.PULL_MESSAGE))
    await it.wait(other.stop())
    await it.pass_time(25)
    assert len(it.broker.of_code(RequestCode.PULL_MESSAGE)) == pulls
    release.set()
    await it.wait(stopping)
    await running


@pytest.mark.parametrize("callback", ["on_assigned", "on_revoked"])
async def test_a_callback_may_stop_its_consumer(callback: str) -> None:
    it = Group({"orders": 2})
    calls: list[int] = []

    async def stop(queues: list[MessageQueue]) -> None:
        calls.append(len(queues))
        if callback == "on_revoked" or len(calls) == 2:
            await consumer.stop()

    consumer = await it.consumer(**{callback: stop})
    other = await it.consumer()
    await it.wait(other.stop())
    await it.pass_time(25)
    await it.wait(consumer.stop())
    assert calls
    assert it.broker.clients[GROUP] == {}


async def test_namespaces_are_the_inside_s_affair() -> None:
    it = Group({"shop%orders": 1})
    it.broker.add("shop%orders", 0, b"a", b"b")
    client = Client(
        it.cluster.namesrv, network=it.cluster.network, clock=it.clock, namespace="shop"
    )
    consumer = Consumer("orders", client=client, group=GROUP, start_from=StartFrom.FIRST)
    await it.wait(consumer.start())
    messages = [await it.wait(consumer.getone()) for _ in range(2)]
    assert [message.topic for message in messages] == ["orders"] * 2
    (queue,) = consumer.assignment()
    assert queue == messages[0].queue == MessageQueue("orders", "broker-a", 0)
    consumer.seek(queue, 0)
    assert (await it.wait(consumer.getone())).body == b"a"
    await it.wait(messages[1].ack())
    data = it.broker.heartbeats[-1].consumer_data_set[0]
    assert data.group_name == f"shop%{GROUP}"
    assert {each.topic for each in data.subscription_data_set} == {
        "shop%orders", f"%RETRY%shop%{GROUP}",
    }  # fmt: skip
    await it.wait(consumer.stop())
    await it.wait(client.stop())
    await settle()


# What the broker refuses


async def test_run_raises_what_a_broker_refuses_heartbeats_with() -> None:
    """Such a consumer started, and received nothing for ever."""
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"one")
    it.broker.refuse(RequestCode.HEART_BEAT, *[ResponseCode.SYSTEM_ERROR] * 1000)
    consumer = await it.consumer()
    with pytest.raises(BrokerError, match="refused by the test"):
        await it.wait(consumer.run(lambda message: None), REFUSED_S)
    it.broker.refusals.clear()
    seen: list[bytes] = []
    running = asyncio.create_task(consumer.run(lambda message: seen.append(message.body)))
    await it.pass_time(35.0)
    assert seen == [b"one"], "run goes on after the broker has changed its mind"
    await it.wait(consumer.stop())
    await running


@pytest.mark.parametrize(
    "codes",
    [
        [ResponseCode.SYSTEM_BUSY] * 1000,
        [ResponseCode.SERVICE_NOT_AVAILABLE] * 1000,
        [ResponseCode.SYSTEM_ERROR] * 2,
    ],
)
async def test_run_outlasts_a_broker_that_cannot_take_heartbeats_now(codes: list[int]) -> None:
    it = Group({"orders": 1})
    consumer = await it.consumer()
    running = asyncio.create_task(consumer.run(lambda message: None))
    await it.pass_time(1.0)
    it.broker.refuse(RequestCode.HEART_BEAT, *codes)
    await it.pass_time(300.0)
    assert not running.done()
    await it.wait(consumer.stop())
    await running


async def test_getone_raises_it_too_and_so_does_a_pull_that_is_refused() -> None:
    it = Group({"orders": 1})
    codes = [ResponseCode.SUBSCRIPTION_PARSE_FAILED] * 2  # the retry topic has a queue, too
    it.broker.refuse(RequestCode.PULL_MESSAGE, *codes)
    consumer = await it.consumer()
    with pytest.raises(FilterRefused, match="refused by the test"):
        await it.wait(consumer.getone())
    it.broker.add("orders", 0, b"one")
    assert (await it.wait(consumer.getone(), 3.0)).body == b"one"
    await it.wait(consumer.stop())


@pytest.mark.parametrize(
    ("handler", "settings", "error"),
    [
        (None, {}, "run takes the handler itself, as run(handle), not None"),
        (asyncio.sleep, {"concurrency": "4"}, "concurrency is a whole number, not '4'"),
        (asyncio.sleep, {"concurrency": 0}, "concurrency is 1 or more, not 0"),
        (asyncio.sleep, {"max_batch": 0}, "max_batch is 1 or more, not 0"),
        (asyncio.sleep, {"stop_on": 15}, "stop_on is a list of signals, as (SIGTERM, SIGINT), no"),
        (asyncio.sleep, {"stop_on": ["SIGTERM"]}, "stop_on is a list of signals, as (SIGTERM, "),
    ],
)
async def test_what_run_cannot_use_is_told_before_a_message_is_taken(
    handler: Any, settings: dict[str, Any], error: str
) -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"a")
    consumer = await it.consumer()
    with pytest.raises((TypeError, ValueError), match=re.escape(error)):
        await consumer.run(handler, **settings)
    assert (await it.wait(consumer.getone())).body == b"a"
    await it.stop(consumer)
