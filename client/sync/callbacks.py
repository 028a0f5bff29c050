"""The application's plain functions, called in threads of their own and awaited in the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextvars import copy_context
from typing import Any, TypeVar

from skylarkmq.client.consumer.handlers import acting_task
from skylarkmq.client.sync.inner import in_callback

T = TypeVar("T")
R = TypeVar("R")


def in_thread(
    function: Callable[[T], R], executor: Executor | None = None
) -> Callable[[T], Awaitable[R]]:
    """Return an async function that calls a plain one in a thread.

    The thread sees the context variables of the task. A task that is cancelled lets the thread go
    on: threads cannot be ended. Without `executor` it is one of the loop's.
    """

    def called(argument: T, task: asyncio.Task[Any] | None) -> R:
        in_callback.set(True)
        acting_task.set(task)
        try:
            return function(argument)
        except StopIteration as error:  # no future takes one
            raise RuntimeError("the function raised StopIteration") from error

    async def awaited(argument: T) -> R:
        context = copy_context()
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        return await loop.run_in_executor(executor, lambda: context.run(called, argument, task))

    return awaited
