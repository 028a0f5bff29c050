"""Cancelled after every number of loop turns, each call leaves the SDK whole: no opaque, no task,
no timer behind, no message lost, and the next call works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from skylarkmq.client import Client, Consumer, Message, Producer, StartFrom
from skylarkmq.client.instance import services_of
from tests.client.consumer.support import GROUP, Group
from tests.support.manual_clock import settle

pytestmark = pytest.mark.timing

TURNS_MAX = 120


async def cancelled_after(turns: int, work: Coroutine[Any, Any, Any]) -> bool:
    """Run `work` for that many turns, then cancel it; True when it was done before."""
    task = asyncio.create_task(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    ended = task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return ended


async def sweep(run: Callable[[int], Coroutine[Any, Any, bool]]) -> None:
    """Cancel one turn later each time, until the work is quicker than the cancellation."""
    for turns in range(TURNS_MAX):
        if await run(turns):
            assert turns > 1, "nothing was cancelled"
            return
    pytest.fail("the work never ended")


def left_over() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if "skylarkmq" in task.get_name()]


async def whole_after(it: Group, client: Client) -> None:
    """Everything ends, and nothing stays."""
    await it.wait(client.stop())
    await settle()
    assert left_over() == []
    assert it.clock.pending_count == 0
    assert not it.broker.streams


async def test_send() -> None:
    async def run(turns: int) -> bool:
        it = Group({"orders": 1})
        client = it.client()
        producer = Producer(client=client)
        await it.wait(producer.start())
        ended = await cancelled_after(turns, producer.send(Message("orders", b"cancelled")))
        assert producer.in_flight_count == 0
        await it.wait(producer.send(Message("orders", b"next")))
        assert it.broker.bodies("orders").count(b"next") == 1
        assert it.broker.bodies("orders").count(b"cancelled") <= 1
        connection = services_of(client).remoting.ready(it.broker.address)
        assert connection is not None
        assert connection.pending_count == 0
        await it.wait(producer.stop())
        await whole_after(it, client)
        return ended

    await sweep(run)


async def test_starting_and_stopping_a_producer() -> None:
    async def run(turns: int) -> bool:
        it = Group({"orders": 1})
        client = it.client()
        producer = Producer(client=client)
        await cancelled_after(turns, producer.start())
        await it.wait(producer.start())
        await it.wait(producer.send(Message("orders", b"x")))
        ended = await cancelled_after(turns, producer.stop())
        await it.wait(producer.stop())
        await whole_after(it, client)
        return ended

    await sweep(run)


async def test_joining_a_group() -> None:
    async def run(turns: int) -> bool:
        it = Group({"orders": 2})
        it.broker.add("orders", 0, b"0")
        client = it.client()
        consumer = Consumer("orders", client=client, group=GROUP, start_from=StartFrom.FIRST)
        ended = await cancelled_after(turns, consumer.start())
        if not ended:  # cancelled: it has left again, so another one may come in its place
            consumer = Consumer("orders", client=client, group=GROUP, start_from=StartFrom.FIRST)
            await it.wait(consumer.start())
        assert (await it.wait(consumer.getone())).body == b"0"
        await it.wait(consumer.stop())
        await whole_after(it, client)
        return ended

    await sweep(run)


@pytest.mark.parametrize("owned", [False, True])
async def test_leaving_a_group(owned: bool) -> None:
    async def run(turns: int) -> bool:
        it = Group({"orders": 2})
        it.broker.add("orders", 0, b"0", b"1")
        client = it.client()
        consumer = Consumer("orders", client=client, group=GROUP, start_from=StartFrom.FIRST)
        consumer._owns_client = owned
        await it.wait(consumer.start())
        running = asyncio.create_task(consumer.run(lambda _: None))
        await settle()
        ended = await cancelled_after(turns, consumer.stop())
        await it.wait(consumer.stop())
        await running
        if owned:
            assert left_over() == [], "its own client ended with it"
        await whole_after(it, client)
        return ended

    await sweep(run)


async def test_waiting_for_messages_and_committing() -> None:
    async def run(turns: int) -> bool:
        it = Group({"orders": 1})
        client = it.client()
        consumer = Consumer("orders", client=client, group=GROUP, start_from=StartFrom.FIRST)
        await it.wait(consumer.start())
        ended = await cancelled_after(turns, taking_with_a_late_message(it, consumer))
        it.broker.add("orders", 0, b"last")
        message = await it.wait(consumer.getone())
        while message.body != b"last":
            message = await it.wait(consumer.getone())
        await cancelled_after(turns, consumer.commit())
        await it.wait(consumer.commit())
        assert it.offset(0) == len(it.broker.bodies("orders"))
        await it.wait(consumer.stop())
        await whole_after(it, client)
        return ended

    await sweep(run)


async def taking_with_a_late_message(it: Group, consumer: Consumer) -> None:
    waiting = asyncio.ensure_future(consumer.getone())
    try:
        await settle(3)
        it.broker.add("orders", 0, b"early")
        await waiting
    finally:
        waiting.cancel()
