"""Access control is switched on at one broker of three: the SDK goes on with the open ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from skylarkmq.client import (
    AuthError,
    Consumer,
    Message,
    NoPermission,
    PoppedMessage,
    SendResult,
    SimpleConsumer,
)
from skylarkmq.client.refusals import REFUSED_S
from skylarkmq.protocol.bodies.group import HeartbeatData
from skylarkmq.protocol.bodies.text import decode_body, encode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.remoting_command import RemotingCommand
from tests.client.consumer.support import GROUP
from tests.client.three_brokers import ThreeBrokers
from tests.support.fake_cluster import FakeBroker
from tests.support.scripted_stream import ScriptedStream

LONG_S = 15 * REFUSED_S
"""After that long a broker's refusals are no passing thing."""


@pytest.fixture
async def it() -> ThreeBrokers:
    return ThreeBrokers()


async def test_only_sends_to_that_broker_are_refused(it: ThreeBrokers) -> None:
    producer = await it.producer()
    it.sick.refuses_all = True
    results = [(await it.timed(producer.send(Message("orders", b"m"))))[0] for _ in range(6)]
    assert sum(isinstance(each, SendResult) for each in results) == 4
    assert sum(isinstance(each, AuthError) for each in results) == 2
    await it.wait(producer.stop())


@pytest.mark.parametrize("refuses", ["before the start", "later"])
async def test_a_consumer_goes_on_with_the_open_brokers(it: ThreeBrokers, refuses: str) -> None:
    it.sick.refuses_all = refuses == "before the start"
    consumer = await it.consumer()
    it.sick.refuses_all = True
    got: set[bytes] = set()

    async def handle(message: object) -> None:
        got.add(message.body)  # type: ignore[attr-defined]

    running = asyncio.create_task(consumer.run(handle))
    it.put(b"early")
    await it.pass_time(LONG_S)
    assert got == it.expected(b"early")
    it.put(b"late")
    await it.pass_time(1)
    ended = running.done()
    await it.wait(consumer.stop())
    await asyncio.gather(running, return_exceptions=True)
    assert not ended
    assert got == it.expected(b"early", b"late")


async def test_a_consumer_goes_on_where_its_filter_is_taken(it: ThreeBrokers) -> None:
    consumer = await it.consumer()
    it.sick.refuse(RequestCode.PULL_MESSAGE, *[ResponseCode.SUBSCRIPTION_PARSE_FAILED] * 1000)
    running = asyncio.create_task(consumer.run(nothing))
    await it.pass_time(LONG_S)
    assert not running.done()
    await it.wait(consumer.stop())
    await running


async def nothing(message: object) -> None:
    """Handle a message."""


@pytest.mark.parametrize("has_slave", [False, True])
async def test_a_consumer_that_all_masters_refuse_says_so(
    it: ThreeBrokers, has_slave: bool
) -> None:
    if has_slave:  # which refuses nothing
        it.cluster.slave(it.sick)
    consumer = await it.consumer()
    for broker in (it.sick, *it.well):
        broker.refuses_all = True
    running = asyncio.create_task(consumer.run(nothing))
    await it.pass_time(LONG_S)
    assert isinstance(running.exception(), AuthError)
    await it.wait(consumer.stop())


async def test_heartbeats_that_are_refused_with_the_same_words_are_told_once(
    it: ThreeBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "skylarkmq.client.services")
    consumer = await it.consumer()
    told: list[int] = []
    for refuses in (True, False, True):
        for broker in (it.sick, *it.well):
            broker.refuses_all = refuses
        await it.pass_time(LONG_S)
        told.append(sum("heartbeat to" in each.message for each in caplog.records))
    await it.wait(consumer.stop())
    assert told == [1, 1, 2], "and again when one that was taken is refused later"


async def simple(it: ThreeBrokers) -> tuple[SimpleConsumer, PoppedMessage]:
    """A consumer with a message in hand."""
    consumer = SimpleConsumer("orders", group=GROUP, invisible_duration=600)
    consumer._client = it.client()
    await it.wait(consumer.start())
    it.well[0].add("orders", 0, b"m")
    (message,) = await it.wait(consumer.receive())
    return consumer, message


async def test_a_message_of_an_open_broker_is_acknowledged(it: ThreeBrokers) -> None:
    consumer, message = await simple(it)
    it.sick.refuses_all = True
    await it.pass_time(LONG_S)
    it.sick.refuses_all = False
    result, _ = await it.timed(consumer.ack(message))
    await it.wait(consumer.stop())
    assert result is None
    assert len(it.well[0].pops.done) == 1


