"""Cancelled after every number of loop turns, an ordered or broadcasting consumer and its messages
leave no lock, no task and no timer behind, lose nothing, and work the next time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skylarkmq.client import Client, Consumer, MessageQueue, ReceivedMessage, StartFrom
from skylarkmq.protocol.flags import retry_topic
from tests.client.consumer.support import GROUP, Group
from tests.client.consumer.test_orderly import Ordered
from tests.client.test_cancellation import (
    cancelled_after,
    sweep,
    whole_after,
)
from tests.support.manual_clock import settle


def ordered(client: Client) -> Consumer:
    return Consumer("orders", client=client, group=GROUP, orderly=True, start_from=StartFrom.FIRST)


async def test_joining_and_leaving_with_locks() -> None:
    async def run(turns: int) -> bool:
        it = Ordered({"orders": 2})
        it.broker.add("orders", 0, b"0")
        client = it.client()
        consumer = ordered(client)
        ended = await cancelled_after(turns, consumer.start())
        if not ended:
            assert await it.wait(settled_owners(it)) == {}, "another member need not wait"
            consumer = ordered(client)
            await it.wait(consumer.start())
        assert (await it.wait(consumer.getone())).body == b"0"
        stopped = await cancelled_after(turns, consumer.stop())
        await it.wait(consumer.stop())
        await whole_after(it, client)
        assert it.broker.owners == {}
        return ended and stopped

    await sweep(run)


async def settled_owners(it: Ordered) -> dict[object, object]:
    await settle()
    return dict(it.broker.owners)


async def test_running_with_locks() -> None:
    async def run(turns: int) -> bool:
        it = Ordered({"orders": 2})
        it.broker.add("orders", 0, *[b"%d" % n for n in range(4)])
        client = it.client()
        consumer = ordered(client)
        await it.wait(consumer.start())
        at_work: set[MessageQueue] = set()
        seen: list[bytes] = []

        async def handle(message: ReceivedMessage) -> None:
            assert message.queue not in at_work
            at_work.add(message.queue)
            try:
                await asyncio.sleep(0)
                seen.append(message.body)
            finally:
                at_work.discard(message.queue)

        async def all_four() -> None:
            running = asyncio.create_task(consumer.run(handle, concurrency=3))
            try:
                while len(set(seen)) < 4:  # noqa: ASYNC110 - turns are what is counted
                    await asyncio.sleep(0)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

        ended = await cancelled_after(turns, all_four())
        await it.wait(all_four())
        assert list(dict.fromkeys(seen)) == [b"0", b"1", b"2", b"3"]
        assert len(seen) <= 5, "only the one that was cut off came again"
        await it.wait(consumer.stop())
        await whole_after(it, client)
        return ended

    await sweep(run)


@pytest.mark.parametrize("what", ["nack", "dead_letter", "dead_letter_with_reason", "process"])
async def test_handing_back(what: str) -> None:
    async def run(turns: int) -> bool:
        it = Group({"orders": 1})
        it.broker.add("orders", 0, b"it")
        client = it.client()
        consumer = Consumer(
            "orders", client=client, group=GROUP, ack="manual", start_from=StartFrom.FIRST
        )
        await it.wait(consumer.start())
        message = await it.wait(consumer.getone())
        ended = await cancelled_after(turns, hand_back(message, what))
        if message._outcome is None:
            await it.wait(hand_back(message, what))
        assert message._process_queue.held_count == 0
        topic = f"%DLQ%{GROUP}" if what.startswith("dead_letter") else retry_topic(GROUP)
        copies = it.broker.bodies(topic)
        assert 1 <= len(copies) <= 2, "never lost; twice if the answer was not waited for"
        await it.wait(consumer.stop())
        assert it.offset(0) == 1
        await whole_after(it, client)
        return ended

    await sweep(run)


async def hand_back(message: ReceivedMessage, what: str) -> None:
    match what:
        case "nack":
            await message.nack(3)
        case "dead_letter":
            await message.dead_letter()
        case "dead_letter_with_reason":
            await message.dead_letter("why")
        case _:
            try:
                async with message.process():
                    raise KeyError("mine")
            except KeyError:
                pass


async def test_joining_and_leaving_with_local_offsets(tmp_path: Path) -> None:
    async def run(turns: int) -> bool:
        it = Group({"orders": 1})
        it.broker.add("orders", 0, b"0")
        folder = tmp_path / str(turns)
        client = it.client()

        def member() -> Consumer:
            return Consumer(
                "orders",
                client=client,
                group=GROUP,
                model="broadcasting",
                start_from=StartFrom.FIRST,
                offsets_folder=folder,
            )

        consumer = member()
        ended = await cancelled_after(turns, consumer.start())
        if not ended:
            await it.wait(consumer.stop())
            consumer = member()
            await it.wait(consumer.start())
        assert (await it.wait(consumer.getone())).body == b"0"
        await it.wait(consumer.stop())
        await whole_after(it, client)
        return ended

    await sweep(run)
