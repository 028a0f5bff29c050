"""Rows of the table of cancelled calls: Consumer, ReceivedMessage, PeekReader."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from skylarkmq.client import Consumer, MessageQueue, PeekReader, ReceivedMessage
from skylarkmq.client.config import SUSPEND_S
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.flags import retry_topic
from skylarkmq.protocol.remoting_command import RemotingCommand
from tests.client.cancel_place import Place, Row
from tests.client.cancel_sends import a_request, asked, entered
from tests.client.consumer.support import GROUP
from tests.support.cancelling import Driven
from tests.support.fake_cluster import STORE_MS
from tests.support.manual_clock import settle

FIRST, SECOND = (MessageQueue("orders", "broker-a", number) for number in (0, 1))
BOTH = [FIRST, SECOND]
WHEN = datetime.fromtimestamp(STORE_MS / 1000, UTC)


async def a_member(place: Place, **settings: Any) -> Consumer:
    place.broker.add("orders", 0, *(b"%d" % n for n in range(6)))
    return await place.consumer("orders", **settings)


async def manual(place: Place) -> Consumer:
    return await a_member(place, ack="manual")


async def ordered(place: Place) -> Consumer:
    return await a_member(place, orderly=True)


async def waiting(place: Place) -> Consumer:
    """There is nothing, and soon something."""
    consumer = await place.consumer("orders")
    place.at_step(6, lambda: place.broker.add("orders", 0, *(b"%d" % n for n in range(6))))
    return consumer


async def two_waiting(place: Place) -> Consumer:
    """Somebody else waits behind the call that is cancelled, and one message comes."""
    consumer = await place.consumer("orders", ack="manual")

    def behind() -> None:
        place.beside = asyncio.create_task(consumer.getone())

    place.at_step(2, behind)
    place.at_step(6, lambda: place.broker.add("orders", 0, b"0"))
    return consumer


async def one_has_it(place: Place, consumer: Consumer, driven: Driven) -> None:
    if driven.reached and place.beside is not None:
        await place.run(asyncio.wait_for(place.beside, None))
    elif place.beside is not None:
        place.beside.cancel()
    await place.run(consumer.stop())


async def unsubscribed(place: Place) -> Consumer:
    place.broker.add("orders", 0, *(b"%d" % n for n in range(6)))
    return await place.consumer()


async def new(place: Place) -> Consumer:
    place.broker.add("orders", 0, *(b"%d" % n for n in range(6)))
    return place.new_consumer("orders")


async def new_ordered(place: Place) -> Consumer:
    await new(place)
    return place.new_consumer("orders", orderly=True)


def held_count(consumer: Consumer) -> int:
    inside = consumer._membership
    return 0 if inside is None else sum(q.held_count for q in inside.rebalance.assigned.values())


async def consumes(place: Place, consumer: Consumer, _: Driven) -> None:
    """Every message comes, in order, once more at most; and all is committed."""
    if consumer._membership is not None and not consumer._closed:
        inside = consumer._membership
        if not inside.assigned_by_hand and "orders" not in inside.assignor.subscriptions:
            await place.run(consumer.subscribe("orders"))
        if FIRST in consumer.assignment():
            consumer.seek(FIRST, 0)

    async def all_six() -> list[bytes]:
        bodies: list[bytes] = []
        while b"5" not in bodies:
            message = await consumer.getone()
            bodies.append(message.body)
            await message.ack()
        await consumer.commit()
        return bodies

    bodies = await place.run(all_six())
    assert list(dict.fromkeys(bodies)) == [b"%d" % n for n in range(6)]
    await settle()
    assert held_count(consumer) == 0
    assert place.it.offset(0) == 6


async def member_ended(place: Place, consumer: Consumer, driven: Driven) -> None:
    await place.run(consumer.stop())
    if place.client._services is None:
        await place.run(place.client.start())
    assert services_of(place.client).members == {}
    await consumes(place, await place.consumer("orders"), driven)


async def left_by_itself(place: Place, consumer: Consumer, driven: Driven) -> None:
    """A block that was left, or not entered, needs no `stop`."""
    await place.it.pass_time(10)
    if place.client._services is None:
        await place.run(place.client.start())
    assert services_of(place.client).members == {}
    await consumes(place, await place.consumer("orders"), driven)


async def joined(place: Place, consumer: Consumer, driven: Driven) -> None:
    if driven.reached:
        await left_by_itself(place, consumer, driven)
        return
    await consumes(place, consumer, driven)
    await member_ended(place, consumer, driven)


async def stop_at_work(place: Place, consumer: Consumer) -> None:
    """A handler takes its time."""

    async def handle(_: ReceivedMessage) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    place.beside = asyncio.create_task(consumer.run(handle))
    await asyncio.sleep(0)
    await consumer.stop()


async def with_a_client_of_its_own(place: Place) -> Consumer:
    consumer = await a_member(place)
    consumer._owns_client = True
    return consumer


async def all_ended(place: Place, consumer: Consumer, driven: Driven) -> None:
    await run_ended(place, consumer, driven)
    place.check_nothing_left()


async def run_ended(place: Place, consumer: Consumer, _: Driven) -> None:
    await place.run(consumer.stop())
    await place.run(asyncio.wait_for(place.beside, None))


async def run_all(place: Place, consumer: Consumer) -> None:
    """An orderly consumer has one handler at work for its only queue with messages."""
    seen: set[bytes] = set()
    at_work: set[bytes] = set()
    running: asyncio.Task[Any] | None = asyncio.current_task()

    async def handle(message: ReceivedMessage) -> None:
        if consumer._config.orderly and at_work:
            place.problems.append(f"{message.body!r} beside {at_work}")
        at_work.add(message.body)
        try:
            await asyncio.sleep(0)
        finally:
            at_work.discard(message.body)
        seen.add(message.body)
        if len(seen) == 6:
            place.at_step(3, lambda: asyncio.ensure_future(consumer.stop()))

    assert running is not None
    await consumer.run(handle, concurrency=3)


async def giving_up(place: Place) -> Consumer:
    """What its handler fails on is a dead letter at once."""
    return await a_member(place, orderly=True, max_reconsume=0)


async def run_failing(place: Place, consumer: Consumer) -> None:
    """The handler fails on each message the first time, so that each failure is answered."""
    failed: set[bytes] = set()
    seen: set[bytes] = set()
    once = consumer._config.max_reconsume == 0

    async def handle(message: ReceivedMessage) -> None:
        await asyncio.sleep(0)
        (seen if message.body in failed else failed).add(message.body)
        if len(failed if once else seen) == 6:
            place.at_step(3, lambda: asyncio.ensure_future(consumer.stop()))
        if message.body not in seen:
            raise KeyError(message.body)

    await consumer.run(handle, concurrency=3)


async def ran(place: Place, consumer: Consumer, driven: Driven) -> None:
    """What was at work is handed out again, here or, when it was to stop, to the next member."""

    def is_done(member: Consumer) -> bool:
        if member._stopped:
            return True
        (held,) = [q for q in member._running.rebalance.assigned.values() if q.queue == FIRST]
        return held.commit_offset == 6

    async def rest(member: Consumer) -> None:
        runs = asyncio.create_task(member.run(lambda _: None))
        await place.until(lambda: is_done(member), every_s=SUSPEND_S / 10)
        runs.cancel()
        await asyncio.gather(runs, return_exceptions=True)

    if driven.reached:
        await place.run(rest(consumer))
    await place.run(consumer.stop())
    if place.it.offset(0) != 6:
        assert driven.reached
        following = await place.consumer("orders")
        await place.run(rest(following))
        await place.run(following.stop())
    assert place.it.offset(0) == 6


async def one_after_another(_: Place, consumer: Consumer) -> list[bytes]:
    bodies: list[bytes] = []
    async for message in consumer:
        bodies.append(message.body)
        if len(bodies) == 6:
            return bodies
    raise AssertionError("it ended")


async def take_two(place: Place, consumer: Consumer) -> None:
    await consumer.getone()
    await consumer.getmany(2, timeout=3)


# One message


async def a_message(place: Place) -> ReceivedMessage:
    consumer = await manual(place)
    message = await place.run(consumer.getone())
    assert isinstance(message, ReceivedMessage)
    return message


async def unreachable(place: Place) -> ReceivedMessage:
    """The broker is away for a while, so that both ways of handing back take time."""
    message = await a_message(place)
    place.broker.connect_error = ConnectionRefusedError("down")
    place.broker.lose_all()
    await settle()
    place.clock.call_at(
        place.clock.monotonic() + 1.0, lambda: setattr(place.broker, "connect_error", None)
    )
    return message


async def settled(place: Place, message: ReceivedMessage, _: Driven) -> None:
    place.broker.connect_error = None
    await place.it.pass_time(5)  # the connections' back-off is over
    is_handed_back = message._outcome not in (None, "ok")
    if message._outcome is None:
        await place.run(message.ack())
    assert message._process_queue.held_count == 5
    copies = place.broker.bodies(retry_topic(GROUP)) + [
        body
        for name in (f"%DLQ%{GROUP}",)
        if name in place.broker.topics
        for body in place.broker.bodies(name)
    ]
    assert is_handed_back <= len(copies) <= 2, (
        "once, and once more when the answer was not waited for"
    )
    consumer = place.consumers[-1]
    await place.run(consumer.stop())
    assert place.it.offset(0) == 1


async def process(_: Place, message: ReceivedMessage) -> None:
    try:
        async with message.process():
            await asyncio.sleep(0)
            raise KeyError("mine")
    except KeyError:
        pass


# Replies and pushes


async def a_replier(place: Place) -> Consumer:
    await a_request(place)
    return await place.consumer("rpc")


async def reply(place: Place, consumer: Consumer) -> None:
    try:
        await consumer.reply(asked(place)[0], b"yes")
    finally:
        place.beside.cancel()


async def still_a_member(place: Place, consumer: Consumer, _: Driven) -> None:
    assert services_of(place.client).members[GROUP] is consumer._membership
    assert consumer.assignment()


def reset(_: Place, consumer: Consumer) -> Any:
    fields = {"topic": "orders", "group": GROUP, "timestamp": "-1", "isForce": "true"}
    body = b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:0}}'
    return consumer._running.pushed(RemotingCommand.request(220, fields, body))


# PeekReader


async def a_reader(place: Place) -> PeekReader:
    place.broker.add("orders", 0, *(b"%d" % n for n in range(6)))
    return PeekReader("orders", client=place.client, stop="now")


async def reading(place: Place) -> PeekReader:
    """One that never ends by itself."""
    await a_reader(place)
    reader = PeekReader("orders", client=place.client)
    await place.run(reader.start())
    return reader


async def peek_all(_: Place, reader: PeekReader) -> list[bytes]:
    return [message.body async for message in reader]


async def reads(place: Place, reader: PeekReader, _: Driven) -> None:
    await place.run(reader.start())
    assert await place.run(peek_all(place, reader)) == [b"%d" % n for n in range(6)]
    await place.run(reader.stop())


async def reader_ended(place: Place, reader: PeekReader, driven: Driven) -> None:
    assert driven.seconds < 1, "nothing of what is under way is waited for"
    await place.run(reader.stop())


C, R, P = "Consumer.", "ReceivedMessage.", "PeekReader."
CONSUMES = [
    Row(C + "start", new, lambda _, c: c.start(), joined),
    Row(C + "start (orderly)", new_ordered, lambda _, c: c.start(), joined),
    Row(C + "__aenter__", new, entered, left_by_itself),
    Row(C + "__aexit__", manual, entered, left_by_itself),
    Row(C + "__aexit__ (orderly)", ordered, entered, left_by_itself),
    Row(C + "stop", a_member, stop_at_work, run_ended),
    Row(C + "stop (own client)", with_a_client_of_its_own, stop_at_work, all_ended),
    Row(C + "stop (orderly)", ordered, stop_at_work, run_ended),
    Row(C + "run", a_member, run_all, ran),
    Row(C + "run (orderly)", ordered, run_all, ran),
    Row(C + "run (failing)", a_member, run_failing, ran),
    Row(C + "run (failing, orderly)", ordered, run_failing, ran),
    Row(C + "run (failing, dead letters)", giving_up, run_failing, ran),
    Row(C + "getone", waiting, lambda _, c: c.getone(), consumes),
    Row(C + "getone (two wait)", two_waiting, lambda _, c: c.getone(), one_has_it),
    Row(C + "getone (in time)", waiting, lambda _, c: c.getone(5), consumes),
    Row(C + "getmany", waiting, take_two, consumes),
    Row(C + "__anext__", waiting, one_after_another, consumes),
    Row(C + "commit", manual, lambda _, c: c.commit(), consumes),
    Row(C + "commit (offsets)", manual, lambda _, c: c.commit({FIRST: 0}), consumes),
    Row(C + "committed", manual, lambda _, c: c.committed(FIRST), consumes),
    Row(C + "begin_offsets", manual, lambda _, c: c.begin_offsets(BOTH), consumes),
    Row(C + "end_offsets", manual, lambda _, c: c.end_offsets(BOTH), consumes),
    Row(C + "offsets_for_time", manual, lambda _, c: c.offsets_for_time(BOTH, WHEN), consumes),
    Row(C + "lag", manual, lambda _, c: c.lag(), consumes),
    Row(C + "seek_to_beginning", manual, lambda _, c: c.seek_to_beginning(), consumes),
    Row(C + "seek_to_end", manual, lambda _, c: c.seek_to_end(), consumes),
    Row(C + "seek_to_time", manual, lambda _, c: c.seek_to_time("orders", WHEN), consumes),
    Row(C + "subscribe", unsubscribed, lambda _, c: c.subscribe("orders"), consumes),
    Row(C + "unsubscribe", manual, lambda _, c: c.unsubscribe("orders"), consumes),
    Row(C + "assign", unsubscribed, lambda _, c: c.assign(BOTH), consumes),
    Row(C + "reply", a_replier, reply, still_a_member),
    Row("Membership.pushed", manual, reset, consumes),
    Row(R + "ack", a_message, lambda _, m: m.ack(), settled),
    Row(R + "nack", a_message, lambda _, m: m.nack(3), settled),
    Row(R + "nack (broker away)", unreachable, lambda _, m: m.nack(3), settled),
    Row(R + "_retry", unreachable, lambda _, m: m._retry(), settled),
    Row(R + "dead_letter", a_message, lambda _, m: m.dead_letter(), settled),
    Row(R + "dead_letter (why)", unreachable, lambda _, m: m.dead_letter("why"), settled),
    Row(R + "extend", a_message, lambda _, m: m.extend(9), settled),
    Row(R + "process", a_message, process, settled),
    Row(P + "start", a_reader, lambda _, r: r.start(), reads),
    Row(P + "__aenter__", a_reader, entered, reader_ended),
    Row(P + "__aexit__", reading, entered, reader_ended),
    Row(P + "stop", reading, lambda _, r: r.stop(), reader_ended),
    Row(P + "__anext__", reading, lambda _, r: anext(r), reader_ended),
]
