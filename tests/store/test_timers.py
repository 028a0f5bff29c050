"""A repeated call: when, how long, and that a failing one goes on."""

from __future__ import annotations

import pytest

from skylarkmq.common.repeating import IntervalTimer
from tests.support.manual_clock import ManualClock


def test_it_fires_each_interval_until_it_is_stopped() -> None:
    clock, calls = ManualClock(), list[float]()
    timer = IntervalTimer(clock, 2.5, lambda: calls.append(clock.monotonic()))
    begin = clock.monotonic()
    clock.advance(10)
    assert calls == [], "not before it is started"
    timer.start()
    clock.advance(7.6)
    assert [call - begin for call in calls] == [12.5, 15.0, 17.5]
    timer.stop()
    timer.stop()
    clock.advance(100)
    assert len(calls) == 3
    assert clock.pending_count == 0


def test_it_can_be_started_again() -> None:
    clock, calls = ManualClock(), list[int]()
    timer = IntervalTimer(clock, 1, lambda: calls.append(1))
    timer.start()
    timer.stop()
    timer.start()
    clock.advance(1)
    assert calls == [1]


def test_an_action_that_fails_is_called_again() -> None:
    clock, calls = ManualClock(), list[int]()

    def action() -> None:
        calls.append(1)
        raise RuntimeError("once more")

    IntervalTimer(clock, 1, action).start()
    for _ in range(3):
        with pytest.raises(RuntimeError):
            clock.advance(1)
    assert len(calls) == 3


def test_an_action_may_stop_its_own_timer() -> None:
    clock, calls = ManualClock(), list[int]()
    timer = IntervalTimer(clock, 1, lambda: (calls.append(1), timer.stop()))
    timer.start()
    clock.advance(10)
    assert calls == [1]
