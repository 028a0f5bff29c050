"""Ordered consumers: one member and one handler a queue; what fails holds its queue up."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from skylarkmq.client import Client, Message, Producer, ReceivedMessage
from tests.behaviour.cluster import QUEUES, Cluster
from tests.behaviour.support import Inbox, consuming
from tests.support.patience import until


async def send_rows(producer: Producer, topic: str, rows: range) -> None:
    for row in rows:
        for queue in await producer.queues(topic):
            await producer.send(Message(topic, f"{queue.queue_id}/{row:03}"), queue=queue)


async def test_order_within_a_queue_and_no_two_handlers_of_one(
    producer: Producer, client: Client, topic: str, group: str
) -> None:
    at_work: defaultdict[int, int] = defaultdict(int)
    failed: set[bytes] = set()

    async def handle(message: ReceivedMessage) -> None:
        queue_id = message.queue.queue_id
        at_work[queue_id] += 1
        assert at_work[queue_id] == 1
        await asyncio.sleep(0)
        at_work[queue_id] -= 1
        if message.body == b"1/002" and message.body not in failed:
            failed.add(message.body)
            raise RuntimeError("on purpose")

    await send_rows(producer, topic, range(10))
    async with consuming(client, topic, group, handle, orderly=True) as inbox:
        await inbox.count(QUEUES * 10)
    for queue_id in range(QUEUES):
        mine = [text for text in inbox.bodies if text.startswith(f"{queue_id}/")]
        assert mine == [f"{queue_id}/{row:03}" for row in range(10)]
    assert failed == {b"1/002"}


async def test_order_when_members_come_and_go(
    cluster: Cluster, producer: Producer, client: Client, topic: str, group: str
) -> None:
    """A queue that changes hands goes on where it was, and is never in two hands."""
    log: list[tuple[str, str]] = []

    def keeper(name: str) -> Inbox:
        async def note(message: ReceivedMessage) -> None:
            log.append((name, message.body.decode()))

        return Inbox(also=note)

    async with (
        cluster.client() as far,
        consuming(client, topic, group, keeper("stays"), orderly=True),
    ):
        await send_rows(producer, topic, range(10))
        async with consuming(far, topic, group, keeper("guest"), orderly=True) as guest:
            await guest.holds(QUEUES // 2)
            await send_rows(producer, topic, range(10, 15))
            await guest.count(QUEUES // 2 * 5)
        await send_rows(producer, topic, range(15, 20))
        await until(lambda: len({text for _, text in log}) == QUEUES * 20, "all messages")
    for queue_id in range(QUEUES):
        mine = [text for _, text in log if text.startswith(f"{queue_id}/")]
        assert mine == [f"{queue_id}/{row:03}" for row in range(20)]
