"""One broker of three answers nothing any more: the SDK goes on with the others, in its times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from skylarkmq.client import Message, PeekReader, RequestTimeout, SendResult, SimpleConsumer
from skylarkmq.client.instance import Client
from tests.client.consumer.support import GROUP
from tests.client.three_brokers import QUEUES, ThreeBrokers
from tests.support.manual_clock import settle

STOP_S = 2.0
"""For a stop with `timeout=1`: a second more for the offsets and the farewell."""


@pytest.fixture
async def it() -> ThreeBrokers:
    return ThreeBrokers()


# Producers


async def test_sends_to_the_others_are_taken(it: ThreeBrokers) -> None:
    producer = await it.producer()
    await it.wait(asyncio.gather(*(producer.send(Message("orders", b"first")) for _ in range(6))))
    it.sick.silent = True
    sends = [producer.send(Message("orders", b"m%d" % number)) for number in range(12)]
    done, took_s = await it.timed(asyncio.gather(*sends, return_exceptions=True))
    assert isinstance(done, list)
    failed = [each for each in done if isinstance(each, BaseException)]
    assert len(failed) == 4
    assert {type(each) for each in failed} == {RequestTimeout}
    assert took_s == pytest.approx(3.0)
    stored = [body for broker in it.well for body in broker.bodies("orders")]
    assert len(stored) - stored.count(b"first") == 8
    await it.wait(producer.stop())


async def test_with_a_time_for_each_try_all_sends_are_taken(it: ThreeBrokers) -> None:
    producer = await it.producer(try_timeout=0.5, latency_fault=True)
    it.sick.silent = True
    for number in range(12):
        result, _ = await it.timed(producer.send(Message("orders", b"m%d" % number)))
        assert isinstance(result, SendResult), result
    assert {body for broker in it.well for body in broker.bodies("orders")} == {
        b"m%d" % number for number in range(12)
    }
    await it.wait(producer.stop())


async def test_a_send_ends_within_its_time(it: ThreeBrokers) -> None:
    producer = await it.producer(send_timeout=6)
    it.sick.silent = True
    for broker in it.well:
        broker.silent = True
    result, took_s = await it.timed(producer.send(Message("orders", b"m"), timeout=1))
    assert isinstance(result, RequestTimeout)
    assert took_s == pytest.approx(1.0)
    await it.wait(producer.stop())


async def test_a_send_ends_within_its_time_also_where_there_is_no_room(it: ThreeBrokers) -> None:
    producer = await it.producer(max_in_flight=3, send_timeout=6)
    for broker in (it.sick, *it.well):
        broker.silent = True
    before = [asyncio.ensure_future(producer.send(Message("orders", b"old"))) for _ in range(3)]
    await settle()
    result, took_s = await it.timed(producer.send(Message("orders", b"m"), timeout=1))
    await it.wait(asyncio.gather(*before, return_exceptions=True))
    await it.wait(producer.stop())
    assert isinstance(result, RequestTimeout)
    assert took_s == pytest.approx(1.0)


async def test_a_large_send_gets_its_turn_among_small_ones(it: ThreeBrokers) -> None:
    """Each small one that ends lets another in, and there is never room for the large one."""
    producer = await it.producer(max_in_flight_bytes=1000, max_message_size=1000, send_timeout=60)
    turns = 0

    async def small() -> None:
        nonlocal turns
        while not large.done() and turns < 500:
            turns += 1
            await producer.send(Message("orders", bytes(100)))

    large: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    crowd = [asyncio.ensure_future(small()) for _ in range(20)]
    await settle()
    large = asyncio.ensure_future(producer.send(Message("orders", bytes(800))))
    await it.wait(asyncio.gather(large, *crowd))
    await it.wait(producer.stop())
    assert turns < 200


# Consumers


@pytest.mark.parametrize("falls_silent", ["before the start", "later"])
async def test_a_consumer_gets_what_the_others_have(it: ThreeBrokers, falls_silent: str) -> None:
    it.sick.silent = falls_silent == "before the start"
    consumer = await it.consumer()
    it.sick.silent = True
    got: set[bytes] = set()

    async def handle(message: object) -> None:
        got.add(message.body)  # type: ignore[attr-defined]

    running = asyncio.create_task(consumer.run(handle))
    for turn in range(4):
        it.put(b"%d" % turn)
        await it.pass_time(10)
        assert got >= it.expected(*(b"%d" % each for each in range(turn + 1)))
    await it.wait(consumer.stop())
    await it.wait(running)


async def test_a_consumer_stops_within_its_time(it: ThreeBrokers) -> None:
    consumer = await it.consumer(ack="manual")
    it.sick.add("orders", 0, b"old")
    message = await it.wait(consumer.getone())
    await message.ack()
    it.sick.silent = True
    _, took_s = await it.timed(consumer.stop(timeout=1))
    assert took_s <= STOP_S


async def test_what_the_others_have_is_committed_at_such_a_stop(it: ThreeBrokers) -> None:
    consumer = await it.consumer(ack="manual")
    it.sick.silent = True
    it.sick.add("orders", 0, b"old")  # a pull that it holds brings it
    await (await it.wait(consumer.getone())).ack()
    committing = asyncio.ensure_future(consumer.commit())
    await settle()
    it.put(b"m")
    for _ in it.well:
        await (await it.wait(consumer.getone())).ack()
    assert not committing.done()
    _, took_s = await it.timed(consumer.stop(timeout=1))
    assert took_s <= STOP_S
    await asyncio.gather(committing, return_exceptions=True)
    assert [broker.offsets.get((GROUP, "orders", 1)) for broker in it.well] == [1, 1]


async def test_a_simple_consumer_gets_what_the_others_have(it: ThreeBrokers) -> None:
    consumer = SimpleConsumer("orders", group=GROUP)
    consumer._client = it.client()
    await it.wait(consumer.start())
    it.sick.silent = True
    it.put(b"1", b"2")
    got: set[bytes] = set()
    for _ in range(6):
        messages = await it.wait(consumer.receive(timeout=0.1), 12)
        got |= {message.body for message in messages}
        for message in messages:
            await it.wait(consumer.ack(message))
    assert got == it.expected(b"1", b"2")
    await it.wait(consumer.stop())


async def test_a_reader_that_is_stopped_while_it_starts_reads_nothing(it: ThreeBrokers) -> None:
    client: Client = it.client()
    await it.wait(client.start())
    reader = PeekReader("orders", client=client)
    held: list[tuple[Callable[[object], None], object]] = []
    it.sick.later = lambda what, argument: held.append((what, argument))
    starting = asyncio.create_task(reader.start())
    await settle()
    assert held
    await it.wait(reader.stop())
    it.sick.later = None
    while held:
        what, argument = held.pop(0)
        what(argument)
        await settle()
    await it.wait(asyncio.gather(starting, return_exceptions=True))
    left = [task for task in asyncio.all_tasks() if task.get_name().startswith("skylarkmq-peek")]
    for task in left:
        task.cancel()
    await it.wait(client.stop())
    assert len(left) == 0, f"{len(left)} of {3 * QUEUES}"
