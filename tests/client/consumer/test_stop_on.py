"""`run(stop_on=...)`: a signal lets the handlers end, commits, and lets `run` return."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from skylarkmq.client import Consumer, IllegalState, ReceivedMessage
from skylarkmq.client.consumer.signals import stopped_on
from tests.client.consumer.support import Group
from tests.support.manual_clock import settle

BOTH = (signal.SIGTERM, signal.SIGINT)


class Running:
    """A consumer in `run` with one message at work, whose handler waits."""

    def __init__(self) -> None:
        self.it = Group({"orders": 1})
        self.may_end = asyncio.Event()
        self.begun: list[bytes] = []

    async def begin(self, **options: Any) -> Consumer:
        self.it.broker.add("orders", 0, b"a", b"b")
        consumer = await self.it.consumer()
        work = consumer.run(self.handle, concurrency=1, stop_on=BOTH, **options)
        self.running = asyncio.create_task(work)
        await self.it.pass_time(1)
        assert self.begun == [b"a"]
        return consumer

    async def handle(self, message: ReceivedMessage) -> None:
        self.begun.append(message.body)
        await self.may_end.wait()


@pytest.fixture
def restored() -> Any:
    before = [signal.getsignal(each) for each in BOTH]
    yield None
    assert [signal.getsignal(each) for each in BOTH] == before


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("number", BOTH)
async def test_a_signal_drains(number: signal.Signals) -> None:
    running = Running()
    consumer = await running.begin()
    signal.raise_signal(number)
    await running.it.pass_time(5)
    assert not running.running.done(), "the handler is waited for"
    running.may_end.set()
    await running.it.wait(running.running)
    assert running.begun == [b"a"], "no new message"
    assert running.it.offset(0) == 1
    await running.it.stop(consumer)


@pytest.mark.usefixtures("restored")
async def test_a_handler_that_takes_too_long_is_cancelled() -> None:
    running = Running()
    consumer = await running.begin(stop_timeout=3)
    signal.raise_signal(signal.SIGTERM)
    await running.it.wait(running.running, 3.5)
    assert running.it.offset(0) in (None, 0), "it is not done, and comes again"
    await running.it.stop(consumer)


@pytest.mark.usefixtures("restored")
async def test_a_second_signal_acts_as_before() -> None:
    running = Running()
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: seen.append(number))
    try:
        consumer = await running.begin()
        signal.raise_signal(signal.SIGINT)
        await settle()
        assert not seen
        signal.raise_signal(signal.SIGINT)
        assert seen == [signal.SIGINT]
        running.may_end.set()
        await running.it.wait(running.running)
        await running.it.stop(consumer)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("restored")
async def test_a_run_that_ends_otherwise_gives_the_signals_back() -> None:
    running = Running()
    consumer = await running.begin()
    running.may_end.set()
    await running.it.stop(consumer)
    await running.running


async def test_another_thread_gets_no_signals() -> None:
    def run() -> None:
        with stopped_on(BOTH, lambda: None):
            raise AssertionError("not reached")

    with pytest.raises(IllegalState, match="stop_on needs the main thread"):
        await asyncio.to_thread(run)
