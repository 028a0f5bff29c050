"""The FastStream broker and the Kombu transport, also on RocketMQ's own brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("kombu", reason="the extra `kombu` is not installed")
pytest.importorskip("faststream", reason="the extra `faststream` is not installed")

import kombu

import skylarkmq.integrations.kombu  # noqa: F401 - makes skylarkmq:// known
from skylarkmq.client import Admin
from skylarkmq.integrations.faststream import RocketMQBroker, StartFrom
from tests.interop.servers import Broker

pytestmark = pytest.mark.interop

WAIT_S = 60.0


@pytest.fixture
def connection(broker: Broker) -> Iterator[Any]:
    with kombu.Connection(f"skylarkmq://{broker.namesrv}") as connection:
        yield connection


def received(connection: Any, queue: Any, count: int) -> list[str]:
    """Consume so many messages; return their bodies."""
    bodies: list[str] = []

    def take(body: str, message: Any) -> None:
        bodies.append(body)
        message.ack()

    with connection.Consumer([queue], callbacks=[take]):
        while len(bodies) < count:
            connection.drain_events(timeout=WAIT_S)
    return bodies


def test_a_kombu_queue(connection: Any, topic: str) -> None:
    with closing(connection.SimpleQueue(topic)) as queue:
        queue.put("one")
        message = queue.get(timeout=WAIT_S)
        message.requeue()
        message = queue.get(timeout=WAIT_S)
        assert (message.payload, message.delivery_info["redelivered"]) == ("one", True)
        message.ack()


def test_a_kombu_queue_counts_and_is_purged(connection: Any, topic: str) -> None:
    queue = kombu.Queue(topic)(connection)
    queue.declare()
    for body in "abc":
        connection.Producer().publish(body, routing_key=topic)
    assert queue.queue_declare(passive=True).message_count == 3
    assert queue.purge() == 3
    connection.Producer().publish("d", routing_key=topic)
    assert received(connection, queue, 1) == ["d"]


def test_a_kombu_fanout(connection: Any, topic: str) -> None:
    exchange = kombu.Exchange(topic, type="fanout")
    queues = [kombu.Queue(f"{topic}-{number}", exchange)(connection) for number in range(2)]
    queues[0].declare()
    connection.Producer().publish("early", exchange=exchange)
    queues[1].declare()
    connection.Producer().publish("late", exchange=exchange)
    assert received(connection, queues[0], 2) == ["early", "late"]
    assert received(connection, queues[1], 1) == ["late"]


def test_an_answer_to_a_kombu_connection(connection: Any) -> None:
    queue = kombu.Queue(str(uuid4()), auto_delete=True, durable=False)
    queue(connection).declare()
    connection.Producer().publish("answer", routing_key=queue.name)
    assert received(connection, queue, 1) == ["answer"]


async def test_a_faststream_broker(broker: Broker, topic: str, group: str) -> None:
    async with Admin(namesrv_addr=broker.namesrv) as admin:
        for name in (topic, f"{topic}-bills"):
            await admin.create_topic(name, queues=1)
    application = RocketMQBroker(broker.namesrv, group=group, logger=None)
    bills: asyncio.Queue[str] = asyncio.Queue()

    @application.subscriber(topic, start_from=StartFrom.FIRST)
    @application.publisher(f"{topic}-bills")
    async def handle(body: str) -> str:
        return body.upper()

    @application.subscriber(f"{topic}-bills", start_from=StartFrom.FIRST)
    async def bill(body: str) -> None:
        bills.put_nowait(body)

    async with application:
        await application.start()
        await application.publish("one", topic)
        assert await asyncio.wait_for(bills.get(), WAIT_S) == "ONE"
        reply = await application.request("two", topic, timeout=WAIT_S)
        assert await reply.decode() == "TWO"
