"""Access control is switched on at one broker of three: the SDK goes on with the open ones."""

from __future__ import annotations

import asyncio

import pytest

from skylarkmq.client import (
    AuthError,
    Message,
    PoppedMessage,
    SendResult,
    SimpleConsumer,
)
from skylarkmq.client.services import REFUSED_S
from tests.client.consumer.support import GROUP
from tests.client.three_brokers import ThreeBrokers

LONG_S = 15 * REFUSED_S
"""After that long a broker's refusals are no passing thing."""


@pytest.fixture
async def it() -> ThreeBrokers:
    return ThreeBrokers()


async def test_only_sends_to_that_broker_are_refused(it: ThreeBrokers) -> None:
    producer = await it.producer()
    it.sick.refuses_all = True
    results = [(await it.timed(producer.send(Message("orders", b"m"))))[0] for _ in range(6)]
    assert sum(isinstance(each, SendResult) for each in results) == 4
    assert sum(isinstance(each, AuthError) for each in results) == 2
    await it.wait(producer.stop())


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="one broker's refusal ends the run of all"
)
@pytest.mark.parametrize("refuses", ["before the start", "later"])
async def test_a_consumer_goes_on_with_the_open_brokers(it: ThreeBrokers, refuses: str) -> None:
    it.sick.refuses_all = refuses == "before the start"
    consumer = await it.consumer()
    it.sick.refuses_all = True
    got: set[bytes] = set()

    async def handle(message: object) -> None:
        got.add(message.body)  # type: ignore[attr-defined]

    running = asyncio.create_task(consumer.run(handle))
    it.put(b"early")
    await it.pass_time(LONG_S)
    assert got == it.expected(b"early")
    it.put(b"late")
    await it.pass_time(1)
    ended = running.done()
    await it.wait(consumer.stop())
    await asyncio.gather(running, return_exceptions=True)
    assert not ended
    assert got == it.expected(b"early", b"late")


async def nothing(message: object) -> None:
    """Handle a message."""


async def test_a_consumer_that_all_brokers_refuse_says_so(it: ThreeBrokers) -> None:
    consumer = await it.consumer()
    for broker in (it.sick, *it.well):
        broker.refuses_all = True
    running = asyncio.create_task(consumer.run(nothing))
    await it.pass_time(LONG_S)
    assert isinstance(running.exception(), AuthError)
    await it.wait(consumer.stop())


async def simple(it: ThreeBrokers) -> tuple[SimpleConsumer, PoppedMessage]:
    """A consumer with a message in hand."""
    consumer = SimpleConsumer("orders", group=GROUP, invisible_duration=600)
    consumer._client = it.client()
    await it.wait(consumer.start())
    it.well[0].add("orders", 0, b"m")
    (message,) = await it.wait(consumer.receive())
    return consumer, message


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="an old refusal is raised in place of the ack"
)
async def test_a_message_of_an_open_broker_is_acknowledged(it: ThreeBrokers) -> None:
    consumer, message = await simple(it)
    it.sick.refuses_all = True
    await it.pass_time(LONG_S)
    it.sick.refuses_all = False
    result, _ = await it.timed(consumer.ack(message))
    await it.wait(consumer.stop())
    assert result is None
    assert len(it.well[0].pops.done) == 1
