"""A consumer whose connection is cut in the middle of pulls and commits: every message once, in
order, and the group's offset where it was acknowledged."""

from __future__ import annotations

import asyncio

import pytest

from skylarkmq.client import Consumer, RocketMQError
from tests.client.consumer.support import Group
from tests.support.manual_clock import settle

BODIES = [b"message %d" % number for number in range(6)]
REQUEST, ANSWER = "cut_request_at", "cut_answer_at"


def sizes(it: Group) -> dict[str, int]:
    """Bytes so far in both directions of the one connection to the broker."""
    (stream,) = it.broker.streams
    return {REQUEST: sum(map(len, stream.writes)), ANSWER: stream.said_size}


def some_of(size: int, step: int) -> list[int]:
    return sorted({*range(1, min(size, 8)), *range(1, size, step), *range(max(1, size - 6), size)})


async def taking(consumer: Consumer) -> list[bytes]:
    bodies: list[bytes] = []
    while len(bodies) < len(BODIES):
        message = await consumer.getone()
        bodies.append(message.body)
        await message.ack()
    return bodies


async def pull_over(cut: str | None, position: int) -> dict[str, int]:
    """Consume all, over a connection that breaks at a byte; return the bytes of the uncut way."""
    it = Group({"orders": 1})
    consumer = await it.consumer()
    await it.pass_time(0.5)
    before = sizes(it)
    if cut is not None:
        setattr(it.broker, cut, before[cut] + position)
    first = asyncio.ensure_future(taking(consumer))
    it.broker.add("orders", 0, *BODIES)
    await settle(40)
    after = sizes(it) if cut is None else before
    if cut is not None:
        setattr(it.broker, cut, None)
    assert await it.wait(first) == BODIES, f"{cut} {position}"
    await it.stop(consumer)
    assert it.offset(0) == len(BODIES), f"{cut} {position}"
    assert it.broker.connect_count == (1 if cut is None else 2)
    return {way: after[way] - before[way] for way in (REQUEST, ANSWER)}


@pytest.mark.parametrize("cut", [REQUEST, ANSWER])
async def test_pulls_cut_at_some_bytes(cut: str) -> None:
    size = (await pull_over(None, 0))[cut]
    assert size > 100
    for position in some_of(size, 53):
        await pull_over(cut, position)


@pytest.mark.fault
@pytest.mark.parametrize("cut", [REQUEST, ANSWER])
async def test_pulls_cut_at_every_byte(cut: str) -> None:
    for position in range(1, (await pull_over(None, 0))[cut]):
        await pull_over(cut, position)


@pytest.mark.parametrize("cut", [REQUEST, ANSWER])
async def test_commits_cut_at_some_bytes(cut: str) -> None:
    for position in range(0 if cut == ANSWER else 1, 220, 19):
        it = Group({"orders": 1})
        consumer = await it.consumer(ack="manual", commit_interval=1000)
        it.broker.add("orders", 0, *BODIES)
        for _ in range(4):
            await (await it.wait(consumer.getone())).ack()
        await settle()
        setattr(it.broker, cut, sizes(it)[cut] + position)
        committing = asyncio.ensure_future(consumer.commit())
        await settle(40)
        setattr(it.broker, cut, None)
        try:
            await it.wait(committing)
            assert it.offset(0) == 4, "an answered commit has happened"
        except RocketMQError:
            assert it.offset(0) in (None, 0, 4)
        await it.wait(consumer.commit())
        assert it.offset(0) == 4, f"{cut} {position}"
        await it.stop(consumer)
        assert it.offset(0) == 4, "what was not acknowledged is not committed"
