"""Waiting by a clock that was handed in, and the system's own clock."""

from __future__ import annotations

import asyncio

import pytest

from skylarkmq.client.clock import SystemClock
from skylarkmq.remoting.waiting import fail_after, sleep, wait_event
from tests.support.manual_clock import ManualClock, settle


async def test_sleep_ends_with_the_clock_and_leaves_no_timer_when_cancelled() -> None:
    clock = ManualClock()
    nap, cancelled = (asyncio.create_task(sleep(clock, 2)) for _ in range(2))
    await settle()
    cancelled.cancel()
    await settle()
    assert clock.pending_count == 1
    clock.advance(1.9)
    await settle()
    assert not nap.done()
    clock.advance(0.1)
    await nap


async def test_fail_after_turns_its_own_cancellation_into_a_timeout() -> None:
    clock = ManualClock()

    async def wait() -> None:
        async with fail_after(clock, 1):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await settle()
    clock.advance(1)
    with pytest.raises(TimeoutError):
        await task
    assert task.cancelling() == 0


async def test_fail_after_lets_a_cancellation_from_outside_through() -> None:
    clock = ManualClock()

    async def wait() -> None:
        async with fail_after(clock, 1):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await settle()
    task.cancel()
    clock.advance(1)
    await settle()
    assert task.cancelled()
    assert clock.pending_count == 0


async def test_wait_event_says_whether_it_came() -> None:
    clock = ManualClock()
    event = asyncio.Event()
    waits = [asyncio.create_task(wait_event(clock, event, seconds)) for seconds in (1, 5)]
    await settle()
    clock.advance(1)
    await settle()
    event.set()
    assert await asyncio.gather(*waits) == [False, True]


async def test_the_system_clock_reads_milliseconds_and_plans_calls() -> None:
    clock = SystemClock(asyncio.get_running_loop())
    assert clock.now_ms() > 1_600_000_000_000
    called = asyncio.Event()
    clock.call_at(clock.monotonic(), called.set)
    await called.wait()
