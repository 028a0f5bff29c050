"""One consumer group with members of both kinds: RocketMQ's Java client and ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import pytest

from skylarkmq.client import (
    Admin,
    Client,
    Consumer,
    Message,
    MessageQueue,
    Producer,
    StartFrom,
)
from skylarkmq.client.consumer.allocate import AllocationName, allocate, find_allocation
from tests.behaviour.cluster import Cluster
from tests.behaviour.support import Inbox
from tests.interop.children import Child
from tests.interop.tools import LOCK_SOON, JavaTools
from tests.support.patience import LIMIT_S, until

pytestmark = pytest.mark.interop

T = TypeVar("T")
QUEUES = 8
ROWS = 3


class Member:
    """A member of either kind: the queues it has, and the bodies it got."""

    def is_called(self, client_id: str) -> bool:
        raise NotImplementedError

    def share(self) -> set[int]:
        raise NotImplementedError

    def bodies(self) -> list[str]:
        raise NotImplementedError


class JavaMember(Member):
    def __init__(self, child: Child) -> None:
        self.child = child

    def is_called(self, client_id: str) -> bool:
        return f"@{self.child.pid}#" in client_id

    def share(self) -> set[int]:
        events = self.child.named("queues")
        return set(events[-1]["queues"]) if events else set()

    def bodies(self) -> list[str]:
        return [event["body"] for event in self.child.named("message")]


class OurMember(Member):
    def __init__(self, consumer: Consumer, inbox: Inbox, client_id: str) -> None:
        self.consumer = consumer
        self.inbox = inbox
        self.gone = False
        self._client_id = client_id

    def is_called(self, client_id: str) -> bool:
        return client_id == self._client_id

    def share(self) -> set[int]:
        if self.gone:
            return set()
        return {queue.queue_id for queue in self.consumer.assignment()}

    def bodies(self) -> list[str]:
        return self.inbox.bodies


@asynccontextmanager
async def joined(
    cluster: Cluster, topic: str, group: str, **settings: object
) -> AsyncIterator[OurMember]:
    inbox = Inbox()
    async with cluster.client() as client:
        consumer = Consumer(
            topic,
            client=client,
            group=group,
            start_from=StartFrom.FIRST,
            commit_interval=0.5,
            **settings,
        )
        await consumer.start()
        running = asyncio.create_task(consumer.run(inbox))
        member = OurMember(consumer, inbox, client.client_id)
        try:
            yield member
        finally:
            await consumer.stop()
            member.gone = True
            await asyncio.wait_for(running, LIMIT_S)


class Traffic:
    """Sends in the background while members come and go; knows what has been sent."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.sent: list[str] = []
        self._producer = producer
        self._topic = topic
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        number = 0
        while True:
            body = f"traffic-{number}"
            await self._producer.send(Message(self._topic, body))
            self.sent.append(body)
            number += 1
            await asyncio.sleep(0.02)


async def in_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


Joining = AbstractAsyncContextManager[OurMember]


class Group:
    """The group under test, on a topic of eight queues."""

    def __init__(self, admin: Admin, name: str, topic: str, strategy: AllocationName) -> None:
        self.admin = admin
        self.name = name
        self.topic = topic
        self._strategy = strategy
        self._allocation = find_allocation(strategy)

    def ours(self, cluster: Cluster, *, orderly: bool = False) -> Joining:
        """A member of ours, while the block lasts."""
        return joined(cluster, self.topic, self.name, orderly=orderly, assignment=self._strategy)

    def java(self, java: JavaTools, *options: str, **args: str) -> JavaMember:
        """A member of theirs, from now on."""
        args = {"strategy": self._strategy, **args}
        return JavaMember(java.consume(self.topic, self.name, *options, **args))

    async def is_divided(self, members: Sequence[Member]) -> bool:
        """Whether each has what the strategy gives it, by the ids that the broker knows."""
        known = await self.admin.consumers(self.name)
        ids = [member.client_id for member in known.members]
        queues = [MessageQueue(self.topic, "broker-a", number) for number in range(QUEUES)]

        def has_its_share(client_id: str) -> bool:
            share = {each.queue_id for each in allocate(self._allocation, queues, ids, client_id)}
            return [share] == [each.share() for each in members if each.is_called(client_id)]

        return len(ids) == len(members) and all(map(has_its_share, ids))


