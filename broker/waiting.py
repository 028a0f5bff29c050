"""From the store's calls with `done` to coroutines: the store knows no event loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from skylarkmq.common.worker import Worker
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.results import MessageInner, PutMessageResult

T = TypeVar("T")
Done = Callable[[T | None, BaseException | None], None]


async def result_of(start: Callable[[Done[T]], object]) -> T:
    """Call `start(done)`, and return the result that `done` is called with, or raise its error."""
    ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T | None, error: BaseException | None) -> None:
        if ended.done():  # cancelled
            return
        if error is None:
            ended.set_result(cast(T, result))
        else:
            ended.set_exception(error)

    start(done)
    return await ended


async def run(worker: Worker, job: Callable[[], T]) -> T:
    """Run a job on a worker's thread, and return its result or raise its error."""
    return await result_of(lambda done: worker.submit(job, done))


async def put(store: MessageStore, messages: Sequence[MessageInner]) -> list[PutMessageResult]:
    """Store messages as one batch, and return their results under the flush mode.

    Raises:
        OSError: the disk has failed.
    """
    return await result_of(
        lambda done: store.put_messages(messages, lambda results: done(results, None))
    )


async def synced(store: MessageStore, *, at_once: bool = True) -> None:
    """Return when all messages so far are on the disk, or the store has failed.

    Args:
        at_once: sync the log now, without waiting for its time.
    """
    await result_of(lambda done: store.sync(lambda: done(None, None), at_once=at_once))
