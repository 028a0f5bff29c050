"""Where a consumer stands: start rules, seek, pause, other members, positions without a group."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

from skylarkmq.client import Client, Consumer, Message, Producer, StartFrom
from tests.behaviour.cluster import QUEUES, Cluster
from tests.behaviour.support import (
    bodies,
    collect,
    consuming,
    numbered,
    received,
    send_numbered,
)
from tests.support.patience import until

SECOND = timedelta(seconds=1)


async def one_queue(cluster: Cluster, client: Client) -> str:
    topic = cluster.unique("T_one")
    await cluster.create_topic(client, topic, queues=1)
    return topic


async def test_seek_by_offset_and_by_time(
    cluster: Cluster, producer: Producer, client: Client, group: str
) -> None:
    topic = await one_queue(cluster, client)
    for number in range(10):
        await producer.send(Message(topic, f"m-{number}"))
        await asyncio.sleep(0.002)  # stored in different milliseconds
    async with Consumer(topic, client=client, group=group, start_from=StartFrom.FIRST) as consumer:
        messages = await collect(consumer, 10)
        (queue,) = consumer.assignment()
        assert consumer.position(queue) == 10

        consumer.seek(queue, 7)
        assert [each.body for each in await collect(consumer, 3)] == [b"m-7", b"m-8", b"m-9"]
        await consumer.seek_to_beginning(queue)
        assert (await collect(consumer, 1))[0].body == b"m-0"

        for wanted in (0, 4, 9):  # nothing that was stored at the time or later is left out
            await consumer.seek_to_time(topic, messages[wanted].stored_at)
            assert (await collect(consumer, 1))[0].body == f"m-{wanted}".encode()
        await consumer.seek_to_time(topic, messages[0].stored_at - SECOND)
        assert (await collect(consumer, 1))[0].body == b"m-0"
        await consumer.seek_to_end(queue)
        await producer.send(Message(topic, "late"))
        assert (await collect(consumer, 1))[0].body == b"late"


async def test_offsets_that_brokers_tell(
    cluster: Cluster, producer: Producer, client: Client, group: str
) -> None:
    topic = await one_queue(cluster, client)
    await send_numbered(producer, topic, "m", 6)
    async with Consumer(topic, client=client, group=group, start_from=StartFrom.FIRST) as consumer:
        (queue,) = await until(consumer.assignment, "a share")
        assert await consumer.committed(queue) in (None, 0)
        assert await consumer.begin_offsets([queue]) == {queue: 0}
        assert await consumer.end_offsets([queue]) == {queue: 6}
        await collect(consumer, 4)
        await consumer.commit()
        assert await consumer.committed(queue) == 4
        assert await consumer.lag() == {queue: 2}


async def test_pause_and_resume(producer: Producer, client: Client, topic: str, group: str) -> None:
    async with Consumer(topic, client=client, group=group, start_from=StartFrom.FIRST) as consumer:
        queues = await until(
            lambda: held if len(held := consumer.assignment()) == QUEUES else [], "all queues"
        )
        paused, *others = queues
        consumer.pause(paused)
        for queue in queues:
            await producer.send(Message(topic, f"m-{queue.queue_id}"), queue=queue)
        got = await collect(consumer, len(others))
        assert {message.queue for message in got} == {*others}
        assert consumer.paused() == {paused}
        consumer.resume(paused)
        assert (await collect(consumer, 1))[0].queue == paused


async def test_a_new_group_starts_at_a_time(
    cluster: Cluster, producer: Producer, client: Client, group: str
) -> None:
    """The broker lets a new group of a young queue begin at its beginning, whatever it wants; a
    position of the group's own is kept.
    """
    topic = await one_queue(cluster, client)
    await send_numbered(producer, topic, "m", 3)
    for start in (StartFrom.FIRST, StartFrom.LAST):
        got = await received(client, topic, f"{group}_{start.where}", 3, start_from=start)
        assert bodies(got) == numbered("m", 3)
    await send_numbered(producer, topic, "late", 2)
    got = await received(client, topic, f"{group}_first", 2, start_from=StartFrom.FIRST)
    assert bodies(got) == numbered("late", 2)


async def test_two_members_share_and_take_over(
    cluster: Cluster, producer: Producer, topic: str, group: str
) -> None:
    queues = await producer.queues(topic)
    async with cluster.client() as first, cluster.client() as second:
        async with consuming(second, topic, group) as two:
            async with consuming(first, topic, group) as one:
                half = await one.holds(QUEUES // 2)
                assert half | await two.holds(QUEUES // 2) == {*range(QUEUES)}
                for queue in queues:
                    await producer.send(Message(topic, f"m-{queue.queue_id}"), queue=queue)
                await one.count(QUEUES // 2)
                await two.count(QUEUES // 2)
                assert sorted(one.bodies + two.bodies) == numbered("m", QUEUES)
            assert await two.holds(QUEUES) == {*range(QUEUES)}
            for queue in queues:
                await producer.send(Message(topic, f"late-{queue.queue_id}"), queue=queue)
            await two.count(QUEUES // 2 + QUEUES)
        both = numbered("m", QUEUES) + numbered("late", QUEUES)
        assert sorted(one.bodies + two.bodies) == sorted(both), "the offsets were handed on"


async def test_broadcast(
    cluster: Cluster, producer: Producer, topic: str, group: str, tmp_path: Path
) -> None:
    """Each member gets all, and goes on where it was: its offsets lie with it."""

    def member(name: str) -> Client:
        return cluster.client(instance_name=f"{group}-{name}")

    for prefix in ("first", "second"):
        async with (
            member("a") as one,
            member("b") as two,
            consuming(one, topic, group, model="broadcasting", offsets_folder=tmp_path) as inbox,
            consuming(two, topic, group, model="broadcasting", offsets_folder=tmp_path) as other,
        ):
            await send_numbered(producer, topic, prefix, 8)
            await inbox.count(8)
            await other.count(8)
        for each in (inbox, other):
            assert sorted(each.bodies) == numbered(prefix, 8)
