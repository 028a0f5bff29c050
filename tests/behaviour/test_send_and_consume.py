"""Every way of sending, and a group that receives it."""

from __future__ import annotations

import asyncio

from skylarkmq.client import Client, Message, Producer, SendStatus, Tag
from tests.behaviour.support import bodies, numbered, received, send_numbered


async def test_every_way_of_sending(client: Client, topic: str, group: str) -> None:
    messages = [Message(topic, f"m-{n}", tags="A", keys=f"k-{n}") for n in range(20)]
    async with Producer(client, compress_over=100) as producer:
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
