"""Groups that consume in order: one batch of a queue at a time, and lost answers."""

from __future__ import annotations

from typing import Any

import pytest

from skylarkmq.broker.pop.requests import Popped
from tests.broker.pop.pop_rig import DEAD, GROUP, RETRY, TOPIC, PopRig, message_of


async def receive(rig: PopRig, attempt_id: str = "", count: int = 32, **changes: Any) -> list[Any]:
    """A receive of an ordered consumer."""
    return await rig.receive(count, attempt_id=attempt_id, is_fifo=True, **changes)


def bodies(popped: list[Popped]) -> list[bytes]:
    """What they say."""
    return [message_of(one).body for one in popped]


async def test_a_queue_is_blocked_while_something_of_its_batch_is_in_hand() -> None:
    rig = PopRig().start()
    rig.send_all(4)
    popped = await receive(rig, "a", count=2)
    assert bodies(popped) == [b"0", b"1"]
    assert await receive(rig, "b") == []
    assert await rig.ack(popped[0].receipt)
    assert await receive(rig, "b") == []
    assert rig.mark() == 1
    task = rig.begin(attempt_id="b", is_fifo=True)
    await rig.rest()
    assert not task.done()
    assert await rig.ack(popped[1].receipt)
    await rig.rest()
    assert bodies(task.result()) == [b"2", b"3"]
    assert rig.mark() == 2


async def test_what_lapses_comes_again_in_place_from_the_first_that_is_not_done() -> None:
    rig = PopRig().start()
    rig.send_all(4)
    popped = await receive(rig, "a", count=3, invisible_ms=10_000)
    assert await rig.ack(popped[0].receipt)
    task = rig.begin(attempt_id="b", is_fifo=True, wait_s=20, count=3)
    await rig.advance(9.9)
    assert not task.done()
    await rig.advance(0.3)
    again = task.result()
    assert bodies(again) == [b"1", b"2", b"3"]  # the batch goes on with what follows
    assert [one.attempt for one in again] == [2, 2, 1]
    assert not await rig.ack(popped[1].receipt)
    assert RETRY not in rig.topics.table
    for one in again:
        assert await rig.ack(one.receipt)
    assert rig.mark() == 4


async def test_an_acknowledgement_after_one_that_is_still_out_does_not_count_yet() -> None:
    rig = PopRig().start()
    rig.send_all(4)
    popped = await receive(rig, count=3, invisible_ms=10_000)
    for one in popped[1:]:
        assert await rig.ack(one.receipt)
        assert await rig.ack(one.receipt), "once more is no error"
    assert rig.mark() == 0
    changed = await rig.pop.settlement.change_invisible(GROUP, TOPIC, popped[1].receipt, 60_000)
    assert changed is None, "it is acknowledged"
    rig.pop.settlement.give_back(GROUP, TOPIC, [popped[1].receipt])
    assert await receive(rig) == []
    await rig.advance(10.2)
    again = await receive(rig, count=3)
    assert bodies(again) == [b"0", b"1", b"2"]
    assert [one.attempt for one in again] == [2, 2, 2]
    for one in popped:
        assert not await rig.ack(one.receipt), "of the delivery before"
    for one in reversed(again):
        assert await rig.ack(one.receipt)
    assert rig.mark() == 3
    assert bodies(await receive(rig)) == [b"3"]


async def test_a_changed_time_brings_what_was_acknowledged_after_it_again() -> None:
    rig = PopRig().start()
    rig.send_all(4)
    popped = await receive(rig, count=3, invisible_ms=60_000)
    assert await rig.ack(popped[0].receipt)
    assert (
        await rig.pop.settlement.change_invisible(GROUP, TOPIC, popped[1].receipt, 2000) is not None
    )
    assert await rig.ack(popped[2].receipt)
    assert rig.mark() == 1
    task = rig.begin(is_fifo=True)
    await rig.advance(1.9)
    assert not task.done()
    await rig.advance(0.3)
    assert bodies(task.result()) == [b"1", b"2", b"3"]
    assert [one.attempt for one in task.result()] == [2, 2, 1]


async def test_what_is_acknowledged_out_of_order_is_done_when_all_before_it_is() -> None:
    rig = PopRig().start()
    rig.send_all(5)
    popped = await receive(rig, count=4)
    for at, mark in ((2, 0), (1, 0), (0, 3), (3, 4)):
        assert await rig.ack(popped[at].receipt)
        assert rig.mark() == mark
    assert bodies(await receive(rig)) == [b"4"]
    await rig.advance(60)
    assert [message_of(one).body for one in await receive(rig)] == [b"4"]


