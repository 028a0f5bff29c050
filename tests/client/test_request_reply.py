"""Requests and replies over a scripted cluster: who is asked, who is told, and what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import pytest

from skylarkmq.client import (
    IllegalState,
    Message,
    MessageQueue,
    MessageTooLarge,
    Producer,
    Reply,
    ReplyNotDelivered,
    ReplyTimeout,
    RequestTimeout,
    RocketMQError,
    TooManyInFlight,
)
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.compression import decompress
from skylarkmq.protocol.flags import reply_topic
from skylarkmq.protocol.headers.send import decode_send_header
from skylarkmq.protocol.properties import decode_properties
from tests.client.support import Setting
from tests.support.amounts import slow
from tests.support.fake_cluster import FakeBroker
from tests.support.manual_clock import advance_async, settle

REPLIES = reply_topic("DefaultCluster")
ASKED = Message("rpc", b"what?", keys="k")


@dataclass
class Received:
    """A request as a consumer has it."""

    properties: Mapping[str, str]
    queue: MessageQueue


class It:
    """A producer that asks, and the queue where its requests come to lie."""

    def __init__(self, setting: Setting, broker: FakeBroker) -> None:
        self.setting = setting
        self.broker = broker
        self.producer: Producer = setting.producer
        self.seen = 0

    async def received(self) -> Received:
        """What a consumer of the topic gets next."""
        (queue,) = self.broker.topics["rpc"].queues
        for _ in range(200):
            if len(queue) > self.seen:
                break
            await asyncio.sleep(0)
        properties = {**queue[self.seen].properties, "CLUSTER": "DefaultCluster"}
        self.seen += 1
        return Received(properties, MessageQueue("rpc", self.broker.name, 0))


@pytest.fixture
async def it() -> AsyncIterator[It]:
    async with Setting(group="P") as setting:
        yield It(setting, setting.cluster.broker(topics={"rpc": 1, REPLIES: 1}))


async def test_a_request_and_its_reply(it: It) -> None:
    asking = asyncio.create_task(it.producer.request(ASKED, 5))
    received = await it.received()
    properties = dict(received.properties)
    assert properties["REPLY_TO_CLIENT"] == it.setting.client.client_id
    assert properties["TTL"] == "5000"
    assert len(properties["CORRELATION_ID"]) == 36
    codes = [each.code for each in it.broker.requests]
    first_heartbeat = codes.index(RequestCode.HEART_BEAT)
    assert first_heartbeat < codes.index(RequestCode.SEND_MESSAGE_V2)

    await it.producer.reply(received, "fine", tags="T", keys=["a", "b"], properties={"x": "y"})
    reply = await asking
    assert isinstance(reply, Reply)
    assert (reply.body, reply.tags, reply.keys) == (b"fine", "T", "a b")
    assert reply.properties["x"] == "y"
    assert reply.correlation_id == properties["CORRELATION_ID"]

    (sent,) = [each for each in it.broker.requests if each.code == 325]
    header = decode_send_header(sent.code, sent.ext_fields)
    assert (header.topic, header.broker_name) == (REPLIES, "broker-a")
    told = decode_properties(header.properties or "")
    assert told.pop("UNIQ_KEY")
    assert told == {
        "MSG_TYPE": "reply", "CORRELATION_ID": properties["CORRELATION_ID"], "TTL": "5000",
        "REPLY_TO_CLIENT": properties["REPLY_TO_CLIENT"], "TAGS": "T", "KEYS": "a b", "x": "y",
    }  # fmt: skip
    (answer,) = [each for each in it.broker.requests if each.is_response]
    assert answer.code == ResponseCode.SUCCESS


async def test_a_long_reply_is_compressed(it: It) -> None:
    asking = asyncio.create_task(it.producer.request(ASKED, 5))
    received = await it.received()
    body = b"a long reply " * 1000
    await it.producer.reply(received, body)
    assert (await asking).body == body
    (sent,) = [each for each in it.broker.requests if each.code == 325]
    assert len(sent.body) < len(body)
    assert decompress(sent.body, int(sent.ext_fields["f"]), len(body)) == body


async def test_nobody_replies(it: It) -> None:
    asking = asyncio.create_task(it.producer.request(ASKED, 2))
    received = await it.received()
    await advance_async(it.setting.clock, 2)
    with pytest.raises(ReplyTimeout, match="rpc within 2 s"):
        await asking
    await it.producer.reply(received, "late")  # taken, and told to nobody
    assert services_of(it.setting.client).replies.late_count == 1


async def test_a_request_that_is_refused(it: It) -> None:
    it.broker.refuse(RequestCode.SEND_MESSAGE_V2, ResponseCode.MESSAGE_ILLEGAL)
    with pytest.raises(RocketMQError, match="MESSAGE_ILLEGAL"):
        await it.producer.request(ASKED, 5)
    assert len(services_of(it.setting.client).replies) == 0


async def test_a_request_without_an_answer(it: It) -> None:
    await services_of(it.setting.client).routes.refresh("rpc")
    await services_of(it.setting.client).remoting.connection(it.broker.address)
    it.broker.silent = True
    asking = asyncio.create_task(it.producer.request(ASKED, 1))
    await advance_async(it.setting.clock, 10)
    with pytest.raises(RequestTimeout):
        await asking
    it.broker.silent = False
    assert it.producer.in_flight_count == 0


@pytest.mark.parametrize("many", [2000, slow(10_000)])
async def test_many_requests_make_no_tasks(many: int) -> None:
    async with Setting(group="P", max_in_flight=20_000) as setting:
        it = It(setting, setting.cluster.broker(topics={"rpc": 1, REPLIES: 1}))
        opening = it.producer.request_nowait(ASKED, 60)
        await it.producer.reply(await it.received(), "open")
        await opening
        before = len(asyncio.all_tasks())
        futures = [it.producer.request_nowait(ASKED, 60) for _ in range(many)]
        assert len(asyncio.all_tasks()) == before
        await settle(20)
        assert len(asyncio.all_tasks()) == before
        assert it.producer.in_flight_count == 0
        push = services_of(setting.client).replies
        assert len(push) == many
        await advance_async(setting.clock, 61)
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {ReplyTimeout}
        assert len(push) == 0


async def test_requests_within_limits() -> None:
    async with Setting(group="P", max_in_flight=2) as setting:
        it = It(setting, setting.cluster.broker(topics={"rpc": 1, REPLIES: 1}))
        await ask_and_answer(it)
        it.broker.silent = True
        first = [it.producer.request_nowait(ASKED, 5) for _ in range(2)]
        with pytest.raises(TooManyInFlight):
            it.producer.request_nowait(ASKED, 5)
        waits = asyncio.create_task(it.producer.request(ASKED, 1))
        await advance_async(setting.clock, 1)
        with pytest.raises(RequestTimeout, match="no room"):
            await waits
        for future in first:
            future.cancel()
        await settle(4)
        assert it.producer.in_flight_count == 0
        assert len(services_of(setting.client).replies) == 0


async def ask_and_answer(it: It) -> bytes:
    asking = asyncio.create_task(it.producer.request(ASKED, 5))
    await it.producer.reply(await it.received(), "yes")
    return (await asking).body


async def test_a_reply_goes_to_a_broker_that_knows_the_asker() -> None:
    async with Setting(group="P") as setting:
        first = setting.cluster.broker("broker-a", {"rpc": 1, REPLIES: 1})
        second = setting.cluster.broker("broker-b", {REPLIES: 1})
        it = It(setting, first)
        for refused_by, taken_by in ((first, second), (second, first)):
            asking = asyncio.create_task(it.producer.request(ASKED, 5))
            received = await it.received()
            refused_by.refuse(325, ResponseCode.SYSTEM_ERROR)
            await it.producer.reply(received, "x")
            assert (await asking).body == b"x"
            refused_by.refusals.clear()
            assert taken_by.requests[-1].is_response


async def test_a_reply_that_nobody_takes(it: It) -> None:
    gone = Received(
        {"CLUSTER": "DefaultCluster", "CORRELATION_ID": "c", "REPLY_TO_CLIENT": "gone"},
        MessageQueue("rpc", "broker-a", 0),
    )
    with pytest.raises(ReplyNotDelivered, match="gone"):
        await it.producer.reply(gone, b"")
    for missing in gone.properties:
        rest = {name: value for name, value in gone.properties.items() if name != missing}
        with pytest.raises(IllegalState, match="no request"):
            await it.producer.reply(Received(rest, gone.queue), b"")
    it.broker.silent = True
    late = asyncio.create_task(it.producer.reply(gone, b"", timeout=1))
    await advance_async(it.setting.clock, 1)
    with pytest.raises((RequestTimeout, ReplyNotDelivered)):
        await late
    it.broker.silent = False


async def test_stopping_ends_requests(it: It) -> None:
    asking = asyncio.create_task(it.producer.request(ASKED, 50))
    await it.received()
    stopping = asyncio.create_task(it.producer.stop())
    await advance_async(it.setting.clock, 1)
    await stopping
    with pytest.raises(IllegalState, match="stopped"):
        await asking
    assert len(services_of(it.setting.client).replies) == 0


async def test_a_request_that_is_too_large_holds_up_no_other() -> None:
    async with Setting(group="P", max_in_flight_bytes=4 << 20) as setting:
        broker = setting.cluster.broker(topics={"rpc": 1, REPLIES: 1})
        large = setting.producer.request_nowait(Message("rpc", bytes((4 << 20) + 1)), 5)
        setting.producer.request_nowait(ASKED, 5).add_done_callback(lambda done: done.exception())
        await settle(50)
        with pytest.raises(MessageTooLarge):
            await large
        assert len(broker.bodies("rpc")) == 1
        await advance_async(setting.clock, 6)
