"""The clock that runs by itself and can be set forward."""

from __future__ import annotations

import asyncio
import time

import pytest
import uvloop

from skylarkmq.testing.clock import CANCELLED_MIN, OwnTimers, VirtualClock
from tests.support.patience import LIMIT_S


def test_it_is_the_system_s_time_until_it_is_set_forward() -> None:
    async def main() -> None:
        clock = VirtualClock()
        before = time.time_ns() // 1_000_000
        assert before <= clock.now_ms() <= before + 60_000
        wall, mono = clock.now_ms(), clock.monotonic()
        clock.advance(3600)
        assert 3600 <= clock.monotonic() - mono < 3660
        assert 3_600_000 <= clock.now_ms() - wall < 3_660_000
        assert clock.monotonic() - time.monotonic() == pytest.approx(3600, abs=1)

    asyncio.run(main())


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_timers_run_by_themselves_and_not_before_their_time(factory: object) -> None:
    async def main() -> None:
        clock, early = VirtualClock(), list[float]()
        done = asyncio.Event()

        def ring(when_s: float) -> None:
            early.append(clock.monotonic() - when_s)
            if len(early) == 3:
                done.set()

        for wait_s in (0.02, 0.0, 0.007):
            when_s = clock.monotonic() + wait_s
            clock.call_at(when_s, ring, when_s)
        await asyncio.wait_for(done.wait(), LIMIT_S)
        assert all(passed >= 0 for passed in early)

    with asyncio.Runner(loop_factory=factory) as runner:  # type: ignore[arg-type]
        runner.run(main())


async def test_a_jump_runs_each_timer_at_its_own_time_in_order() -> None:
    clock, ran = VirtualClock(), list[tuple[str, int]]()
    start_s = clock.monotonic()

    def note(name: str) -> None:
        ran.append((name, round(clock.monotonic() - start_s)))
        if name == "a":
            clock.call_at(clock.monotonic() + 30, note, "from a")

    clock.call_at(start_s + 60, note, "b")
    clock.call_at(start_s + 20, note, "a")
    clock.call_at(start_s + 90, note, "later")
    cancelled = clock.call_at(start_s + 10, note, "never")
    cancelled.cancel()
    cancelled.cancel()
    clock.advance(70)
    assert ran == [("a", 20), ("from a", 50), ("b", 60)]


async def test_a_timer_that_fails_is_told_and_stops_no_other() -> None:
    clock, ran, told = VirtualClock(), list[str](), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    def fail() -> None:
        raise RuntimeError("boom")

    clock.call_at(clock.monotonic() + 1, fail)
    clock.call_at(clock.monotonic() + 1, ran.append, "after")
    clock.advance(2)
    assert ran == ["after"]
    assert len(told) == 1


async def test_cancelled_timers_do_not_pile_up() -> None:
    clock = VirtualClock()
    for _ in range(10 * CANCELLED_MIN):
        clock.call_at(clock.monotonic() + 1000, print).cancel()
    assert len(clock._timers) <= 2 * CANCELLED_MIN


async def test_the_timers_of_the_dead_are_forgotten() -> None:
    clock, ran = VirtualClock(), list[str]()
    dead, living = OwnTimers(clock), OwnTimers(clock)
    dead.call_at(dead.monotonic() + 1, ran.append, "dead")
    living.call_at(living.monotonic() + 1, ran.append, "alive")
    dead.forget_timers()
    clock.call_at(clock.monotonic() + 1, ran.append, "the test's")
    assert abs(living.now_ms() - clock.now_ms()) < 1000
    clock.advance(5)
    assert ran == ["alive", "the test's"]
    assert clock.next_timer_s() is None
    living.call_at(living.monotonic() + 1000, ran.append, "late")
    living.forget_timers()
    assert clock.next_timer_s() is None
    assert clock._wake is None, "nothing keeps a dead broker from being collected"


async def test_a_timer_that_another_one_of_its_moment_cancels_does_not_run() -> None:
    clock, rung = VirtualClock(), list[str]()
    when_s = clock.monotonic() + 10

    def first() -> None:
        rung.append("first")
        second.cancel()

    clock.call_at(when_s, first)
    second = clock.call_at(when_s, rung.append, "second")
    clock.advance(20)
    assert rung == ["first"]
