"""Consumers that live through all faults: one of each kind, and two that broadcast.

Each is a group of its own, or a member that gets everything, so each is to see every message that
was acknowledged. All that they are given is written to the history under their names.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Set
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from skylarkmq.client import Client, Consumer, SimpleConsumer, StartFrom
from skylarkmq.client.errors import RocketMQError
from tests.failover.history import History, Operation, digest

CONSUMER: Final = "consumer"
ORDERED: Final = "ordered consumer"
POPPING: Final = "consumer by pop"
BROADCASTING: Final = ("broadcasting 1", "broadcasting 2")
CONSUMERS: Final = (CONSUMER, ORDERED, POPPING, *BROADCASTING)
REQUEST_LIMIT_S: Final = 2.0
INVISIBLE_S: Final = 20.0
AGAIN_S: Final = 0.2


class Living(ABC):
    """One of them, on a client of its own."""

    def __init__(self, name: str, namesrv: str, topic: str, history: History) -> None:
        self.name = name
        self.got: set[str] = set()
        self._topic = topic
        self._history = history
        self._client = Client(
            namesrv,
            request_timeout=REQUEST_LIMIT_S,
            route_refresh=1.0,
            instance_name=name.replace(" ", "-"),
        )

    async def start(self) -> None:
        """Join before anything is sent."""
        await self._client.start()
        await self._join()

    @abstractmethod
    async def _join(self) -> None: ...

    @abstractmethod
    async def run(self) -> None:
        """Receive for ever."""

    @abstractmethod
    async def _leave(self) -> None: ...

    async def stop(self) -> None:
        """Leave; whoever is away does not hear of it."""
        with suppress(RocketMQError, OSError):
            await self._leave()
        with suppress(RocketMQError, OSError):
            await self._client.stop()

    def _note(self, start: float, body: bytes, queue_id: int, offset: int = -1) -> None:
        """Tell the history; without an offset it does not say where the message is."""
        told = digest(body)
        queue = "" if offset < 0 else f"{self._topic}/{queue_id}"
        self.got.add(told)
        self._history.add(
            Operation("read", self.name, start, time.monotonic(), "read", queue, offset, told)
        )


class Member(Living):
    """A `Consumer`: of a group that shares, that keeps order, or that broadcasts."""

    def __init__(
        self, name: str, namesrv: str, topic: str, history: History, **settings: Any
    ) -> None:
        super().__init__(name, namesrv, topic, history)
        self._consumer = Consumer(
            topic,
            client=self._client,
            start_from=StartFrom.FIRST,
            commit_interval=1.0,
            **settings,
        )

    async def _join(self) -> None:
        await self._consumer.start()

    async def run(self) -> None:
        while True:
            start = time.monotonic()
            for queue, messages in (await self._consumer.getmany(timeout=1.0)).items():
                for message in messages:
                    self._note(start, message.body, queue.queue_id, message.queue_offset)

    async def _leave(self) -> None:
        await self._consumer.stop()


class Popping(Living):
    """A `SimpleConsumer`."""

    def __init__(self, name: str, namesrv: str, topic: str, history: History) -> None:
        super().__init__(name, namesrv, topic, history)
        self._consumer = SimpleConsumer(
            topic,
            client=self._client,
            group="poppers",
            invisible_duration=INVISIBLE_S,
            await_duration=5.0,
        )

    async def _join(self) -> None:
        await self._consumer.start()

    async def run(self) -> None:
        while True:
            start = time.monotonic()
            try:
                for message in await self._consumer.receive(32):
                    # One that came again is counted among the retries, and so has another offset.
                    offset = message.queue_offset if message.delivery_attempt == 1 else -1
                    self._note(start, message.body, message.queue.queue_id, offset)
                    await self._consumer.ack(message)
            except RocketMQError:  # nobody leads; what was not acknowledged comes again
                await asyncio.sleep(AGAIN_S)

    async def _leave(self) -> None:
        await self._consumer.stop()


class LivingConsumers:
    """All of them."""

    def __init__(self, namesrv: str, topic: str, history: History) -> None:
        """Take where to read; nothing runs before `start`."""
        self.tasks: list[asyncio.Task[None]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="skylarkmq-offsets-")
        at = namesrv, topic, history
        offsets: dict[str, Any] = {
            "group": "everybody",
            "model": "broadcasting",
            "offsets_folder": Path(self._folder.name),
        }
        self._all: list[Living] = [
            Member(CONSUMER, *at, group="readers"),
            Member(ORDERED, *at, group="orderly-readers", orderly=True),
            Popping(POPPING, *at),
            *(Member(name, *at, **offsets) for name in BROADCASTING),
        ]

    async def start(self) -> None:
        """Let all of them join, and receive."""
        for each in self._all:
            await each.start()
        self.tasks = [asyncio.ensure_future(each.run()) for each in self._all]

    def have(self, messages: Set[str]) -> bool:
        """Return whether each has got all of these."""
        return all(messages <= each.got for each in self._all)

    async def stop(self) -> None:
        """Let all of them leave."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await asyncio.gather(*(each.stop() for each in self._all))
        self._folder.cleanup()
