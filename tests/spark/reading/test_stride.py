"""The size of a pull follows the broker's caps, and forgives one short answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.spark.reading.ranges import Stride


def answer(stride: Stride, cap: int, times: int = 1) -> int:
    """Ask and be answered, `times`; return how many answers were short."""
    short = 0
    for _ in range(times):
        asked = stride.size
        short += asked > cap
        stride.answered(asked, min(asked, cap))
    return short


@pytest.mark.parametrize("cap", [1, 8, 32, 33, 500])
def test_a_cap_is_found_and_seldom_tried(cap: int) -> None:
    stride = Stride(1024)
    answer(stride, cap)
    assert stride.size == cap
    assert answer(stride, cap, 10_000) < 20
    assert stride.size in (cap, min(1024, 2 * cap))


def test_a_cap_that_goes_is_noticed() -> None:
    stride = Stride(1024)
    answer(stride, 8, 3)
    answer(stride, 32, 100)
    assert 32 <= stride.size <= 64
    answer(stride, 10**6, 2000)
    assert stride.size == 1024


def test_one_short_answer_is_forgiven() -> None:
    stride = Stride(1024)
    answer(stride, 800, 5)
    stride.answered(stride.size, 3)
    assert stride.size == 800


def test_a_first_short_answer_is_grown_out_of() -> None:
    stride = Stride(1024)
    stride.answered(1024, 3)
    assert stride.size == 3
    answer(stride, 10**6, 30)
    assert stride.size == 1024


def test_a_leftover_teaches_nothing() -> None:
    stride = Stride(1024)
    for _ in range(100):
        stride.answered(5, 5)
    assert stride.size == 1024


@given(st.integers(1, 100), st.lists(st.integers(0, 200)))
def test_always_within_bounds(maximum: int, counts: list[int]) -> None:
    stride = Stride(maximum)
    for count in counts:
        stride.answered(stride.size, min(count, stride.size))
        assert 1 <= stride.size <= maximum
