"""Messages that fail: tried again, put off, given up."""

from __future__ import annotations

from skylarkmq.client import Client, Consumer, Message, Producer, ReceivedMessage, StartFrom
from tests.behaviour.cluster import Cluster
from tests.behaviour.support import Inbox, collect, consuming, numbered, received, send_numbered
from tests.support.patience import LIMIT_S


async def test_retry_and_dead_letter(
    producer: Producer, client: Client, topic: str, group: str
) -> None:
    async with consuming(client, topic, group, Inbox(fail=99), max_reconsume=1) as inbox:
        await producer.send(Message(topic, "m-0", tags="A", keys="k"))
        await inbox.count(2)
        (dead,) = await received(client, f"%DLQ%{group}", f"{group}_dead", 1)

    first, again = inbox.messages
    assert (first.reconsume_times, again.reconsume_times) == (0, 1)
    assert first.topic == again.topic == topic
    assert first.msg_id == again.msg_id == dead.msg_id
    assert (dead.body, dead.reconsume_times, dead.keys, dead.tags) == (b"m-0", 2, "k", "A")


async def test_put_off_and_given_up(
    producer: Producer, client: Client, topic: str, group: str
) -> None:
    """By the message's own methods, in a handler that returns normally."""

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"later" and message.reconsume_times == 0:
            await message.nack(delay_level=1)
        elif message.body == b"never":
            await message.dead_letter("cannot be read")

    async with consuming(client, topic, group, handle) as inbox:
        for text in ("later", "never", "good"):
            await producer.send(Message(topic, text))
        (dead,) = await received(client, f"%DLQ%{group}", f"{group}_dead", 1)
        await inbox.count(4)
    later = [message for message in inbox.messages if message.body == b"later"]
    assert [message.reconsume_times for message in later] == [0, 1]
    assert sorted(inbox.bodies) == ["good", "later", "later", "never"]
    assert dead.body == b"never"
    assert dead.properties["DEAD_LETTER_REASON"] == "cannot be read"


async def test_the_lowest_unacknowledged_message_holds_the_offset(
    cluster: Cluster, producer: Producer, client: Client, group: str
) -> None:
    topic = cluster.unique("T")
    await cluster.create_topic(client, topic, queues=1)
    for number in range(5):
        await producer.send(Message(topic, f"m-{number}"))
    async with Consumer(
        topic, client=client, group=group, ack="manual", start_from=StartFrom.FIRST
    ) as consumer:
        messages = [await consumer.getone(timeout=LIMIT_S) for _ in range(5)]
        for number in (0, 1, 3, 4):
            await messages[number].ack()
        await consumer.commit()
        (queue,) = consumer.assignment()
        assert await consumer.committed(queue) == 2
        assert await consumer.lag() == {queue: 3}
    async with Consumer(topic, client=client, group=group) as consumer:
        again = await collect(consumer, 3)
    assert [message.body for message in again] == [b"m-2", b"m-3", b"m-4"]


async def test_without_acknowledgement_each_message_comes_once(
    producer: Producer, client: Client, topic: str, group: str
) -> None:
    await send_numbered(producer, topic, "m", 10)
    async with consuming(client, topic, group, Inbox(fail=99), ack="none") as inbox:
        await inbox.count(10)
    await send_numbered(producer, topic, "late", 3)
    async with consuming(client, topic, group) as late:
        await late.count(3)
    assert sorted(inbox.bodies) == numbered("m", 10)
    assert sorted(late.bodies) == numbered("late", 3)
