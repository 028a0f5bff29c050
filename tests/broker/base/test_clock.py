"""The real clock, on both loops."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from skylarkmq.broker.base.clock import SystemClock

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.mark.parametrize("name", LOOPS)
def test_a_timer_never_runs_before_its_time(name: str) -> None:
    early: list[float] = []

    async def main() -> None:
        clock = SystemClock(asyncio.get_running_loop())
        left = asyncio.Semaphore(0)

        def ran(when_s: float) -> None:
            early.append(when_s - clock.monotonic())
            left.release()

        for tenths_ms in range(-2, 60):
            when_s = clock.monotonic() + tenths_ms / 10_000
            clock.call_at(when_s, ran, when_s)
        for _ in range(62):
            await left.acquire()

    run(main, LOOPS[name])
    assert len(early) == 62
    assert max(early) <= 0


@pytest.mark.parametrize("name", LOOPS)
def test_a_cancelled_timer_does_not_run(name: str) -> None:
    ran: list[str] = []

    async def main() -> None:
        clock = SystemClock(asyncio.get_running_loop())
        now_s = clock.monotonic()
        clock.call_at(now_s, ran.append, "cancelled").cancel()
        clock.call_at(now_s + 0.001, ran.append, "cancelled").cancel()
        last = asyncio.Event()
        clock.call_at(now_s + 0.003, last.set)
        await last.wait()

    run(main, LOOPS[name])
    assert ran == []


def run(main: Callable[[], object], make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())  # type: ignore[arg-type]
