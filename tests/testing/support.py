"""Waiting in tests of the test kit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

HANG_S = 60.0


async def until(holds: Callable[[], Awaitable[bool] | bool]) -> None:
    """Let the loop turn until the condition holds."""
    async with asyncio.timeout(HANG_S):
        while True:
            answer = holds()
            if answer is True or (not isinstance(answer, bool) and await answer):
                return
            await asyncio.sleep(0)
