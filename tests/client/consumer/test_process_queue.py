"""ProcessQueue: the commit offset is the lowest offset not done, in every order of acks."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skylarkmq.client.received_message import ProcessQueue
from skylarkmq.protocol.message import MessageQueue

QUEUE = MessageQueue("t", "b", 0)


@dataclass
class Item:
    """A message, as far as the queue and the buffer look at it."""

    queue_offset: int
    size: int = 10
    overdue_s: float = inf


def items(*offsets: int) -> list[Any]:
    return [Item(offset) for offset in offsets]


def test_out_of_order_acks_move_the_offset_only_to_the_lowest_unacked() -> None:
    queue = ProcessQueue(QUEUE, 42)
    queue.add(items(42, 43, 44, 45), 46)
    assert [item.queue_offset for item in queue.take(10)] == [42, 43, 44, 45]
    assert queue.done(43)
    assert queue.done(45)
    assert queue.commit_offset == 42
    assert queue.done(42)
    assert queue.commit_offset == 44
    assert queue.done(44)
    assert queue.commit_offset == 46
    assert not queue.done(44), "known already"
    assert (queue.held_count, queue.held_bytes, queue.span) == (0, 0, 0)


def test_filtered_messages_move_the_offset_when_nothing_waits() -> None:
    queue = ProcessQueue(QUEUE, 0)
    queue.add([], 100)
    assert queue.commit_offset == 100
    queue.add(items(150), 200)
    assert queue.commit_offset == 150
    queue.take(1)
    queue.done(150)
    assert queue.commit_offset == 200


def test_messages_seen_before_are_passed_over() -> None:
    queue = ProcessQueue(QUEUE, 10)
    assert queue.add(items(8, 9, 10), 11) == 1
    assert queue.add(items(10, 11), 12) == 1
    assert [item.queue_offset for item in queue.take(10)] == [10, 11]
    queue.add([], 5)
    assert queue.pull_offset == 12, "never back"


def test_a_dropped_queue_hears_nothing() -> None:
    queue = ProcessQueue(QUEUE, 0)
    queue.add(items(0, 1), 2)
    (first,) = queue.take(1)
    before = queue.commit_offset
    queue.drop()
    assert not queue.done(0)
    assert not queue.put_back(first)
    assert queue.take(10) == []
    assert queue.commit_offset == before


def test_a_paused_queue_hands_out_nothing_and_acks_go_on() -> None:
    queue = ProcessQueue(QUEUE, 0)
    queue.add(items(0, 1), 2)
    queue.take(1)
    queue.paused = True
    assert queue.take(1) == []
    queue.done(0)
    queue.paused = False
    assert [item.queue_offset for item in queue.take(1)] == [1]
    assert queue.commit_offset == 1


def test_position_is_the_next_to_be_handed_out() -> None:
    queue = ProcessQueue(QUEUE, 7)
    assert queue.position == 7
    queue.add(items(9, 12), 20)
    assert queue.position == 9
    queue.take(1)
    assert queue.position == 12
    queue.take(1)
    assert queue.position == 20


class AnyOrder(RuleBasedStateMachine):
    """Random pulls, hand-outs, acks and retries, against a model of plain sets."""

    def __init__(self) -> None:
        super().__init__()
        self.rooms = 0
        self.queue = ProcessQueue(QUEUE, 100, self.room)
        self.pulled_to = 100
        self.open: set[int] = set()
        self.out: dict[int, Any] = {}
        self.last_commit = 100

    def room(self) -> None:
        self.rooms += 1

    @rule(gaps=st.lists(st.integers(0, 3), max_size=6), rest=st.integers(0, 3))
    def pull(self, gaps: list[int], rest: int) -> None:
        offset, found = self.pulled_to, []
        for gap in gaps:
            offset += gap
            found.append(Item(offset, offset % 7))
            offset += 1
        self.queue.add(found, offset + rest)
        self.open |= {item.queue_offset for item in found}
        self.pulled_to = offset + rest

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        expected = sorted(self.open - set(self.out))[:count]
        taken = self.queue.take(count)
        assert [item.queue_offset for item in taken] == expected
        self.out |= {item.queue_offset: item for item in taken}

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.out)))
        del self.out[offset]
        self.open.discard(offset)
        assert self.queue.done(offset)
        assert not self.queue.done(offset)

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.out)))
        assert self.queue.put_back(self.out.pop(offset))

    @invariant()
    def commits_to_the_lowest_open(self) -> None:
        commit = self.queue.commit_offset
        assert commit == min(self.open, default=self.pulled_to)
        assert commit >= self.last_commit, "never back"
        self.last_commit = commit

    @invariant()
    def counts_what_it_holds(self) -> None:
        assert self.queue.held_count == len(self.open)
        assert self.queue.held_bytes == sum(offset % 7 for offset in self.open)
        assert self.queue.ready_count == len(self.open) - len(self.out)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40)
