"""What is handled again after a fault: the figures of docs/concepts/delivery.md."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from skylarkmq.client import Client, Consumer, Message, Producer, RocketMQError, StartFrom
from skylarkmq.testing import run_broker
from skylarkmq.testing.broker import RunningBroker
from tests.support.patience import LIMIT_S

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs/concepts/delivery.md").read_text("utf-8")
WRITTEN, COMMITTED, HANDLED = 50, 30, 10
COUNT = WRITTEN + COMMITTED + HANDLED


class Group:
    """A group of one member that handled 90 messages, and how far its offset has come.

    The offset of the first 50 is on the broker's disk, that of 30 more in its memory; 10 were
    handled after that.
    """

    def __init__(self, broker: RunningBroker) -> None:
        self.broker = broker
        self.client = broker.client()
        self.consumer = self._member(self.client)

    def _member(self, client: Client) -> Consumer:
        return Consumer(
            "orders", group="billing", client=client, ack="manual", commit_interval=3600,
            start_from=StartFrom.FIRST,
        )  # fmt: skip

    async def begin(self) -> None:
        await self.broker.create_topic("orders", queues=1)
        await self.client.start()
        await self.consumer.start()
        for count in (WRITTEN, COMMITTED, HANDLED):
            await self.send(count)
            messages = [await self.consumer.getone(timeout=LIMIT_S) for _ in range(count)]
            if count != HANDLED:
                for message in messages:
                    await message.ack()
                await self.consumer.commit()
            if count == WRITTEN:
                await self.broker.advance(6)
                await self.broker.controller.parts.offsets.durable()
        self.messages = messages

    async def send(self, count: int) -> None:
        async with Producer(client=self.client) as producer:
            for number in range(count):
                await producer.send(Message("orders", f"{number}"))

    async def ended(self) -> None:
        """Stop the member as programs do."""
        for message in self.messages:
            await message.ack()
        await self.consumer.stop()
        await self.client.stop()

    async def killed(self) -> None:
        """Cut off the member."""
        await self.client.stop()
        with suppress(RocketMQError):
            await self.consumer.stop(drain=False, timeout=0.1)

    async def again(self) -> int:
        """Return how many messages are handled again: what comes before a new one."""
        client = self.broker.client()
        async with client, Producer(client=client) as producer:
            member = self._member(client)
            async with member:
                return await _before_the_mark(member, producer)


async def _before_the_mark(member: Consumer, producer: Producer) -> int:
    await producer.send(Message("orders", "the mark"))
    count = 0
    while (await member.getone(timeout=LIMIT_S)).body != b"the mark":
        count += 1
    return count


async def stopped(it: Group) -> int:
    await it.ended()
    return await it.again()


async def member_killed(it: Group) -> int:
    await it.killed()
    return await it.again()


async def broker_stopped(it: Group) -> int:
    await it.broker.restart()
    return await of_the_same_member(it)


async def broker_killed(it: Group) -> int:
    await it.broker.restart(kill=True)
    return await of_the_same_member(it)


async def of_the_same_member(it: Group) -> int:
    async with it.broker.client() as client, Producer(client=client) as producer:
        count = await _before_the_mark(it.consumer, producer)
    await it.ended()
    return count


async def both_killed(it: Group) -> int:
    await it.broker.restart(kill=True)
    await it.killed()
    return await it.again()


FAULTS: dict[str, Callable[[Group], Awaitable[int]]] = {
    "a consumer is stopped": stopped,
    "a consumer is killed": member_killed,
    "the broker is stopped": broker_stopped,
    "the broker is killed": broker_killed,
    "broker and consumers are killed": both_killed,
}


def on_the_page(fault: str) -> int:
    """Return the figure of the page's row."""
    found = re.search(rf"^\| {fault}.*\| (\d+) \|$", TABLE, re.MULTILINE)
    assert found is not None, fault
    return int(found[1])


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_page_says_how_many_come_again(fault: str) -> None:
    async with run_broker() as broker:
        it = Group(broker)
        await it.begin()
        assert await FAULTS[fault](it) == on_the_page(fault)


def test_the_page_says_what_the_figures_stand_for() -> None:
    assert f"of {COUNT} messages" in TABLE
