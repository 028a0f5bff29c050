"""Commits on their way to the brokers: which go together, and which one after the other."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from skylarkmq.client import RebalanceInProgress, StartFrom
from skylarkmq.client.consumer.offset_store import OffsetStore
from skylarkmq.client.consumer.queue_locks import QueueLocks
from skylarkmq.client.errors import ConnectionFailed, RocketMQError
from skylarkmq.client.instance import services_of
from skylarkmq.client.wire.api_consumer import ConsumerApi
from skylarkmq.protocol.message import MessageQueue
from tests.client.consumer.support import Group

QUEUES = [MessageQueue("orders", "broker-a", number) for number in range(4)]
OTHER = MessageQueue("%RETRY%billing", "broker-a", 0)


class CountingApi(ConsumerApi):
    """Notes which commits are under way together; each takes some turns of the loop."""

    def __init__(self) -> None:
        self.waves: list[set[MessageQueue]] = []
        self.failing: set[MessageQueue] = set()
        self._at_work: set[MessageQueue] = set()

    async def update_offset(
        self, address: str, group: str, queue: MessageQueue, offset: int, timeout_s: float
    ) -> None:
        if not self._at_work:
            self.waves.append(set())
        self._at_work.add(queue)
        self.waves[-1].add(queue)
        for _ in range(3):
            await asyncio.sleep(0)
        self._at_work.discard(queue)
        if queue in self.failing:
            raise ConnectionFailed(address, "on purpose")


@pytest.mark.parametrize("fails", [False, True])
async def test_the_first_commit_of_a_topic_to_a_broker_goes_alone(fails: bool) -> None:
    """The brokers would make a table of the group's for each, and keep the last one."""
    it = Group({"orders": len(QUEUES)})
    client, api = it.client(), CountingApi()
    await it.wait(client.start())
    await it.wait(services_of(client).routes.refresh("orders"))
    services_of(client).consumer_api = api
    store = OffsetStore(services_of(client), "billing")
    if fails:
        api.failing.add(QUEUES[0])
        errors: list[RocketMQError] = await store.commit({QUEUES[0]: 1})
        assert len(errors) == 1
        api.waves.clear()
        api.failing.clear()

    assert await store.commit({**dict.fromkeys(QUEUES, 1), OTHER: 1}) == []
    first, rest = api.waves
    assert len(first) == 2, "one of each topic"
    assert OTHER in first
    assert first | rest == {*QUEUES, OTHER}
    assert not first & rest

    api.waves.clear()
    assert await store.commit(dict.fromkeys(QUEUES, 2)) == []
    assert api.waves == [{*QUEUES}]
    await it.wait(client.stop())


@pytest.mark.parametrize("holds", [True, False])
async def test_without_its_lock_no_offset_of_a_queue_is_committed(holds: bool) -> None:
    """Another member may have the queue, and has come further."""

    class Locks:
        def holds(self, queue: MessageQueue) -> bool:
            return holds

    it = Group({"orders": 1})
    client, api = it.client(), CountingApi()
    await it.wait(client.start())
    await it.wait(services_of(client).routes.refresh("orders"))
    services_of(client).consumer_api = api
    store = OffsetStore(services_of(client), "billing", locks=cast(QueueLocks, Locks()))
    errors = await store.commit({QUEUES[0]: 1})
    assert [type(error) for error in errors] == ([] if holds else [RebalanceInProgress])
    assert api.waves == ([{QUEUES[0]}] if holds else [])
    await it.wait(client.stop())


async def test_retries_are_read_from_their_first_message_wherever_the_group_starts() -> None:
    retries = "%RETRY%billing"
    it = Group({"orders": 1, retries: 1})
    for topic in ("orders", retries):
        it.broker.add(topic, 0, b"a", b"b")
    client = it.client()
    await it.wait(client.start())
    store = OffsetStore(services_of(client), "billing")
    starts: dict[str, int] = {}
    for topic in ("orders", retries):
        await it.wait(services_of(client).routes.refresh(topic))
        queue = MessageQueue(topic, "broker-a", 0)
        starts[topic] = await it.wait(store.start_offset(queue, StartFrom.NOW))
    assert starts == {"orders": 2, retries: 0}
    await it.wait(client.stop())
