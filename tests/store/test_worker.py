"""The real thread: order, results on the loop, errors, its end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from skylarkmq.common.worker import StoreWorkers, ThreadWorker, run_job, start
from tests.support.patience import LIMIT_S
from tests.support.workers import ManualWorker

pytestmark = pytest.mark.timing


class Heard:
    """Results as they come back on the loop."""

    def __init__(self, count: int) -> None:
        self.results: list[tuple[object, BaseException | None]] = []
        self.threads: set[str] = set()
        self._count = count
        self.complete = asyncio.Event()

    def __call__(self, result: object, error: BaseException | None) -> None:
        self.results.append((result, error))
        self.threads.add(threading.current_thread().name)
        if len(self.results) == self._count:
            self.complete.set()


async def worker_of_this_loop(name: str = "skylarkmq-test") -> ThreadWorker:
    return ThreadWorker(name, asyncio.get_running_loop().call_soon_threadsafe)


async def test_jobs_run_in_order_on_the_named_thread_and_end_on_the_loop() -> None:
    worker, heard = await worker_of_this_loop(), Heard(100)
    names: set[str] = set()

    def job(number: int) -> int:
        names.add(threading.current_thread().name)
        return number

    for number in range(100):
        worker.submit(lambda number=number: job(number), heard)
    await asyncio.wait_for(heard.complete.wait(), LIMIT_S)
    assert heard.results == [(number, None) for number in range(100)]
    assert names == {"skylarkmq-test"}
    assert heard.threads == {threading.current_thread().name}
    worker.stop()


async def test_an_error_is_a_result_and_the_thread_goes_on() -> None:
    worker, heard = await worker_of_this_loop(), Heard(3)
    errors = [OSError(5, "disk"), KeyboardInterrupt()]

    def fail(error: BaseException) -> None:
        raise error

    for error in errors:
        worker.submit(lambda error=error: fail(error), heard)
    worker.submit(lambda: "fine", heard)
    await asyncio.wait_for(heard.complete.wait(), LIMIT_S)
    assert heard.results == [(None, errors[0]), (None, errors[1]), ("fine", None)]
    worker.stop()


async def test_stop_finishes_what_is_queued() -> None:
    worker, heard = await worker_of_this_loop(), Heard(10)
    gate = threading.Event()
    worker.submit(lambda: gate.wait(LIMIT_S), heard)
    for number in range(9):
        worker.submit(lambda number=number: number, heard)
    threading.Thread(target=gate.set).start()
    worker.stop()
    assert heard.results == [], "they wait for the loop"
    await asyncio.sleep(0)
    assert [result for result, _ in heard.results] == [True, *range(9)]


async def test_after_the_end_nothing_runs() -> None:
    worker, heard = await worker_of_this_loop(), Heard(1)
    worker.stop()
    worker.submit(lambda: 1, heard)
    worker.stop()
    await asyncio.sleep(0)
    assert heard.results == []


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_that_is_closed_ends_the_thread_quietly() -> None:
    loop = asyncio.new_event_loop()
    worker = ThreadWorker("skylarkmq-late", loop.call_soon_threadsafe)
    loop.close()
    worker.submit(lambda: 1, lambda result, error: None)
    worker.stop()


async def test_the_stores_threads_have_names_and_end_together() -> None:
    others = set(threading.enumerate())
    workers = StoreWorkers.threads(asyncio.get_running_loop().call_soon_threadsafe)
    names = {thread.name for thread in set(threading.enumerate()) - others}
    assert names >= {f"skylarkmq-{name}" for name in ("flush", "prepare", "queues", "tables")}
    workers.stop()
    assert not [thread for thread in threading.enumerate() if thread not in others]


def test_a_coroutine_goes_on_with_each_outcome_of_its_calls() -> None:
    first, second = ManualWorker("first"), ManualWorker("second")
    outcomes: list[tuple[int | None, BaseException | None]] = []

    def fail() -> int:
        raise OSError("the disk")

    async def work() -> int:
        found = await run_job(first, lambda: 20)
        with pytest.raises(OSError, match="the disk"):
            await run_job(second, fail)
        return found + 1

    start(work(), lambda result, error: outcomes.append((result, error)))
    assert not outcomes and second.idle
    first.run_all()
    assert not outcomes and not second.idle
    second.run_all()
    assert outcomes == [(21, None)]


def test_what_a_coroutine_raises_is_told_or_reaches_the_one_who_told_last() -> None:
    worker = ManualWorker()
    outcomes: list[BaseException | None] = []

    async def work() -> None:
        await run_job(worker, lambda: None)
        raise ValueError("a defect")

    start(work(), lambda _, error: outcomes.append(error))
    worker.run_all()
    assert [type(error) for error in outcomes] == [ValueError]
    start(work())
    with pytest.raises(ValueError, match="a defect"):
        worker.run_all()
