"""Waiting, bounded by a clock that was handed in. Loop thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import TypeVar

from skylarkmq.common.clock import Clock

T = TypeVar("T")
_DOUBLED_MAX = 16  # a larger power would leave the numbers that a float has


def backoff_s(failure_count: int, first_s: float, max_s: float) -> float:
    """Return how long to wait after failures in a row: `first_s`, doubled by each one more.

    Args:
        failure_count: those so far, 1 or more.
        max_s: what it never exceeds.
    """
    return min(first_s * 2.0 ** min(failure_count - 1, _DOUBLED_MAX), max_s)


class Backoff:
    """When to ask a peer again that has failed: later with each failure in a row."""

    __slots__ = ("_first_s", "_max_s", "failure_count", "until_s")

    def __init__(self, first_s: float, max_s: float) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self.failure_count = 0
        self.until_s = 0.0

    def failed(self, now_s: float) -> float:
        """Note a failure and return how long the peer is left alone."""
        self.failure_count += 1
        wait_s = backoff_s(self.failure_count, self._first_s, self._max_s)
        self.until_s = now_s + wait_s
        return wait_s


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
