"""What the behaviour tests do again and again: send some, receive some, wait for something."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from skylarkmq.client import Client, Consumer, Message, Producer, ReceivedMessage, StartFrom
from tests.support.patience import LIMIT_S, until

Handler = Callable[[ReceivedMessage], Awaitable[None]]


class Inbox:
    """A handler for `Consumer.run` that keeps what it gets and fails the tries it is told to."""

    def __init__(self, fail: int = 0, also: Handler | None = None) -> None:
        """Args: fail: how many tries of each message raise; also: run for each message, first."""
        self.messages: list[ReceivedMessage] = []
        self.consumer: Consumer | None = None
        """Set by `consuming`."""
        self._fail = fail
        self._also = also
        self._more = asyncio.Condition()

    async def __call__(self, message: ReceivedMessage) -> None:
        if self._also is not None:
            await self._also(message)
        async with self._more:
            self.messages.append(message)
            self._more.notify_all()
        if message.reconsume_times < self._fail:
            raise RuntimeError("asked to fail")

    @property
    def bodies(self) -> list[str]:
        """The bodies so far, in order of arrival."""
        return [message.body.decode() for message in self.messages]

    async def holds(self, count: int) -> set[int]:
        """Wait until its consumer has exactly so many queues, and return their numbers."""

        def held() -> set[int]:
            assert self.consumer is not None
            queues = {queue.queue_id for queue in self.consumer.assignment()}
            return queues if len(queues) == count else set()

        return await until(held, f"{count} queues")

    async def wait(self, met: Callable[[], bool]) -> None:
        """Wait until a condition over `messages` holds."""
        async with asyncio.timeout(LIMIT_S), self._more:
            await self._more.wait_for(met)

    async def count(self, count: int) -> list[ReceivedMessage]:
        """Wait for so many messages, and return all."""
        await self.wait(lambda: len(self.messages) >= count)
        return self.messages


@asynccontextmanager
async def consuming(
    client: Client | str, topic: str, group: str, handler: Handler | None = None, **settings: Any
) -> AsyncIterator[Inbox]:
    """A consumer from the first message on, until the block ends; what it gets is in the inbox.

    Args:
        handler: run for each message instead of the inbox alone.
    """
    inbox = handler if isinstance(handler, Inbox) else Inbox(also=handler)
    settings.setdefault("start_from", StartFrom.FIRST)
    async with Consumer(topic, client=client, group=group, **settings) as consumer:
        inbox.consumer = consumer
        running = asyncio.create_task(consumer.run(inbox))
        yield inbox
    await running


async def received(
    client: Client, topic: str, group: str, count: int, **settings: Any
) -> list[ReceivedMessage]:
    """What a consumer of a group gets, until it has `count` messages; it commits and leaves."""
    async with consuming(client, topic, group, **settings) as inbox:
        return list(await inbox.count(count))


async def collect(consumer: Consumer, count: int) -> list[ReceivedMessage]:
    """Take `count` messages from a started consumer, acknowledging each."""
    messages: list[ReceivedMessage] = []
    async with asyncio.timeout(LIMIT_S):
        while len(messages) < count:
            message = await consumer.getone()
            await message.ack()
            messages.append(message)
    return messages


async def send_numbered(producer: Producer, topic: str, prefix: str, count: int) -> None:
    """Send `<prefix>-<n>` for n below `count`, side by side."""
    await asyncio.gather(
        *(producer.send(Message(topic, f"{prefix}-{number}")) for number in range(count))
    )


def bodies(messages: list[ReceivedMessage]) -> list[str]:
    """Their bodies, sorted."""
    return sorted(message.body.decode() for message in messages)


def numbered(prefix: str, count: int) -> list[str]:
    """The bodies that `send_numbered` sends, sorted."""
    return sorted(f"{prefix}-{number}" for number in range(count))
