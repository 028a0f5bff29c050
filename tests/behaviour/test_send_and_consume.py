"""Every way of sending, and a group that receives it."""

from __future__ import annotations

import asyncio

import pytest

from skylarkmq.client import Client, Message, Producer, SendResult, SendStatus, Tag
from skylarkmq.client.config import Codec, Compression
from tests.behaviour.cluster import Cluster
from tests.behaviour.support import bodies, consuming, numbered, received, send_numbered


async def test_every_way_of_sending(client: Client, topic: str, group: str) -> None:
    messages = [Message(topic, f"m-{n}", tags="A", keys=f"k-{n}") for n in range(20)]
    async with Producer(client=client, compress_over=100) as producer:
        acks = [await producer.send(message) for message in messages[:5]]
        acks += await asyncio.gather(*map(producer.send_nowait, messages[5:10]))
        acks += await producer.send_batch(messages[10:15])
        big = await producer.send(Message(topic, b"b" * 10_000))
        for message in messages[15:]:
            await producer.send_oneway(message)
    got = await received(client, topic, group, 21)

    assert {ack.status for ack in [*acks, big]} == {SendStatus.SEND_OK}
    by_body = {message.body.decode(): message for message in got}
    assert by_body.pop("b" * 10_000).msg_id == big.msg_id
    assert sorted(by_body) == numbered("m", 20)
    for number, ack in enumerate(acks):
        message = by_body[f"m-{number}"]
        for name in ("msg_id", "offset_msg_id", "queue", "queue_offset"):
            assert getattr(message, name) == getattr(ack, name), name
        assert (message.tags, message.keys) == ("A", f"k-{number}")


async def test_text_properties_and_flag_arrive(
    producer: Producer, client: Client, topic: str, group: str
) -> None:
    properties = {"name": 'va"l\\ü ✓'}
    await producer.send(Message(topic, "Grüße ✓", keys=["a", "b"], properties=properties, flag=-3))
    (got,) = await received(client, topic, group, 1)
    assert (got.body.decode(), got.keys, got.flag) == ("Grüße ✓", "a b", -3)
    assert got.properties["name"] == properties["name"]


async def test_tags(producer: Producer, client: Client, topic: str, group: str) -> None:
    for number in range(12):
        await producer.send(Message(topic, f"m-{number}", tags="ABC"[number % 3]))
    got = await received(client, topic, group, 8, selector=Tag("A", "C"))
    assert len(got) == 8
    assert {message.tags for message in got} == {"A", "C"}


async def test_offsets_outlive_a_consumer(
    producer: Producer, client: Client, topic: str, group: str
) -> None:
    for prefix in ("first", "second"):
        await send_numbered(producer, topic, prefix, 10)
        got = await received(client, topic, group, 10)
        assert bodies(got) == numbered(prefix, 10)


async def test_many_messages_of_several_topics(
    cluster: Cluster, producer: Producer, client: Client, group: str
) -> None:
    topics = [cluster.unique("T") for _ in range(2)]
    for topic in topics:
        await cluster.create_topic(client, topic)
    messages = [Message(topics[n % 2], f"m-{n}", sharding_key=f"k{n % 3}") for n in range(30)]
    outcomes = await producer.send_many(messages)
    assert all(isinstance(outcome, SendResult) for outcome in outcomes)
    got = [*await received(client, topics[0], group, 15)]
    got += await received(client, topics[1], f"{group}_b", 15)
    assert bodies(got) == numbered("m", 30)
    ids = {message.msg_id: message.body.decode() for message in got}
    for number, outcome in enumerate(outcomes):
        assert isinstance(outcome, SendResult)
        assert ids[outcome.msg_id] == f"m-{number}"


async def test_messages_of_a_key_stay_in_order(
    producer: Producer, client: Client, topic: str, group: str
) -> None:
    keys = ["a", "bc", "Grüße"]
    for number in range(12):
        await producer.send(Message(topic, f"m-{number:02}", sharding_key=keys[number % 3]))
    queues = await producer.queues(topic)
    await producer.send(Message(topic, "chosen"), selector=lambda all_queues, _: all_queues[2])
    got = await received(client, topic, group, 13)
    for key in keys:
        mine = [message for message in got if message.sharding_key == key]
        assert len({message.queue for message in mine}) == 1
        texts = [message.body.decode() for message in sorted(mine, key=lambda m: m.queue_offset)]
        assert texts == sorted(texts)
        assert len(texts) == 4
    (chosen,) = [message for message in got if message.body == b"chosen"]
    assert chosen.queue == queues[2]


@pytest.mark.parametrize("compression", ["zlib", "lz4", "zstd"])
async def test_compressed(
    cluster: Cluster, client: Client, topic: str, group: str, compression: Compression
) -> None:
    body = bytes(range(256)) * 1000
    async with Producer(client=client, compression=compression, compress_over=1000) as producer:
        await producer.send(Message(topic, body))
        await producer.send(Message(topic, b"short"))
    got = await received(client, topic, group, 2)
    assert {message.body for message in got} == {body, b"short"}


@pytest.mark.parametrize("codec", ["json", "rocketmq"])
async def test_codecs(cluster: Cluster, topic: str, group: str, codec: Codec) -> None:
    async with cluster.client(codec=codec) as client, Producer(client=client) as producer:
        await producer.send(Message(topic, "Grüße ✓", properties={"ß": "😀"}))
        (got,) = await received(client, topic, group, 1)
        assert (got.body.decode(), got.properties["ß"]) == ("Grüße ✓", "😀")


async def test_a_topic_made_on_demand(
    cluster: Cluster, producer: Producer, client: Client, group: str
) -> None:
    topic = cluster.unique("T_new")
    async with consuming(client, topic, group) as inbox:
        await producer.send(Message(topic, "first"))
        await inbox.count(1)
    assert inbox.bodies == ["first"]
