"""Sends under way: their order, their retries, their limits, and what cancelling leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skylarkmq.client import (
    ConnectionFailed,
    Message,
    MessageIllegal,
    MessageTooLarge,
    NotConfirmed,
    RequestTimeout,
    RouteNotFound,
    SendResult,
    SendStatus,
    SystemBusy,
    TooManyInFlight,
)
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.headers.send import UNCONFIRMED_FIELD
from skylarkmq.remoting.connection import UNSENT_MAX
from tests.client.support import Setting
from tests.support.manual_clock import advance_async, settle

SEND = RequestCode.SEND_MESSAGE_V2


async def test_sends_of_one_turn_leave_in_one_write_in_order() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        await it.producer.send(Message("orders", b"first"))
        (stream,) = broker.streams
        before = len(stream.writes)
        futures = [it.producer.send_nowait(Message("orders", b"%d" % n)) for n in range(100)]
        await asyncio.gather(*futures)
        assert len(stream.writes) == before + 1
        assert broker.bodies("orders")[1:] == [b"%d" % n for n in range(100)]


async def test_sends_before_the_route_is_known_keep_their_order_too() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        futures = [it.producer.send_nowait(Message("orders", b"%d" % n)) for n in range(50)]
        while services_of(it.client).remoting.ready(broker.address) is None:
            futures.append(it.producer.send_nowait(Message("orders", b"%d" % len(futures))))
            await asyncio.sleep(0)
        futures.append(it.producer.send_nowait(Message("orders", b"%d" % len(futures))))
        await asyncio.gather(*futures)
        assert broker.bodies("orders") == [b"%d" % n for n in range(len(futures))]


async def test_a_refusal_in_the_retry_set_goes_to_another_broker() -> None:
    async with Setting() as it:
        brokers = [it.cluster.broker(name, {"orders": 2}) for name in ("broker-a", "broker-b")]
        await it.producer.send(Message("orders", b"warm up"))
        for code in (1, 14, 16, 17, 204, 205):
            for broker in brokers:
                broker.refusals.clear()
            victim = brokers[code % 2]
            victim.refuse(SEND, *[code] * 10)
            results = [await it.producer.send(Message("orders", b"x")) for _ in range(4)]
            assert all(result.queue.broker_name != victim.name for result in results)
            assert all(result.unknown_tries == 0 for result in results), "a refusal is no doubt"
        assert it.producer.stats.retry_count > 0
        assert it.producer.stats.unknown_retry_count == 0


async def test_busy_is_tried_again_after_a_pause_and_given_up_after_the_retries() -> None:
    async with Setting(retries=2) as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        broker.refuse(SEND, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_BUSY)
        send = asyncio.create_task(it.producer.send(Message("orders", b"x")))
        await settle()
        assert len(broker.of_code(SEND)) == 1, "no second try without a pause"
        await advance_async(it.clock, 1)
        assert (await send).status is SendStatus.SEND_OK

        broker.refuse(SEND, *[ResponseCode.SYSTEM_BUSY] * 3)
        send = asyncio.create_task(it.producer.send(Message("orders", b"x")))
        await advance_async(it.clock, 2.5)
        with pytest.raises(SystemBusy) as caught:
            await send
        assert caught.value.retryable
        assert caught.value.remark == "refused by the test"
        assert len(broker.of_code(SEND)) == 6


async def test_what_replicas_cannot_confirm_is_sent_again_and_counted_as_a_doubt() -> None:
    """It may be stored, and a failover may take it back: no acknowledgement, and no plain refusal.

    A refusal of a broker that does not lead is waited out; such a one may leave a copy each time,
    so it counts against the retries.
    """
    async with Setting(retries=2) as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        broker.refusal_fields = {UNCONFIRMED_FIELD: "true"}
        for code in (SEND, RequestCode.SEND_BATCH_MESSAGE):

            async def send(code: RequestCode = code) -> SendResult:
                if code == SEND:
                    return await it.producer.send(Message("orders", b"x"))
                return (await it.producer.send_batch([Message("orders", b"x")] * 2))[0]

            broker.refuse(code, *[ResponseCode.SERVICE_NOT_AVAILABLE] * 2)
            sending = asyncio.create_task(send())
            await advance_async(it.clock, 2)
            result = await sending
            assert (result.status, result.unknown_tries) == (SendStatus.SEND_OK, 2)

            broker.refuse(code, *[ResponseCode.SERVICE_NOT_AVAILABLE] * 9)
            sending = asyncio.create_task(send())
            await advance_async(it.clock, 4)
            with pytest.raises(NotConfirmed) as caught:
                await sending
            assert caught.value.retryable
            assert len(broker.of_code(code)) == 3 + 3


async def test_another_refusal_fails_at_once() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        broker.refuse(SEND, ResponseCode.MESSAGE_ILLEGAL)
        with pytest.raises(MessageIllegal) as caught:
            await it.producer.send(Message("orders", b"x"))
        assert caught.value.broker_addr == broker.address
        assert len(broker.of_code(SEND)) == 1
        assert it.producer.stats.failed_count == 1


async def test_no_answer_is_a_time_out() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        await it.producer.send(Message("orders", b"x"))
        broker.silent = True
        send = asyncio.create_task(it.producer.send(Message("orders", b"y"), timeout=1.5))
        await advance_async(it.clock, 1.4)
        assert not send.done()
        await advance_async(it.clock, 0.1)
        with pytest.raises(RequestTimeout):
            await send


async def test_a_lost_connection_is_retried_and_counted_as_a_doubt() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        await it.producer.send(Message("orders", b"first"))
        broker.silent = True
        futures = [it.producer.send_nowait(Message("orders", b"%d" % n)) for n in range(20)]
        await settle()
        broker.silent = False
        broker.lose_all()
        await advance_async(it.clock, 2)
        results = await asyncio.gather(*futures)
        assert all(result.unknown_tries == 1 for result in results)
        assert it.producer.stats.unknown_retry_count == 20
        assert sorted(broker.bodies("orders")[1:]) == sorted(b"%d" % n for n in range(20))


async def test_a_send_whose_time_is_over_goes_to_no_other_broker() -> None:
    """Its sender was told that it failed: a copy that is stored afterwards surprises."""
    async with Setting(retries=2) as it:
        brokers = [it.cluster.broker(name, {"orders": 1}) for name in ("broker-a", "broker-b")]
        for _ in range(2):
            await it.producer.send(Message("orders", b"warm up"))
        for broker in brokers:
            broker.silent = True
        send = asyncio.create_task(it.producer.send(Message("orders", b"x"), timeout=1.5))
        await advance_async(it.clock, 1.5)
        with pytest.raises(RequestTimeout):
            await send
        await advance_async(it.clock, 5)
        assert sum(len(broker.of_code(SEND)) for broker in brokers) == 3


async def test_a_broker_that_is_down_is_waited_for_until_the_time_is_up() -> None:
    async with Setting(send_timeout=10, retries=0) as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        await it.producer.send(Message("orders", b"x"))
        broker.connect_error = ConnectionRefusedError("down")
        broker.lose_all()
        await settle()
        waiting = [asyncio.create_task(it.producer.send(Message("orders", b"y"))) for _ in "ab"]
        await advance_async(it.clock, 5)
        assert not any(send.done() for send in waiting)
        broker.connect_error = None
        await advance_async(it.clock, 5)
        results = [await send for send in waiting]
        assert [result.unknown_tries for result in results] == [0, 0], "nothing had left"

        broker.connect_error = ConnectionRefusedError("down for good")
        broker.lose_all()
        await settle()
        lost = asyncio.create_task(it.producer.send(Message("orders", b"z")))
        await advance_async(it.clock, 10.1)
        with pytest.raises(RouteNotFound) as caught:
            await lost
        assert caught.value.reason == "address_unreachable"
        assert "down for good" in str(caught.value)
        assert isinstance(caught.value.__cause__, ConnectionFailed)


async def test_room_is_bounded_by_count_and_send_waits_for_it() -> None:
    async with Setting(max_in_flight=3) as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        await it.producer.send(Message("orders", b"x"))
        broker.silent = True
        futures = [it.producer.send_nowait(Message("orders", b"y")) for _ in range(3)]
        with pytest.raises(TooManyInFlight):
            it.producer.send_nowait(Message("orders", b"z"))
        waiting = [asyncio.create_task(it.producer.send(Message("orders", b"w"))) for _ in range(5)]
        impatient = asyncio.create_task(it.producer.room())
        await settle()
        impatient.cancel()
        assert it.producer.in_flight_count == 3
        broker.silent = False
        for request in broker.of_code(SEND)[-3:]:
            for answer in [broker.respond(request, broker.streams[0])]:
                assert not isinstance(answer, list)
                broker.streams[0].say(answer)
        await asyncio.gather(*futures, *waiting)
        assert it.producer.in_flight_count == 0


async def test_room_is_bounded_by_bytes() -> None:
    async with Setting(max_in_flight_bytes=1000, max_message_size=1000, compress_over=5000) as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        await it.producer.send(Message("orders", b"x"))
        broker.silent = True
        future = it.producer.send_nowait(Message("orders", bytes(900)))
        with pytest.raises(TooManyInFlight):
            it.producer.send_nowait(Message("orders", bytes(101)))
        it.producer.send_nowait(Message("orders", bytes(100))).add_done_callback(_seen)
        future.add_done_callback(_seen)
        with pytest.raises(MessageTooLarge):
            it.producer.send_nowait(Message("orders", bytes(1001)))


def _seen(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


async def test_a_cancelled_send_leaves_nothing_behind() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        await it.producer.send(Message("orders", b"x"))
        broker.silent = True
        on_the_wire = asyncio.create_task(it.producer.send(Message("orders", b"y")))
        await settle()
        broker.connect_error = ConnectionRefusedError("down")
        parked = asyncio.create_task(it.producer.send(Message("elsewhere", b"z")))
        await asyncio.sleep(0)
        for task in (on_the_wire, parked):
            task.cancel()
        await settle()
        assert it.producer.in_flight_count == 0
        connection = services_of(it.client).remoting.ready(broker.address)
        assert connection is not None
        assert connection.pending_count == 0


async def test_a_send_refused_at_once_and_sent_elsewhere_can_be_cancelled_there() -> None:
    async with Setting() as it:
        full, other = (it.cluster.broker(name, {"orders": 1}) for name in ("broker-a", "broker-b"))
        for _ in range(2):
            await it.producer.send(Message("orders", b"warm up"))
        other.silent = True
        ready = services_of(it.client).remoting.ready
        clogged, free = ready(full.address), ready(other.address)
        assert clogged is not None
        assert free is not None
        clogged.pause_writing()
        clogged._unsent_size = UNSENT_MAX + 1
        for _ in range(100):
            clogged.take_opaque()  # so that those of the two are not the same
        sends = [asyncio.create_task(it.producer.send(Message("orders", b"x"))) for _ in range(2)]
        await settle()
        assert free.pending_count == 2
        for send in sends:  # each takes its own waiter away, and no other's
            send.cancel()
            await settle()
        assert free.pending_count == 0
        assert it.producer.in_flight_count == 0
