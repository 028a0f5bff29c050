"""What comes due when a test lets time pass for the broker, and what does not notice."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.client import (
    Client,
    Consumer,
    HalfMessage,
    Message,
    PoppedMessage,
    Producer,
    SimpleConsumer,
    StartFrom,
    TransactionState,
)
from skylarkmq.protocol.message import MessageExt
from skylarkmq.testing import RunningBroker, VirtualClock, run_broker
from tests.support.patience import LIMIT_S, until

pytestmark = pytest.mark.timing

TOPIC = "orders"
GROUP = "billing"
HOURS_S = 4 * 3600
MANY = 3000
"""Messages; a turn of the broker delivers 128."""


def bodies(messages: list[MessageExt]) -> list[bytes]:
    return [message.body for message in messages]


async def test_delays_come_due_in_the_order_of_their_times() -> None:
    async with (
        run_broker() as broker,
        Producer(namesrv_addr=broker.namesrv_addr, send_timeout=LIMIT_S) as producer,
    ):
        for level, body in ((4, b"30 s"), (2, b"5 s"), (18, b"2 h"), (1, b"1 s"), (3, b"10 s")):
            await producer.send(Message(TOPIC, body, delay_level=level))
        assert await broker.messages(TOPIC) == []
        await broker.advance(7)
        assert bodies(await broker.messages(TOPIC)) == [b"1 s", b"5 s"]
        await broker.advance(timedelta(minutes=1))
        await broker.advance(2 * 3600)
        found = await broker.messages(TOPIC)
        assert bodies(found) == [b"1 s", b"5 s", b"10 s", b"30 s", b"2 h"]
        waits_s = [(m.store_timestamp - found[0].store_timestamp) / 1000 for m in found]
        assert waits_s == pytest.approx([0, 4, 9, 29, 7199], abs=1.5), "each at its own time"


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_many_fall_due_at_once(flush: str) -> None:
    settings = {"flushDiskType": flush}
    async with (
        run_broker(settings=settings) as broker,
        Producer(
            namesrv_addr=broker.namesrv_addr, max_in_flight=MANY, send_timeout=LIMIT_S
        ) as producer,
    ):
        sends = [producer.send_nowait(Message(TOPIC, b"x", delay_level=5)) for _ in range(MANY)]
        await asyncio.gather(*sends)
        await broker.advance(61)
        assert len(await broker.messages(TOPIC)) == MANY


async def test_delays_and_times_of_their_own() -> None:
    async with (
        run_broker() as broker,
        Producer(namesrv_addr=broker.namesrv_addr, send_timeout=LIMIT_S) as producer,
    ):
        await producer.send(Message(TOPIC, b"90 s", delay=timedelta(seconds=90)))
        at = broker.now() + timedelta(hours=1)
        await producer.send(Message(TOPIC, b"1 h", deliver_at=at))
        await producer.send(Message(TOPIC, b"30 s", delay=timedelta(seconds=30)))
        await broker.advance(29)
        assert await broker.messages(TOPIC) == []
        await broker.advance(63)
        assert bodies(await broker.messages(TOPIC)) == [b"30 s", b"90 s"]
        await broker.advance(3600)
        assert bodies(await broker.messages(TOPIC)) == [b"30 s", b"90 s", b"1 h"]


async def test_a_transaction_is_asked_about_and_ended() -> None:
    asked: list[bytes] = []

    async def check(message: HalfMessage) -> TransactionState:
        asked.append(message.body)
        return TransactionState.COMMIT if len(asked) > 1 else TransactionState.UNKNOWN

    async with (
        run_broker() as broker,
        Producer(
            namesrv_addr=broker.namesrv_addr, group="shop", check=check, send_timeout=LIMIT_S
        ) as producer,
    ):
        async with producer.transaction(Message(TOPIC, b"paid?")) as transaction:
            await transaction.unknown()
        await broker.wait_members("shop")
        await broker.advance(61)
        await until(lambda: asked == [b"paid?"])
        assert await broker.messages(TOPIC) == []
        await broker.advance(61)
        await until(lambda: is_there(broker, b"paid?"))
        assert len(asked) == 2


async def is_there(broker: RunningBroker, body: bytes) -> bool:
    return body in bodies(await broker.messages(TOPIC))


async def nacked(broker: RunningBroker, client: Client, rounds: int) -> list[int]:
    """Let a member refuse a message again and again; how often it was delivered each time."""
    seen: list[int] = []
    async with (
        asyncio.timeout(LIMIT_S),
        Consumer(TOPIC, client=client, group=GROUP, start_from=StartFrom.FIRST) as consumer,
    ):
        for _ in range(rounds):
            message = await consumer.getone()
            seen.append(message.reconsume_times)
            await message.nack(delay_level=18)
            await until(lambda: broker.controller.parts.schedule.waiting_count > 0)
            await broker.advance(2 * 3600 + 1)
        message = await consumer.getone()
        seen.append(message.reconsume_times)
        await message.ack()
    return seen


@pytest.mark.slow
async def test_retries_come_after_hours_and_the_consumer_is_still_there() -> None:
    async with (
        run_broker() as broker,
        broker.client() as client,
        Producer(client=client, send_timeout=LIMIT_S) as producer,
    ):
        await producer.send(Message(TOPIC, b"try again"))
        assert await nacked(broker, client, 3) == [0, 1, 2, 3]
        opened = broker.controller.parts.stats.connections_opened
        assert opened <= 4, "no connection was taken for idle"


async def test_members_and_locks_outlast_a_jump() -> None:
    async with run_broker() as broker, broker.client() as client, AsyncExitStack() as stack:
        await broker.create_topic(TOPIC)
        consumer = Consumer(TOPIC, client=client, group=GROUP, start_from=StartFrom.FIRST)
        await stack.enter_async_context(consumer)
        await broker.wait_members(GROUP)
        await broker.advance(HOURS_S)
        await broker.wait_members(GROUP, timeout=0)
        with pytest.raises(TimeoutError, match="billing has 1 members"):
            await broker.wait_members(GROUP, 2, timeout=0)
        async with Producer(client=client, send_timeout=LIMIT_S) as producer:
            await producer.send(Message(TOPIC, b"still served"))


async def test_time_goes_forward_only_and_on_a_clock_that_can() -> None:
    async with run_broker() as broker:
        before = broker.now()
        await broker.advance(0)
        await broker.advance(90)
        assert 90 <= (broker.now() - before).total_seconds() < 150
        with pytest.raises(ValueError, match="does not go back"):
            await broker.advance(-1)
    async with run_broker(clock=SystemClock(asyncio.get_running_loop())) as broker:
        with pytest.raises(ValueError, match="use a VirtualClock"):
            await broker.advance(1)
        with pytest.raises(ValueError, match="VirtualClock"):
            await broker.restart(kill=True)
        await broker.restart()


async def test_the_clock_goes_on_over_a_restart() -> None:
    async with (
        run_broker() as broker,
        Producer(namesrv_addr=broker.namesrv_addr, send_timeout=LIMIT_S) as producer,
    ):
        await producer.send(Message(TOPIC, b"in an hour", delay_level=17))
        await broker.advance(3000)
        await broker.restart(kill=True)
        assert await broker.messages(TOPIC) == []
        await broker.advance(601)
        assert bodies(await broker.messages(TOPIC)) == [b"in an hour"]


async def test_one_clock_for_several_brokers() -> None:
    clock = VirtualClock()
    async with (
        run_broker(clock=clock) as broker,
        Producer(namesrv_addr=broker.namesrv_addr, send_timeout=LIMIT_S) as producer,
    ):
        await producer.send(Message(TOPIC, b"later", delay_level=3))
        async with run_broker(clock=clock) as other:
            await other.restart(kill=True)
        await broker.advance(10)
        assert [message.body for message in await broker.messages(TOPIC)] == [b"later"]


async def test_invisible_times_end() -> None:
    async with (
        run_broker() as broker,
        Producer(namesrv_addr=broker.namesrv_addr, send_timeout=LIMIT_S) as producer,
        SimpleConsumer(
            TOPIC, group=GROUP, namesrv_addr=broker.namesrv_addr, await_duration=LIMIT_S
        ) as consumer,
    ):
        await producer.send(Message(TOPIC, b"a"))
        (first,) = await consumer.receive(invisible_duration=3600)
        await broker.advance(3500)
        assert await consumer.receive(timeout=0) == []
        await broker.advance(200)
        (again,) = await consumer.receive()
        assert (again.msg_id, again.delivery_attempt) == (first.msg_id, 2)
        await consumer.ack(again)


async def test_a_handle_outlives_a_restart() -> None:
    async with (
        run_broker() as broker,
        Producer(namesrv_addr=broker.namesrv_addr, send_timeout=LIMIT_S) as producer,
        SimpleConsumer(
            TOPIC, group=GROUP, namesrv_addr=broker.namesrv_addr, await_duration=LIMIT_S
        ) as consumer,
    ):
        for body in (b"a", b"b"):
            await producer.send(Message(TOPIC, body))
        taken: dict[bytes, PoppedMessage] = {}
        while len(taken) < 2:
            for message in await consumer.receive(invisible_duration=3600):
                taken[message.body] = message
        await broker.restart()
        assert await consumer.receive(timeout=0.2) == []
        await consumer.ack(taken[b"a"])
        await broker.advance(3700)
        (again,) = await consumer.receive()
        assert (again.body, again.delivery_attempt) == (b"b", 2)
