"""Threads of the store: named threads, a worker's jobs in order, results back on the loop.

A job blocks on the disk and touches no state of the store; its result comes back as a call on the
loop thread, where all state lives. The queue of a worker is bounded by its callers: each keeps at
most one job of its kind under way.

Work that takes several jobs is a coroutine: `await run_job(worker, job)`, begun by `start`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, fields
from typing import Any, Generic, Protocol, TypeVar, cast

T = TypeVar("T")
Done = Callable[[T | None, BaseException | None], None]
CallSoon = Callable[..., object]

READ_THREADS = 2


class Worker(Protocol):
    """Runs blocking jobs one after the other, away from the loop."""

    def submit(self, job: Callable[[], T], done: Done[T]) -> None:
        """Queue a job; `done(result, error)` runs on the loop thread afterwards."""
        ...

    def wait(self, event: threading.Event, limit_s: float | None) -> bool:
        """Hold the loop until a queued job has set `event`; False when the limit is over first."""
        ...

    def stop(self) -> None:
        """Finish the queued jobs and end the thread; call from the loop thread."""
        ...


class ThreadWorker:
    """A worker with a thread of its own, or with several that share one queue of jobs."""

    def __init__(self, name: str, call_soon_threadsafe: CallSoon, *, thread_count: int = 1) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Done[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._call_soon = call_soon_threadsafe
        self._threads = [
            threading.Thread(target=self._run, name=name, daemon=True) for _ in range(thread_count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[], T], done: Done[T]) -> None:
        self._jobs.put((job, done))

    def wait(self, event: threading.Event, limit_s: float | None) -> bool:
        return event.wait(limit_s)

    def stop(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            result, error = None, None
            try:
                result = job()
            except BaseException as raised:  # handed to the owner on the loop
                error = raised
            try:
                self._call_soon(done, result, error)
            except RuntimeError:  # the loop is closed, so the result has no receiver
                return


@dataclass(frozen=True, slots=True)
class StoreWorkers:
    """The store's threads."""

    flush: Worker  # commit-log datasync, group commit
    commit: Worker  # batches that left the loop; the pool's buffers under ASYNC_FLUSH
    prepare: Worker  # creation and warming of log files
    queues: Worker  # consume-queue files and the checkpoint
    index: Worker  # the key index: building, queries, sync
    tables: Worker  # JSON tables, removal of expired files, how full the disk is
    timer: Worker  # runs of timed messages
    pop: Worker  # the journal of pop consumption
    reads: Worker  # cold reads and heavy admin work; two threads, so jobs may overtake each other

    @classmethod
    def threads(cls, call_soon_threadsafe: CallSoon) -> StoreWorkers:
        """Start the threads."""
        return cls(
            *(
                ThreadWorker(
                    f"skylarkmq-{field.name}",
                    call_soon_threadsafe,
                    thread_count=READ_THREADS if field.name == "reads" else 1,
                )
                for field in fields(cls)
            )
        )

    def all(self) -> tuple[Worker, ...]:
        """In the order in which they are stopped."""
        return tuple(getattr(self, field.name) for field in fields(self))

    def stop(self) -> None:
        """End all of them; blocks until what was queued is done."""
        for worker in self.all():
            worker.stop()


class Call(Generic[T]):
    """A call that tells its outcome later, to `done(result, error)`; awaited, it is that outcome.

    Await it once, in a coroutine that `start` runs. The call begins when it is awaited, and may
    tell its outcome before it returns; what it raises is raised in the coroutine.
    """

    __slots__ = ("_begin", "_outcome", "go_on")

    def __init__(self, begin: Callable[[Done[T]], object]) -> None:
        self.go_on: Callable[[], None] | None = None  # called when the outcome is there
        self._begin = begin
        self._outcome: tuple[T | None, BaseException | None] | None = None

    def __await__(self) -> Generator[Call[T], None, T]:
        self._begin(self._told)
        while self._outcome is None:
            yield self
        result, error = self._outcome
        if error is not None:
            raise error
        return cast(T, result)

    def _told(self, result: T | None, error: BaseException | None) -> None:
        self._outcome = result, error
        if self.go_on is not None:
            self.go_on()


async def run_job(worker: Worker, job: Callable[[], T]) -> T:
    """Run a job on a worker, and return its result or raise its error."""
    return await Call(lambda done: worker.submit(job, done))


def start(work: Coroutine[Call[Any], None, T], done: Done[T] | None = None) -> None:
    """Run a coroutine that awaits calls: up to the first one now, then on after each outcome.

    It needs no event loop: what a worker or a clock calls back drives it. Loop thread.

    Args:
        done: called with what the coroutine returns or raises. Without it, an error is raised to
            what told the last outcome.
    """

    def go_on() -> None:
        try:
            call = work.send(None)
        except StopIteration as end:
            if done is not None:
                done(end.value, None)
        except Exception as raised:
            if done is None:
                raise
            done(None, raised)
        else:
            call.go_on = go_on

    go_on()