async def test_a_batch_of_one_comes_again_and_then_what_was_acknowledged_after_it() -> None:
    rig = PopRig().start()
    rig.send_all(2)
    popped = await receive(rig, count=2, invisible_ms=10_000)
    assert await rig.ack(popped[1].receipt)
    await rig.advance(10.2)
    (first,) = await receive(rig, count=1)
    assert not await rig.ack(popped[1].receipt)
    assert await rig.ack(first.receipt)
    assert rig.mark() == 1
    assert bodies(await receive(rig)) == [b"1"]


async def test_the_same_attempt_gets_what_was_acknowledged_after_the_first_again() -> None:
    rig = PopRig().start()
    rig.send_all(3)
    first = await receive(rig, "a")
    assert await rig.ack(first[1].receipt)
    second = await receive(rig, "a")
    assert bodies(second) == [b"0", b"1", b"2"]
    assert [one.attempt for one in second] == [1, 1, 1]
    assert not await rig.ack(first[1].receipt)
    for one in second:
        assert await rig.ack(one.receipt)
    assert rig.mark() == 3


async def test_the_same_attempt_gets_nothing_acknowledged_without_one_before_it() -> None:
    rig = PopRig().start()
    rig.send_all(3)
    first = await receive(rig, "a", invisible_ms=60_000)
    assert await rig.ack(first[1].receipt)
    rig.pop.settlement.give_back(GROUP, TOPIC, [first[0].receipt])
    second = await receive(rig, "a", invisible_ms=60_000)
    assert bodies(second) == [b"2"]
    assert await rig.ack(first[1].receipt), "it counts as before"
    assert await rig.ack(second[0].receipt)
    await rig.advance(2)
    assert bodies(await receive(rig, "b")) == [b"0", b"1", b"2"]


async def test_an_acknowledged_message_is_no_dead_letter_for_one_before_it() -> None:
    rig = PopRig().start(retry_max_times=1)
    rig.send_all(3)
    await receive(rig, invisible_ms=10_000)
    await rig.advance(10.2)
    (first, *others) = await receive(rig, invisible_ms=10_000)
    assert (first.attempt, others[0].attempt) == (2, 2)  # the last one
    for one in others:
        assert await rig.ack(one.receipt)
    rig.pop.settlement.give_back(GROUP, TOPIC, [first.receipt])
    await rig.advance(1.2)
    again = await receive(rig, invisible_ms=10_000)
    assert bodies(again) == [b"0", b"1", b"2"]
    assert [one.attempt for one in again] == [2, 2, 2]
    for one in again[1:]:
        assert await rig.ack(one.receipt)
    await rig.advance(10.5)
    assert await receive(rig) == []
    assert [message.body for message in rig.stored(DEAD)] == [b"0"]
    await rig.advance(11)
    assert rig.mark() == 3, "what was acknowledged is done with the message before it"


@pytest.mark.parametrize("first_is_done", [True, False])
async def test_an_acknowledgement_out_of_order_outlasts_a_restart(*, first_is_done: bool) -> None:
    rig = PopRig().start()
    rig.group(consume_message_orderly=True)
    rig.send_all(3)
    popped = await receive(rig, count=2, invisible_ms=10_000)
    assert await rig.ack(popped[1].receipt)
    rig.restart()
    rig.restart()
    if first_is_done:
        assert await rig.ack(popped[0].receipt)
        assert rig.mark() == 2
        await rig.advance(20)
        assert bodies(await receive(rig)) == [b"2"]
    else:
        assert await receive(rig) == []
        await rig.advance(10.3)
        assert bodies(await receive(rig)) == [b"0", b"1", b"2"]


async def test_after_a_restart_of_an_unordered_group_acknowledged_is_done() -> None:
    rig = PopRig().start()
    rig.send_all(3)
    popped = await receive(rig, count=2, invisible_ms=10_000)
    assert await rig.ack(popped[1].receipt)
    rig.restart()
    assert await rig.ack(popped[0].receipt)
    assert rig.mark() == 2
    assert rig.pop.in_flight.room.count == 0
    assert not any(found.rows for found in rig.journal.state().keys.values())


