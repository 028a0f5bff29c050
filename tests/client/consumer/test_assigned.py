"""Queues by hand: no member of the group, the group's offsets, and the way back from nowhere."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skylarkmq.client import (
    Consumer,
    IllegalState,
    MessageQueue,
    RebalanceInProgress,
    StartFrom,
    Tag,
)
from skylarkmq.protocol.codes import RequestCode
from tests.client.consumer.support import GROUP, Group
from tests.support.fake_cluster import FakeBroker
from tests.support.manual_clock import settle

QUEUES = [MessageQueue("orders", "broker-a", n) for n in range(4)]


async def alone(it: Group, **settings: Any) -> Consumer:
    """Start a consumer without topics."""
    consumer = Consumer(group=GROUP, start_from=StartFrom.FIRST, **settings)
    consumer._client = it.client()
    await it.wait(consumer.start())
    return consumer


def pulled(broker: FakeBroker) -> set[int]:
    return {int(each.ext_fields["queueId"]) for each in broker.of_code(RequestCode.PULL_MESSAGE)}


async def test_assigned_queues_are_read_and_committed_without_joining_the_group() -> None:
    it = Group({"orders": 4})
    it.broker.add("orders", 0, b"0")
    it.broker.add("orders", 1, b"1a", b"1b")
    member = await it.consumer()
    consumer = await alone(it)
    assert consumer.assignment() == []
    heartbeats = len(it.broker.heartbeats)
    await it.wait(member.stop())
    await it.wait(consumer.assign(QUEUES[1:3]))
    assert consumer.assignment() == QUEUES[1:3]
    it.broker.offsets.clear()
    bodies = [(await it.wait(consumer.getone())).body for _ in range(2)]
    assert bodies == [b"1a", b"1b"]
    await it.wait(consumer.commit())
    assert it.offset(1) == 2, "the offsets are the group's"
    assert it.offset(0) is None
    assert len(it.broker.heartbeats) == heartbeats, "nobody's member"
    assert await it.wait(consumer.lag()) == {QUEUES[1]: 0, QUEUES[2]: 0}
    await it.stop(consumer)


async def test_a_group_beside_keeps_all_its_queues() -> None:
    it = Group({"orders": 4})
    consumer = await alone(it)
    await it.wait(consumer.assign(QUEUES[:1]))
    member = await it.consumer()
    await it.pass_time(25)
    assert member.assignment() == QUEUES
    assert consumer.assignment() == QUEUES[:1]
    await it.wait(consumer.stop())
    await it.stop(member)


async def test_another_assignment_takes_the_place_of_the_first() -> None:
    it = Group({"orders": 4, "bills": 1})
    it.broker.add("bills", 0, b"bill")
    told: list[tuple[str, list[int]]] = []
    consumer = await alone(
        it,
        on_assigned=lambda queues: told.append(("in", [queue.queue_id for queue in queues])),
        on_revoked=lambda queues: told.append(("out", [queue.queue_id for queue in queues])),
    )
    await it.wait(consumer.assign(QUEUES[:2]))
    bills = MessageQueue("bills", "broker-a", 0)
    await it.wait(consumer.assign([QUEUES[1], bills]))
    assert consumer.assignment() == [bills, QUEUES[1]]
    assert (await it.wait(consumer.getone())).body == b"bill"
    await it.wait(consumer.assign([]))
    assert consumer.assignment() == []
    assert told == [("in", [0, 1]), ("out", [0]), ("in", [0]), ("out", [1, 0])]
    with pytest.raises(RebalanceInProgress):
        consumer.seek(QUEUES[1], 0)
    await it.stop(consumer)


async def test_a_selector_travels_with_each_pull() -> None:
    it = Group({"orders": 4})
    it.broker.add("orders", 0, b"no", TAGS="other")
    it.broker.add("orders", 0, b"yes", TAGS="mine")
    consumer = await alone(it)
    await it.wait(consumer.assign(QUEUES[:1], Tag("mine")))
    assert (await it.wait(consumer.getone())).body == b"yes"
    fields = it.broker.of_code(RequestCode.PULL_MESSAGE)[0].ext_fields
    assert (fields["subscription"], fields["expressionType"]) == ("mine", "TAG")
    assert int(fields["sysFlag"]) & 4
    await it.stop(consumer)


async def test_subscribing_and_assigning_exclude_each_other() -> None:
    it = Group({"orders": 4})
    member = await it.consumer()
    with pytest.raises(IllegalState, match="subscribed"):
        await member.assign(QUEUES)
    await it.wait(member.stop())
    consumer = await alone(it)
    await it.wait(consumer.assign(QUEUES[:1]))
    with pytest.raises(IllegalState, match="by hand"):
        await consumer.subscribe("orders")
    with pytest.raises(IllegalState, match="by hand"):
        await consumer.unsubscribe("orders")
    await it.stop(consumer)


async def test_a_consumer_without_topics_joins_with_its_first_subscription() -> None:
    it = Group({"orders": 2})
    it.broker.add("orders", 0, b"0")
    consumer = await alone(it)
    assert it.broker.heartbeats == []
    await it.wait(consumer.subscribe("orders"))
    assert (await it.wait(consumer.getone(timeout=10))).body == b"0"
    topics = it.broker.heartbeats[-1].consumer_data_set[0].subscription_data_set
    assert sorted(each.topic for each in topics) == [f"%RETRY%{GROUP}", "orders"]
    await it.stop(consumer)


async def test_what_a_handler_failed_on_is_tried_again_here() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"0")
    consumer = await alone(it)
    await it.wait(consumer.assign(QUEUES[:1]))
    tries: list[int] = []

    async def handle(message: object) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("on purpose")

    running = asyncio.create_task(consumer.run(handle))
    await it.pass_time(61)
    assert len(tries) == 2
    assert it.broker.of_code(RequestCode.CONSUMER_SEND_MSG_BACK) == []
    await it.stop(consumer)
    await running


async def test_a_cancelled_assignment_is_completed_in_the_background() -> None:
    for turns in range(60):
        it = Group({"orders": 2})
        consumer = await alone(it)
        assigning = asyncio.create_task(consumer.assign(QUEUES[:2]))
        for _ in range(turns):
            await asyncio.sleep(0)
        done = assigning.done()
        assigning.cancel()
        await asyncio.gather(assigning, return_exceptions=True)
        await it.pass_time(2)
        await settle()
        if consumer._running.assigned_by_hand:
            assert consumer.assignment() == QUEUES[:2], "all or nothing"
            assert pulled(it.broker) == {0, 1}
        else:
            assert consumer.assignment() == []
        await it.stop(consumer)
        if done:
            break
    assert done
