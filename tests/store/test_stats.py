"""The store's counters."""

import pytest

from skylarkmq.common.histogram import Histogram


def test_a_value_on_a_bound_lies_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.1):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.cumulative() == [2, 4, 5]
    assert histogram.count == 5
    assert histogram.sum == pytest.approx(7.1)


def test_many_equal_values_count_as_one_by_one() -> None:
    one_by_one, at_once = Histogram(), Histogram()
    for _ in range(32):
        one_by_one.observe(0.25)
    at_once.observe_many(0.25, 32)
    assert at_once.counts == one_by_one.counts
    assert at_once.sum == pytest.approx(one_by_one.sum)


@pytest.mark.parametrize("bounds", [(), (1.0, 1.0), (2.0, 1.0)])
def test_bounds_that_do_not_rise_are_refused(bounds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="rise"):
        Histogram(bounds)
