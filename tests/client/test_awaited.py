"""Calls that nobody awaits are told in the log; awaited in any way they work."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from skylarkmq.client import ReceivedMessage
from tests.client.consumer.support import Group

CALLS: dict[str, Callable[[ReceivedMessage], Coroutine[Any, Any, None]]] = {
    "nack": lambda message: message.nack(),
    "dead_letter": lambda message: message.dead_letter("why"),
    "extend": lambda message: message.extend(3),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_without_await_is_told(name: str, caplog: pytest.LogCaptureFixture) -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"it")
    consumer = await it.consumer(ack="manual")
    message = await it.wait(consumer.getone())
    caplog.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Python's own, which would say it again
        CALLS[name](message)
        gc.collect()
    (record,) = caplog.records
    text = f"message.{name}(...)"
    assert record.levelname == "ERROR"
    assert record.message == f"{text} was not awaited and did nothing: write `await {text}`"
    await it.stop(consumer)
    assert it.offset(0) in (None, 0)


async def test_an_acknowledgement_without_await_counts() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"it")
    consumer = await it.consumer(ack="manual")
    message = await it.wait(consumer.getone())
    message.ack()  # pyright: ignore[reportUnusedCoroutine]
    await it.stop(consumer)
    assert it.offset(0) == 1


async def test_a_thread_may_hand_an_acknowledgement_to_the_loop() -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"it")
    consumer = await it.consumer(ack="manual")
    message = await it.wait(consumer.getone())
    loop = asyncio.get_running_loop()
    handed: list[Any] = []
    thread = threading.Thread(
        target=lambda: handed.append(asyncio.run_coroutine_threadsafe(message.ack(), loop))
    )
    thread.start()
    thread.join()
    await asyncio.wrap_future(handed[0])
    await it.stop(consumer)
    assert it.offset(0) == 1


@pytest.mark.parametrize(
    "awaited", [lambda call: call, asyncio.create_task, lambda call: asyncio.wait_for(call, 5)]
)
async def test_it_can_be_awaited_in_each_way(
    awaited: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    it = Group({"orders": 1})
    it.broker.add("orders", 0, b"it")
    consumer = await it.consumer(ack="manual")
    message = await it.wait(consumer.getone())
    caplog.clear()
    await awaited(message.ack())
    assert caplog.records == []
    await it.stop(consumer)
    assert it.offset(0) == 1
