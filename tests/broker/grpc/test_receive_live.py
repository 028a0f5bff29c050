"""Consumers of the gRPC protocol on a whole broker, over sockets; producers use our SDK.

The broker's clock is the test's: neither a poll nor an invisible time ends by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.pop.receiving import WAITING_MAX
from skylarkmq.client import Producer
from skylarkmq.protocol.message import Message
from skylarkmq.protocol.v5 import schema_pb2 as v5
from skylarkmq.protocol.v5.codes import Code
from tests.broker.grpc.rig import METADATA, Client
from tests.support.live_broker import live_broker, namesrv_of
from tests.support.manual_clock import ManualClock
from tests.support.patience import LIMIT_S, LOOK_EVERY_S, until

pytestmark = pytest.mark.timing

GROUP, TOPIC = "group", "orders"
SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1))
"""A client that does not read lets the broker send 64 KiB."""
SOON_S = 300
"""On the test's clock: how often it looks whether a thread is ready, not how long that takes."""


class Rig:
    """A broker, a client of it, and a producer."""

    def __init__(self, broker: BrokerController, clock: ManualClock, producer: Producer) -> None:
        self.broker = broker
        self.clock = clock
        self.producer = producer

    @asynccontextmanager
    async def client(self, client_id: str = "host@1@0@abc") -> AsyncGenerator[Consumer]:
        """Open a connection of a client."""
        assert self.broker.grpc_address is not None
        target = f"127.0.0.1:{self.broker.grpc_address[1]}"
        async with grpc.aio.insecure_channel(target, options=SMALL_WINDOW) as channel:
            yield Consumer(channel, (("x-mq-client-id", client_id), *METADATA[1:]))

    async def pass_time(self, seconds: float) -> None:
        """Let time go by for the broker, in steps of its timers."""
        for _ in range(round(seconds * 2)):
            self.clock.advance(0.5)
            await asyncio.sleep(0)

    async def taken_soon(self, client: Consumer) -> list[v5.Message]:
        """Receive, again and again: the broker's threads and sockets need a moment."""
        last_s = self.clock.monotonic() + SOON_S
        while not (messages := await client.take()):
            assert self.clock.monotonic() < last_s
            await self.pass_time(0.5)
            await asyncio.sleep(LOOK_EVERY_S)
        return messages

    @property
    def waiting(self) -> int:
        """Polls that wait in the broker."""
        return self.broker.parts.pop.receiver.waiting(GROUP, TOPIC)

    @property
    def mark(self) -> int:
        """Messages that are done, of all queues."""
        offsets = self.broker.parts.offsets
        return sum(max(0, offsets.query(GROUP, TOPIC, queue_id)) for queue_id in range(8))


class Consumer(Client):
    """A client that receives and acknowledges."""

    def begin(self, **fields: Any) -> Any:
        """Begin a receive; iterate over what it returns."""
        fields.setdefault("invisible_duration", {"seconds": 30})
        fields.setdefault("batch_size", 32)
        request = v5.ReceiveMessageRequest(
            group={"name": GROUP},
            message_queue={"topic": {"name": TOPIC, "resource_namespace": "NS"}},
            **fields,
        )
        return self.receive(request)

    async def take(self, **fields: Any) -> list[v5.Message]:
        """Receive what is there, without waiting."""
        return messages_of([frame async for frame in self.begin(long_polling_timeout={}, **fields)])

    async def done(self, *messages: v5.Message) -> int:
        """Acknowledge; return the code."""
        request = v5.AckMessageRequest(
            group={"name": GROUP},
            topic={"name": TOPIC},
            entries=[
                {
                    "message_id": message.system_properties.message_id,
                    "receipt_handle": message.system_properties.receipt_handle,
                }
                for message in messages
            ],
        )
        code: int = (await self.call("AckMessage", request)).status.code
        return code


