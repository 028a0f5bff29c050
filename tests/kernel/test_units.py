"""Units on their way into the queues, and out of them: both roads do the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq import kernel
from skylarkmq.store.queue.consume_queue import UNIT, UNIT_SIZE, ConsumeQueue
from skylarkmq.store.queue.extension import ADDRESS_MAX
from skylarkmq.store.read import message_reader
from tests.support.amounts import examples

assert message_reader.take_units, "the twins are known once they are imported"
compiled: Any = kernel.compiled
pytestmark = pytest.mark.skipif(compiled is None, reason=kernel.why_pure)

INT32 = st.integers(-(2**31), 2**31 - 1)
PLACES = st.integers(0, 2**62) | st.integers(0, 5).map(lambda number: number * 100)
CODES = st.sampled_from([0, 1, -1, ADDRESS_MAX, ADDRESS_MAX + 1, -(2**63), 2**31 - 1])
FAR = st.lists(st.tuples(PLACES, INT32, CODES), max_size=30)
CLOSE = st.lists(CODES, max_size=30).map(
    lambda codes: [(number * 100, 100, code) for number, code in enumerate(codes)]
)


@given(
    FAR | CLOSE,
    st.none() | st.frozensets(CODES),
    st.integers(-1, 40),
    st.integers(-1, 2**40) | st.integers(0, 2000),
)
def test_units_of_a_pull(
    units: list[tuple[int, int, int]], tags: frozenset[int] | None, count_max: int, size_max: int
) -> None:
    data = b"".join([UNIT.pack(*unit) for unit in units])
    matches = None if tags is None else tags.__contains__
    made = compiled.take_units(data, matches, count_max, size_max)
    assert made == kernel.twins["take_units"](data, matches, count_max, size_max)


@examples(100, 300)
@given(
    st.lists(
        st.tuples(st.integers(0, 40) | st.integers(0, 2), st.integers(-1, 3), INT32), max_size=120
    )
)
def test_units_on_their_way_into_the_queues(steps: list[tuple[int, int, int]]) -> None:
    queues = [ConsumeQueue("T", number, Path()) for number in range(41)]
    units: list[Any] = []
    for place, step, code in steps:  # mostly the next one, or a prepared record, or one is missed
        queue = queues[place]
        queue.next_offset += max(0, step - 2)
        number = -1 if step < 0 else queue.next_offset
        queue.next_offset += number >= 0
        units.append((queue, number, place * 2**50, 100 + place, code * 2**31, b"", 0))
    made = compiled.queue_runs(units)
    assert by_queue(made) == by_queue(kernel.twins["queue_runs"](units))
    if len({unit[0] for unit in units}) == 1 and all(step <= 2 for _, step, _ in steps):
        assert len(made) <= 1, "one run, as it is quickest"


def by_queue(runs: list[tuple[ConsumeQueue, int, bytes]]) -> dict[int, list[tuple[int, bytes]]]:
    """What each queue gets, unit by unit."""
    found: dict[int, list[tuple[int, bytes]]] = {}
    for queue, number, units in runs:
        for place in range(0, len(units), UNIT_SIZE):
            each = number + place // UNIT_SIZE, units[place : place + UNIT_SIZE]
            found.setdefault(queue.queue_id, []).append(each)
    return found
