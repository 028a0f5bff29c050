"""Workers that run only when a test says so, in the test's own thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from skylarkmq.common.worker import Done, StoreWorkers, T
from tests.support.manual_clock import settle


class ManualWorker:
    """Implements `skylarkmq.common.worker.Worker`.

    The thread and the loop are two turns: `run_job` does what the thread does, `deliver` what the
    loop does with the result. `step` is both.
    """

    def __init__(self, name: str = "manual") -> None:
        self.name = name
        self.stopped = False
        self.waits: list[float | None] = []  # limits of the calls of `wait`
        self._jobs: deque[tuple[Callable[[], Any], Done[Any]]] = deque()
        self._results: deque[tuple[Done[Any], Any, BaseException | None]] = deque()
        self.is_busy = False  # a job is under way; one that lingers lets others have their turns

    def submit(self, job: Callable[[], T], done: Done[T]) -> None:
        if not self.stopped:  # a thread that has ended runs nothing more, and says nothing
            self._jobs.append((job, done))

    def wait(self, event: threading.Event, limit_s: float | None) -> bool:
        """Run jobs, as the thread would do while the loop waits; no limit is ever reached."""
        self.waits.append(limit_s)
        while not event.is_set() and limit_s != 0 and self.run_job():
            pass
        return event.is_set()

    def stop(self) -> None:
        """Run the queued jobs and end; as with a thread, `deliver` tells their results."""
        while self.run_job():
            pass
        self.stopped = True

    @property
    def idle(self) -> bool:
        """Whether nothing is queued, under way, or waiting to be told."""
        return not self._jobs and not self._results and not self.is_busy

    def run_job(self) -> bool:
        """Run the oldest job and keep its result back; False when there is none."""
        if not self._jobs or self.is_busy:
            return False
        job, done = self._jobs.popleft()
        self.is_busy = True
        try:
            self._results.append((done, job(), None))
        except Exception as error:
            self._results.append((done, None, error))
        finally:
            self.is_busy = False
        return True

    def deliver(self) -> bool:
        """Tell the owner the oldest result; False when there is none."""
        if not self._results:
            return False
        done, result, error = self._results.popleft()
        done(result, error)
        return True

    def step(self) -> bool:
        """Run one job and tell its result; False when there was nothing to do."""
        ran = self.run_job()
        told = self.deliver()
        return ran or told

    def run_all(self, limit: int = 10_000) -> None:
        """Step until nothing is left, also of what the results started."""
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError(f"the worker {self.name} never comes to rest")


@dataclass
class ManualStoreWorkers:
    """The workers of a store and the handles to drive them."""

    flush: ManualWorker
    commit: ManualWorker
    prepare: ManualWorker
    queues: ManualWorker
    index: ManualWorker
    tables: ManualWorker
    timer: ManualWorker
    pop: ManualWorker
    reads: ManualWorker
    workers: StoreWorkers

    def all(self) -> tuple[ManualWorker, ...]:
        return (
            self.flush,
            self.commit,
            self.prepare,
            self.queues,
            self.index,
            self.tables,
            self.timer,
            self.pop,
            self.reads,
        )

    def run_all(self) -> None:
        """Step all of them until every one is at rest."""
        for _ in range(10_000):
            if not any([worker.step() for worker in self.all()]):
                return
        raise AssertionError("the store's workers never come to rest")


async def rest(workers: ManualStoreWorkers | ManualWorker) -> None:
    """Let threads and woken tasks work until all are at rest."""
    parts = (workers,) if isinstance(workers, ManualWorker) else workers.all()
    while True:
        await settle(4)
        if all(worker.idle for worker in parts):
            return
        workers.run_all()


def manual_store_workers() -> ManualStoreWorkers:
    """Return manual workers and the `StoreWorkers` made of them."""
    manual = [ManualWorker(field.name) for field in fields(StoreWorkers)]
    return ManualStoreWorkers(*manual, StoreWorkers(*manual))