def messages_of(frames: list[v5.ReceiveMessageResponse]) -> list[v5.Message]:
    """The messages of an answer, which is whole."""
    assert frames[0].status.code in (Code.OK, Code.MESSAGE_NOT_FOUND), frames[0]
    assert frames[-1].HasField("delivery_timestamp")
    return [frame.message for frame in frames[1:-1]]


def attempts_of(messages: list[v5.Message]) -> set[int]:
    return {message.system_properties.delivery_attempt for message in messages}


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    clock = ManualClock()
    async with (
        live_broker(tmp_path, clock=clock, grpc_listen_port=0) as broker,
        Producer(namesrv_addr=namesrv_of(broker)) as producer,
    ):
        yield Rig(broker, clock, producer)


async def test_what_the_sdk_sends_is_received_and_acknowledged(rig: Rig) -> None:
    long_body = b"compressible " * 1000
    message = Message(TOPIC, b"hello", tags="TagA", keys="k1 k2", properties={"color": "blue"})
    sent = await rig.producer.send(message)
    compressed = await rig.producer.send(Message(TOPIC, long_body))

    async with rig.client() as client:
        first, second = sorted(await client.take(), key=lambda one: len(one.body))
        assert (first.body, second.body) == (b"hello", long_body)
        assert (first.topic.name, first.topic.resource_namespace) == (TOPIC, "NS")
        assert first.user_properties == {"color": "blue"}
        system = first.system_properties
        assert (system.tag, list(system.keys)) == ("TagA", ["k1", "k2"])
        assert system.message_id == sent.msg_id
        assert (system.queue_id, system.queue_offset) == (sent.queue.queue_id, sent.queue_offset)
        assert second.system_properties.message_id == compressed.msg_id
        assert second.system_properties.body_encoding == v5.IDENTITY
        assert not second.user_properties

        assert await client.done(first, second) == Code.OK
        assert rig.mark == 2
        await rig.pass_time(60)
        assert not await client.take()


async def test_a_listener_that_takes_75_seconds_gets_its_message_once(rig: Rig) -> None:
    await rig.producer.send(Message(TOPIC, b"slow"))
    async with rig.client() as client:
        (slow,) = await client.take(auto_renew=True)
        for _ in range(5):
            await rig.pass_time(15)
            assert not await client.take(auto_renew=True)
        assert await client.done(slow) == Code.OK
    assert rig.mark == 1
    await rig.pass_time(600)
    async with rig.client() as client:
        assert not await client.take()


async def test_what_a_silent_push_consumer_has_comes_again(rig: Rig) -> None:
    await rig.producer.send(Message(TOPIC, b"lost"))
    async with rig.client() as client:
        (lost,) = await client.take(auto_renew=True)
    await rig.pass_time(110)
    async with rig.client("another@1@0@abc") as client:
        assert not await client.take()
        await rig.pass_time(25)
        (again,) = await rig.taken_soon(client)
        assert (again.body, attempts_of([again])) == (b"lost", {2})
        assert await client.done(lost) == Code.INVALID_RECEIPT_HANDLE
        assert await client.done(again) == Code.OK


async def test_what_was_in_hand_when_the_broker_stopped(tmp_path: Path) -> None:
    """It is in the same hands afterwards, and what was acknowledged does not come again."""
    clock = ManualClock()
    async with (
        live_broker(tmp_path, clock=clock, grpc_listen_port=0) as broker,
        Producer(namesrv_addr=namesrv_of(broker)) as producer,
    ):
        rig = Rig(broker, clock, producer)
        for body in (b"0", b"1", b"2"):
            await producer.send(Message(TOPIC, body))
        async with rig.client() as client:
            messages = await client.take()
            assert await client.done(messages[0]) == Code.OK
    async with live_broker(tmp_path, clock=clock, grpc_listen_port=0) as broker:
        rig = Rig(broker, clock, producer)
        async with rig.client() as client:
            assert not await client.take()
            assert await client.done(messages[1]) == Code.OK
            await rig.pass_time(31)
            (again,) = await rig.taken_soon(client)
            assert (again.body, attempts_of([again])) == (messages[2].body, {2})


