"""The manual clock runs timers in order, at their own time, and forgets cancelled ones."""

from __future__ import annotations

from tests.support.manual_clock import START_MS, ManualClock


def test_timers_run_in_the_order_of_their_time_each_at_its_own() -> None:
    clock = ManualClock()
    start_s = clock.monotonic()
    seen: list[tuple[str, float]] = []

    def note(name: str) -> None:
        seen.append((name, clock.monotonic() - start_s))

    clock.call_at(start_s + 3, note, "late")
    clock.call_at(start_s + 1, note, "early")
    clock.call_at(start_s + 2, note, "cancelled").cancel()
    clock.advance(2)
    assert seen == [("early", 1.0)]
    assert clock.pending_count == 1
    clock.advance(5)
    assert seen == [("early", 1.0), ("late", 3.0)]
    assert clock.now_ms() == START_MS + 7000


def test_a_timer_may_set_another_within_the_same_advance() -> None:
    clock = ManualClock()
    ticks: list[int] = []

    def tick() -> None:
        ticks.append(clock.now_ms() - START_MS)
        clock.call_at(clock.monotonic() + 1, tick)

    clock.call_at(clock.monotonic() + 1, tick)
    clock.advance(3.5)
    assert ticks == [1000, 2000, 3000]


def test_the_wall_clock_steps_alone() -> None:
    clock = ManualClock()
    before_s = clock.monotonic()
    clock.step_wall(-3600)
    assert clock.now_ms() == START_MS - 3_600_000
    assert clock.monotonic() == before_s
