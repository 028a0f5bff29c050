"""Who was killed does nothing any more, whatever it had planned."""

from __future__ import annotations

from tests.support.life_clock import LifeClock
from tests.support.manual_clock import ManualClock


def test_what_is_planned_ends_with_the_life() -> None:
    clock, called = ManualClock(), list[str]()
    first, second = LifeClock(clock), LifeClock(clock)
    for name, life in {"first": first, "second": second}.items():
        life.call_at(life.monotonic() + 1, called.append, name)
    assert (first.now_ms(), first.monotonic()) == (clock.now_ms(), clock.monotonic())
    first.end()
    first.call_at(first.monotonic(), called.append, "later")
    clock.advance(2)
    assert called == ["second"]
