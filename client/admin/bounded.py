"""Many calls at the same time, a bounded number of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

CALLS_MAX: Final = 32


async def each(work: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    """Return what `work` gives for each item, in their order; CALLS_MAX at the same time.

    The first error ends it: calls under way end first, no further one begins, then it is raised.
    Cancelled, it cancels the calls.
    """
    listed = list(items)
    if len(listed) == 1:
        return [await work(listed[0])]
    found: dict[int, R] = {}
    errors: list[Exception] = []
    remaining = iter(enumerate(listed))

    async def worker() -> None:
        for index, item in remaining:
            try:
                found[index] = await work(item)
            except Exception as error:  # raised below, once the others have ended
                errors.append(error)
            if errors:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(min(CALLS_MAX, len(listed))):
            group.create_task(worker(), name="skylarkmq-admin-call")
    if errors:
        raise errors[0]
    return [found[index] for index in range(len(listed))]
