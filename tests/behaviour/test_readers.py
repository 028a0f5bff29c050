"""Reading without a share of a group: queues assigned by hand, looks that leave no trace."""

from __future__ import annotations

from skylarkmq.client import Client, Consumer, Message, PeekReader, Producer, StartFrom, Tag
from tests.behaviour.cluster import QUEUES, Cluster
from tests.behaviour.support import bodies, collect, numbered, received, send_numbered


async def test_assigned_queues(
    cluster: Cluster, producer: Producer, client: Client, topic: str, group: str
) -> None:
    """Two readers of one group, each with the queues that it was told; offsets are the group's."""
    queues = await producer.queues(topic)
    for queue in queues:
        await producer.send(Message(topic, f"m-{queue.queue_id}"), queue=queue)
    async with cluster.client() as far:
        for reader, mine in ((client, queues[:1]), (far, queues[1:])):
            consumer = Consumer(client=reader, group=group, start_from=StartFrom.FIRST)
            async with consumer:
                await consumer.assign(mine)
                assert consumer.assignment() == mine
                got = await collect(consumer, len(mine))
                assert {message.queue for message in got} == {*mine}
                await consumer.commit()
                assert [await consumer.committed(queue) for queue in mine] == [1] * len(mine)
    await producer.send(Message(topic, "late"), queue=queues[0])
    async with Consumer(client=client, group=group) as consumer:
        await consumer.assign(queues)
        assert bodies(await collect(consumer, 1)) == ["late"]


async def test_a_peek_leaves_no_trace(
    producer: Producer, client: Client, topic: str, group: str
) -> None:
    await send_numbered(producer, topic, "m", 10)
    await producer.send(Message(topic, "tagged", tags="A"))
    # RocketMQ acknowledges a moment before readers see it, and "end" is what they see.
    assert len(await received(client, topic, f"{group}_first", 11)) == 11
    for _ in range(2):
        async with PeekReader(topic, client=client, stop="end") as reader:
            seen = [message async for message in reader]
        assert sorted(message.body.decode() for message in seen) == [*numbered("m", 10), "tagged"]
    assert len({message.queue for message in seen}) == QUEUES
    async with PeekReader(topic, client=client, stop="end", selector=Tag("A")) as reader:
        assert [message.body async for message in reader] == [b"tagged"]
    assert len(await received(client, topic, group, 11)) == 11
