"""Room, and waiting for the end of what has begun."""

from __future__ import annotations

import asyncio

import pytest

from skylarkmq.client.errors import MessageTooLarge
from skylarkmq.client.producer.in_flight import InFlight
from tests.support.manual_clock import settle


async def test_a_flush_waits_for_what_was_there_and_not_for_what_comes_after() -> None:
    flight = InFlight(100, 1000)
    old = [flight.enter(1) for _ in range(3)]
    first = asyncio.create_task(flight.idle())
    await settle()
    young = [flight.enter(1) for _ in range(2)]
    second = asyncio.create_task(flight.idle())
    await settle()
    flight.leave(1, young[0])
    for generation in old[:2]:
        flight.leave(1, generation)
    await settle()
    assert not first.done()
    flight.leave(1, old[2])
    await settle()
    assert first.done()
    assert not second.done()
    flight.enter(1)
    flight.leave(1, young[1])
    await settle()
    assert second.done()
    assert flight.count == 1


async def test_a_flush_of_nothing_and_a_cancelled_one() -> None:
    flight = InFlight(1, 10)
    await flight.idle()
    generation = flight.enter(1)
    waiting = asyncio.create_task(flight.idle())
    await settle()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    flight.leave(1, generation)
    await flight.idle()
    assert not flight.flushes


async def test_room_goes_to_the_next_when_who_was_woken_is_cancelled() -> None:
    flight = InFlight(1, 10)
    generation = flight.enter(1)
    first, second = (asyncio.create_task(flight.room(1)) for _ in "ab")
    await settle()
    flight.leave(1, generation)
    first.cancel()
    await settle()
    assert second.done()
    assert not second.cancelled()


async def test_what_never_fits_is_told_so_and_takes_nobody_s_turn() -> None:
    flight = InFlight(1, 10)
    generation = flight.enter(1)
    with pytest.raises(MessageTooLarge, match="max_in_flight_bytes"):
        await flight.room(11)
    waiting = asyncio.create_task(flight.room(10))
    await settle()
    flight.leave(1, generation)
    await settle()
    assert waiting.done()


async def test_room_goes_in_turn_whatever_the_size() -> None:
    flight = InFlight(10, 10)
    small = [flight.enter(2) for _ in range(5)]
    large = asyncio.create_task(flight.room(8))
    later = asyncio.create_task(flight.room(1))
    await settle()
    for generation in small[:3]:
        flight.leave(2, generation)
        await settle()
        assert not flight.has_room(1), "a small one passes no large one by"
        assert not later.done()
    flight.leave(2, small[3])
    await settle()
    assert large.done()
    assert later.done(), "who got room and sent nothing holds up nobody"
    assert (flight.count, flight.size) == (1, 2)


async def test_a_large_one_that_gives_up_lets_the_others_in() -> None:
    flight = InFlight(10, 10)
    flight.enter(5)
    large, small = (asyncio.create_task(flight.room(size)) for size in (8, 1))
    await settle()
    large.cancel()
    await settle()
    assert small.done()
    assert not flight.room_waiters


async def test_a_flush_does_not_wait_for_room_that_is_kept() -> None:
    flight = InFlight(1, 10)
    generation = flight.enter(1)
    waiting = asyncio.create_task(flight.room(1))
    await settle()
    flight.leave(1, generation)
    flush = asyncio.create_task(flight.idle())
    await settle()
    assert waiting.done()
    assert flush.done()
