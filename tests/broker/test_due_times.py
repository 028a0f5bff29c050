"""The waiting rules of a delay level when the wall clock steps."""

import random

from skylarkmq.broker.delay.due_times import DueTimes

DELAY_MS = 10_000
NOW_MS = 1_700_000_000_000


def test_with_a_straight_clock_a_unit_waits_for_its_due_time() -> None:
    due = DueTimes(DELAY_MS)
    due.observe(5, NOW_MS + DELAY_MS, NOW_MS, 100.0)
    assert len(due) == 0
    assert due.wait_s(4, NOW_MS + 2500, NOW_MS, 100.0) == 2.5
    assert due.wait_s(4, NOW_MS, NOW_MS, 100.0) == 0
    assert due.wait_s(4, NOW_MS - 1, NOW_MS, 100.0) < 0


def test_after_a_step_back_a_unit_waits_one_delay_at_most() -> None:
    due = DueTimes(DELAY_MS)
    due_ms = NOW_MS + 3_600_000 + DELAY_MS  # the clock was an hour ahead when it was stored
    due.observe(5, due_ms, NOW_MS, 100.0)
    assert due.wait_s(4, due_ms, NOW_MS, 100.0) == 10
    assert due.wait_s(4, due_ms, NOW_MS + 9000, 109.0) == 1
    assert due.wait_s(4, due_ms, NOW_MS + 10_000, 110.0) == 0
    assert due.wait_s(5, due_ms, NOW_MS, 100.0) > 3600, "what came later has no part in it"


def test_a_step_back_by_a_millisecond_ends_no_wait() -> None:
    due = DueTimes(7_200_000)
    due_ms = NOW_MS + 7_200_000
    due.observe(1, due_ms, NOW_MS - 1, 100.0)
    assert due.wait_s(0, due_ms, NOW_MS - 1, 100.0) == 7200


def test_looking_again_does_not_push_the_deadline() -> None:
    due = DueTimes(DELAY_MS)
    far_ms = NOW_MS + 10**9
    for second in range(11):
        due.observe(5, far_ms, NOW_MS, 100.0 + second)
    assert due.wait_s(4, far_ms, NOW_MS, 110.0) == 0


def test_units_that_come_during_the_skew_get_deadlines_of_their_own() -> None:
    due = DueTimes(DELAY_MS)
    far_ms = NOW_MS + 10**9
    due.observe(1, far_ms, NOW_MS, 100.0)
    due.observe(2, far_ms, NOW_MS, 105.0)
    assert due.wait_s(0, far_ms, NOW_MS, 105.0) == 5
    assert due.wait_s(1, far_ms, NOW_MS, 105.0) == 10


def test_bounds_are_few_never_early_and_hardly_late() -> None:
    rng = random.Random(7)
    delay_s = 100
    due = DueTimes(delay_s * 1000)
    far_ms = NOW_MS + 10**9
    arrivals: list[float] = []
    now_s = 0.0
    while now_s < 3 * delay_s:
        now_s += rng.uniform(0.0, 2.0)
        arrivals.append(now_s)
        due.observe(len(arrivals), far_ms, NOW_MS, now_s)
        gone = sum(now_s - arrived >= delay_s + 1 for arrived in arrivals)
        due.forget(gone)
        assert len(due) <= 102
        for offset in range(gone, len(arrivals)):
            end_s = now_s + due.wait_s(offset, far_ms, NOW_MS, now_s)
            assert delay_s <= end_s - arrivals[offset] + 1e-6
            assert end_s - arrivals[offset] <= delay_s + 1 + 1e-6


def test_bounds_are_forgotten_with_their_units() -> None:
    due = DueTimes(DELAY_MS)
    due.observe(3, NOW_MS + 10**9, NOW_MS, 100.0)
    due.forget(2)
    assert len(due) == 1
    due.forget(3)
    assert len(due) == 0
