"""What can be made to go wrong, as a client meets it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from skylarkmq.client import (
    Client,
    ConnectionFailed,
    Message,
    Producer,
    RequestTimeout,
    RocketMQError,
    SendStatus,
    ServiceNotAvailable,
)
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.testing import RunningBroker, run_broker
from tests.support.patience import LIMIT_S, until

pytestmark = pytest.mark.timing

TOPIC = "orders"
SEND = RequestCode.SEND_MESSAGE
SHORT_S = 0.5
"""A time-out that is to run out, for what gets no answer; everything else has all the time."""


@asynccontextmanager
async def setting(**settings: Any) -> AsyncIterator[tuple[RunningBroker, Client, Producer]]:
    keys = settings.pop("keys", {})
    async with (
        run_broker(settings=keys) as broker,
        broker.client() as client,
        Producer(client=client, **{"retries": 0, "send_timeout": LIMIT_S, **settings}) as producer,
    ):
        await broker.create_topic(TOPIC, queues=1)
        await producer.send(Message(TOPIC, b"first"))
        yield broker, client, producer


async def stored(broker: RunningBroker) -> list[bytes]:
    return [message.body for message in await broker.messages(TOPIC)]


async def is_stored(broker: RunningBroker, body: bytes) -> bool:
    return body in await stored(broker)


async def test_a_lost_answer_leaves_the_message_stored() -> None:
    async with setting() as (broker, _, producer):
        fault = broker.faults.drop_reply(SEND)
        sending = producer.send_nowait(Message(TOPIC, b"not told"), timeout=SHORT_S)
        await until(lambda: is_stored(broker, b"not told"))
        with pytest.raises(RequestTimeout):
            await sending
        assert fault.hits == 1
        await producer.send(Message(TOPIC, b"told"))
        assert await stored(broker) == [b"first", b"not told", b"told"]


async def test_a_retry_after_a_lost_answer_stores_twice() -> None:
    async with setting(retries=1) as (broker, _, producer):
        with broker.faults.fail(SEND, response_code=ResponseCode.SYSTEM_BUSY) as fault:
            await producer.send(Message(TOPIC, b"again"))
            assert fault.hits == 1
        assert await stored(broker) == [b"first", b"again"]


async def test_a_lost_request_leaves_nothing() -> None:
    async with setting() as (broker, _, producer):
        broker.faults.drop_request(SEND)
        with pytest.raises(RequestTimeout):
            await producer.send(Message(TOPIC, b"lost"), timeout=SHORT_S)
        assert await stored(broker) == [b"first"]


async def test_answers_among_others_are_caught() -> None:
    async with setting() as (broker, _, producer):
        broker.faults.drop_reply(SEND, 2)
        limits = [SHORT_S] * 2 + [LIMIT_S] * 4
        sends = [
            producer.send_nowait(Message(TOPIC, b"%d" % n), timeout=limit)
            for n, limit in enumerate(limits)
        ]
        results = await asyncio.gather(*sends, return_exceptions=True)
        lost = [isinstance(result, RequestTimeout) for result in results]
        assert lost == [True, True, False, False, False, False]
        assert await stored(broker) == [b"first", b"0", b"1", b"2", b"3", b"4", b"5"]


async def test_a_late_answer_comes_late() -> None:
    async with setting() as (broker, _, producer):
        loop, asked_s = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        with broker.faults.delay(SEND, SHORT_S) as fault:
            assert (await producer.send(Message(TOPIC, b"late"))).status is SendStatus.SEND_OK
            assert loop.time() - asked_s >= SHORT_S
            assert fault.hits == 1
        await producer.send(Message(TOPIC, b"on time"))
        assert fault.hits == 1


async def test_refusals_have_the_code_that_was_asked_for() -> None:
    async with setting() as (broker, _, producer):
        broker.faults.fail(SEND, 1, ResponseCode.SERVICE_NOT_AVAILABLE, "out for lunch")
        with pytest.raises(ServiceNotAvailable, match="out for lunch"):
            await producer.send(Message(TOPIC, b"refused"))
        with (
            broker.faults.fail(RequestCode.GET_ROUTEINFO_BY_TOPIC, None),
            pytest.raises(RocketMQError),
        ):
            await producer.send(Message("another", b"its route is refused by the name server"))
        await producer.send(Message(TOPIC, b"taken"))
        assert await stored(broker) == [b"first", b"taken"]


async def test_a_full_disk_refuses_and_heals() -> None:
    async with setting() as (broker, _, producer):
        with broker.faults.disk_full():
            with pytest.raises(ServiceNotAvailable, match="disk is too full"):
                await producer.send(Message(TOPIC, b"no room"))
            assert await stored(broker) == [b"first"]
            await broker.advance(60)  # the broker looks again, and it is still full
            with pytest.raises(ServiceNotAvailable):
                await producer.send(Message(TOPIC, b"no room"))
        await producer.send(Message(TOPIC, b"room"))
        await broker.advance(60)
        await producer.send(Message(TOPIC, b"still"))
        assert await stored(broker) == [b"first", b"room", b"still"]


async def test_a_sync_that_hangs_is_told_after_the_broker_s_time() -> None:
    async with setting(keys={"flushDiskType": "SYNC_FLUSH"}) as (broker, _, producer):
        with broker.faults.pause_flush():
            sending = producer.send_nowait(Message(TOPIC, b"slow"))
            await until(lambda: broker.controller.parts.store.writer.waiting > 0)
            assert await stored(broker) == [b"first"], "not shown before it is durable"
            await broker.advance(6)
            assert (await sending).status is SendStatus.FLUSH_DISK_TIMEOUT
        await producer.send(Message(TOPIC, b"fine"))
        assert await stored(broker) == [b"first", b"slow", b"fine"]


async def test_a_broken_disk_ends_the_writing_until_a_restart() -> None:
    async with setting(keys={"flushDiskType": "SYNC_FLUSH"}) as (broker, _, producer):
        with broker.faults.disk_error(), pytest.raises(ServiceNotAvailable):
            await producer.send(Message(TOPIC, b"unsafe"), timeout=SHORT_S)
        with pytest.raises(ServiceNotAvailable):
            await producer.send(Message(TOPIC, b"still unsafe"), timeout=SHORT_S)
        await broker.restart(kill=True)
        await producer.send(Message(TOPIC, b"safe"))
        assert (await stored(broker))[-1] == b"safe"


async def test_connections_are_cut_once_or_until_healed() -> None:
    async with setting(retries=3) as (broker, _, producer):
        opened = broker.controller.parts.stats.connections_opened
        broker.faults.close_connections()
        await producer.send(Message(TOPIC, b"over a new connection"))
        assert broker.controller.parts.stats.connections_opened > opened
        with (
            broker.faults.refuse_connections(),
            pytest.raises((ConnectionFailed, RequestTimeout)),
        ):
            await producer.send(Message(TOPIC, b"nobody there"), timeout=SHORT_S)
        await producer.send(Message(TOPIC, b"back"))
        assert await stored(broker) == [b"first", b"over a new connection", b"back"]


async def test_all_faults_end_together_and_with_a_restart() -> None:
    async with setting() as (broker, _, producer):
        faults = broker.faults
        faults.disk_full()
        faults.fail(SEND, None)
        fault = faults.drop_request(SEND, None)
        faults.clear()
        fault.heal()
        await producer.send(Message(TOPIC, b"cleared"))
        faults.drop_request(SEND, None)
        await broker.restart()
        await producer.send(Message(TOPIC, b"restarted"))
        assert await stored(broker) == [b"first", b"cleared", b"restarted"]
        with pytest.raises(ValueError, match="n is 1 or more"):
            faults.drop_reply(SEND, 0)


@pytest.mark.parametrize("name", ["disk_full", "disk_error", "pause_flush", "refuse_connections"])
@pytest.mark.parametrize("kill", [False, True])
async def test_each_fault_ends_with_a_restart(name: str, kill: bool) -> None:
    async with setting() as (broker, _, producer):
        getattr(broker.faults, name)()
        await broker.restart(kill=kill)
        await producer.send(Message(TOPIC, b"restarted"))
        assert await stored(broker) == [b"first", b"restarted"]
