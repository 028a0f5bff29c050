"""Rows of the table of cancelled calls: Client, Producer, transactions, request and reply."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from skylarkmq.client import (
    Client,
    Message,
    MessageQueue,
    Producer,
    Reply,
    SendResult,
    SendStatus,
    Transaction,
)
from skylarkmq.client.instance import Client as Instance
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.flags import RMQ_SYS_WHEEL_TIMER_TOPIC
from skylarkmq.protocol.message_id import offset_message_id
from skylarkmq.protocol.properties import decode_properties
from tests.client.cancel_place import Place, Row, check
from tests.support.cancelling import Driven
from tests.support.fake_queues import HOST, QUEUE_SPAN, Topic
from tests.support.manual_clock import settle

ORDER = Message("orders", b"cancelled", keys="k")
LARGE = Message("orders", bytes(300_000))
TIMED = Message("orders", b"cancelled", delay=timedelta(seconds=5))
END = RequestCode.END_TRANSACTION


@dataclass
class Asked:
    """A request as a consumer has it."""

    properties: Mapping[str, str]
    queue: MessageQueue


# Client


async def no_client(place: Place) -> Instance:
    return place.client


async def a_client(place: Place) -> Client:
    await place.run(place.client.start())
    await place.run(services_of(place.client).routes.refresh("orders"))
    services_of(place.client).join_producer("G")
    return place.client


async def client_works(place: Place, client: Client, _: Driven) -> None:
    await place.run(client.start())
    assert await place.run(services_of(client).routes.refresh("orders")) is not None
    while services_of(client)._producer_groups["G"] > 0:
        await place.run(services_of(client).leave_producer("G"))
    services_of(client)._producer_groups.clear()


async def client_closed(place: Place, client: Client, _: Driven) -> None:
    await place.run(client.stop())
    place.check_nothing_left()


async def entered(_: Place, thing: Any) -> None:
    async with thing:
        await asyncio.sleep(0)


# Producer


async def a_producer(place: Place) -> Producer:
    return await place.producer()


async def a_waiting_message(place: Place) -> Producer:
    """Its broker has timers."""
    place.broker.topics[RMQ_SYS_WHEEL_TIMER_TOPIC] = Topic([[]])
    place.broker.add(RMQ_SYS_WHEEL_TIMER_TOPIC, 0, b"later", TIMER_OUT_MS="9")
    place.broker.echo_codec = True
    return await place.producer()


async def cancel(place: Place, producer: Producer) -> None:
    key = place.cluster.queue_key(RMQ_SYS_WHEEL_TIMER_TOPIC, 0)
    offset_msg_id = offset_message_id(HOST, key * QUEUE_SPAN)
    queue = MessageQueue("orders", "broker-a", 0)
    assert await producer.cancel(SendResult(SendStatus.SEND_OK, "U0", offset_msg_id, queue, 0))


async def a_producer_of_ours(place: Place) -> Producer:
    """Its broker is one of ours, which takes any delay."""
    place.broker.echo_codec = True
    return await place.producer()


async def known_route(place: Place) -> Producer:
    producer = await place.producer()
    await place.run(producer.queues("orders"))
    return producer


async def a_full_producer(place: Place) -> Producer:
    """One more has no room until time has passed: the broker does not answer."""
    producer = await place.producer(max_in_flight=1, retries=1, send_timeout=2)
    await place.sends(producer)
    place.broker.silent = True
    producer.send_nowait(Message("orders", b"first")).add_done_callback(lambda f: f.exception())
    await settle()
    place.at_step(4, lambda: setattr(place.broker, "silent", False))
    place.at_step(2, lambda: behind(place, producer))
    return producer


def behind(place: Place, producer: Producer) -> None:
    """One more sends, and comes to wait behind the call that is cancelled."""
    place.beside = asyncio.create_task(producer.send(Message("orders", b"behind"), timeout=100))


async def producer_works(place: Place, producer: Producer, _: Driven) -> None:
    place.broker.silent = False
    if place.beside is not None:
        await place.run(asyncio.wait_for(place.beside, None))
    await place.run(producer.flush())
    flight = producer._running.pipeline.in_flight
    assert (flight.count, flight.size) == (0, 0)
    assert not flight.flushes
    assert not flight.room_waiters
    await place.sends(producer)
    assert place.broker.bodies("orders").count(b"cancelled") <= 1


async def producer_stopped(place: Place, producer: Producer, _: Driven) -> None:
    await place.run(producer.stop())


async def producer_starts(place: Place, producer: Producer, _: Driven) -> None:
    await place.run(producer.start())
    place.producers.append(producer)
    await place.sends(producer)


async def not_started(place: Place) -> Producer:
    return Producer(client=place.client, group="P", check=check)


def send(_: Place, producer: Producer) -> Any:
    return producer.send(ORDER)


async def nowait(_: Place, producer: Producer) -> None:
    await producer.send_nowait(ORDER)


async def stop_in_flight(place: Place, producer: Producer) -> None:
    place.broker.silent = True
    future = producer.send_nowait(ORDER)
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        await producer.stop(timeout=1)
    finally:
        place.broker.silent = False


# Transactions


async def a_transaction(place: Place) -> Transaction:
    return (await place.producer()).transaction(ORDER)


async def begun(place: Place) -> Transaction:
    transaction = await a_transaction(place)
    await place.run(transaction.__aenter__())
    return transaction


async def begun_and_cut_off(place: Place) -> Transaction:
    """Its verdict needs a connection that is not there any more."""
    transaction = await begun(place)
    place.broker.lose_all()
    await settle()
    return transaction


async def transaction_is_decided(place: Place, transaction: Transaction, driven: Driven) -> None:
    (producer,) = place.producers
    checks = producer._parts_now.transactions.checks
    assert checks.open == {}, "every transaction has an end that the broker can ask for"
    if driven.reached and transaction._unique_id:
        assert transaction.state is not None
        assert checks.knows(transaction._unique_id)
    await place.run(entered(place, producer.transaction(ORDER)))
    await settle(4)
    assert place.broker.of_code(END)[-1].ext_fields["commitOrRollback"] == "8"
    assert producer.in_flight_count == 0


# Requests


def asked(place: Place) -> list[Asked]:
    (queue,) = place.broker.topics["rpc"].queues
    return [
        Asked(
            {**decode_properties(""), **stored.properties, "CLUSTER": "DefaultCluster"},
            MessageQueue("rpc", place.broker.name, 0),
        )
        for stored in queue
    ]


def answered(place: Place, producer: Producer) -> None:
    """Let a consumer answer what was asked last."""

    async def answer() -> None:
        await place.until(lambda: asked(place))
        await producer.reply(asked(place)[-1], b"yes")

    place.beside = asyncio.create_task(answer())


async def request(place: Place, producer: Producer) -> Reply:
    answered(place, producer)
    try:
        return await producer.request(Message("rpc", b"?"), 5)
    finally:
        place.beside.cancel()


async def request_nowait(place: Place, producer: Producer) -> Reply:
    answered(place, producer)
    try:
        return await producer.request_nowait(Message("rpc", b"?"), 5)
    finally:
        place.beside.cancel()


async def producer_asks(place: Place, producer: Producer, _: Driven) -> None:
    await place.quiet()
    place.broker.topics["rpc"].queues[0].clear()
    assert (await place.run(request(place, producer))).body == b"yes"
    assert producer.in_flight_count == 0
    await place.sends(producer)


async def a_request(place: Place) -> Producer:
    producer = await place.producer()
    place.beside = producer.request_nowait(Message("rpc", b"?"), 500)
    await place.run(place.until(lambda: asked(place)))
    return producer


async def reply(place: Place, producer: Producer) -> None:
    try:
        await producer.reply(asked(place)[0], b"yes")
    finally:
        place.beside.cancel()


SENDS = [
    Row("Client.start", no_client, lambda _, client: client.start(), client_works),
    Row("Client.__aenter__", no_client, entered, client_closed),
    Row("Client.__aexit__", a_client, entered, client_closed),
    Row("Client.stop", a_client, lambda _, client: client.stop(), client_closed),
    Row(
        "Services.leave_producer",
        a_client,
        lambda _, c: services_of(c).leave_producer("G"),
        client_works,
    ),
    Row(
        "Services.send_heartbeats",
        a_client,
        lambda _, c: services_of(c).send_heartbeats(),
        client_works,
    ),
    Row("Producer.start", not_started, lambda _, producer: producer.start(), producer_starts),
    Row("Producer.__aenter__", not_started, entered, producer_stopped),
    Row("Producer.__aexit__", a_producer, entered, producer_stopped),
    Row("Producer.stop", known_route, stop_in_flight, producer_stopped, 2),
    Row("Producer.send", a_producer, send, producer_works),
    Row("Producer.send (key)", a_producer, lambda _, p: p.send(ORDER, key="k"), producer_works),
    Row("Producer.send (large)", a_producer, lambda _, p: p.send(LARGE), producer_works),
    Row("Producer.send (timed)", a_producer_of_ours, lambda _, p: p.send(TIMED), producer_works),
    Row(
        "Producer.send (no room)",
        a_full_producer,
        lambda _, p: p.send(ORDER, timeout=40),
        producer_works,
        1,
    ),
    Row("Producer.send_nowait", a_producer, nowait, producer_works),
    Row("Producer.send_oneway", a_producer, lambda _, p: p.send_oneway(ORDER), producer_works),
    Row(
        "Producer.send_oneway (timed)",
        a_producer_of_ours,
        lambda _, p: p.send_oneway(TIMED),
        producer_works,
    ),
    Row("Producer.cancel", a_waiting_message, cancel, producer_works),
    Row("Producer.send_batch", a_producer, lambda _, p: p.send_batch([ORDER]), producer_works),
    Row(
        "Producer.send_batch (no room)",
        a_full_producer,
        lambda _, p: p.send_batch([ORDER], timeout=40),
        producer_works,
        1,
    ),
    Row(
        "Producer.send_many",
        a_producer,
        lambda _, p: p.send_many([Message("orders", b"m", sharding_key=k) for k in "abc"]),
        producer_works,
    ),
    Row(
        "Producer.send_many (no room)",
        a_full_producer,
        lambda _, p: p.send_many([Message("orders", b"m", sharding_key=k) for k in "abc"]),
        producer_works,
        1,
    ),
    Row("Producer.queues", a_producer, lambda _, p: p.queues("orders"), producer_works),
    Row("Producer.room", a_full_producer, lambda _, p: p.room(), producer_works, 1),
    Row("Producer.flush", a_full_producer, lambda _, p: p.flush(), producer_works, 1),
    Row("Producer.request", a_producer, request, producer_asks),
    Row("Producer.request_nowait", a_producer, request_nowait, producer_asks),
    Row("Producer.reply", a_request, reply, producer_asks),
    Row("Producer.transaction", a_transaction, entered, transaction_is_decided),
    Row("Transaction.__aenter__", a_transaction, entered, transaction_is_decided),
    Row("Transaction.__aexit__", a_transaction, entered, transaction_is_decided),
    Row(
        "Transaction.commit",
        begun_and_cut_off,
        lambda _, transaction: transaction.commit(),
        transaction_is_decided,
    ),
    Row(
        "Transaction.rollback",
        begun_and_cut_off,
        lambda _, transaction: transaction.rollback(),
        transaction_is_decided,
    ),
    Row(
        "Transaction.unknown",
        begun_and_cut_off,
        lambda _, transaction: transaction.unknown(),
        transaction_is_decided,
    ),
]