async def test_an_answer_that_is_cancelled_in_the_middle_comes_again_soon(rig: Rig) -> None:
    for number in range(6):
        body = b"%d" % number + bytes(500_000)
        await rig.producer.send(Message(TOPIC, body, sharding_key="same queue"))
    async with rig.client() as client:
        call = client.begin(invisible_duration={"seconds": 3600})
        assert (await call.read()).status.code == Code.OK
        assert (await call.read()).message.body[:1] == b"0"
        call.cancel()

        messages: list[v5.Message] = []
        while len(messages) < 6:
            messages += await rig.taken_soon(client)
        assert [message.body[:1] for message in messages] == [b"%d" % one for one in range(6)]
        assert attempts_of(messages) == {1}


async def test_a_client_that_goes_in_the_middle_of_a_poll_takes_nothing(rig: Rig) -> None:
    await rig.producer.send(Message(TOPIC, b"0"))
    async with rig.client() as client:
        assert await client.done(*await client.take()) == Code.OK
        poll = client.begin()
        waiting = asyncio.ensure_future(poll.read())
        await until(lambda: rig.waiting == 1)
    await asyncio.gather(waiting, return_exceptions=True)
    await until(lambda: rig.waiting == 0)

    await rig.producer.send(Message(TOPIC, b"1"))
    async with rig.client() as client:
        (message,) = await client.take()
    assert (message.body, attempts_of([message])) == (b"1", {1})


async def test_a_thousand_polls_wait_over_one_connection(rig: Rig) -> None:
    await rig.producer.send(Message(TOPIC, b"0"))
    async with rig.client() as client:
        assert await client.done(*await client.take()) == Code.OK
        hour = {"seconds": 3600}
        polls = [client.begin(invisible_duration=hour) for _ in range(1000)]
        answers = [asyncio.ensure_future(collect(poll)) for poll in polls]
        await until(lambda: rig.waiting == 1000)
        more = [asyncio.ensure_future(collect(client.begin())) for _ in range(50)]
        refused, _ = await asyncio.wait(more, return_when="FIRST_COMPLETED", timeout=LIMIT_S)
        assert refused.pop().result()[0].status.code == Code.TOO_MANY_REQUESTS
        assert rig.waiting == WAITING_MAX

        await rig.producer.send(Message(TOPIC, b"1"))
        done, _ = await asyncio.wait(answers, return_when="FIRST_COMPLETED", timeout=LIMIT_S)
        (message,) = messages_of(done.pop().result())
        assert message.body == b"1"
        for poll in polls:
            poll.cancel()
        for one in more:
            one.cancel()
        await until(lambda: rig.waiting == 0)
        assert await client.done(message) == Code.OK
        await asyncio.gather(*answers, *more, return_exceptions=True)
    assert rig.mark == 2


async def test_polls_are_answered_when_the_broker_stops(tmp_path: Path) -> None:
    async with AsyncExitStack() as clients:
        clock = ManualClock()
        async with (
            live_broker(tmp_path, clock=clock, grpc_listen_port=0) as broker,
            Producer(namesrv_addr=namesrv_of(broker)) as producer,
        ):
            rig = Rig(broker, clock, producer)
            await producer.send(Message(TOPIC, b"0"))
            client = await clients.enter_async_context(rig.client())
            assert await client.done(*await client.take()) == Code.OK
            polls = [asyncio.ensure_future(collect(client.begin())) for _ in range(5)]
            await until(lambda: rig.waiting == 5)
        for poll in polls:
            assert not messages_of(await poll)


async def collect(call: Any) -> list[v5.ReceiveMessageResponse]:
    """Read a whole answer."""
    return [frame async for frame in call]
