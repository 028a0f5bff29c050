"""Threads of the store: one named thread a worker, jobs in order, results back on the loop.

A job blocks on the disk and touches no state of the store; its result comes back as a call on the
loop thread, where all state lives. The queue of a worker is bounded by its callers: each keeps at
most one job of its kind under way.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Done = Callable[[T | None, BaseException | None], None]
CallSoon = Callable[..., object]


class Worker(Protocol):
    """Runs blocking jobs one after the other, away from the loop."""

    def submit(self, job: Callable[[], T], done: Done[T]) -> None:
        """Queue `job`; `done(result, error)` runs on the loop thread afterwards."""
        ...

    def stop(self) -> None:
        """Finish the queued jobs and end the thread; call from the loop thread."""
        ...


class ThreadWorker:
    """A worker with a thread of its own."""

    def __init__(self, name: str, call_soon_threadsafe: CallSoon) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Done[Any]] | None] = (
            queue.SimpleQueue()
        )
        self._call_soon = call_soon_threadsafe
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T], done: Done[T]) -> None:
        self._jobs.put((job, done))

    def stop(self) -> None:
        self._jobs.put(None)
        self._thread.join()

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
            except RuntimeError:  # the loop is closed: nobody is left to hear the result
                return


@dataclass(frozen=True, slots=True)
class StoreWorkers:
    """The store's threads; D4 of the design names their owners."""

    flush: Worker  # commit-log datasync, group commit
    prepare: Worker  # creation of the next log file
    queues: Worker  # consume-queue files and the checkpoint
    tables: Worker  # JSON tables

    @classmethod
    def threads(cls, call_soon_threadsafe: CallSoon) -> StoreWorkers:
        """Start one thread for each."""
        return cls(
            *(
                ThreadWorker(f"skylarkmq-{name}", call_soon_threadsafe)
                for name in ("flush", "prepare", "queues", "tables")
            )
        )

    def stop(self) -> None:
        for worker in (self.flush, self.prepare, self.queues, self.tables):
            worker.stop()
