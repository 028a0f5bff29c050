"""Cancelled after every number of loop turns, each way of sending leaves the producer whole."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from skylarkmq.client import Message, Producer
from skylarkmq.client.instance import services_of
from tests.client.consumer.support import Group
from tests.client.test_cancellation import (
    cancelled_after,
    sweep,
    whole_after,
)

pytestmark = pytest.mark.timing

Call = Callable[[Producer], Coroutine[Any, Any, Any]]
LATER = timedelta(seconds=5)

CALLS: dict[str, Call] = {
    "keyed": lambda p: p.send(Message("orders", b"lost"), key="k"),
    "large": lambda p: p.send(Message("orders", bytes(300_000))),
    "timed": lambda p: p.send(Message("orders", b"lost", delay=LATER)),
    "oneway": lambda p: p.send_oneway(Message("orders", b"lost")),
    "oneway-timed": lambda p: p.send_oneway(Message("orders", b"lost", delay=LATER)),
    "batch": lambda p: p.send_batch([Message("orders", b"lost")] * 3),
    "many": lambda p: p.send_many(
        [Message(t, b"lost", sharding_key=k) for t in ("orders", "other") for k in ("a", "b", None)]
    ),
    "queues": lambda p: p.queues("orders"),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_cancelled_call_leaves_nothing(name: str) -> None:
    async def run(turns: int) -> bool:
        it = Group({"orders": 2, "other": 2})
        it.broker.echo_codec = True
        client = it.client()
        producer = Producer(client=client)
        await it.wait(producer.start())
        ended = await cancelled_after(turns, CALLS[name](producer))
        assert producer.in_flight_count == 0
        await it.wait(producer.flush())
        await it.wait(producer.send(Message("orders", b"next")))
        assert it.broker.bodies("orders").count(b"next") == 1
        connection = services_of(client).remoting.ready(it.broker.address)
        assert connection is not None
        assert connection.pending_count == 0
        assert not producer._running.pipeline.in_flight.room_waiters
        await it.wait(producer.stop())
        await whole_after(it, client)
        return ended

    await sweep(run)


async def test_a_cancelled_wait_for_room_or_for_the_end_leaves_nothing() -> None:
    async def run(turns: int) -> bool:
        it = Group({"orders": 2})
        client = it.client()
        producer = Producer(client=client, max_in_flight=1)
        await it.wait(producer.start())
        first = producer.send_nowait(Message("orders", b"first"))

        async def waits() -> None:
            await producer.room()
            await producer.send(Message("orders", b"second"))
            await producer.flush()

        ended = await cancelled_after(turns, waits())
        await it.wait(first)
        await it.wait(producer.send(Message("orders", b"third")))
        flight = producer._running.pipeline.in_flight
        assert (flight.count, flight.size) == (0, 0)
        assert not flight.flushes
        await it.wait(producer.stop())
        await whole_after(it, client)
        return ended

    await sweep(run)
