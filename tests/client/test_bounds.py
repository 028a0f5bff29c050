"""Ten thousand messages under way: the SDK's tasks stay few, its tables empty afterwards, and what
a consumer holds stays within its limits, whichever way it is asked."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from skylarkmq.client import Consumer, Message, PeekReader, Producer, ReceivedMessage
from skylarkmq.client.instance import services_of
from tests.client.cancel_place import Place
from tests.client.consumer.support import GROUP, Group
from tests.client.consumer.test_orderly import Ordered
from tests.support.manual_clock import advance_async, settle

pytestmark = pytest.mark.timing

MANY = 10_000
FEWER = 1000
TASKS_MAX = 40
"""Tasks of the SDK at any time: twenty handlers, and what a client and a consumer always have."""
MIB = 1 << 20


def tasks() -> int:
    return sum("skylarkmq" in task.get_name() for task in asyncio.all_tasks())


async def busiest(place: Place, work: Awaitable[Any]) -> int:
    """Wait for the work; return the most tasks of the SDK at any time."""
    most, task = 0, asyncio.ensure_future(work)
    while not task.done():
        await advance_async(place.clock, 0.01)
        most = max(most, tasks())
    task.result()
    return most


# Sends


def started(place: Place, producer: Producer, count: int) -> list[asyncio.Future[Any]]:
    return [producer.send_nowait(Message("orders", b"%d" % n)) for n in range(count)]


@pytest.mark.parametrize("trouble", ["none", "no route", "no connection", "busy", "lost"])
async def test_sends_in_flight_have_no_tasks_of_their_own(trouble: str) -> None:
    place, many = Place(), MANY if trouble == "none" else FEWER
    producer = await place.producer(max_in_flight=MANY, retries=3, send_timeout=60)
    if trouble != "no route":
        await place.sends(producer)
    if trouble == "no connection":
        place.broker.lose_all()
        await settle()
    if trouble == "busy":
        place.broker.refuse(310, *[2] * many)
    before = tasks()
    futures = started(place, producer, many)
    assert tasks() <= before + 1
    if trouble == "lost":
        await asyncio.sleep(0)
        place.broker.lose_all()
    most = await busiest(place, asyncio.gather(*futures))
    assert most <= before + 8
    assert producer.in_flight_count == 0
    stored = place.broker.bodies("orders")
    assert len(set(stored) - {b"next"}) == many
    await place.end()


async def test_requests_in_flight_have_no_tasks_of_their_own() -> None:
    place = Place()
    producer = await place.producer(max_in_flight=MANY)
    before = tasks()
    futures = [producer.request_nowait(Message("rpc", b"?"), 5) for _ in range(FEWER)]
    most = await busiest(place, asyncio.gather(*futures, return_exceptions=True))
    assert most <= before + 8
    assert len(place.broker.bodies("rpc")) == FEWER
    assert len(services_of(place.client).replies) == 0
    await place.end()


# Messages


def held(consumer: Consumer) -> tuple[int, int]:
    """Messages and bytes."""
    inside = consumer._membership
    assert inside is not None
    queues = list(inside.rebalance.assigned.values())
    return sum(q.held_count for q in queues), sum(q.held_bytes for q in queues)


@pytest.mark.parametrize("orderly", [False, True])
async def test_messages_prefetched_have_no_tasks_of_their_own(orderly: bool) -> None:
    it, many = (Ordered if orderly else Group)({"orders": 4}), FEWER if orderly else MANY
    for number in range(4):
        it.broker.add("orders", number, *[b"x"] * (many // 4))
    consumer = await it.consumer(prefetch=20_000, max_span=MANY, batch_size=1000)
    await it.pass_time(2)
    assert held(consumer)[0] == many
    most = 0
    seen = 0

    async def handle(_: ReceivedMessage) -> None:
        nonlocal most, seen
        await asyncio.sleep(0)
        seen += 1
        if seen % 100 == 0:
            most = max(most, tasks())

    running = asyncio.create_task(consumer.run(handle, concurrency=20))
    await settle(MANY)
    assert held(consumer) == (0, 0)
    assert 20 <= most <= TASKS_MAX
    await it.stop(consumer)
    await running


Taking = Callable[[Consumer], Awaitable[list[ReceivedMessage]]]


async def by_getone(consumer: Consumer) -> list[ReceivedMessage]:
    return [await consumer.getone(1)]


async def by_getmany(consumer: Consumer) -> list[ReceivedMessage]:
    return [one for some in (await consumer.getmany(3, timeout=1)).values() for one in some]


async def by_iterating(consumer: Consumer) -> list[ReceivedMessage]:
    return [await anext(consumer)]


@pytest.mark.parametrize(
    ("kind", "take"),
    [
        ("group", by_getone),
        ("group", by_iterating),
        ("group", by_getmany),
        ("orderly", by_getone),
        ("broadcasting", by_getmany),
        ("assigned", by_getmany),
    ],
)
async def test_what_is_held_is_bounded(kind: str, take: Taking, tmp_path: Any) -> None:
    """Large bodies, eight queues, answers larger than the room, and a slow taker."""
    it = (Ordered if kind == "orderly" else Group)({"orders": 8})
    body = bytes(MIB // 2)
    it.broker.answer_size_max = MIB // 4  # as brokers do
    for number in range(8):
        it.broker.add("orders", number, *[body] * 12)
    settings: dict[str, Any] = {"ack": "manual", "prefetch": 64, "prefetch_bytes": 4 * MIB}
    if kind == "broadcasting":
        settings |= {"model": "broadcasting", "offsets_folder": tmp_path}
    consumer = await joined(it, kind, settings)
    most_count = most_bytes = taken = 0
    while taken < 96:
        await it.pass_time(0.1)
        count, size = held(consumer)
        most_count, most_bytes = max(most_count, count), max(most_bytes, size)
        messages: list[ReceivedMessage] = await it.wait(take(consumer))
        for message in messages:
            await message.ack()
        taken += len(messages)
    await settle()
    assert held(consumer) == (0, 0)
    assert most_count <= 64
    assert 4 * MIB <= most_bytes <= 4 * MIB + 8 * (len(body) + 200)
    await it.wait(consumer.stop())


async def joined(it: Group, kind: str, settings: dict[str, Any]) -> Consumer:
    if kind == "assigned":
        consumer = Consumer(group=GROUP, **settings)
    else:
        return await it.consumer(**settings)
    consumer._client = it.client()
    await it.wait(consumer.start())
    route = await it.wait(services_of(consumer._client).routes.refresh("orders"))
    assert route is not None
    await it.wait(consumer.assign(route.subscribe_queues))
    for queue in route.subscribe_queues:
        consumer.seek(queue, 0)
    return consumer


async def test_a_reader_holds_a_page_of_each_queue() -> None:
    it = Group({"orders": 8})
    for number in range(8):
        it.broker.add("orders", number, *[bytes(1000)] * 500)
    reader = PeekReader("orders")
    reader._client = it.client()
    await it.wait(reader.start())
    most = read = 0
    while read < 4000:
        if read % 50 == 0:
            await it.pass_time(0.01)
        most = max(most, sum(len(feed.ready) for feed in reader._feeds.values()))
        await it.wait(anext(reader)) if not reader_has(reader) else await anext(reader)
        read += 1
    assert most <= 8 * 64
    await it.wait(reader.stop())


def reader_has(reader: PeekReader) -> bool:
    return any(feed.ready for feed in reader._feeds.values())


async def test_messages_that_are_done_are_let_go() -> None:
    it = Group({"let-go": 1})
    it.broker.add("let-go", 0, *[bytes(1000)] * 100)
    consumer = await it.consumer("let-go")
    running = asyncio.create_task(consumer.run(lambda _: asyncio.sleep(0), concurrency=3))
    await it.pass_time(2)
    assert held(consumer) == (0, 0)
    assert it.broker.held, "it waits for more"
    gc.collect()
    every = [one for one in gc.get_objects() if isinstance(one, ReceivedMessage)]
    alive = [one for one in every if one.topic == "let-go"]  # other tests may hold theirs
    assert len(alive) <= 3, "the last one of each worker at most"
    await it.stop(consumer)
    await running


async def test_the_count_of_small_messages_is_bounded_while_nobody_takes_them() -> None:
    it = Group({"orders": 8})
    for number in range(8):
        it.broker.add("orders", number, *[b"small"] * 100)
    consumer = await it.consumer(ack="manual", prefetch=64)
    most = 0
    for _ in range(100):
        await it.pass_time(0.2)
        await (await it.wait(consumer.getone())).ack()
        most = max(most, held(consumer)[0])
    assert 40 <= most <= 64
    await it.wait(consumer.stop())
