"""The event loop's lag, on a clock that the test moves."""

import pytest

from skylarkmq.broker.base.loop_lag import LoopLagService
from skylarkmq.common.histogram import Histogram
from tests.support.manual_clock import ManualClock


class LateClock(ManualClock):
    """Every call of `monotonic` costs time, as a busy loop does."""

    late_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.late_s


def test_a_free_loop_has_no_lag() -> None:
    clock, lag = ManualClock(), Histogram()
    service = LoopLagService(clock, lag)
    service.start()
    clock.advance(1.05)
    assert lag.count == 10
    assert lag.sum == pytest.approx(0)


def test_lateness_is_counted() -> None:
    clock, lag = LateClock(), Histogram((0.1, 0.5))
    service = LoopLagService(clock, lag)
    service.start()
    clock.late_s = 0.3
    clock.advance(0.1)
    assert lag.counts == [0, 1, 0]
    assert lag.sum == pytest.approx(0.3)


def test_an_early_timer_counts_as_on_time() -> None:
    clock, lag = LateClock(), Histogram()
    service = LoopLagService(clock, lag)
    service.start()
    clock.late_s = -0.0004
    clock.advance(0.1)
    assert lag.count == 1
    assert lag.sum == 0


def test_stop_leaves_no_timer() -> None:
    clock, lag = ManualClock(), Histogram()
    service = LoopLagService(clock, lag)
    service.start()
    clock.advance(0.25)
    service.stop()
    service.stop()
    clock.advance(10)
    assert lag.count == 2
    assert clock.pending_count == 0
