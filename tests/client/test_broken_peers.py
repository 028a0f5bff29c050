"""Brokers and name servers that take everything and answer nothing, or are gone: every public call
ends in its time with a typed error, and works once they are back. And handlers that are slow."""

from __future__ import annotations

import asyncio

import pytest

from skylarkmq.client import ReceivedMessage, RocketMQError
from tests.client.cancel_consumes import CONSUMES, consumes, manual
from tests.client.cancel_place import Place, Row
from tests.client.cancel_sends import SENDS
from tests.client.consumer.support import Group
from tests.support.cancelling import drive
from tests.support.manual_clock import settle

TROUBLES = ("silent broker", "silent name server", "all silent", "all gone", "cut off")
WAITS_FOR_MESSAGES = {
    "Consumer.getone", "Consumer.getone (two wait)", "Consumer.__anext__", "Consumer.getmany",
}  # fmt: skip
"""Without a time-out of their own, as `Consumer.run` is: what they wait for may never come."""
ROWS = [
    *(
        row
        for row in [*SENDS, *CONSUMES]
        if row.name not in WAITS_FOR_MESSAGES and not row.name.startswith("Consumer.run")
    ),
    Row("Consumer.getmany (in time)", manual, lambda _, c: c.getmany(9, timeout=5), consumes),
]
LONGEST_S = 45.0
"""Joining, leaving and starting ask several things after each other, each with its time-out."""


def break_down(place: Place, trouble: str) -> None:
    servers = [place.cluster.name_server]
    peers = {"silent broker": [place.broker], "silent name server": servers}.get(
        trouble, [place.broker, *servers]
    )
    for peer in peers:
        if trouble in ("all gone", "cut off"):
            peer.connect_error = ConnectionRefusedError("down")
            peer.lose_all()
        if trouble != "all gone":
            peer.silent = True


def repair(place: Place) -> None:
    for peer in (place.broker, place.cluster.name_server):
        peer.connect_error = None
        peer.silent = False


@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_each_call_ends_in_its_time(row: Row, trouble: str) -> None:
    place = Place()
    subject = await row.begin(place)
    await settle()
    break_down(place, trouble)
    await settle()
    driven = await drive(place.clock, row.call(place, subject))
    assert driven.error is None or isinstance(driven.error, RocketMQError), repr(driven.error)
    assert driven.seconds <= LONGEST_S
    if driven.error is not None:
        assert str(driven.error), "it says why"
    repair(place)
    await place.it.pass_time(40)
    stop = getattr(subject, "stop", None)
    if stop is not None:
        await place.run(stop())
    place.broker.owners.clear()  # a broker takes locks back after 60 s by itself
    if place.client._services is not None:
        place.client._services._producer_groups.pop("G", None)  # what some rows joined by hand
    await place.end()


async def test_a_slow_handler_is_extended_while_members_come_and_offsets_are_committed() -> None:
    it = Group({"orders": 4})
    for number in range(4):
        it.broker.add("orders", number, b"slow-%d" % number, b"quick-%d" % number)
    begun: list[bytes] = []
    go_on = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        begun.append(message.body)
        if message.body.startswith(b"slow"):
            await go_on.wait()

    first = await it.consumer(consume_timeout=60, commit_interval=5)
    stays, running = set(first.assignment()), [asyncio.create_task(first.run(handle))]
    await it.pass_time(100)
    second = await it.consumer(consume_timeout=60)
    running.append(asyncio.create_task(second.run(handle)))
    await it.pass_time(1000)
    stays &= set(first.assignment())
    assert len(stays) == 2
    for queue in stays:
        assert begun.count(b"slow-%d" % queue.queue_id) == 1, "not delivered again"
        assert it.offset(queue.queue_id) == 0, "what is at work holds the offset"
    assert it.broker.bodies("%RETRY%billing") == [], "nor sent back behind the handler"
    await it.pass_time(3600)
    go_on.set()
    await it.pass_time(20)
    assert [it.offset(number) for number in range(4)] == [2] * 4
    for queue in stays:
        assert begun.count(b"slow-%d" % queue.queue_id) == 1
    assert max(begun.count(body) for body in begun) <= 2, "again for a new owner alone"
    await it.wait(second.stop())
    await it.stop(first)
    await asyncio.gather(*running)
