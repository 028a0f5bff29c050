"""Requests that brokers send to this client, and what answers them.

    40 members changed, 39 check a transaction, 220/221 offsets, 307/309 of the tools, 326 a reply

There is one handler for each code. It returns its answer, or an awaitable, which then runs as a
task of the router. A one-way push, and a code without a handler, get no answer, as in Java. The
answer (`push.reply(...)`) goes back on the connection of the push, in its codec.

All calls on the loop thread.
Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/ClientRemotingProcessor.java
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import WireError
from skylarkmq.protocol.headers.fields import decode_fields
from skylarkmq.protocol.headers.send import CheckTransactionStateRequestHeader
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.properties import PGROUP
from skylarkmq.protocol.record import decode_message
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.connection import Connection

if TYPE_CHECKING:
    from skylarkmq.client.producer.checks import Checks

log = logging.getLogger(__name__)

Answer = RemotingCommand | None
PushHandler = Callable[[Connection, RemotingCommand], "Answer | Awaitable[Answer]"]

TASKS_MAX: Final = 64
"""Pushes whose answers are awaited at the same time; beyond it they are refused as busy."""
REMARK_MAX: Final = 512


class PushRouter:
    """Hands each push to the handler of its code."""

    def __init__(self) -> None:
        self._handlers: dict[int, PushHandler] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def on(self, code: int, handler: PushHandler) -> None:
        """Let `handler` take the pushes of `code`; one handler a code."""
        assert code not in self._handlers, f"code {code} has a handler"
        self._handlers[code] = handler

    def take(self, connection: Connection, push: RemotingCommand) -> None:
        """Handle one push; an error of its handler is logged and answered with code 1."""
        handler = self._handlers.get(push.code)
        if handler is None:
            log.debug("%s pushed a request of code %d, ignored", connection.address, push.code)
            return
        try:
            outcome = handler(connection, push)
        except Exception as error:
            self._failed(connection, push, error)
            return
        if isinstance(outcome, RemotingCommand):
            _reply(connection, push, outcome)
        elif outcome is not None:
            self._begin(connection, push, outcome)

    def cancel(self) -> None:
        """Cancel what is under way; its pushes stay unanswered."""
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        """Cancel what is under way, and wait for its end."""
        tasks = list(self._tasks)
        self.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(
        self, connection: Connection, push: RemotingCommand, outcome: Awaitable[Answer]
    ) -> None:
        if len(self._tasks) >= TASKS_MAX:
            if asyncio.iscoroutine(outcome):
                outcome.close()
            remark = f"this client is at work on {TASKS_MAX} requests of brokers; try later"
            _reply(connection, push, push.reply(ResponseCode.SYSTEM_BUSY, remark))
            return
        task = asyncio.create_task(
            self._finish(connection, push, outcome), name=f"skylarkmq-push-{push.code}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(
        self, connection: Connection, push: RemotingCommand, outcome: Awaitable[Answer]
    ) -> None:
        try:
            answer = await outcome
        except Exception as error:
            self._failed(connection, push, error)
            return
        if answer is not None:
            _reply(connection, push, answer)

    def _failed(self, connection: Connection, push: RemotingCommand, error: Exception) -> None:
        log.error("request %d of %s failed", push.code, connection.address, exc_info=error)
        remark = f"{type(error).__name__}: {error}"[:REMARK_MAX]
        _reply(connection, push, push.reply(ResponseCode.SYSTEM_ERROR, remark))


def _reply(connection: Connection, push: RemotingCommand, answer: RemotingCommand) -> None:
    if not push.is_oneway and not connection.closed:
        connection.reply(answer)


BROKER_NAME_FIELD: Final = "bname"


class Question(NamedTuple):
    """One question, and where its answer goes."""

    connection: Connection
    header: CheckTransactionStateRequestHeader
    message: MessageExt
    broker_name: str | None


class CheckRouter:
    """Finds the producer that a question how a transaction ended (39) is for; one for each client.

    Several producers of one client may be in the same group: the one that began the transaction is
    asked, else any that has a check for its whole group.
    """

    def __init__(self) -> None:
        self._by_group: dict[str, list[Checks]] = {}

    def join(self, checks: Checks) -> None:
        """Let questions about its group reach `checks`."""
        self._by_group.setdefault(checks.group, []).append(checks)

    def leave(self, checks: Checks) -> None:
        """Undo `join`."""
        members = self._by_group.get(checks.group, [])
        if checks in members:
            members.remove(checks)
        if not members:
            self._by_group.pop(checks.group, None)

    def take(self, connection: Connection, push: RemotingCommand) -> None:
        """Handle one push; one that cannot be read is logged, and asked again by the broker."""
        try:
            header = decode_fields(CheckTransactionStateRequestHeader, push.ext_fields)
            message = decode_message(push.body)
        except WireError as error:
            log.warning("%s asked what cannot be read: %s", connection.address, error)
            return
        members = self._by_group.get(message.properties.get(PGROUP, ""), [])
        unique_id = message.unique_key or ""
        able = [member for member in members if member.knows(unique_id)] or [
            member for member in members if member.has_check
        ]
        if not able:
            log.warning(
                "%s asked about a transaction of a group that has no check here",
                connection.address,
            )
            return
        broker_name = push.ext_fields.get(BROKER_NAME_FIELD)
        able[0].ask(Question(connection, header, message, broker_name))
