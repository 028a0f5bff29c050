"""Queues without a group's division: assigned by hand, or read in passing."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from skylarkmq.client import (
    Client,
    Consumer,
    IllegalState,
    Message,
    MessageQueue,
    PeekReader,
    Producer,
    ReceivedMessage,
    RouteNotFound,
    Sql92,
    StartFrom,
    StoredMessage,
    Tag,
)
from tests.behaviour.cluster import QUEUES, Cluster
from tests.behaviour.support import collect, consuming, numbered, send_numbered
from tests.support.patience import LIMIT_S


async def peeked(reader: PeekReader) -> list[StoredMessage]:
    async with asyncio.timeout(LIMIT_S), reader:
        return [message async for message in reader]


async def test_assigned_queues_have_the_group_s_offsets_and_no_share_of_its_members(
    client: Client, cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    queues = await producer.queues(topic)
    for queue in queues:
        for number in range(3):
            await producer.send(Message(topic, f"{queue.queue_id}-{number}"), queue=queue)
    async with Consumer(client=client, group=group, start_from=StartFrom.FIRST) as consumer:
        await consumer.assign(queues[:2])
        assert consumer.assignment() == queues[:2]
        messages = await collect(consumer, 6)
        assert {message.queue for message in messages} == set(queues[:2])
        await consumer.commit()
        assert await consumer.committed(queues[0]) == 3
        with pytest.raises(IllegalState):
            await consumer.subscribe(topic)
        async with cluster.client() as other, consuming(other, topic, group) as inbox:
            assert await inbox.holds(QUEUES) == set(range(QUEUES))
            await inbox.count(6)
            assert {message.queue for message in inbox.messages} == set(queues[2:])
    async with Consumer(client=client, group=group, start_from=StartFrom.FIRST) as again:
        await again.assign(queues)
        assert [again.position(queue) for queue in queues] == [3, 3, 3, 3]
        assert sum((await again.lag()).values()) == 0


async def test_what_failed_of_an_assigned_queue_comes_again_here(
    client: Client, producer: Producer, topic: str, group: str
) -> None:
    queue = (await producer.queues(topic))[0]
    await producer.send(Message(topic, "twice"), queue=queue)
    tries: list[int] = []
    done = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        tries.append(message.reconsume_times)
        if len(tries) == 1:
            await message.nack(delay=timedelta(milliseconds=50))
        else:
            done.set()

    async with Consumer(client=client, group=group, start_from=StartFrom.FIRST) as consumer:
        await consumer.assign([queue])
        running = asyncio.create_task(consumer.run(handle))
        async with asyncio.timeout(LIMIT_S):
            await done.wait()
    await running
    assert tries == [0, 1]


async def test_a_reader_in_passing_sees_all_and_changes_nothing(
    client: Client, producer: Producer, topic: str, group: str
) -> None:
    await send_numbered(producer, topic, "m", 50)
    first = await peeked(PeekReader(topic, client=client, stop="now"))
    second = await peeked(PeekReader(topic, client=client, stop="now"))
    for messages in (first, second):
        assert sorted(message.body.decode() for message in messages) == numbered("m", 50)
    by_queue: dict[MessageQueue, list[int]] = {}
    for message in first:
        by_queue.setdefault(message.queue, []).append(message.queue_offset)
    assert all(offsets == list(range(len(offsets))) for offsets in by_queue.values())
    async with consuming(client, topic, group) as inbox:
        await inbox.count(50)


async def test_a_reader_in_passing_by_time_by_tag_and_by_expression(
    client: Client, producer: Producer, topic: str
) -> None:
    for number in range(8):
        tag = "even" if number % 2 == 0 else "odd"
        message = Message(topic, f"{number}", tags=tag, properties={"n": str(number)})
        await producer.send(message, key="one queue")
        await asyncio.sleep(0.002)  # stored in different milliseconds
    messages = await peeked(PeekReader(topic, client=client, stop="now"))
    start, stop = StartFrom.timestamp(messages[2].stored_at), messages[6].stored_at
    found = await peeked(PeekReader(topic, client=client, start=start, stop=stop))
    assert [message.body for message in found] == [b"2", b"3", b"4", b"5"]
    for selector, expected in (
        (Tag("odd"), [b"1", b"3", b"5", b"7"]),
        (Sql92("n > 4 AND TAGS = 'even'"), [b"6"]),
    ):
        found = await peeked(PeekReader(topic, client=client, stop="now", selector=selector))
        assert [message.body for message in found] == expected


async def test_a_reader_in_passing_waits_for_what_comes(
    cluster: Cluster, client: Client, producer: Producer, topic: str
) -> None:
    async with PeekReader(topic, client=client, start=StartFrom.LAST) as reader:
        waiting = asyncio.create_task(anext(reader))
        await producer.send(Message(topic, "fresh"))
        async with asyncio.timeout(LIMIT_S):
            assert (await waiting).body == b"fresh"
    with pytest.raises(RouteNotFound):
        await PeekReader(cluster.unique("missing"), client=client).start()


async def test_a_queue_that_is_made_while_a_group_is_at_work_loses_nothing(
    cluster: Cluster, client: Client, producer: Producer, group: str
) -> None:
    topic = cluster.unique("T_late")
    async with (
        cluster.client(route_refresh=0.5) as other,
        Consumer(topic, client=other, group=group, start_from=StartFrom.LAST) as consumer,
    ):
        await cluster.create_topic(client, topic, queues=1)
        await send_numbered(producer, topic, "m", 5)
        messages = await collect(consumer, 5)
    assert sorted(message.body.decode() for message in messages) == numbered("m", 5)
