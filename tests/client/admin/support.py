"""Real brokers in the test's loop, and what stands on them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skylarkmq.client import Admin, Client, Consumer, Credentials, Message, Producer, StartFrom
from skylarkmq.client.admin import RedriveOutcome, RedriveTarget
from tests.support.live_broker import live_broker, namesrv_of
from tests.support.patience import LIMIT_S, until


@dataclass
class Site:
    """A client with an Admin and a producer."""

    namesrv: str
    client: Client
    admin: Admin
    producer: Producer

    async def knows(self, broker_name: str) -> bool:
        """Return whether the name server has that broker."""
        return any(each.name == broker_name for each in (await self.admin.cluster()).brokers)

    async def send(self, topic: str, count: int, **parts: Any) -> list[str]:
        """Send `count` messages one after another; return their ids."""
        return [
            (await self.producer.send(Message(topic, b"%d" % number, **parts))).msg_id
            for number in range(count)
        ]

    async def consume(self, topic: str, group: str, count: int, *, dead: int = 0) -> None:
        """Let a group take so many messages and give up the first `dead` of them."""
        async with Consumer(
            topic, client=self.client, group=group, start_from=StartFrom.FIRST
        ) as member:
            for number in range(count):
                message = await member.getone(LIMIT_S)
                if number < dead:
                    await message.dead_letter()
                else:
                    await message.ack()
            await member.commit()

    async def redrive(self, group: str, to: RedriveTarget = "group") -> list[RedriveOutcome]:
        """Send a group's dead letters again; return what became of them."""
        return [
            await self.admin.redrive_dead_letter(letter, group, to=to)
            async for letter in self.admin.dead_letters(group)
        ]


@asynccontextmanager
async def site(
    root: Path,
    *,
    namespace: str | None = None,
    credentials: Credentials | None = None,
    **changes: Any,
) -> AsyncIterator[Site]:
    """One broker."""
    async with (
        live_broker(root, **changes) as broker,
        Client(namesrv_of(broker), namespace=namespace, credentials=credentials) as client,
        Producer(client=client, send_timeout=LIMIT_S) as producer,
        Admin(client=client, timeout=LIMIT_S) as admin,
    ):
        yield Site(namesrv_of(broker), client, admin, producer)


@asynccontextmanager
async def two_brokers(root: Path) -> AsyncIterator[Site]:
    """`broker-a` and `broker-b`, told to one name server."""
    async with live_broker(root / "a") as first:
        namesrv = namesrv_of(first)
        async with (
            live_broker(root / "b", broker_name="broker-b", namesrv_addr=namesrv),
            Client(namesrv) as client,
            Producer(client=client, send_timeout=LIMIT_S) as producer,
            Admin(client=client, timeout=LIMIT_S) as admin,
        ):
            it = Site(namesrv, client, admin, producer)
            await until(lambda: it.knows("broker-b"), "the second broker's registration")
            yield it
