"""The table of half messages against a set that says the same slowly."""

from __future__ import annotations

import random

import pytest

from skylarkmq.broker.transaction.half_table import MOVED_MAX, OPS_IN_CHUNK, HalfTable


def test_the_start_moves_over_what_has_ended() -> None:
    table = HalfTable(5)
    table.end(6)
    assert (table.start, table.pending_count(8)) == (5, 2)
    table.end(5)
    assert (table.start, table.pending_count(8)) == (7, 1)
    assert table.is_ended(4) and table.is_ended(6) and not table.is_ended(7)
    table.end(6)
    table.end(3)
    assert (table.start, table.pending_count(8)) == (7, 1)


@pytest.mark.parametrize("seed", range(4))
def test_it_says_what_a_set_would_say(seed: int) -> None:
    rng = random.Random(seed)
    begin = rng.randrange(50)
    table, ended, top = HalfTable(begin), set(range(begin)), begin + 1
    for _ in range(700):
        top += rng.choice((0, 1, 1, 2))
        low = next(n for n in range(top + 1) if n not in ended)
        if rng.random() < 0.005:
            target = low + rng.randrange(40)
            table.skip_to(target)
            ended |= set(range(target))
            top = max(top, target)
        else:
            offset = min(top - 1, low + int(rng.expovariate(0.05)))
            table.end(offset)
            ended.add(offset)
        start = next(n for n in range(top + 100) if n not in ended)
        assert table.start == start
        assert table.pending_count(top) == sum(n not in ended for n in range(top))
        at = rng.randrange(top + 1)
        expected = next((n for n in range(max(at, start), top) if n not in ended), top)
        assert table.next_pending(at, top) == max(expected, min(start, top))
        probe = rng.randrange(top + 20)
        assert table.is_ended(probe) == (probe in ended)


def test_memory_is_given_back_as_the_start_moves() -> None:
    table = HalfTable()
    for offset in range(200_000):
        table.end(offset)
    assert len(table._bits) <= 4096


def test_a_long_open_half_message_costs_a_bit_for_each_behind_it() -> None:
    table = HalfTable()
    for offset in range(1, 80_000):
        table.end(offset)
    assert len(table._bits) == 10_000
    assert table.pending_count(80_000) == 1
    assert table.next_pending(1, 80_000) == 80_000
    table.end(0)
    assert table.start == 80_000


def test_op_messages_are_passed_by_when_all_their_half_messages_have_ended() -> None:
    table = HalfTable()
    ops = list(range(1, 3 * OPS_IN_CHUNK))
    for op, half in enumerate(ops):
        table.end(half)
        table.note_op(op, half)
    assert table.op_start(10_000, len(ops)) == 0  # half message 0 is open
    table.end(0)
    table.note_op(len(ops), 0)
    assert table.start == 3 * OPS_IN_CHUNK
    assert table.op_start(10_000, len(ops) + 1) == 3 * OPS_IN_CHUNK


def test_an_op_message_whose_end_is_not_stored_yet_holds_the_others_back() -> None:
    table = HalfTable()
    for op in range(OPS_IN_CHUNK):
        table.end(op)
        if op != 7:
            table.note_op(op, op)
    assert table.op_start(10_000, OPS_IN_CHUNK) == 0
    table.note_op(7, 7)
    assert table.op_start(10_000, OPS_IN_CHUNK) == OPS_IN_CHUNK


def test_with_nothing_open_no_op_message_is_needed_again() -> None:
    table = HalfTable(0, 3)
    table.end(0)
    table.note_op(3, 0)
    assert table.op_start(1, 4) == 4
    table.end(1)
    table.note_op(4, 1)
    assert table.op_start(3, 5) == 4  # one is open
    for op in range(5, OPS_IN_CHUNK):
        table.end(op - 2)
        table.note_op(op, op - 2)
    assert table.op_start(10_000, 400) == 4  # the open one is half message 2
    table.end(2)
    assert table.op_start(10_000, 400) == OPS_IN_CHUNK


def test_the_table_of_places_is_bounded() -> None:
    table = HalfTable()
    for offset in range(MOVED_MAX + 10):
        table.move(offset, offset + 1)
    assert len(table.moved) == MOVED_MAX
    table.move(5, 77)
    assert table.moved[5] == 77
