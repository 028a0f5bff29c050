"""Who waits for the answer to one request."""

from __future__ import annotations

import asyncio
from typing import Protocol

from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.wire.send_answer import StoredAnswer, as_command
from skylarkmq.protocol.remoting_command import RemotingCommand


class Waiter(Protocol):
    """Waits for the answer to one request; exactly one of these is called, once."""

    @property
    def deadline_s(self) -> float:
        """When to give up, on the clock's monotonic time; then it fails with RequestTimeout."""
        ...

    def answered(self, answer: RemotingCommand) -> None:
        """The answer is there, whatever its code."""
        ...

    def stored(self, answer: StoredAnswer) -> None:
        """The answer is there, and it has the fields of an answer to a send."""
        ...

    def failed(self, error: RocketMQError) -> None:
        """There will be no answer."""
        ...


class FutureWaiter:
    """A waiter for a coroutine."""

    __slots__ = ("deadline_s", "future")

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.future: asyncio.Future[RemotingCommand] = loop.create_future()

    def answered(self, answer: RemotingCommand) -> None:
        if not self.future.done():
            self.future.set_result(answer)

    def stored(self, answer: StoredAnswer) -> None:
        self.answered(as_command(answer))

    def failed(self, error: RocketMQError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
