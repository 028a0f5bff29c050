"""SimpleConsumer: messages that are hidden for a time, acknowledged one by one, or come again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from skylarkmq.client import (
    Admin,
    Client,
    Consumer,
    Message,
    NoPermission,
    NotSupported,
    PoppedMessage,
    Producer,
    SimpleConsumer,
    Sql92,
    Tag,
)
from tests.behaviour.cluster import Cluster
from tests.support.patience import LIMIT_S

SHORT_S = 3.0


@asynccontextmanager
async def simple(
    client: Client, topic: str, group: str, **settings: Any
) -> AsyncGenerator[SimpleConsumer]:
    """A started consumer that waits patiently."""
    settings = {"invisible_duration": LIMIT_S, "await_duration": LIMIT_S, **settings}
    async with SimpleConsumer(topic, client=client, group=group, **settings) as consumer:
        yield consumer


async def take(consumer: SimpleConsumer, count: int) -> list[PoppedMessage]:
    """Receive until there are so many, and return them by their bodies."""
    found: list[PoppedMessage] = []
    while len(found) < count:
        more = await consumer.receive(min(32, count - len(found)))
        assert more, f"{len(found)} of {count} messages came: {found}"
        found += more
    return sorted(found, key=lambda message: message.body)


def bodies(messages: list[PoppedMessage]) -> list[bytes]:
    return sorted(message.body for message in messages)


async def send(producer: Producer, topic: str, count: int, **settings: Any) -> list[bytes]:
    wanted = [b"m-%d" % number for number in range(count)]
    for body in wanted:
        await producer.send(Message(topic, body, **settings))
    return wanted


@pytest.mark.slow
async def test_what_is_acknowledged_does_not_come_again(
    cluster: Cluster, client: Client, producer: Producer, topic: str, group: str
) -> None:
    cluster.needs("pop")
    wanted = await send(producer, topic, 8, tags="A", properties={"p": "v"})
    async with simple(client, topic, group, invisible_duration=SHORT_S) as consumer:
        found = await take(consumer, 8)
        assert bodies(found) == wanted
        assert {message.topic for message in found} == {topic}
        assert {message.delivery_attempt for message in found} == {1}
        assert found[0].properties["p"] == "v"
        for message in found:
            await consumer.ack(message)
        assert await consumer.receive(timeout=2 * SHORT_S) == []
    async with simple(client, topic, group) as consumer:
        assert await consumer.receive(timeout=0.5) == []


async def test_what_is_not_acknowledged_comes_again(
    cluster: Cluster, client: Client, producer: Producer, topic: str, group: str
) -> None:
    cluster.needs("pop")
    await send(producer, topic, 2)
    async with simple(client, topic, group) as consumer:
        kept, lost = await take(consumer, 2)
        await consumer.ack(kept)
        await consumer.change_invisible_duration(lost, 1)
        (again,) = await take(consumer, 1)
        assert again.body == lost.body
        assert again.msg_id == lost.msg_id
        assert again.delivery_attempt == 2
        assert again.topic == topic
        await consumer.ack(again)
        assert await consumer.receive(timeout=1) == []


@pytest.mark.slow
async def test_a_longer_time_keeps_it_hidden_and_its_handle_is_good(
    cluster: Cluster, client: Client, producer: Producer, topic: str, group: str
) -> None:
    cluster.needs("pop")
    await send(producer, topic, 1)
    async with simple(client, topic, group, invisible_duration=SHORT_S) as consumer:
        (message,) = await take(consumer, 1)
        await consumer.change_invisible_duration(message, LIMIT_S)
        assert await consumer.receive(timeout=2 * SHORT_S) == []
        await consumer.ack(message)


async def test_a_receive_waits_for_what_is_sent(
    cluster: Cluster, client: Client, producer: Producer, topic: str, group: str
) -> None:
    cluster.needs("pop")
    second = f"{topic}_2"
    await cluster.create_topic(client, second)
    async with simple(client, topic, group) as consumer:
        await consumer.subscribe(second)
        for name in (second, topic):
            receiving = asyncio.create_task(consumer.receive())
            await asyncio.sleep(0.2)
            await producer.send(Message(name, name.encode()))
            (message,) = await receiving
            assert (message.topic, message.body) == (name, name.encode())
            await consumer.ack(message)


async def test_two_consumers_share_the_messages(
    cluster: Cluster, client: Client, producer: Producer, topic: str, group: str
) -> None:
    cluster.needs("pop")
    wanted = await send(producer, topic, 20)
    async with (
        cluster.client() as other,
        simple(client, topic, group) as one,
        simple(other, topic, group) as two,
    ):
        found: list[PoppedMessage] = []
        while len(found) < 20:
            for consumer in (one, two):
                some = await consumer.receive(3, timeout=0.5)
                for message in some:
                    await consumer.ack(message)
                found += some
        assert bodies(found) == sorted(wanted)


async def test_tags_and_expressions(
    cluster: Cluster, client: Client, producer: Producer, topic: str, group: str
) -> None:
    cluster.needs("pop")
    for tag, weight in (("A", "1"), ("B", "2"), ("C", "3")):
        await producer.send(Message(topic, tag.encode(), tags=tag, properties={"weight": weight}))
    async with simple(client, topic, group, selector=Tag("A", "C")) as consumer:
        assert bodies(await take(consumer, 2)) == [b"A", b"C"]
    async with simple(client, topic, f"{group}_2", selector=Sql92("weight > 1")) as consumer:
        assert bodies(await take(consumer, 2)) == [b"B", b"C"]


async def test_a_cancelled_receive_loses_nothing(
    cluster: Cluster, client: Client, producer: Producer, topic: str, group: str
) -> None:
    cluster.needs("pop")
    async with simple(client, topic, group) as consumer:
        for number in range(10):
            receiving = asyncio.create_task(consumer.receive())
            await asyncio.sleep(0.01 * number)
            sending = asyncio.create_task(producer.send(Message(topic, b"m-%d" % number)))
            await asyncio.sleep(0.003 * number)
            receiving.cancel()
            (outcome,) = await asyncio.gather(receiving, return_exceptions=True)
            await sending
            found = outcome if isinstance(outcome, list) else await take(consumer, 1)
            assert bodies(found) == [b"m-%d" % number]
            await consumer.ack(found[0])


@pytest.mark.slow
async def test_an_ordered_group_gets_one_message_after_the_other(
    cluster: Cluster, client: Client, producer: Producer, topic: str, group: str
) -> None:
    cluster.needs("pop")
    async with Admin(client=client) as admin:
        await admin.create_group(group, orderly=True)
    (queue, *_) = await producer.queues(topic)
    for number in range(3):
        await producer.send(Message(topic, b"m-%d" % number), queue=queue)
    async with simple(client, topic, group, orderly=True) as consumer:
        (first,) = await consumer.receive(1, invisible_duration=LIMIT_S)
        assert first.body == b"m-0"
        assert await consumer.receive(1, timeout=0.5) == [], "its batch is open"
        await consumer.ack(first)
        (second,) = await consumer.receive(1, invisible_duration=SHORT_S)
        (again,) = await consumer.receive(1, invisible_duration=LIMIT_S)
        assert (second.body, again.body) == (b"m-1", b"m-1")
        assert (second.delivery_attempt, again.delivery_attempt) == (1, 2)
        await consumer.ack(again)
        (third,) = await consumer.receive(1)
        assert third.body == b"m-2"
        await consumer.ack(third)


@pytest.mark.slow
async def test_a_group_is_consumed_in_one_way_at_a_time(
    cluster: Cluster, client: Client, producer: Producer, topic: str, group: str
) -> None:
    cluster.needs("one_mode")
    await send(producer, topic, 1)
    async with cluster.client() as other:
        async with Consumer(topic, client=other, group=group) as consumer:
            assert (await consumer.getone(LIMIT_S)).body == b"m-0"
            async with simple(client, topic, group) as refused:
                with pytest.raises(NoPermission, match="members that pull"):
                    await refused.receive()
        await send(producer, topic, 1)
        async with simple(client, topic, group) as popping:
            (message,) = await take(popping, 1)
            assert message.body == b"m-0"
            with pytest.raises(NoPermission, match="members that pop"):
                await Consumer(topic, client=other, group=group).start()


async def test_a_broker_of_4_9_is_refused_plainly(
    cluster: Cluster, client: Client, topic: str, group: str
) -> None:
    if cluster.has("pop"):
        pytest.skip(f"{cluster.kind} has pop consumption")
    async with simple(client, topic, group) as consumer:
        with pytest.raises(NotSupported, match=r"since 5\.0"):
            await consumer.receive()
