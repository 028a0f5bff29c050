"""Consumers that live on while their broker dies: one of each kind, all told to the history.

    member = MEMBERS["ordered"](lives, folder)
    await member.start()

Each is the SDK's own, but for the last: what a Java client does, by its requests.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path
from typing import Any, Final

from skylarkmq.client import (
    Consumer,
    Credentials,
    MessageQueue,
    PeekReader,
    ReceivedMessage,
    SimpleConsumer,
    StartFrom,
)
from skylarkmq.client.errors import RocketMQError
from skylarkmq.remoting.waiting import sleep
from tests.simulation.lives.java_member import JavaPuller
from tests.support.broker_lives import NAME as BROKER
from tests.support.broker_lives import QUEUE, TOPIC, BrokerLives

NAME: Final = "member"
"""Of its client, to the network and to the history, when it is alone."""
GROUP: Final = "billing"
COMMIT_S: Final = 1.0
WINDOW: Final = "+skylarkmq.deduplication.seconds=3600,+skylarkmq.deduplication.keys=1000"


class Member(ABC):
    """One consumer, alone in its group."""

    broadcasting = False
    attributes = ""
    """Of the topic."""

    def __init__(
        self,
        lives: BrokerLives,
        folder: Path,
        account: Credentials | None = None,
        *,
        name: str = NAME,
        group: str = GROUP,
    ) -> None:
        self.name = name
        self.group = group
        self._lives = lives
        self._account = account
        self._folder = folder
        self._work: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Join, and receive from now on."""
        self._lives.history.joins(self.group, self.name, broadcasting=self.broadcasting)
        await self._lives.wait(self._join())
        self._work = asyncio.ensure_future(self._run())

    @abstractmethod
    async def _join(self) -> None: ...

    @abstractmethod
    async def _run(self) -> None: ...

    def seen(self) -> Counter[str]:
        """How often it got each message."""
        history = self._lives.history
        return history.seen(self.group, self.name if self.broadcasting else "")

    async def stop(self) -> None:
        """Leave."""
        await self._lives.wait(self._leave())
        assert self._work is not None
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)

    @abstractmethod
    async def _leave(self) -> None: ...

    def look(self) -> None:
        """Raise what ended it, if it ended."""
        assert self._work is not None
        if self._work.done():
            self._work.result()
            raise AssertionError("the consumer has ended")

    def note_position(self) -> None:
        """Tell the history where the broker has the group."""
        offsets = self._lives.life.parts.offsets
        self._lives.history.commits(self.group, QUEUE, offsets.query(self.group, *QUEUE))

    def _got(self, body: bytes) -> None:
        history = self._lives.history
        history.delivered(self.group, self.name, body.decode(), broadcasting=self.broadcasting)


class Clustering(Member):
    """A group whose positions are at the broker."""

    async def _join(self) -> None:
        client = self._client = self._lives.client(self.name, self._account)
        await client.start()
        self._consumer = Consumer(
            TOPIC,
            client=client,
            group=self.group,
            start_from=StartFrom.FIRST,
            commit_interval=COMMIT_S,
            **self._more(),
        )
        await self._consumer.start()

    def _more(self) -> dict[str, Any]:
        return {}

    async def _run(self) -> None:
        async def take(message: ReceivedMessage) -> None:
            self._got(message.body)

        await self._consumer.run(take)

    async def _leave(self) -> None:
        await self._consumer.stop()
        await self._client.stop()


class Ordered(Clustering):
    """The same, with locks of its queues."""

    def _more(self) -> dict[str, Any]:
        return {"orderly": True}


class Broadcasting(Clustering):
    """A member whose positions are in a file of its own."""

    broadcasting = True

    def _more(self) -> dict[str, Any]:
        return {"model": "broadcasting", "offsets_folder": self._folder}

    def note_position(self) -> None:
        """The broker has none."""


class ByHand(Clustering):
    """No member of its group: it has chosen its queue itself."""

    async def _join(self) -> None:
        client = self._client = self._lives.client(self.name, self._account)
        await client.start()
        self._consumer = Consumer(
            client=client,
            group=self.group,
            start_from=StartFrom.FIRST,
            commit_interval=COMMIT_S,
        )
        await self._consumer.start()
        await self._consumer.assign([MessageQueue(TOPIC, BROKER, QUEUE[1])])


class Peeking(Member):
    """A reader in no group, whose position is in its memory alone."""

    broadcasting = True

    async def _join(self) -> None:
        client = self._client = self._lives.client(self.name, self._account)
        await client.start()
        self._reader = PeekReader(TOPIC, client=client, start=StartFrom.FIRST)
        await self._reader.start()

    async def _run(self) -> None:
        async for message in self._reader:
            self._got(message.body)

    async def _leave(self) -> None:
        await self._reader.stop()
        await self._client.stop()

    def note_position(self) -> None:
        """Nobody has one."""


class Deduplicated(Clustering):
    """A group of a topic with a window of unique keys."""

    attributes = WINDOW


class Popping(Member):
    """A SimpleConsumer."""

    async def _join(self) -> None:
        client = self._client = self._lives.client(self.name, self._account)
        await client.start()
        self._consumer = SimpleConsumer(TOPIC, client=client, group=self.group, await_duration=5.0)
        await self._consumer.start()
        await self._receive()  # the group is known from its first time on

    async def _receive(self) -> None:
        for message in await self._consumer.receive(16):
            self._got(message.body)
            await self._consumer.ack(message)

    async def _run(self) -> None:
        while True:
            try:
                await self._receive()
            except RocketMQError as error:  # its broker is away
                assert error.retryable, error
                await sleep(self._lives.clock, 0.5)

    async def _leave(self) -> None:
        await self._consumer.stop()
        await self._client.stop()


class Java(Member):
    """A client of another make."""

    async def _join(self) -> None:
        network, clock = self._lives.network.of(self.name), self._lives.clock
        self._puller = JavaPuller(network, clock, lambda: self._lives.address, QUEUE, self.group)
        await self._puller.start()

    async def _run(self) -> None:
        await self._puller.run(self._got)

    async def _leave(self) -> None:
        """Its connection ends with it."""


MEMBERS: Final[dict[str, type[Member]]] = {
    "clustering": Clustering,
    "ordered": Ordered,
    "broadcasting": Broadcasting,
    "by hand": ByHand,
    "peek": Peeking,
    "deduplicated": Deduplicated,
    "pop": Popping,
    "java": Java,
}
