"""Our SDK against RocketMQ's own broker and beside its own clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from typing import TypeVar

import pytest

from skylarkmq.client import (
    Client,
    Consumer,
    Message,
    MessageQueue,
    Producer,
    ReceivedMessage,
    SendStatus,
    StartFrom,
    Tag,
)
from skylarkmq.client.config import Codec
from skylarkmq.client.stream import AsyncioNetwork, Receiver, Stream
from skylarkmq.protocol.frame import FrameDecoder, RawFrame, SerializeType
from tests.interop.children import Children, Event
from tests.interop.servers import Broker
from tests.interop.tools import JavaTools, bodies, holds_queues, numbered

pytestmark = pytest.mark.interop

T = TypeVar("T")
WAIT_S = 60
QUEUES = 4


class RecordingNetwork(AsyncioNetwork):
    """Sockets, and the frames that were written to them."""

    def __init__(self) -> None:
        self.frames: list[RawFrame] = []

    async def connect(self, address: str, receiver: Receiver) -> Stream:
        stream = await super().connect(address, receiver)
        decoder = FrameDecoder()
        write = stream.write

        def recorded(data: bytes) -> None:
            self.frames += decoder.feed(bytes(data))
            write(data)

        stream.write = recorded  # type: ignore[method-assign]
        return stream


@pytest.fixture
def java_client(children: Children, apache: Broker) -> JavaTools:
    return JavaTools(children, apache)


@pytest.fixture
async def client(apache: Broker) -> AsyncIterator[Client]:
    async with quick_client(apache) as client:
        yield client


def quick_client(
    broker: Broker, network: AsyncioNetwork | None = None, codec: Codec = "auto"
) -> Client:
    return Client(
        broker.namesrv, heartbeat_interval=1.0, route_refresh=1.0, network=network, codec=codec
    )


class Inbox:
    """A handler that keeps what it gets and fails the tries it is told to fail."""

    def __init__(self, fail: int = 0) -> None:
        self.events: list[Event] = []
        self._fail = fail
        self._more = asyncio.Condition()

    async def __call__(self, message: ReceivedMessage) -> None:
        async with self._more:
            self.events.append(seen(message))
            self._more.notify_all()
        if message.reconsume_times < self._fail:
            raise RuntimeError("asked to fail")

    async def wait(self, met: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S), self._more:
            await self._more.wait_for(met)

    async def count(self, count: int) -> None:
        await self.wait(lambda: len(self.events) >= count)


def seen(message: ReceivedMessage) -> Event:
    names = ("topic", "tags", "keys", "msg_id", "offset_msg_id", "queue_offset", "reconsume_times")
    fields = {name: getattr(message, name) for name in names}
    return {**fields, "body": message.body.decode(), "queue": message.queue}


async def received(
    client: Client, topic: str, group: str, count: int, selector: Tag | None = None
) -> list[Event]:
    """What a consumer of a group gets, until it has `count` messages; it commits and leaves."""
    inbox = Inbox()
    async with Consumer(
        client, topic, group=group, start_from=StartFrom.FIRST, selector=selector
    ) as consumer:
        running = asyncio.create_task(consumer.run(inbox))
        await inbox.count(count)
    await running
    return inbox.events


async def test_every_way_of_sending(client: Client, topic: str, group: str) -> None:
    messages = [Message(topic, f"m-{n}", tags="A", keys=f"k-{n}") for n in range(20)]
    async with Producer(client, compress_over=100) as producer:
        acks = [await producer.send(message) for message in messages[:5]]
        acks += await asyncio.gather(*map(producer.send_nowait, messages[5:10]))
        acks += await producer.send_batch(messages[10:15])
        big = await producer.send(Message(topic, b"b" * 10_000))
        for message in messages[15:]:
            await producer.send_oneway(message)
    events = await received(client, topic, group, 21)

    assert {ack.status for ack in [*acks, big]} == {SendStatus.SEND_OK}
    by_body = {event["body"]: event for event in events}
    assert by_body.pop("b" * 10_000)["msg_id"] == big.msg_id
    assert sorted(map(str, by_body)) == numbered("m", 20)
    for number, ack in enumerate(acks):
        event = by_body[f"m-{number}"]
        for name in ("msg_id", "offset_msg_id", "queue", "queue_offset"):
            assert event[name] == getattr(ack, name), name
        assert (event["tags"], event["keys"]) == ("A", f"k-{number}")


async def test_tags(client: Client, topic: str, group: str) -> None:
    async with Producer(client) as producer:
        for number in range(12):
            await producer.send(Message(topic, f"m-{number}", tags="ABC"[number % 3]))
    events = await received(client, topic, group, 8, Tag("A", "C"))
    assert len(events) == 8
    assert {event["tags"] for event in events} == {"A", "C"}


async def test_offsets_outlive_a_consumer(client: Client, topic: str, group: str) -> None:
    async with Producer(client) as producer:
        for prefix in ("first", "second"):
            for number in range(10):
                await producer.send(Message(topic, f"{prefix}-{number}"))
            events = await received(client, topic, group, 10)
            assert bodies(events) == numbered(prefix, 10)


async def test_retry_and_dead_letter(client: Client, topic: str, group: str) -> None:
    inbox = Inbox(fail=99)
    async with Producer(client) as producer:
        await producer.send(Message(topic, "m-0", tags="A"))
    async with Consumer(
        client, topic, group=group, start_from=StartFrom.FIRST, max_reconsume=1
    ) as consumer:
        running = asyncio.create_task(consumer.run(inbox))
        await inbox.count(2)
        (dead,) = await received(client, f"%DLQ%{group}", f"{group}_dead", 1)
    await running

    first, again = inbox.events
    assert (first["reconsume_times"], again["reconsume_times"]) == (0, 1)
    assert first["topic"] == again["topic"] == topic
    assert first["msg_id"] == again["msg_id"] == dead["msg_id"]
    assert dead["body"] == "m-0"
    assert dead["reconsume_times"] == 2


async def test_between_sdk_and_java(
    client: Client, java_client: JavaTools, topic: str, group: str
) -> None:
    await in_thread(lambda: java_client.produce(topic, "batch", 10))
    events = await received(client, topic, group, 10)
    assert bodies(events) == numbered("m", 10)
    async with Producer(client, compress_over=1) as producer:
        await producer.send_batch([Message(topic, f"s-{number}") for number in range(5)])
        for number in range(5, 10):
            await producer.send(Message(topic, f"s-{number}"))
    later = await in_thread(lambda: java_client.received(topic, group, 10))
    assert bodies(later) == numbered("s", 10)  # one group: Java goes on where the SDK stopped


async def test_sdk_and_java_share_a_group(
    client: Client, java_client: JavaTools, topic: str, group: str
) -> None:
    """Both must come to the same division of the queues, and take over from each other."""
    await in_thread(lambda: java_client.queues(topic, create=QUEUES))
    inbox = Inbox()
    shared = asyncio.Event()

    def revoked(queues: Collection[MessageQueue]) -> None:
        if topic in {queue.topic for queue in queues}:
            shared.set()

    async with Consumer(
        client,
        topic,
        group=group,
        start_from=StartFrom.FIRST,
        on_revoked=revoked,
    ) as consumer:
        running = asyncio.create_task(consumer.run(inbox))
        java = java_client.consume(topic, group)
        half = await in_thread(lambda: holds_queues(java, QUEUES // 2))
        await asyncio.wait_for(shared.wait(), WAIT_S)
        async with Producer(client) as producer:
            for queue in await producer.queues(topic):
                await producer.send(Message(topic, f"m-{queue.queue_id}"), queue=queue)
            await inbox.count(QUEUES // 2)
            await in_thread(lambda: java.count("message", QUEUES // 2))
            assert {event["queue_id"] for event in java.named("message")} == half
            ours = {event["queue"].queue_id for event in inbox.events}
            assert ours == {*range(QUEUES)} - half

            java.kill()
            for queue in await producer.queues(topic):
                await producer.send(Message(topic, f"late-{queue.queue_id}"), queue=queue)
        late = {*numbered("late", QUEUES)}
        await inbox.wait(lambda: late <= {event["body"] for event in inbox.events})
    await running


async def test_a_java_broker_never_sees_msgpack(apache: Broker, topic: str, group: str) -> None:
    """It would close the connection; the offer travels in a JSON field that it ignores."""
    network = RecordingNetwork()
    async with quick_client(apache, network) as client:
        await talk(client, topic, group)
    assert b"skylarkmq.codec" in b"".join(frame.header for frame in network.frames)
    assert {frame.serialize_type for frame in network.frames} == {SerializeType.JSON}


async def test_binary_headers(apache: Broker, topic: str, group: str) -> None:
    network = RecordingNetwork()
    async with quick_client(apache, network, "rocketmq") as client:
        await talk(client, topic, group)
    assert {frame.serialize_type for frame in network.frames} == {SerializeType.ROCKETMQ}


async def test_our_broker_does(broker: Broker, topic: str, group: str) -> None:
    """What makes the tests before this one worth their names."""
    if broker.kind != "skylarkmq":
        pytest.skip("runs against ours")
    network = RecordingNetwork()
    async with quick_client(broker, network) as client:
        await talk(client, topic, group)
    kinds = [frame.serialize_type for frame in network.frames]
    assert SerializeType.MSGPACK in kinds
    assert kinds[0] == SerializeType.JSON


async def talk(client: Client, topic: str, group: str) -> None:
    async with Producer(client) as producer:
        for number in range(10):
            await producer.send(Message(topic, f"m-{number}"))
    await received(client, topic, group, 10)


async def in_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)
