"""A queue that goes to a member that joins: what is at work of it ends first and is committed, so
that nothing runs twice; what does not end is not waited for long."""

from __future__ import annotations

import asyncio

import pytest

from skylarkmq.client import Consumer, ReceivedMessage
from skylarkmq.client.config import HANDOVER_S, REVOKE_DRAIN_S
from skylarkmq.remoting.waiting import sleep
from tests.client.consumer.support import Group

COUNT = 400
HANDLER_S = 0.3


class Members:
    """Members of a group whose handlers take their time; each notes what it handled."""

    def __init__(self) -> None:
        self.it = Group({"orders": 4})
        for number in range(COUNT):
            self.it.broker.add("orders", number % 4, b"%d" % number)
        self.seen: list[bytes] = []
        self.runs: list[asyncio.Task[None]] = []
        self.members: list[Consumer] = []

    async def handle(self, message: ReceivedMessage) -> None:
        self.seen.append(message.body)
        await sleep(self.it.clock, HANDLER_S)

    async def join(self) -> Consumer:
        member = await self.it.consumer()
        self.members.append(member)
        self.runs.append(asyncio.create_task(member.run(self.handle, concurrency=20)))
        return member

    async def stop(self) -> None:
        await self.it.stop(*self.members)
        await asyncio.gather(*self.runs)


async def test_a_member_that_joins_runs_nothing_twice() -> None:
    them = Members()
    await them.join()
    await them.it.pass_time(1)
    assert 0 < len(them.seen) < COUNT
    await them.join()
    for _ in range(60):
        await them.it.pass_time(HANDLER_S / 2)
        if len(them.seen) >= COUNT:
            break
    await them.it.pass_time(1)
    assert sorted(them.seen) == sorted(set(them.seen)), "nothing came twice"
    assert len(them.seen) == COUNT
    assert [len(member.assignment()) for member in them.members] == [2, 2]
    await them.stop()
    assert sum(them.it.offset(queue_id) or 0 for queue_id in range(4)) == COUNT


async def test_a_handler_that_hangs_holds_its_queue_only_for_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    them = Members()
    hangs = asyncio.Event()

    async def hang(message: ReceivedMessage) -> None:
        await hangs.wait()

    first = await them.it.consumer()
    running = asyncio.create_task(first.run(hang, concurrency=20))
    await them.it.pass_time(1)
    second = await them.it.consumer()
    await them.it.pass_time(HANDOVER_S + 0.1)
    assert len(first.assignment()) == 4, "still waited for"
    await them.it.pass_time(REVOKE_DRAIN_S)
    assert len(first.assignment()) == 2
    assert "messages still at work after 5 s" in caplog.text
    await them.it.wait(first.stop(drain=False))
    await running
    await them.it.stop(second)


async def test_a_stop_does_not_wait_for_the_drain() -> None:
    them = Members()
    hangs = asyncio.Event()

    async def hang(message: ReceivedMessage) -> None:
        await hangs.wait()

    first = await them.it.consumer()
    running = asyncio.create_task(first.run(hang, concurrency=20))
    await them.it.pass_time(1)
    second = await them.it.consumer()
    began_s = them.it.clock.monotonic()
    await them.it.wait(first.stop(drain=False))
    assert them.it.clock.monotonic() - began_s < 1
    await running
    await them.it.stop(second)


async def test_queues_of_a_member_that_left_are_taken_at_once() -> None:
    them = Members()
    first, second = await them.it.consumer(), await them.it.consumer()
    await them.it.wait(first.stop())
    await them.it.pass_time(0.1)
    assert len(second.assignment()) == 4
    await them.it.stop(second)
