"""Waiting for the store and the clock.

The store knows no event loop: its calls tell their outcome to `done(result, error)`. A coroutine
that `common.worker.start` runs awaits them as `Call`, a task awaits `result_of` them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.common.worker import Call, Done
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.results import MessageInner, PutMessageResult

T = TypeVar("T")
Begin = Callable[[Done[T]], None]


class Outcome(asyncio.Future[T]):
    """A future that lets who waits for it go on in the turn in which it is told.

    A task goes on in a later turn, as with any future. Loop thread.
    """

    go_on: Callable[[], None] | None = None
    """Called when it is told; set by what runs a coroutine without a task."""

    def tell(self, result: T) -> None:
        """End the wait; one that was cancelled is over already."""
        if not self.done():
            self.set_result(result)
            if self.go_on is not None:
                self.go_on()


class StartedCoroutine(Coroutine[Any, Any, T]):
    """Runs the rest of a coroutine in a task; it began without one, and waits for something."""

    def __init__(self, work: Coroutine[Any, Any, T], waits_for: object) -> None:
        self._work = work
        self._has_yielded = False
        self._waits_for = waits_for

    def send(self, value: Any) -> Any:
        if self._has_yielded:
            return self._work.send(value)
        self._has_yielded = True
        return self._waits_for

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        raise NotImplementedError


async def result_of(begin: Callable[[Done[T]], object]) -> T:
    """Call `begin(done)`, and return the result that `done` is called with, or raise its error."""
    ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T | None, error: BaseException | None) -> None:
        if ended.done():  # cancelled
            return
        if error is None:
            ended.set_result(cast(T, result))
        else:
            ended.set_exception(error)

    begin(done)
    return await ended


def put(store: MessageStore, messages: Sequence[MessageInner]) -> Begin[list[PutMessageResult]]:
    """Store messages as one batch; the outcome is their results under the flush mode.

    Raises:
        OSError: the disk has failed.
    """
    return lambda done: store.put_messages(messages, lambda results: done(results, None))


def records(store: MessageStore, physical_offsets: list[int]) -> Begin[list[bytes | None]]:
    """Read the records at places in the log off the loop; None where there is none.

    Raises:
        OSError, MemoryError: the machine refuses it now.
    """
    return partial(store.read_records, physical_offsets)


def synced(store: MessageStore, *, at_once: bool = True) -> Begin[None]:
    """Wait until all messages so far are on the disk; the outcome is the disk's error otherwise.

    Args:
        at_once: sync the log now, without waiting for its time.
    """
    return lambda done: store.sync(lambda: done(None, store.failure), at_once=at_once)


class Pause:
    """A wait on the clock that can be cut short. Loop thread, in a coroutine that `start` runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._handle: TimerHandle | None = None
        self._done: Done[None] | None = None
        self._is_ending = False

    async def wait(self, wait_s: float | None) -> None:
        """Return in a later turn of the loop: after so many seconds, or when it is woken.

        Args:
            wait_s: None to wait until it is woken.
        """
        await Call(lambda done: self._begin(wait_s, done))

    def wake(self) -> None:
        """End the wait in the next turn of the loop; without one, do nothing."""
        if self._done is not None and not self._is_ending:
            self._is_ending = True
            self._plan(0.0)

    def end(self) -> None:
        """End the wait in this turn; without one, do nothing."""
        done, self._done = self._done, None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if done is not None:
            done(None, None)

    def _begin(self, wait_s: float | None, done: Done[None]) -> None:
        self._done, self._is_ending = done, False
        if wait_s is not None:
            self._plan(wait_s)

    def _plan(self, wait_s: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._clock.call_at(self._clock.monotonic() + wait_s, self.end)
