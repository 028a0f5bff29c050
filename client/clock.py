"""The system's clock over the running loop, and waiting by a clock that was handed in.

Only this file of the package asks the system for the time or the loop for a timer. Loop thread.

Times of the application as milliseconds since the epoch, which brokers count in.

Whole numbers throughout: a float's rounding could name the millisecond before or after.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from skylarkmq.common.clock import Clock, TimerHandle

T = TypeVar("T")


class SystemClock:
    """Wall time, the loop's monotonic time, and timers of the loop; implements `Clock`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.monotonic: Callable[[], float] = loop.time

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_at(self, when_s: float, callback: Callable[..., object], *args: object) -> TimerHandle:
        return self._loop.call_at(when_s, callback, *args)


async def sleep(clock: Clock, seconds: float) -> None:
    """Wait `seconds` of the clock; with 0 or less, one turn of the loop."""
    if seconds <= 0:
        await asyncio.sleep(0)
        return
    done = asyncio.get_running_loop().create_future()
    timer = clock.call_at(clock.monotonic() + seconds, _finish, done)
    try:
        await done
    finally:
        timer.cancel()


async def wait_event(clock: Clock, event: asyncio.Event, seconds: float) -> bool:
    """Wait for `event`, at most `seconds`; True when it is set."""
    try:
        async with fail_after(clock, seconds):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True


@asynccontextmanager
async def fail_after(clock: Clock, seconds: float) -> AsyncGenerator[None]:
    """Bound the block: after `seconds` its await is cancelled and TimeoutError raised.

    `asyncio.timeout` over the clock that was handed in; a cancellation from outside passes through.
    """
    task = asyncio.current_task()
    assert task is not None, "a coroutine always runs in a task"
    cancelling = task.cancelling()
    expired = False

    def expire() -> None:
        nonlocal expired
        expired = True
        task.cancel()

    timer = clock.call_at(clock.monotonic() + seconds, expire)
    try:
        yield
    except asyncio.CancelledError as error:
        if expired and task.uncancel() <= cancelling:
            raise TimeoutError from error
        raise
    finally:
        timer.cancel()


async def within(clock: Clock, seconds: float, awaitable: Awaitable[T]) -> T:
    """Return the awaitable's result, or raise TimeoutError after `seconds`."""
    async with fail_after(clock, seconds):
        return await awaitable


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)


def floor_ms(when: datetime) -> int:
    """Return the millisecond that the instant lies in.

    Raises:
        ValueError: the time names no zone.
    """
    return (_aware(when) - EPOCH) // MILLISECOND


def ceil_ms(when: datetime) -> int:
    """Return the first millisecond that is not before the instant.

    Raises:
        ValueError: the time names no zone.
    """
    return -((EPOCH - _aware(when)) // MILLISECOND)


def _aware(when: datetime) -> datetime:
    if when.tzinfo is None:
        raise ValueError(f"{when} names no time zone: use datetime.now(UTC) or .astimezone()")
    return when
