"""Messages with a priority, from our SDK to our broker and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.broker.controller import BrokerController
from skylarkmq.client import (
    Admin,
    Client,
    HalfMessage,
    IllegalState,
    Message,
    MessageIllegal,
    MessageQueue,
    PeekReader,
    Producer,
    SendResult,
    SimpleConsumer,
    StartFrom,
    TransactionState,
)
from skylarkmq.client.message_json import message_to_send
from skylarkmq.client.sync import Producer as BlockingProducer
from tests.support.live_broker import live_broker, namesrv_of

TOPIC, LEVELS = "urgent", 4


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerController]:
    async with live_broker(tmp_path) as controller:
        yield controller


@pytest.fixture
async def client(broker: BrokerController) -> AsyncIterator[Client]:
    async with Client(namesrv_of(broker)) as client, Admin(client=client) as admin:
        await admin.create_topic(TOPIC, queues=LEVELS, message_type="PRIORITY")
        await admin.create_topic("plain", queues=LEVELS)
        assert await admin.topic_attributes(TOPIC) == {
            broker.parts.config.broker_name: {"message.type": "PRIORITY"}
        }
        yield client


async def popped(client: Client, count: int) -> list[tuple[bytes, int | None]]:
    """Receive so many, one by one, as a member of a group that is new."""
    found: list[tuple[bytes, int | None]] = []
    async with SimpleConsumer(TOPIC, group="g", client=client, await_duration=5) as consumer:
        while len(found) < count:
            for message in await consumer.receive(1):
                found.append((message.body, message.priority))
                await consumer.ack(message)
    return found


async def test_what_is_most_urgent_comes_first(client: Client) -> None:
    async with Producer(client=client) as producer:
        await producer.send(Message(TOPIC, b"none"))
        await producer.send(Message(TOPIC, b"0", priority=0))
        result = await producer.send(Message(TOPIC, b"2", priority=2))
        assert (result.queue.queue_id, result.queue_offset) == (2, 0)
        await producer.send_nowait(Message(TOPIC, b"9", priority=9))
        await producer.send(Message(TOPIC, b"later 2", priority=2))
    assert await popped(client, 5) == [
        (b"9", 9), (b"2", 2), (b"later 2", 2), (b"none", None), (b"0", 0),
    ]  # fmt: skip


async def test_send_many_takes_any_mixture(client: Client) -> None:
    async with Producer(client=client) as producer:
        messages = [Message(TOPIC, b"%d" % n, priority=n if n % 2 else None) for n in range(6)]
        outcomes = await producer.send_many(messages)
        assert all(isinstance(outcome, SendResult) for outcome in outcomes)
        with pytest.raises(IllegalState, match="priority chooses it"):
            await producer.send_batch(messages)
    found = await popped(client, 6)
    assert [body for body, _ in found[:3]] == [b"3", b"5", b"1"]


async def test_a_topic_without_priorities_refuses_one(client: Client) -> None:
    async with Producer(client=client) as producer:
        with pytest.raises(MessageIllegal, match="--message-type PRIORITY"):
            await producer.send(Message("plain", b"x", priority=1))
        with pytest.raises(MessageIllegal, match="--message-type PRIORITY"):
            await producer.send(Message("none", b"x", priority=1))
    async with Admin(client=client) as admin:
        assert "none" not in await admin.list_topics()


async def test_the_blocking_producer_sends_them_too(broker: BrokerController) -> None:
    def work() -> tuple[int, int]:
        with BlockingProducer(namesrv_addr=namesrv_of(broker)) as producer:
            producer.send(Message("plain", b"before"))  # so that its topic is known
            producer.send(Message(TOPIC, b"before"))
            futures = [producer.send_nowait(Message(TOPIC, b"x", priority=p)) for p in (1, 3)]
            one, other = [future.result(10).queue.queue_id for future in futures]
            return one, other

    async with Admin(namesrv_addr=namesrv_of(broker)) as admin:
        await admin.create_topic(TOPIC, queues=LEVELS, message_type="PRIORITY")
    assert await asyncio.to_thread(work) == (1, 3)


@pytest.mark.parametrize(
    "more",
    [
        {"queue": MessageQueue(TOPIC, "broker-a", 1)},
        {"key": "k"},
        {"selector": lambda queues, _: queues[0]},
    ],
)
async def test_nothing_else_may_choose_the_queue(client: Client, more: dict[str, Any]) -> None:
    async with Producer(client=client) as producer:
        with pytest.raises(IllegalState, match="priority chooses its queue"):
            await producer.send(Message(TOPIC, b"x", priority=1), **more)


async def test_a_transaction_and_a_delay_keep_it(client: Client, broker: BrokerController) -> None:
    def check(_: HalfMessage) -> TransactionState:
        return TransactionState.COMMIT

    async with Producer(client=client, group="p", check=check) as producer:
        async with producer.transaction(Message(TOPIC, b"half", priority=3)):
            pass
        await producer.send(Message(TOPIC, b"later", priority=2, delay_level=1))
        await producer.send(Message(TOPIC, b"low"))
    assert [body for body, _ in await popped(client, 1)] == [b"half"]
    assert broker.parts.store.max_offset(TOPIC, 3) == 1


async def test_a_reader_shows_it_and_its_json_is_sent_again(client: Client) -> None:
    async with Producer(client=client) as producer:
        await producer.send(Message(TOPIC, b"x", priority=7, properties={"own": "1"}))
        reader = PeekReader(TOPIC, client=client, start=StartFrom.FIRST)
        async with reader:
            message = await anext(aiter(reader))
    row = message.to_json()
    assert (row["priority"], message.priority) == (7, 7)
    again = message_to_send("copies", row)
    assert (again.priority, dict(again.properties)) == (7, {"own": "1"})
