"""Hooks: how metrics, spans and traces learn of sends and handlers.

A hook overrides the methods that it needs.

    send       before_send -> (send_retried)* -> after_send        one-way: after_send with neither
    consume    received -> before_consume -> the handler -> after_consume
    receive    before_receive -> after_receive                     of a SimpleConsumer
    settle     before_settle -> after_settle                       of a SimpleConsumer

Without hooks (the default) each place costs one truth test. The loop thread calls the hooks in the
order in which they were added, `after_*` in the opposite order. They must not block. An error of a
hook is logged and changes nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from skylarkmq.client.popped_message import PoppedMessage
from skylarkmq.client.received_message import ConsumeOutcome, ReceivedMessage
from skylarkmq.client.send_result import SendResult
from skylarkmq.protocol.message import Message, MessageQueue

log = logging.getLogger(__name__)

SendKind = Literal["normal", "oneway", "batch", "half", "delayed", "request", "reply"]
Settling = Literal["ack", "change_invisible_duration"]
Consumed = ReceivedMessage | PoppedMessage


@dataclass(slots=True, eq=False)
class SendContext:
    """One send, from the call to its end.

    `properties` are added to the message when it is encoded (of a batch: to each of its messages);
    a hook puts trace context there in `before_send`. `state` is for the hook's own use, by hook.
    """

    group: str
    topic: str
    kind: SendKind
    messages: Sequence[Message]
    started_s: float
    """Monotonic seconds of the client's clock."""
    unique_ids: Sequence[str] = ()
    body_size: int = 0
    """Bytes of the bodies, before compression."""
    queue: MessageQueue | None = None
    """Known once the send has ended."""
    broker_addr: str = ""
    properties: dict[str, str] = field(default_factory=dict[str, str])
    state: dict[Any, Any] = field(default_factory=dict[Any, Any])


@dataclass(slots=True, eq=False)
class ConsumeContext:
    """One call of a handler: a message, or the messages of one batch, of one queue."""

    group: str
    queue: MessageQueue
    messages: Sequence[ReceivedMessage]
    started_s: float
    state: dict[Any, Any] = field(default_factory=dict[Any, Any])


@dataclass(slots=True, eq=False)
class ReceiveContext:
    """One `receive` of a SimpleConsumer, from the call to its end."""

    group: str
    started_s: float
    state: dict[Any, Any] = field(default_factory=dict[Any, Any])


@dataclass(slots=True, eq=False)
class SettleContext:
    """One call with which a SimpleConsumer says what becomes of a message that it received."""

    group: str
    message: PoppedMessage
    operation: Settling
    started_s: float
    invisible_ms: int = 0
    """For how long the message is hidden from now on; 0: given back, or acknowledged."""
    state: dict[Any, Any] = field(default_factory=dict[Any, Any])


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """The end of a transaction as it was told to the broker."""

    group: str
    topic: str
    unique_id: str
    offset_msg_id: str
    tags: str
    keys: str
    state: Literal["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"]
    from_check: bool
    broker_addr: str
    transaction_id: str = ""


class ClientHook:
    """Base of all hooks; its methods do nothing."""

    def before_send(self, context: SendContext) -> None:
        """A send begins; nothing is encoded yet."""

    def after_send(
        self, context: SendContext, result: SendResult | None, error: BaseException | None
    ) -> None:
        """A send has ended: stored, failed (or cancelled), or sent one-way without an answer."""

    def send_retried(self, topic: str, reason: str) -> None:
        """A try failed and another one follows; `reason` is the name of the error's class."""

    def received(self, group: str, messages: Sequence[ReceivedMessage]) -> None:
        """Messages of one queue have been pulled and are wanted."""

    def before_consume(self, context: ConsumeContext) -> None:
        """A handler is called next, in this task, so context variables reach it."""

    def after_consume(
        self, context: ConsumeContext, outcome: ConsumeOutcome, error: BaseException | None
    ) -> None:
        """The handler has ended, in the task of `before_consume`."""

    def before_receive(self, context: ReceiveContext) -> None:
        """A receive begins, in this task."""

    def after_receive(
        self,
        context: ReceiveContext,
        messages: Sequence[PoppedMessage],
        error: BaseException | None,
    ) -> None:
        """A receive has ended, in the task of `before_receive`.

        Its messages are of one topic and broker; none where nothing came, or with an error.
        """

    def before_settle(self, context: SettleContext) -> None:
        """A message is acknowledged, or hidden for another time, in this task."""

    def after_settle(self, context: SettleContext, error: BaseException | None) -> None:
        """The broker has taken that, or there is an error; in the task of `before_settle`."""

    def transaction_ended(self, end: TransactionEnd) -> None:
        """The broker was told how a transaction ended."""

    def reconnected(self, peer_kind: Literal["broker", "namesrv"]) -> None:
        """A lost connection was made again."""

    def rebalanced(self, group: str, topic: str) -> None:
        """This member's queues of a topic have changed."""


def each(hooks: Sequence[ClientHook], call: Callable[[ClientHook], None]) -> None:
    """Call every hook; what one raises is logged."""
    for hook in hooks:
        try:
            call(hook)
        except Exception:
            log.exception("hook %s failed, going on", type(hook).__name__)
