"""Sends that wait: without tasks, not one broker's for another's, and never over their time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skylarkmq.client import (
    IllegalState,
    Message,
    RequestTimeout,
    RocketMQError,
    RouteNotFound,
    SendResult,
)
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.remoting.connection import UNSENT_MAX
from tests.client.support import Setting
from tests.support.amounts import slow
from tests.support.fake_cluster import FakeBroker
from tests.support.manual_clock import advance_async, settle

SEND = RequestCode.SEND_MESSAGE_V2
MANY = 10_000
TASKS_MAX = 20


def task_count() -> int:
    return len(asyncio.all_tasks())


def silence_name_server(it: Setting) -> None:
    it.cluster.name_server.silent = True


@pytest.mark.parametrize("many", [1000, slow(10_000)])
async def test_thousands_of_messages_in_flight_are_few_tasks(many: int) -> None:
    async with Setting(max_in_flight=many, send_timeout=60, retries=5) as it:
        broker = it.cluster.broker("broker-a", {"orders": 4})
        message = Message("orders", b"x")
        futures = [it.producer.send_nowait(message) for _ in range(many)]
        assert it.producer.in_flight_count == many
        assert task_count() < TASKS_MAX, "they wait for the route"
        await settle()
        await asyncio.gather(*futures)
        broker.silent = True
        futures = [it.producer.send_nowait(message) for _ in range(many)]
        await settle()
        assert it.producer.in_flight_count == many
        assert task_count() < TASKS_MAX, "they wait for their answers"
        broker.connect_error = ConnectionRefusedError("down")
        broker.lose_all()
        for _ in range(4):
            await advance_async(it.clock, 0.5)
            assert it.producer.in_flight_count == many
            assert task_count() < TASKS_MAX, "they wait for the broker to come back"
        broker.silent, broker.connect_error = False, None
        await advance_async(it.clock, 5)
        results = await asyncio.gather(*futures)
        assert {result.unknown_tries for result in results} == {1}
        assert it.producer.in_flight_count == 0
        assert timetable_size(it) <= 2 * many


def timetable_size(it: Setting) -> int:
    """Entries of the timetable, those of sends that have left included."""
    return len(it.producer._running.pipeline._waiting._timetable)


def hang(it: Setting, broker: FakeBroker) -> asyncio.Event:
    """Let connections to the broker come about only when the event is set."""
    released = asyncio.Event()
    connect = it.cluster.network.connect

    async def slow(address: str, receiver: Any) -> Any:
        if address == broker.address:
            await released.wait()
        return await connect(address, receiver)

    services_of(it.client).remoting._network.connect = slow  # type: ignore[method-assign]
    return released


async def test_a_broker_that_does_not_answer_a_dial_is_not_in_the_way_of_another() -> None:
    async with Setting() as it:
        dead = it.cluster.broker("broker-a", {"orders": 1})
        alive = it.cluster.broker("broker-b", {"orders": 1})
        released = hang(it, dead)
        futures = [it.producer.send_nowait(Message("orders", b"%d" % n)) for n in range(10)]
        await settle()
        assert len(alive.bodies("orders")) == 5
        assert [future.done() for future in futures].count(True) == 5
        released.set()
        await settle()
        assert all(future.done() for future in futures)
        order = [int(body) for body in dead.bodies("orders")]
        assert order == sorted(order), "those for one queue leave in the order of their calls"


async def test_after_a_dial_that_failed_the_others_go_to_another_broker() -> None:
    async with Setting() as it:
        dead = it.cluster.broker("broker-a", {"orders": 1})
        alive = it.cluster.broker("broker-b", {"orders": 1})
        dead.connect_error = ConnectionRefusedError("down")
        futures = [it.producer.send_nowait(Message("orders", b"x")) for _ in range(10)]
        await settle()
        assert all(future.done() for future in futures), "at once, without a pause"
        assert len(alive.bodies("orders")) == 10
        assert {future.result().unknown_tries for future in futures} == {0}


async def test_the_time_of_a_send_ends_whatever_it_waits_for() -> None:
    async with Setting(send_timeout=2) as it:
        broker = it.cluster.broker("broker-a", {"orders": 1, "later": 1})
        await it.producer.send(Message("orders", b"x"))
        silence_name_server(it)
        routeless = it.producer.send_nowait(Message("later", b"x"))
        broker.lose_all()
        await settle()
        released = hang(it, broker)
        unconnected = it.producer.send_nowait(Message("orders", b"x"), timeout=1)
        await advance_async(it.clock, 0.99)
        assert not unconnected.done()
        await advance_async(it.clock, 0.02)
        with pytest.raises(RequestTimeout, match="waited for a connection to broker-a:10911"):
            unconnected.result()
        assert not routeless.done()
        await advance_async(it.clock, 1)
        with pytest.raises(RequestTimeout, match="waited for the route of later"):
            routeless.result()
        assert it.producer.in_flight_count == 0
        released.set()
        it.cluster.name_server.silent = False


async def test_a_pause_grows_and_never_outlasts_the_send() -> None:
    async with Setting(retries=50, send_timeout=10) as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        await it.producer.send(Message("orders", b"x"))
        broker.refuse(SEND, *[ResponseCode.SYSTEM_BUSY] * 100)
        lost = it.producer.send_nowait(Message("orders", b"y"))
        await advance_async(it.clock, 1)
        early = len(broker.of_code(SEND))
        await advance_async(it.clock, 8.99)
        late = len(broker.of_code(SEND)) - early
        assert 4 <= early <= 8, "0.05, 0.1, 0.2, 0.4 s, jittered"
        assert 9 <= late <= 20, "a second at most"
        assert not lost.done()
        await advance_async(it.clock, 0.1)
        assert lost.done()
        assert "SYSTEM_BUSY" in str(lost.exception())


async def test_a_retry_does_not_wait_for_a_name_server_that_is_away() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        await it.producer.send(Message("orders", b"x"))
        await advance_async(it.clock, 2)
        silence_name_server(it)
        broker.refuse(SEND, ResponseCode.SYSTEM_BUSY)
        send = it.producer.send_nowait(Message("orders", b"y"))
        await advance_async(it.clock, 1)
        assert isinstance(send.result(), SendResult)
        it.cluster.name_server.silent = False


async def test_the_timetable_forgets_those_that_are_cancelled() -> None:
    async with Setting(send_timeout=600, max_in_flight=10_000) as it:
        it.cluster.broker("broker-a", {"orders": 1})
        silence_name_server(it)
        for _ in range(20):
            sends = [
                asyncio.create_task(it.producer.send(Message("orders", b"x"))) for _ in range(50)
            ]
            await asyncio.sleep(0)
            for send in sends:
                send.cancel()
            await asyncio.gather(*sends, return_exceptions=True)
        assert it.producer.in_flight_count == 0
        assert timetable_size(it) <= 200
        it.cluster.name_server.silent = False


async def test_a_future_that_is_cancelled_before_its_message_left_keeps_it_here() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        futures = [it.producer.send_nowait(Message("orders", b"%d" % n)) for n in range(3)]
        futures[1].cancel()
        await settle()
        assert broker.bodies("orders") == [b"0", b"2"]
        futures = [it.producer.send_nowait(Message("orders", b"%d" % n)) for n in range(3, 6)]
        futures[1].cancel()
        await it.producer.flush()
        assert it.producer.in_flight_count == 0


async def test_what_waits_at_stop_ends_and_what_comes_later_is_refused() -> None:
    it = Setting(max_in_flight=2)
    await it.producer.start()
    it.cluster.broker("broker-a", {"orders": 1})
    silence_name_server(it)
    waiting = [it.producer.send_nowait(Message("orders", b"x")) for _ in range(2)]
    for_room = asyncio.create_task(it.producer.send(Message("orders", b"x")))
    await settle()
    stopping = asyncio.create_task(it.producer.stop(timeout=1))
    await advance_async(it.clock, 1)
    await advance_async(it.clock, 5)
    await stopping
    for future in waiting:
        with pytest.raises(IllegalState, match="stopped"):
            future.result()
    with pytest.raises(IllegalState, match="stopped"):
        await for_room
    await it.client.stop()
    assert it.clock.pending_count == 0


async def test_a_missing_route_fails_all_at_once() -> None:
    async with Setting() as it:
        it.cluster.broker("broker-a", {"other": 1})
        futures = [it.producer.send_nowait(Message("absent", b"x")) for _ in range(3)]
        await settle()
        for future in futures:
            with pytest.raises(RouteNotFound):
                future.result()


async def test_a_next_try_that_is_rounded_away_is_not_tried_over_and_over() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        await it.producer.send(Message("orders", b"x"))
        await advance_async(it.clock, 17)
        it.clock._monotonic_s = 1017.41  # the next number is rounded to it
        connection = services_of(it.client).remoting.ready(broker.address)
        assert connection is not None
        connection.pause_writing()
        connection._unsent_size = UNSENT_MAX + 1
        send = it.producer.send_nowait(Message("orders", b"y"), timeout=1.2e-13)
        for _ in range(20):
            it.clock.advance(0)
            await settle()
        assert it.producer.stats.retry_count <= 2
        it.clock.advance(0.01)
        with pytest.raises(RocketMQError, match="too slowly"):
            await send
