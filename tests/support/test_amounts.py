"""A property is tried as often as its amount says, and a sample must show its share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.amounts import EXAMPLES, check_power, examples, sample

tried: list[int] = []


@pytest.fixture
def counted(request: pytest.FixtureRequest) -> Iterator[None]:
    tried.clear()
    yield
    item: Any = request.node
    assert len(tried) == item.callspec.params[EXAMPLES]


@pytest.mark.usefixtures("counted")
@examples(3, 7)
@given(st.integers())
def test_each_amount_is_tried(number: int) -> None:
    tried.append(number)


def test_those_after_the_first_few_are_slow() -> None:
    first, second, third = sample(range(3), 1)
    assert first == 0
    assert [(each.values, each.marks[0].name) for each in (second, third)] == [
        ((1,), "slow"),
        ((2,), "slow"),
    ]


@pytest.mark.parametrize(
    ("runs", "seen", "is_enough"),
    [(10, 20, True), (10, 19, False), (5, 5, True), (5, 4, False), (0.4, 0, True), (20, 39, False)],
)
def test_a_sample_shows_its_share(runs: float, seen: int, is_enough: bool) -> None:
    def check() -> None:
        check_power(Counter(crashes=seen), {"crashes": 20}, runs, 10)

    if is_enough:
        check()
    else:
        with pytest.raises(AssertionError, match="too little was seen"):
            check()
