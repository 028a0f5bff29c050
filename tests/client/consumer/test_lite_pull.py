"""The pulling face: iteration, positions, commits, seeks and pauses."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from skylarkmq.client import (
    BrokerError,
    Consumer,
    ConsumerClosed,
    IllegalState,
    MessageQueue,
    RebalanceInProgress,
    RequestTimeout,
    StartFrom,
)
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.client.consumer.support import GROUP, Group
from tests.support.fake_cluster import STORE_MS
from tests.support.manual_clock import settle

QUEUE = MessageQueue("orders", "broker-a", 0)
OTHER = MessageQueue("orders", "broker-a", 1)


async def group_of(*bodies: bytes, queues: int = 1) -> Group:
    it = Group({"orders": queues})
    it.broker.add("orders", 0, *bodies)
    return it


async def test_iteration_acks_what_it_left_behind() -> None:
    it = await group_of(b"0", b"1", b"2")
    consumer = await it.consumer()
    bodies: list[bytes] = []

    async def loop() -> None:
        async for message in consumer:
            bodies.append(message.body)
            if len(bodies) == 3:
                break

    await it.wait(loop())
    assert bodies == [b"0", b"1", b"2"]
    await it.pass_time(6)
    assert it.offset(0) == 2, "the last one was not left behind yet"
    await it.wait(consumer.commit())
    assert it.offset(0) == 3, "commit says that it is done"
    await it.stop(consumer)


async def test_an_error_in_the_loop_leaves_the_message_unacknowledged() -> None:
    it = await group_of(b"0", b"1")

    async def loop() -> None:
        consumer = await it.consumer()
        async with consumer:
            async for message in consumer:
                if message.body == b"1":
                    raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError):
        await it.wait(loop())
    assert it.offset(0) == 1
    again = await it.consumer()
    assert (await it.wait(again.getone())).body == b"1"
    await it.stop(again)


async def test_iteration_ends_when_the_consumer_stops() -> None:
    it = await group_of(b"0")
    consumer = await it.consumer()

    async def loop() -> int:
        return len([message async for message in consumer])

    looping = asyncio.create_task(loop())
    await it.pass_time(1)
    await it.stop(consumer)
    assert await looping == 1
    with pytest.raises(ConsumerClosed):
        await consumer.getmany()


async def test_getmany_gives_what_is_there_by_queue() -> None:
    it = await group_of(*[b"%d" % n for n in range(5)], queues=2)
    it.broker.add("orders", 1, b"x", b"y")
    consumer = await it.consumer()
    await it.pass_time(0)
    found = await it.wait(consumer.getmany(max_records=4))
    assert sum(len(messages) for messages in found.values()) == 4
    rest = await it.wait(consumer.getmany())
    bodies = {
        queue: [m.body for m in found.get(queue, []) + rest.get(queue, [])]
        for queue in (QUEUE, OTHER)
    }
    assert bodies == {QUEUE: [b"%d" % n for n in range(5)], OTHER: [b"x", b"y"]}
    assert await it.wait(consumer.getmany()) == {}
    waiting = asyncio.create_task(consumer.getmany(timeout=2))
    await it.pass_time(1.9)
    assert not waiting.done()
    await it.pass_time(0.2)
    assert await waiting == {}
    await it.stop(consumer)


async def test_asking_in_a_loop_lets_the_others_work() -> None:
    it = await group_of()
    consumer = await it.consumer()
    it.broker.add("orders", 0, b"late")

    async def ask() -> bytes:
        for _ in range(10_000):
            for messages in (await consumer.getmany()).values():
                return messages[0].body
        return b""

    asking = asyncio.create_task(ask())
    assert await it.wait(asking) == b"late"
    await it.stop(consumer)


async def test_getone_gives_up_after_its_time_and_loses_nothing() -> None:
    it = await group_of()
    consumer = await it.consumer()
    waiting = asyncio.create_task(consumer.getone(timeout=2))
    await it.pass_time(2)
    with pytest.raises(RequestTimeout):
        await waiting
    cancelled = asyncio.create_task(consumer.getone())
    await settle()
    it.broker.add("orders", 0, b"0")
    cancelled.cancel()
    await it.pass_time(0)
    assert (await it.wait(consumer.getone())).body == b"0"
    await it.stop(consumer)


async def test_several_tasks_may_wait_with_manual_acks() -> None:
    it = await group_of()
    consumer = await it.consumer(ack="manual")
    waiting = [asyncio.create_task(consumer.getone()) for _ in range(4)]
    await settle()
    waiting[0].cancel()
    it.broker.add("orders", 0, b"0", b"1", b"2")
    await it.pass_time(1)
    messages = [task.result() for task in waiting[1:]]
    assert [message.body for message in messages] == [b"0", b"1", b"2"]
    for message in (messages[2], messages[0]):
        await message.ack()
    await it.pass_time(6)
    assert it.offset(0) == 1
    await messages[1].ack()
    await it.stop(consumer)
    assert it.offset(0) == 3


async def test_offsets_are_written_every_five_seconds_and_only_when_they_moved() -> None:
    it = await group_of(b"0", b"1")
    consumer = await it.consumer(ack="manual")
    message = await it.wait(consumer.getone())
    await message.ack()

    def written() -> list[str]:
        commits = it.broker.of_code(RequestCode.UPDATE_CONSUMER_OFFSET)
        return [r.ext_fields["commitOffset"] for r in commits if r.ext_fields["topic"] == "orders"]

    await it.pass_time(4)
    assert written() == ["0"], "where the group starts, at once"
    await it.pass_time(1.1)
    assert written() == ["0", "1"]
    await it.pass_time(20)
    assert written() == ["0", "1"]
    assert await it.wait(consumer.committed(QUEUE)) == 1
    await it.stop(consumer)


async def test_a_failed_commit_is_reported_and_tried_again() -> None:
    it = await group_of(b"0")
    consumer = await it.consumer(ack="manual")
    await (await it.wait(consumer.getone())).ack()
    it.broker.refuse(RequestCode.UPDATE_CONSUMER_OFFSET, ResponseCode.SYSTEM_ERROR)
    with pytest.raises(BrokerError):
        await it.wait(consumer.commit())
    await it.pass_time(6)
    assert it.offset(0) == 1
    await it.stop(consumer)


async def test_pulls_carry_the_offset_along_to_ours_alone() -> None:
    it = await group_of(b"0")
    await pull_after_ack(it)
    fields = [r.ext_fields for r in it.broker.of_code(RequestCode.PULL_MESSAGE)]
    assert {(each["sysFlag"], each["commitOffset"]) for each in fields} == {("2", "0")}
    it = Group({"orders": 1}, codec="auto")
    it.broker.echo_codec = True
    it.broker.add("orders", 0, b"0")
    await pull_after_ack(it)
    fields = [r.ext_fields for r in it.broker.of_code(RequestCode.PULL_MESSAGE)]
    assert ("3", "1") in {(each["sysFlag"], each["commitOffset"]) for each in fields}


async def pull_after_ack(it: Group) -> None:
    consumer = await it.consumer(ack="manual", commit_interval=3600)
    await (await it.wait(consumer.getone())).ack()
    await it.pass_time(0.1)
    it.broker.release_pulls()
    await it.pass_time(0.1)
    await it.stop(consumer)


async def test_a_cancelled_commit_goes_on_and_the_next_one_waits_for_it() -> None:
    it = await group_of(*[b"%d" % n for n in range(9)])
    consumer = await it.consumer(ack="manual")
    it.broker.silent = True
    first = asyncio.create_task(consumer.commit({QUEUE: 3}))
    await settle()
    first.cancel()
    second = asyncio.create_task(consumer.commit({QUEUE: 7}))
    await settle()
    code = RequestCode.UPDATE_CONSUMER_OFFSET
    asked = [r for r in it.broker.of_code(code) if r.ext_fields["topic"] == "orders"]
    assert [r.ext_fields["commitOffset"] for r in asked] == ["0", "3"]
    it.broker.silent = False
    it.broker.streams[0].say(asked[-1].reply(0))
    await it.wait(second)
    assert it.offset(0) == 7
    assert first.cancelled()
    await it.stop(consumer)


async def test_a_member_that_dies_before_its_first_commit_loses_nothing() -> None:
    it = await group_of(b"old")
    first = await it.consumer(start_from=StartFrom.LAST)
    it.broker.add("orders", 0, b"new")
    await it.wait(first.getone())
    it.broker.connect_error = ConnectionRefusedError("died")
    it.broker.lose_all()
    await it.wait(first.stop(), 40)
    assert it.offset(0) == 1
    it.broker.connect_error = None
    second = await it.consumer(start_from=StartFrom.LAST)
    assert (await it.wait(second.getone())).body == b"new"
    await it.stop(second)


async def test_commit_of_given_offsets() -> None:
    it = await group_of(b"0", b"1", b"2")
    consumer = await it.consumer(ack="manual")
    await it.wait(consumer.commit({QUEUE: 2}))
    assert it.offset(0) == 2
    with pytest.raises(RebalanceInProgress):
        await consumer.commit({OTHER: 1})
    await it.stop(consumer)


async def test_seek_back_and_forth() -> None:
    it = await group_of(*[b"%d" % n for n in range(10)])
    consumer = await it.consumer()
    first = await it.wait(consumer.getone())
    assert (first.body, consumer.position(QUEUE)) == (b"0", 1)
    consumer.seek(QUEUE, 7)
    assert consumer.position(QUEUE) == 7
    assert (await it.wait(consumer.getone())).body == b"7"
    await it.wait(consumer.commit())
    assert it.offset(0) == 8
    consumer.seek(QUEUE, 2)
    await it.pass_time(6)
    assert it.offset(0) == 2, "a seek back is committed too"
    assert (await it.wait(consumer.getone())).body == b"2"
    await it.wait(consumer.seek_to_beginning())
    assert (await it.wait(consumer.getone())).body == b"0"
    await it.wait(consumer.seek_to_end(QUEUE))
    it.broker.add("orders", 0, b"new")
    assert (await it.wait(consumer.getone())).body == b"new"
    await it.wait(
        consumer.seek_to_time("orders", datetime.fromtimestamp(STORE_MS / 1000 + 0.005, UTC))
    )
    assert (await it.wait(consumer.getone())).body == b"5"
    assert await it.wait(consumer.begin_offsets([QUEUE])) == {QUEUE: 0}
    assert await it.wait(consumer.end_offsets([QUEUE])) == {QUEUE: 11}
    assert await it.wait(consumer.lag()) == {QUEUE: 6}
    with pytest.raises(RebalanceInProgress):
        consumer.seek(OTHER, 0)
    with pytest.raises(ValueError, match="0 or more"):
        consumer.seek(QUEUE, -1)
    await it.stop(consumer)


async def test_acks_from_before_a_seek_are_void() -> None:
    it = await group_of(*[b"%d" % n for n in range(10)])
    consumer = await it.consumer(ack="manual")
    old = [await it.wait(consumer.getone()) for _ in range(5)]
    consumer.seek(QUEUE, 0)
    for message in old:
        await message.ack()
    assert (await it.wait(consumer.getone())).body == b"0"
    await it.stop(consumer)
    assert it.offset(0) in (None, 0)


async def test_seek_in_the_assignment_callback_counts() -> None:
    it = await group_of(*[b"%d" % n for n in range(10)])
    held: list[Consumer] = []
    consumer = Consumer(
        "orders", client=it.client(), group=GROUP,
        on_assigned=lambda queues: [held[0].seek(queue, 6) for queue in queues] and None,
    )  # fmt: skip
    held.append(consumer)
    await it.wait(consumer.start())
    assert (await it.wait(consumer.getone())).body == b"6"
    starts = [r.ext_fields["queueOffset"] for r in it.broker.of_code(RequestCode.PULL_MESSAGE)]
    assert "0" not in starts[:1]
    await it.wait(consumer.stop())


async def test_a_paused_queue_rests_until_it_is_resumed() -> None:
    it = await group_of(b"0", queues=2)
    consumer = await it.consumer()
    await it.pass_time(0)
    consumer.pause(QUEUE)
    assert consumer.paused() == {QUEUE}
    it.broker.add("orders", 0, b"1")
    it.broker.add("orders", 1, b"other")
    assert (await it.wait(consumer.getone())).body == b"other"
    with pytest.raises(RequestTimeout):
        await it.wait(consumer.getone(timeout=5))
    consumer.resume(QUEUE)
    assert [(await it.wait(consumer.getone())).body for _ in range(2)] == [b"0", b"1"]
    await it.stop(consumer)


async def test_nack_and_dead_letter_by_hand() -> None:
    it = await group_of(b"bad", b"worse")
    consumer = await it.consumer(ack="manual")
    bad, worse = [await it.wait(consumer.getone()) for _ in range(2)]
    await it.wait(bad.nack(delay_level=2))
    await it.wait(worse.dead_letter())
    back = it.broker.of_code(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert [request.ext_fields["delayLevel"] for request in back] == ["2", "-1"]
    await it.wait(bad.nack())
    assert len(it.broker.of_code(RequestCode.CONSUMER_SEND_MSG_BACK)) == 2, "done already"
    assert it.broker.bodies(f"%DLQ%{GROUP}") == [b"worse"]
    await it.pass_time(6)
    assert it.offset(0) == 2
    await it.stop(consumer)


async def test_process_acks_or_hands_back() -> None:
    it = await group_of(b"good", b"bad")
    consumer = await it.consumer(ack="manual")
    async with (await it.wait(consumer.getone())).process():
        pass
    bad = await it.wait(consumer.getone())

    async def fail() -> None:
        async with bad.process():
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError):
        await it.wait(fail())
    assert len(it.broker.of_code(RequestCode.CONSUMER_SEND_MSG_BACK)) == 1
    await it.stop(consumer)
    assert it.offset(0) == 2


async def test_nothing_works_before_start() -> None:
    consumer = Consumer("orders", namesrv_addr="nowhere:1", group=GROUP)
    with pytest.raises(IllegalState, match="not started"):
        await consumer.getone()
    with pytest.raises(IllegalState):
        consumer.assignment()