async def test_the_same_attempt_gets_the_same_messages_again() -> None:
    rig = PopRig().start(queues=2)
    rig.send_all(3, queue_id=0)
    rig.send(b"other", queue_id=1)
    first = await receive(rig, "a")
    second = await receive(rig, "a")
    assert sorted(bodies(second)) == sorted(bodies(first))
    assert [one.attempt for one in second] == [1, 1, 1, 1]
    assert {one.receipt.serial for one in first}.isdisjoint(one.receipt.serial for one in second)
    assert not await rig.ack(first[0].receipt)
    rig.send(b"new")
    assert await receive(rig, "b") == []
    for one in second:
        assert await rig.ack(one.receipt)
    assert bodies(await receive(rig, "a")) == [b"new"]  # an id that is used again finds the next


async def test_an_attempt_of_another_queue_is_not_blocked() -> None:
    rig = PopRig().start(queues=2)
    rig.send(b"0", queue_id=0)
    assert bodies(await receive(rig, "a")) == [b"0"]
    rig.send(b"1", queue_id=1)
    assert bodies(await receive(rig, "b")) == [b"1"]


async def test_a_changed_invisible_time_blocks_the_queue_so_long() -> None:
    rig = PopRig().start()
    rig.send_all(2)
    popped = await receive(rig, "a", invisible_ms=10_000)
    changed = await rig.pop.settlement.change_invisible(GROUP, TOPIC, popped[0].receipt, 30_000)
    assert changed is not None
    task = rig.begin(attempt_id="b", is_fifo=True, wait_s=60)
    await rig.advance(11)
    assert not task.done()
    await rig.advance(20)
    assert bodies(task.result()) == [b"0", b"1"]
    assert [one.attempt for one in task.result()] == [2, 2]


async def test_an_undelivered_batch_comes_again_in_order_not_counted() -> None:
    rig = PopRig().start()
    rig.send_all(3)
    popped = await receive(rig, "a")
    rig.pop.settlement.give_back(GROUP, TOPIC, [one.receipt for one in reversed(popped)])
    assert await receive(rig, "b") == []
    await rig.advance(1.2)
    again = await receive(rig, "b")
    assert bodies(again) == [b"0", b"1", b"2"]
    assert [one.attempt for one in again] == [1, 1, 1]


async def test_a_poisoned_message_is_a_dead_letter_after_its_attempts() -> None:
    rig = PopRig().start(retry_max_times=1)
    rig.send_all(2)
    attempts: list[int] = []
    for number in range(5):
        for one in await receive(rig, f"a{number}", count=1):
            if message_of(one).body == b"0":
                attempts.append(one.attempt)
            else:
                assert await rig.ack(one.receipt)
        await rig.advance(10.3)
    assert attempts == [1, 2]
    assert [message.body for message in rig.stored(DEAD)] == [b"0"]
    assert rig.mark() == 2


async def test_a_forwarded_message_frees_its_queue() -> None:
    import asyncio

    rig = PopRig().start()
    rig.send_all(2)
    popped = await receive(rig, "a", count=1)
    task = rig.begin(attempt_id="b", is_fifo=True)
    forwarding = asyncio.create_task(
        rig.pop.settlement.forward_to_dlq(GROUP, TOPIC, popped[0].receipt)
    )
    await rig.rest()
    assert forwarding.result()
    assert bodies(task.result()) == [b"1"]
    assert [message.body for message in rig.stored(DEAD)] == [b"0"]


async def test_batch_attempts_and_counts_outlast_a_restart() -> None:
    rig = PopRig().start()
    rig.group(consume_message_orderly=True)
    rig.send_all(3)
    await receive(rig, "a", count=2, invisible_ms=10_000)
    await rig.advance(10.3)
    popped = await receive(rig, "b", count=2, invisible_ms=10_000)
    assert [one.attempt for one in popped] == [2, 2]
    rig.restart()
    assert await receive(rig, "c") == []
    same = await receive(rig, "b", invisible_ms=10_000)
    assert bodies(same) == [b"0", b"1"]
    assert [one.attempt for one in same] == [2, 2]
    rig.restart()
    await rig.advance(10.3)
    again = await receive(rig, "d")
    assert bodies(again) == [b"0", b"1", b"2"]
    assert [one.attempt for one in again] == [3, 3, 1]


async def test_a_group_that_becomes_ordered_finishes_what_is_in_hand_first() -> None:
    rig = PopRig().start()
    rig.send_all(2)
    popped = await rig.receive(count=1)
    assert await receive(rig, "a") == []
    assert await rig.ack(popped[0].receipt)
    assert bodies(await receive(rig, "a")) == [b"1"]
