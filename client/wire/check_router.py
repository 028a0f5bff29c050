"""Questions how transactions ended (39), on their way to the producer that can answer.

Several producers of one client may be in the same group: the one that began the transaction is
asked, else any that has a check for its whole group. All on the loop thread.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/ClientRemotingProcessor.java
(checkTransactionState)
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple, Protocol

from skylarkmq.client.wire.connection import Connection
from skylarkmq.protocol.errors import ProtocolError
from skylarkmq.protocol.headers.fields import decode_fields
from skylarkmq.protocol.headers.send import CheckTransactionStateRequestHeader
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.properties import PGROUP
from skylarkmq.protocol.record import decode_message
from skylarkmq.protocol.remoting_command import RemotingCommand

log = logging.getLogger(__name__)

BROKER_NAME_FIELD: Final = "bname"


class Question(NamedTuple):
    """One question, and where its answer goes."""

    connection: Connection
    header: CheckTransactionStateRequestHeader
    message: MessageExt
    broker_name: str | None


class CheckListener(Protocol):
    """A producer, as questions see it."""

    @property
    def group(self) -> str:
        """Its group, as brokers know it."""
        ...

    @property
    def has_check(self) -> bool:
        """Whether it can answer for any transaction of its group."""
        ...

    def knows(self, unique_id: str) -> bool:
        """Return whether it began that transaction."""
        ...

    def ask(self, question: Question) -> None:
        """Answer a question, now or later."""
        ...


class CheckRouter:
    """Finds the producer that a question is for; one for each client."""

    def __init__(self) -> None:
        self._by_group: dict[str, list[CheckListener]] = {}

    def join(self, checks: CheckListener) -> None:
        """Let questions about its group reach `checks`."""
        self._by_group.setdefault(checks.group, []).append(checks)

    def leave(self, checks: CheckListener) -> None:
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
        except ProtocolError as error:
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
