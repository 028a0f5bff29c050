"""Units on their way out of the queues: both roads do the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq import kernel
from skylarkmq.store.queue.consume_queue import UNIT
from skylarkmq.store.queue.extension import ADDRESS_MAX
from skylarkmq.store.read import message_reader

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
