"""No threads: what a loop hands to them is done at once.

A test that owns the clock counts turns of the loop. Beside a thread the count would depend on how
fast that thread is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class InlineThreads(ThreadPoolExecutor):
    """An executor whose jobs run within `submit`."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


def use_inline_threads() -> None:
    """Make the running loop do so in `asyncio.to_thread` and in its default executor."""
    asyncio.get_running_loop().set_default_executor(InlineThreads(1))
