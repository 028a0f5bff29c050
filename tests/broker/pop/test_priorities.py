"""A topic of type PRIORITY: its queues are levels, and the highest one goes first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.broker.pop.pop_rig import GROUP, RETRY, TOPIC, PopRig, message_of
from tests.support.manual_clock import settle

LEVELS = 4


def with_levels(**config: Any) -> PopRig:
    rig = PopRig(**config).start(queues=LEVELS)
    rig.topic(TOPIC, LEVELS, kind="PRIORITY")
    return rig


async def test_a_receive_takes_of_the_highest_level_first() -> None:
    rig = with_levels()
    for queue_id in (0, 2, 1, 2, 3, 0):
        rig.send(b"%d" % queue_id, queue_id)
    assert await rig.bodies(3, from_min=True) == [b"3", b"2", b"2"]
    rig.send(b"3 later", 3)
    assert await rig.bodies() == [b"3 later", b"1", b"0", b"0"]


async def test_it_waits_for_any_level() -> None:
    rig = with_levels()
    task = rig.begin()
    await rig.rest()
    rig.send(b"low", 0)
    rig.send(b"high", 3)
    await rig.rest()
    assert [message_of(one).body for one in task.result()] == [b"high", b"low"]


async def test_one_queue_may_be_asked_for() -> None:
    rig = with_levels()
    rig.send(b"low", 0)
    rig.send(b"high", 3)
    assert await rig.bodies(queue_id=0, from_min=True) == [b"low"]
    assert await rig.bodies(queue_id=7) == []


async def test_a_retry_keeps_its_level_and_goes_before_what_is_newer() -> None:
    rig = with_levels()
    rig.send(b"high", 3)
    rig.send(b"low", 1)
    assert await rig.bodies(from_min=True) == [b"high", b"low"]
    rig.send(b"middle", 2)
    rig.send(b"newer", 3)
    await rig.advance(11)
    assert [len(rig.stored(RETRY, queue_id)) for queue_id in range(LEVELS)] == [0, 1, 0, 1]
    assert await rig.bodies() == [b"high", b"newer", b"middle", b"low"]


async def test_the_levels_outlive_a_restart_with_messages_in_hand() -> None:
    rig = with_levels()
    rig.send(b"high", 3)
    rig.send(b"low", 0)
    (high, low) = await rig.receive(from_min=True)
    await rig.advance(11)  # both are retries now
    await rig.receive(1)  # and the high one in hand
    await rig.stop_pop()
    rig.restart()
    rig.send(b"middle", 2)
    await rig.advance(11)
    assert await rig.bodies() == [b"high", b"middle", b"low"]
    assert high.receipt != low.receipt


async def test_a_topic_of_retries_from_before_gets_the_levels() -> None:
    rig = with_levels()
    rig.topic(RETRY, 1)
    rig.send(b"high", 3)
    assert await rig.bodies(from_min=True) == [b"high"]
    await rig.advance(11)
    retries = rig.topics.get(RETRY)
    assert retries is not None
    assert retries.read_queue_nums == retries.write_queue_nums == LEVELS
    assert await rig.bodies() == [b"high"]


async def test_a_dead_letter_lies_in_the_only_queue() -> None:
    rig = with_levels()
    rig.group(retry_max_times=0)
    rig.send(b"high", 3)
    await rig.receive(from_min=True)
    await rig.advance(11)
    assert [message.body for message in rig.stored("%DLQ%G")] == [b"high"]


async def test_what_is_given_back_comes_at_its_level() -> None:
    rig = with_levels()
    rig.send(b"high", 3)
    (high,) = await rig.receive(from_min=True)
    rig.pop.settlement.give_back(GROUP, TOPIC, [high.receipt])
    rig.send(b"low", 0)
    await rig.advance(1.2)
    assert await rig.bodies() == [b"high", b"low"]


async def test_an_ordered_group_takes_the_queues_in_turn() -> None:
    rig = with_levels()
    rig.group(consume_message_orderly=True)
    await rig.receive(is_fifo=True, attempt_id="a", from_min=True)
    for queue_id in range(LEVELS):
        rig.send(b"%d" % queue_id, queue_id)
    bodies = [await rig.bodies(1, is_fifo=True, attempt_id=f"b{number}") for number in range(4)]
    assert bodies == [[b"0"], [b"1"], [b"2"], [b"3"]]


async def test_a_low_level_waits_while_a_high_one_is_read_from_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = with_levels()
    assert await rig.receive() == []
    rig.send(b"low", 0)
    rig.send(b"high", 3)
    rig.send(b"higher", 3)
    monkeypatch.setattr(rig.store, "is_cold", lambda _topic, queue_id, _offset: queue_id == 3)
    first = rig.begin(1)
    await asyncio.sleep(0)
    second = rig.begin(1)
    await settle(1)
    assert not first.done()
    assert not second.done()
    await rig.rest()
    assert [message_of(one).body for one in first.result() + second.result()] == [
        b"high",
        b"higher",
    ]


async def test_a_full_batch_is_not_filled_below_what_is_left_on_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = with_levels()
    assert await rig.receive() == []
    rig.send(b"low", 0)
    rig.send(b"old", 2)
    rig.send(b"high", 3)
    monkeypatch.setattr(rig.store, "is_cold", lambda _topic, queue_id, _offset: queue_id == 2)
    assert await rig.bodies() == [b"high"]
    assert await rig.bodies() == [b"old"]
    assert await rig.bodies() == [b"low"]


async def test_a_level_that_has_as_much_in_flight_as_it_may_is_passed_over() -> None:
    rig = with_levels(pop_inflight_max_per_queue=1)
    for _ in range(2):
        rig.send(b"high", 3)
    rig.send(b"low", 0)
    assert await rig.bodies(from_min=True) == [b"high", b"low"]


async def test_the_type_may_be_taken_away() -> None:
    rig = PopRig().start(queues=2)
    rig.topic(TOPIC, 2, kind="PRIORITY")
    assert await rig.receive(from_min=True) == []
    rig.topic(TOPIC, 2)
    rig.send(b"0", 0)
    rig.send(b"1", 1)
    assert await rig.bodies() == [b"0", b"1"]
