"""Whose queue it is: what a member may write, pull and give while others may have it, and after."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.client import (
    Consumer,
    ConsumerClosed,
    MessageQueue,
    ReceivedMessage,
    StartFrom,
    Tag,
)
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.client.consumer.support import GROUP, Group
from tests.client.consumer.test_orderly import Ordered, bodies
from tests.support.manual_clock import settle

QUEUE = MessageQueue("orders", "broker-a", 0)


async def test_who_has_lost_touch_with_its_locks_commits_nothing_when_the_broker_is_back() -> None:
    it = Ordered({"orders": 1})
    it.broker.add("orders", 0, *bodies(9))
    consumer = await it.consumer(ack="manual", commit_interval=2)
    await (await it.wait(consumer.getone())).ack()
    it.broker.silent = True
    await it.pass_time(70)
    # Another member had the queue, came to 7, and is gone.
    it.broker.owners.clear()
    it.broker.offsets[GROUP, "orders", 0] = 7
    it.broker.silent = False
    it.broker.refuse(RequestCode.LOCK_BATCH_MQ, *[ResponseCode.SYSTEM_ERROR] * 5)
    code = RequestCode.UPDATE_CONSUMER_OFFSET
    before = len(it.broker.of_code(code))
    await it.pass_time(20)
    told = [r.ext_fields for r in it.broker.of_code(code)[before:]]
    assert {each["commitOffset"] for each in told if each["topic"] == "orders"} <= {"7"}
    assert (await it.wait(consumer.getone())).body == b"7"
    await it.stop(consumer)
    assert it.offset(0) == 7


async def test_nor_do_its_pulls_carry_an_offset() -> None:
    it = Ordered({"orders": 1})
    it.broker.add("orders", 0, *bodies(9))
    consumer = await it.consumer(ack="manual", batch_size=1, prefetch=2)
    await (await it.wait(consumer.getone())).ack()
    locks, pulls = consumer._running.locks, consumer._running.pulls
    assert locks is not None
    held = consumer._running.rebalance.assigned[QUEUE]
    assert held.commit_offset == 1
    assert pulls._may_tell(QUEUE)
    it.broker.silent = True
    await it.pass_time(40)
    assert not pulls._may_tell(QUEUE)
    it.broker.silent = False
    await it.stop(consumer)


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_broker_that_forgot_offsets_is_told_them_again(orderly: bool) -> None:
    it = Ordered({"orders": 1}) if orderly else Group({"orders": 1})
    it.broker.add("orders", 0, *bodies(3))
    consumer = await it.consumer(ack="manual")
    for _ in range(3):
        await (await it.wait(consumer.getone())).ack()
    await it.wait(consumer.commit())
    assert it.offset(0) == 3
    it.broker.offsets.clear()
    it.broker.lose_all()
    await it.pass_time(25)
    assert it.offset(0) == 3
    await it.stop(consumer)


async def test_what_another_member_put_back_is_put_right_at_the_end() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, *bodies(3))
    consumer = await it.consumer(ack="manual")
    for _ in range(3):
        await (await it.wait(consumer.getone())).ack()
    await it.wait(consumer.commit())
    it.broker.offsets[GROUP, "orders", 0] = 1  # a late commit of the queue's last owner
    await it.stop(consumer)
    assert it.offset(0) == 3


async def test_offsets_that_are_committed_by_hand_stay_committed() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, *bodies(5))
    consumer = await it.consumer(ack="manual")
    given = [await it.wait(consumer.getone()) for _ in range(4)]
    await it.wait(consumer.commit({QUEUE: 3}))
    await it.pass_time(11)
    assert it.offset(0) == 3, "what was given below it is done"
    await given[3].ack()
    await it.pass_time(6)
    assert it.offset(0) == 4
    await it.stop(consumer)


async def test_what_is_wanted_from_now_on_is_not_passed_over_by_a_pull_of_before() -> None:
    it = Group({"orders": 1})
    consumer = await it.consumer()
    await it.pass_time(1)
    before = len(it.broker.of_code(RequestCode.PULL_MESSAGE))
    held = [pull for pull in it.broker.held if pull.header.topic == "orders"]
    assert len(held) == 1
    await it.wait(consumer.subscribe("orders", Tag("new")))
    await it.pass_time(1)
    # The held pull filters by what was wanted before, and would lead beyond what comes now.
    asked = [
        pull.ext_fields
        for pull in it.broker.of_code(RequestCode.PULL_MESSAGE)[before:]
        if pull.ext_fields["topic"] == "orders"
    ]
    assert [each["subVersion"] for each in asked] == [
        str(consumer._running.assignor.subscriptions["orders"].data.sub_version)
    ]
    next_offset = 1
    held[0].stream.say(
        held[0].request.reply(
            19,
            ext_fields={
                "suggestWhichBrokerId": "0",
                "nextBeginOffset": str(next_offset),
                "minOffset": "0",
                "maxOffset": "1",
            },
        )
    )
    it.broker.add("orders", 0, b"wanted", TAGS="new")
    assert (await it.wait(consumer.getone(timeout=5))).body == b"wanted"
    await it.stop(consumer)


async def test_stopped_while_it_starts_it_leaves_nothing_behind() -> None:
    it = Group({"orders": 1})
    consumer = Consumer("orders", group=GROUP)
    consumer._client = it.client()
    it.broker.silent = True
    starting = asyncio.create_task(consumer.start())
    await it.pass_time(0.5)
    stopping = asyncio.create_task(consumer.stop())
    await it.pass_time(0.5)
    it.broker.silent = False
    await it.pass_time(30)
    assert stopping.done()
    assert starting.done()
    assert isinstance(starting.exception(), ConsumerClosed)
    await it.stop()


async def test_stopped_by_its_callback_while_it_starts() -> None:
    it = Group({"orders": 1})
    held: list[Any] = []

    async def assigned(queues: list[MessageQueue]) -> None:
        await held[0].stop()

    consumer = Consumer("orders", group=GROUP, on_assigned=assigned)
    held.append(consumer)
    consumer._client = it.client()
    with pytest.raises(ConsumerClosed):
        await it.wait(consumer.start())
    await settle()
    await it.stop()


async def test_two_tasks_that_wait_at_once_lose_no_ack() -> None:
    it = Group({"orders": 1})
    consumer = await it.consumer()
    waiting = [asyncio.create_task(consumer.getone()) for _ in range(2)]
    await settle()
    it.broker.add("orders", 0, b"0", b"1")
    await it.pass_time(1)
    assert all(isinstance(task.result(), ReceivedMessage) for task in waiting)
    await it.wait(consumer.commit())
    assert it.offset(0) == 2
    await it.stop(consumer)


async def test_the_last_topic_of_a_broadcasting_consumer_is_given_up_at_once(
    tmp_path: Path,
) -> None:
    it = Group({"orders": 1})
    consumer = await it.consumer(model="broadcasting", offsets_folder=tmp_path)
    assert consumer.assignment() == [QUEUE]
    await it.wait(consumer.unsubscribe("orders"))
    await it.pass_time(1)
    assert consumer.assignment() == []
    await it.stop(consumer)


async def test_a_topic_that_is_deleted_and_created_again_is_read_from_its_beginning() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, *bodies(3, "old"))
    consumer = await it.consumer()
    for _ in range(3):
        await it.wait(consumer.getone())
    await it.wait(consumer.commit())
    topic = it.broker.topics.pop("orders")
    it.broker.release_pulls()
    await it.pass_time(1)
    topic.queues[0].clear()
    it.broker.topics["orders"] = topic
    it.broker.add("orders", 0, *bodies(5, "new"))
    given = [(await it.wait(consumer.getone())).body for _ in range(5)]
    assert given == bodies(5, "new")
    await it.stop(consumer)


@pytest.mark.parametrize("forgotten", [False, True])
async def test_an_ordered_queue_stays_while_its_message_is_in_somebodys_hand(
    forgotten: bool,
) -> None:
    it = Ordered({"orders": 2})
    it.broker.add("orders", 1, *bodies(3))
    first = await it.consumer(ack="manual", consume_timeout=60)
    given = await it.wait(first.getone())
    second = await it.consumer(ack="manual")
    taking = asyncio.create_task(second.getone())
    await it.pass_time(45)
    assert not taking.done(), "the first member is at work with it"
    assert first.assignment() == [QUEUE, MessageQueue("orders", "broker-a", 1)]
    if not forgotten:
        await given.ack()
        await it.pass_time(2)
    else:
        await it.pass_time(40)
    assert taking.result().body == (b"0" if forgotten else b"1")
    assert first.assignment() == [QUEUE]
    await it.stop(first, second)


async def test_who_has_stopped_subscribes_no_more() -> None:
    it = Group({"orders": 1, "other": 1})
    consumer = await it.consumer()
    await it.stop(consumer)
    for call in (consumer.subscribe("other"), consumer.unsubscribe("orders")):
        with pytest.raises(ConsumerClosed):
            await call
    await it.stop()


async def test_what_another_member_put_back_is_put_right_in_a_minute() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"0")
    consumer = await it.consumer(ack="manual")
    await (await it.wait(consumer.getone())).ack()
    await it.wait(consumer.commit())
    it.broker.offsets[GROUP, "orders", 0] = 0
    await it.pass_time(66)
    assert it.offset(0) == 1
    await it.stop(consumer)


async def test_another_selector_for_assigned_queues_counts_at_once() -> None:
    it = Group({"orders": 1})
    consumer = Consumer(group=GROUP, start_from=StartFrom.FIRST)
    consumer._client = it.client()
    await it.wait(consumer.start())
    await it.wait(consumer.assign([QUEUE], Tag("old")))
    await it.pass_time(1)
    await it.wait(consumer.assign([QUEUE], Tag("new")))
    await it.pass_time(1)
    asked = [
        pull.ext_fields["subscription"]
        for pull in it.broker.of_code(RequestCode.PULL_MESSAGE)
        if pull.ext_fields["topic"] == "orders"
    ]
    assert asked == ["old", "new"]
    await it.wait(consumer.assign([QUEUE], Tag("new")))
    await it.pass_time(1)
    assert len(it.broker.of_code(RequestCode.PULL_MESSAGE)) == len(asked), "nothing has changed"
    await it.stop(consumer)
