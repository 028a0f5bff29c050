"""One send under way, as its connection and its producer see it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from skylarkmq.client.errors import (
    ConnectionFailed,
    ProtocolError,
    RocketMQError,
    broker_error,
)
from skylarkmq.client.observe.hooks import SendContext
from skylarkmq.client.producer.send_result import STORED_CODES, SendResult, SendStatus
from skylarkmq.client.wire.api_send import SendRequest, stored_fields
from skylarkmq.client.wire.connection import Connection
from skylarkmq.client.wire.send_answer import StoredAnswer, StoredFields
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


class Send(msgspec.Struct, eq=False):
    """One send under way; waits on its connection for the answer."""

    owner: SendOwner
    request: SendRequest
    choice: Choice | None
    future: asyncio.Future[SendResult]
    end_s: float
    """When the whole send is given up."""
    deadline_s: float
    """When the try under way is given up."""
    generation: int
    timed: bool = False
    """Only brokers with timers may get it: the others would deliver it at once."""
    context: SendContext | None = None
    """What hooks know it by; None without hooks."""
    connection: Connection | None = None
    queue: MessageQueue | None = None
    opaque: int = 0
    began_s: float = 0.0
    """When the try under way began; kept only where somebody wants to know."""
    try_count: int = 0
    """Tries that ended on the wire."""
    failed_count: int = 0
    """Those, and the attempts that found no connection."""
    unknown_tries: int = 0
    off_wire_count: int = 0
    place: dict[Send, None] | None = None
    error: RocketMQError | None = None
    """Why the last try came to nothing."""
    left: bool = False

    def answered(self, answer: RemotingCommand) -> None:
        """The broker's answer to the last try, in its general form."""
        status = STORED_CODES.get(answer.code)
        if status is None:
            self._refused(answer.code, answer.remark)
            return
        try:
            fields = stored_fields(answer)
        except ProtocolError as error:
            self.owner.end(self, error)
        else:
            self.owner.succeed(self, self._result(status, fields))

    def stored(self, answer: StoredAnswer) -> None:
        """The broker's answer to the last try."""
        status = STORED_CODES.get(answer.code)
        if status is None:
            self._refused(answer.code, answer.remark)
        else:
            self.owner.succeed(self, self._result(status, answer.fields))

    def failed(self, error: RocketMQError) -> None:
        """The last try has no answer."""
        reached = not isinstance(error, ConnectionFailed) or error.reached
        self.owner.try_ended(self, error, unknown=reached)

    def _result(self, status: SendStatus, fields: StoredFields) -> SendResult:
        queue = self.queue
        assert queue is not None, "a send has a queue once it is on the wire"
        if fields.queue_id != queue.queue_id:
            queue = queue._replace(queue_id=fields.queue_id)
        return SendResult(
            status,
            self.request.unique_key,
            fields.msg_id,
            queue,
            fields.queue_offset,
            fields.transaction_id,
            fields.region_id,
            fields.trace_on != "false",
            self.unknown_tries,
        )

    def _refused(self, code: int, remark: str | None) -> None:
        connection = self.connection
        assert connection is not None, "a send has a connection while it is on the wire"
        error = broker_error(code, remark, connection.address)
        self.owner.try_ended(self, error, unknown=False)
