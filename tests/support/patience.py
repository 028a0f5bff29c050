"""Waiting for another task, thread or process: one way to look, and one limit.

The limits end a test that hangs. They do not say how long something takes: a machine that does ten
other things passes every test, too; what takes 15 s alone then takes 150.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT_S = 300.0
JVM_LIMIT_S = 900.0
"""For a process of its own that starts JVMs."""
LOOK_EVERY_S = 0.005


def is_slow_disk(remark: str | None) -> bool:
    """Return whether a send was refused because the machine's disk could not keep up.

    The broker says so after 2 s; beside other work a sound test may meet that, and sends again.
    """
    return "the next log file is not ready" in (remark or "")


async def until(met: Callable[[], Awaitable[T] | T], what: str = "it") -> T:
    """Look until what `met` returns is true, and return that.

    Args:
        what: is waited for; in the error.

    Raises:
        AssertionError: not within LIMIT_S.
    """
    seen: T | None = None
    try:
        async with asyncio.timeout(LIMIT_S):
            while True:
                answer = met()
                seen = await answer if isinstance(answer, Awaitable) else answer
                if seen:
                    return seen
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        raise AssertionError(f"waited for {what}, last seen: {seen!r}") from None


def until_sync(met: Callable[[], T], what: str = "it", limit_s: float = LIMIT_S) -> T:
    """`until` for a test without an event loop."""
    limit = time.monotonic() + limit_s
    while not (seen := met()):
        assert time.monotonic() < limit, f"waited for {what}, last seen: {seen!r}"
        threading.Event().wait(LOOK_EVERY_S)
    return seen