async def steady(producer: Producer, group: Group, phase: str, members: Sequence[Member]) -> None:
    """Once the shares are settled, each message goes to the owner of its queue, once."""
    topic = group.topic
    await until(lambda: group.is_divided(members), f"shares in phase {phase}")
    shares = [member.share() for member in members]
    queues = await producer.queues(topic)
    for row in range(ROWS):
        for queue in queues:
            text = f"{phase}/{queue.queue_id}/{row}"
            await producer.send(Message(topic, text), queue=queue)

    def mine(member: Member) -> list[str]:
        return [text for text in member.bodies() if text.startswith(f"{phase}/")]

    await until(
        lambda: sum(len({*mine(member)}) for member in members) >= ROWS * QUEUES,
        f"all messages of phase {phase}",
    )
    for member, share in zip(members, shares, strict=True):
        expected = [f"{phase}/{queue}/{row}" for queue in share for row in range(ROWS)]
        assert sorted(mine(member)) == sorted(expected), phase


@pytest.mark.parametrize("strategy", ["average", "circle", "consistent_hash"])
async def test_members_come_and_go(
    cluster: Cluster, java: JavaTools, client: Client, strategy: AllocationName
) -> None:
    if not cluster.is_ours and strategy != "average":
        pytest.skip("how queues are divided is no affair of the broker")
    everybody: list[Member] = []
    async with Admin(client=client) as admin, Producer(client=client) as producer:
        group = Group(admin, cluster.unique("G"), cluster.unique("T8"), strategy)
        await admin.create_topic(group.topic, queues=QUEUES)
        traffic = Traffic(producer, group.topic)
        async with group.ours(cluster) as first:
            await steady(producer, group, "alone", [first])
            one = group.java(java)
            await steady(producer, group, "pair", [first, one])
            async with group.ours(cluster) as second:
                await steady(producer, group, "three", [first, one, second])
                await in_thread(one.child.kill)
                await steady(producer, group, "killed", [first, second])
                two = group.java(java)
                await steady(producer, group, "again", [first, second, two])
            await steady(producer, group, "left", [first, two])
            everybody += [first, one, second, two]
        await steady(producer, group, "theirs", [two])
        await traffic.stop()
        await until(
            lambda: {*traffic.sent} <= {text for each in everybody for text in each.bodies()},
            "all that was sent meanwhile",
        )
        await in_thread(two.child.finish)


async def test_ordered_members_come_and_go(
    cluster: Cluster, java: JavaTools, client: Client
) -> None:
    """The locks of queues are the broker's: each side waits for the other's."""
    async with Admin(client=client) as admin, Producer(client=client) as producer:
        group = Group(admin, cluster.unique("G"), cluster.unique("T8"), "average")
        await admin.create_topic(group.topic, queues=QUEUES)
        async with group.ours(cluster, orderly=True) as first:
            await steady(producer, group, "alone", [first])
            one = group.java(java, LOCK_SOON, listener="orderly")
            await steady(producer, group, "pair", [first, one])
        await steady(producer, group, "theirs", [one])
        async with group.ours(cluster, orderly=True) as second:
            await steady(producer, group, "again", [one, second])
            await in_thread(one.child.finish)
            await steady(producer, group, "ours", [second])
    for member in (first, one, second):
        for phase in ("alone", "pair", "theirs", "again", "ours"):
            for queue in range(QUEUES):
                front = f"{phase}/{queue}/"
                rows = [text for text in member.bodies() if text.startswith(front)]
                assert rows == sorted(rows), "in order"
