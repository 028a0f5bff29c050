"""One send under way, as its connection and its producer see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from skylarkmq.client.api_send import SendRequest, send_result
from skylarkmq.client.connection import Connection
from skylarkmq.client.errors import (
    ConnectionFailed,
    ProtocolError,
    RocketMQError,
    broker_error,
)
from skylarkmq.client.send_result import SendResult
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.remoting_command import RemotingCommand

Choice = Callable[[Sequence[MessageQueue]], MessageQueue]
"""Picks the queue of one message; None in its place means: in turn."""


class SendOwner(Protocol):
    """Hears how a send goes."""

    def succeed(self, send: Send, result: SendResult) -> None:
        """The message is stored."""
        ...

    def end(self, send: Send, error: RocketMQError) -> None:
        """The send has failed for good."""
        ...

    def try_ended(self, send: Send, error: RocketMQError, *, unknown: bool) -> None:
        """A try has come to nothing, or, when `unknown`, to nothing known."""
        ...


@dataclass(slots=True)
class SendStats:
    """What happened so far; plain counters."""

    sent_count: int = 0
    failed_count: int = 0
    retry_count: int = 0
    unknown_retry_count: int = 0
    """Retries of a try without an answer: each may have left a second copy."""


class Send:
    """One send under way; waits on its connection for the answer."""

    __slots__ = (
        "choice",
        "connection",
        "deadline_s",
        "future",
        "left",
        "opaque",
        "owner",
        "queue",
        "request",
        "try_count",
        "unknown_tries",
    )

    def __init__(
        self,
        owner: SendOwner,
        request: SendRequest,
        choice: Choice | None,
        future: asyncio.Future[SendResult],
        deadline_s: float,
    ) -> None:
        self.owner = owner
        self.request = request
        self.choice = choice
        self.future = future
        self.deadline_s = deadline_s
        self.connection: Connection | None = None
        self.queue: MessageQueue | None = None
        self.left = False
        self.opaque = 0
        self.try_count = 0
        self.unknown_tries = 0

    def answered(self, answer: RemotingCommand) -> None:
        """The broker's answer to the last try."""
        queue = self.queue
        assert queue is not None, "a send has a queue once it is on the wire"
        try:
            result = send_result(answer, self.request, queue, self.unknown_tries)
        except ProtocolError as error:
            self.owner.end(self, error)
            return
        if result is not None:
            self.owner.succeed(self, result)
            return
        address = self.connection.address if self.connection is not None else queue.broker_name
        refusal = broker_error(answer.code, answer.remark, address)
        self.owner.try_ended(self, refusal, unknown=False)

    def failed(self, error: RocketMQError) -> None:
        """The last try has no answer."""
        reached = not isinstance(error, ConnectionFailed) or error.reached
        self.owner.try_ended(self, error, unknown=reached)
