"""What a run of records covers is found by sizes alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.spark.reading.ranges import (
    Span,
    SpanError,
    cut,
    first_gap,
    offsets_of,
    span_of,
)
from tests.spark.support.queue_model import record

RISING = st.lists(st.integers(0, 50), unique=True, min_size=1).map(sorted)


def run(offsets: list[int]) -> bytes:
    return b"".join(record(offset, offset % 5) for offset in offsets)


@given(RISING)
def test_first_last_and_count(offsets: list[int]) -> None:
    span = span_of(run(offsets))
    assert span == Span(offsets[0], offsets[-1], len(offsets))
    assert span is not None
    assert span.is_dense == (offsets == list(range(offsets[0], offsets[-1] + 1)))
    assert [offset for offset, _ in offsets_of(run(offsets))] == offsets


@given(RISING, st.integers(-1, 51), st.integers(-1, 51))
def test_cut_keeps_what_lies_between(offsets: list[int], start: int, end: int) -> None:
    kept = [offset for offset in offsets if start <= offset < end]
    assert cut(run(offsets), start, end) == run(kept)


@given(RISING)
def test_the_first_gap(offsets: list[int]) -> None:
    gap = first_gap(run(offsets))
    assert gap not in offsets
    assert set(range(offsets[0], gap)) <= set(offsets)


def test_nothing_covers_nothing() -> None:
    assert span_of(b"") is None


@pytest.mark.parametrize("data", [bytes(3), bytes(91), b"\xff" * 100, record(0)[:-1]])
def test_no_records(data: bytes) -> None:
    with pytest.raises(SpanError):
        span_of(data)