async def test_a_simple_consumer_goes_on_with_the_open_brokers(
    it: ThreeBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    consumer, _ = await simple(it)
    it.sick.refuses_all = True
    await it.pass_time(LONG_S)
    it.put(b"1", b"2")
    got: set[bytes] = set()
    for _ in range(6):
        got |= {each.body for each in await it.wait(consumer.receive(timeout=0.1), 12)}
    assert got == it.expected(b"1", b"2")
    assert "nothing from" in caplog.text
    await it.wait(consumer.stop())


async def test_a_refusal_that_is_over_is_raised_no_more(it: ThreeBrokers) -> None:
    consumer = await it.consumer()
    for broker in (it.sick, *it.well):
        broker.refuses_all = True
    await it.pass_time(LONG_S)
    it.well[0].refuses_all = False
    await it.pass_time(LONG_S)
    it.well[0].add("orders", 0, b"m")
    message = await it.wait(consumer.getone())
    assert message.body == b"m"
    await it.wait(consumer.stop())


async def test_a_consumer_of_topics_that_only_that_broker_has_says_so(it: ThreeBrokers) -> None:
    """Its client has other brokers, which take its heartbeats."""
    it.sick.topics["returns"] = it.sick.topics["orders"]
    client = it.client()
    await it.wait(client.start())
    consumers = [Consumer(topic, group=topic, client=client) for topic in ("orders", "returns")]
    for consumer in consumers:
        await it.wait(consumer.start())
    it.sick.refuses_all = True
    orders, returns = (asyncio.create_task(each.run(nothing)) for each in consumers)
    await it.pass_time(LONG_S)
    assert not orders.done()
    assert isinstance(returns.exception(), AuthError)
    for consumer in consumers:
        await it.wait(consumer.stop())
    await it.wait(client.stop())
    await orders


# A group that is consumed in another way


def popped(it: ThreeBrokers, group: str, *brokers: FakeBroker) -> None:
    """Have brokers refuse a group, as where others pop its messages, and take the others."""

    def answering(broker: FakeBroker) -> Callable[..., Any]:
        plainly = broker.respond

        def answer(request: RemotingCommand, stream: ScriptedStream) -> Any:
            if request.code == RequestCode.HEART_BEAT:
                data = decode_body(HeartbeatData, request.body)
                kept = [each for each in data.consumer_data_set if each.group_name != group]
                if len(kept) < len(data.consumer_data_set):
                    plainly(replace_body(request, replace(data, consumer_data_set=kept)), stream)
                    remark = f"group {group} has members that pop its messages"
                    return request.reply(ResponseCode.NO_PERMISSION, remark)
            return plainly(request, stream)

        return answer

    for broker in brokers:
        broker.respond = answering(broker)  # type: ignore[method-assign]


def replace_body(request: RemotingCommand, data: HeartbeatData) -> RemotingCommand:
    return RemotingCommand.request(request.code, request.ext_fields, encode_body(data))


async def test_a_consumer_of_a_popped_group_does_not_start(
    it: ThreeBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    popped(it, GROUP, it.sick, *it.well)
    client = it.client()
    consumer = Consumer("orders", group=GROUP, client=client)
    refusal, took_s = await it.timed(consumer.start())
    assert isinstance(refusal, NoPermission)
    assert "has members that pop its messages" in str(refusal)
    assert took_s < 1
    told = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert len(told) == 1
    assert "heartbeat to" in told[0]
    await it.wait(client.stop())
    assert it.clock.pending_count == 0


async def test_a_slave_that_takes_it_does_not_let_it_start(it: ThreeBrokers) -> None:
    """It does not know who pops at its master, which alone lists members."""
    it.cluster.slave(it.sick)
    popped(it, GROUP, it.sick, *it.well)
    client = it.client()
    consumer = Consumer("orders", group=GROUP, client=client)
    refusal, _ = await it.timed(consumer.start())
    assert isinstance(refusal, NoPermission)
    await it.wait(client.stop())


async def test_it_starts_where_one_broker_takes_it_and_tells_once_who_does_not(
    it: ThreeBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    popped(it, GROUP, it.sick)
    consumer = await it.consumer()
    it.put(b"m")
    assert (await it.wait(consumer.getone())).body.endswith(b":m")
    await it.pass_time(LONG_S)
    told = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert sum("heartbeat to" in each for each in told) == 1
    await it.wait(consumer.stop())


async def test_other_groups_of_the_client_have_nothing_to_do_with_it(
    it: ThreeBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    """Their consumers were ended with the refusal of the one."""
    client = it.client()
    await it.wait(client.start())
    good, bad = (Consumer("orders", group=each, client=client) for each in (GROUP, "bad"))
    for consumer in (good, bad):
        await it.wait(consumer.start())
    brokers = (it.sick, *it.well)
    popped(it, "bad", *brokers)
    for broker in brokers:
        broker.clients["bad"] = dict.fromkeys(broker.clients["bad"], "another")
    runs = [asyncio.create_task(each.run(nothing)) for each in (good, bad)]
    await it.pass_time(LONG_S)
    assert not runs[0].done()
    assert isinstance(runs[1].exception(), NoPermission)
    unlisted = "group bad: the broker does not list this client"
    assert caplog.text.count(unlisted) == 2, "once for its topic, and for that of its retries"
    for consumer in (good, bad):
        await it.wait(consumer.stop())
    await it.wait(client.stop())
    await runs[0]


async def test_a_refused_group_does_not_multiply_the_heartbeats_of_others(it: ThreeBrokers) -> None:
    names = {f"g{number}" for number in range(9)}
    client, plainly, seen = it.client(), it.sick.respond, list[set[str]]()
    await it.wait(client.start())
    consumers = [Consumer("orders", group=name, client=client) for name in sorted(names)]
    for consumer in consumers:
        await it.wait(consumer.start())

    def noting(request: RemotingCommand, stream: ScriptedStream) -> Any:
        if request.code == RequestCode.HEART_BEAT:
            data = decode_body(HeartbeatData, request.body)
            seen.append({each.group_name for each in data.consumer_data_set})
        return answer(request, stream)

    popped(it, "g0", it.sick)
    answer, it.sick.respond = it.sick.respond, noting  # type: ignore[method-assign]
    await it.pass_time(LONG_S)
    assert seen[:10] == [names, *({name} for name in sorted(names))], "who is refused?"
    assert seen[10:14] == [names - {"g0"}, {"g0"}] * 2
    answer = plainly
    await it.pass_time(LONG_S)
    assert seen[-1] == names, "it is taken again"
    for consumer in consumers:
        await it.wait(consumer.stop())
    await it.wait(client.stop())
