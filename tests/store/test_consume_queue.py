"""The queue's state in memory: numbers, the tail, what may be forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylarkmq.store.queue.consume_queue import (
    PRE_BLANK,
    TAIL_KEEP_SIZE,
    UNIT,
    UNIT_SIZE,
    ConsumeQueue,
    is_valid_unit,
)
from tests.protocol.message_vectors import STORE

KEEP = TAIL_KEEP_SIZE // UNIT_SIZE


def queue(count: int = 0) -> ConsumeQueue:
    made = ConsumeQueue("TopicTest", 3, Path("/nowhere"))
    for number in range(count):
        made.append(100 * number, 100, number)
    return made


def unit(number: int) -> bytes:
    return UNIT.pack(100 * number, 100, number)


@pytest.mark.parametrize("vector", STORE["messages"], ids=lambda vector: vector["name"])
def test_units_are_rocketmqs(vector: dict[str, object]) -> None:
    if vector["consumeQueueUnitHex"] is None:
        return
    packed = UNIT.pack(vector["physicalOffset"], vector["size"], vector["tagsCode"])
    assert packed.hex() == vector["consumeQueueUnitHex"]


def test_a_unit_has_rocketmqs_size() -> None:
    assert STORE["consumeQueue"]["unitSize"] == UNIT_SIZE


def test_a_new_queue_is_empty() -> None:
    made = queue()
    assert (made.min_offset, made.max_offset, made.next_offset, made.written) == (0, 0, 0, 0)
    assert made.unwritten() == made.tail_units(0, 10) == b""
    assert made.topic_part == b"\x09TopicTest"


def test_units_are_readable_before_they_are_written() -> None:
    made = queue(5)
    assert (made.max_offset, made.unwritten_size) == (5, 5 * UNIT_SIZE)
    assert made.max_physical_offset == 500
    assert made.tail_units(2, 2) == unit(2) + unit(3)
    assert made.tail_units(4, 99) == unit(4)
    assert made.unwritten() == b"".join(unit(number) for number in range(5))


def test_the_tail_keeps_the_newest_units_for_readers() -> None:
    made = queue(1000)
    made.mark_written(1000)
    assert (made.unwritten_size, made.tail_start) == (0, 1000 - KEEP)
    assert made.tail_units(999, 1) == unit(999)
    assert len(made.tail) == KEEP * UNIT_SIZE
    made.drop_tail()
    assert (made.tail_start, len(made.tail)) == (1000, 0)
    made.append(100 * 1000, 100, 1000)
    assert made.tail_units(1000, 1) == made.unwritten() == unit(1000)


def test_unwritten_units_are_never_forgotten() -> None:
    made = queue(1000)
    made.mark_written(100)
    assert made.tail_start <= 100
    assert made.unwritten() == b"".join(unit(number) for number in range(100, 1000))
    made.drop_tail()
    assert made.tail_start == 100
    assert made.tail_units(100, 1) == unit(100)


def test_written_in_steps_while_more_is_published() -> None:
    made = queue(600)
    end = made.max_offset
    for number in range(600, 700):
        made.append(100 * number, 100, number)
    made.mark_written(end)
    assert made.unwritten() == b"".join(unit(number) for number in range(600, 700))
    made.mark_written(700)
    assert made.tail_units(made.tail_start, 1) == unit(made.tail_start)


def test_reset_begins_anew_at_an_offset() -> None:
    made = queue(10)
    made.reset(77)
    assert (made.first_offset, made.min_offset, made.max_offset, made.next_offset) == (77,) * 4
    made.append(5, 100, 0)
    assert made.tail_units(77, 1) == UNIT.pack(5, 100, 0)


@pytest.mark.parametrize(
    ("commit_offset", "size", "valid"),
    [(0, 1, True), (0, 0, False), (1, -1, False), (-1, 100, False), (1 << 60, 1 << 30, True)],
)
def test_what_was_never_written_is_no_unit(commit_offset: int, size: int, valid: bool) -> None:
    assert is_valid_unit(commit_offset, size) is valid


def test_padding_counts_as_written() -> None:
    assert is_valid_unit(*UNIT.unpack(PRE_BLANK)[:2])
