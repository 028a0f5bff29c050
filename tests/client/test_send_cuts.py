"""A connection cut at every byte of a send and of its answer: nothing lost, no copy unaccounted.

A copy can be stored twice only when the broker had the whole request and its answer did not come
back; then the result says so in `unknown_tries`.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from skylarkmq.client import Client, Message, Producer
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.codes import RequestCode
from tests.support.amounts import slow
from tests.support.fake_cluster import FakeBroker, FakeCluster
from tests.support.manual_clock import ManualClock, advance_async, settle

BODY = b"the body"


async def started() -> tuple[FakeBroker, ManualClock, Client, Producer]:
    cluster, clock = FakeCluster(), ManualClock()
    broker = cluster.broker("broker-a", {"orders": 1})
    client = Client(
        cluster.namesrv, network=cluster.network, clock=clock, random=Random(1), codec="json"
    )
    producer = Producer(client=client, send_timeout=30)
    await producer.start()
    return broker, clock, client, producer


async def sizes() -> tuple[int, int]:
    """Bytes of the request and of its answer."""
    broker, _, client, producer = await started()
    connection = await services_of(client).remoting.connection(broker.address)
    await settle()
    (stream,) = broker.streams
    sent = len(stream.writes)
    await producer.send(Message("orders", BODY))
    assert connection.address == broker.address
    return len(stream.writes[sent]), stream.said_size


async def send_over(cut: str, position: int) -> tuple[FakeBroker, int, int]:
    """Send one message over a connection that breaks at a byte; later connections are whole."""
    broker, clock, client, producer = await started()
    setattr(broker, cut, position)
    send = asyncio.create_task(producer.send(Message("orders", BODY)))
    await settle(60)
    setattr(broker, cut, None)
    await advance_async(clock, 10)
    result = await send
    stopping = asyncio.create_task(producer.stop(timeout=1))
    await advance_async(clock, 5)
    await stopping
    await client.stop()
    return broker, result.unknown_tries, producer_retries(broker)


def producer_retries(broker: FakeBroker) -> int:
    return len(broker.of_code(RequestCode.SEND_MESSAGE_V2))


@pytest.mark.parametrize("every", [3, slow(1)])
async def test_the_request_cut_at_any_byte_is_stored_exactly_once(every: int) -> None:
    request_size, _ = await sizes()
    assert request_size > 300
    for position in {*range(1, request_size, every), request_size - 1}:
        broker, unknown_tries, _ = await send_over("cut_request_at", position)
        assert broker.bodies("orders") == [BODY], f"cut at {position}"
        assert unknown_tries == 1, f"cut at {position}: from here it could have been stored"


async def test_the_answer_cut_at_every_byte_is_stored_twice_and_says_so() -> None:
    _, answer_size = await sizes()
    assert answer_size > 100
    for position in range(answer_size):
        broker, unknown_tries, request_count = await send_over("cut_answer_at", position)
        assert broker.bodies("orders") == [BODY] * (1 + unknown_tries), f"cut at {position}"
        assert unknown_tries == 1
        assert request_count == 2
        ids = {stored.properties["UNIQ_KEY"] for stored in broker.topics["orders"].queues[0]}
        assert len(ids) == 1, "copies carry one id, so that a consumer can tell"


async def test_a_whole_answer_before_the_cut_is_no_doubt() -> None:
    _, answer_size = await sizes()
    broker, unknown_tries, request_count = await send_over("cut_answer_at", answer_size)
    assert (broker.bodies("orders"), unknown_tries, request_count) == ([BODY], 0, 1)


@pytest.mark.parametrize("retries", [0, 1])
async def test_without_retries_left_the_cut_is_an_error_and_never_a_second_copy(
    retries: int,
) -> None:
    broker, clock, client, _ = await started()
    producer = Producer(client=client, send_timeout=30, retries=retries)
    await producer.start()
    await producer.send(Message("orders", b"before"))
    broker.silent = True
    send = asyncio.create_task(producer.send(Message("orders", BODY)))
    for _ in range(retries + 1):
        await advance_async(clock, 3)
        broker.lose_all()
    await advance_async(clock, 3)
    assert send.exception() is not None
    sent = [r for r in broker.of_code(RequestCode.SEND_MESSAGE_V2) if r.body == BODY]
    assert len(sent) == retries + 1
