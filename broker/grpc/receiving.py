"""Receives, acknowledgements, and what else a consumer does with a message that it has.

    ReceiveMessage                    messages of any queue of the topic, for so long invisible to
                                      the group's other consumers
    AckMessage                        it is done
    ChangeInvisibleDuration           it comes again after this time; a new handle, the old one ends
    ForwardMessageToDeadLetterQueue   it goes to %DLQ%group, and is done

A receive is a status, the messages, the time of the answer. Nothing within the time of the poll is
a status too: 40401. A poll that names no time ends half a request timeout of the client's settings
before its client stops waiting, any other DEADLINE_MARGIN_S before that at the latest; and a call
that breaks off gives all its messages back: clients throw away what came of a broken answer, and
their messages would be stuck for the invisible time.

As in 5.3.3, the queue that a receive names does not matter, and neither does its broker. A handle
that is over, made up, or of another group, topic or broker is answered with 40013.

Unlike RocketMQ: a receive needs no settings from the telemetry stream, the poll may be shorter than
5 s, and a message that was acknowledged cannot be made visible again.
Source: apache/rocketmq@rocketmq-all-5.3.3 proxy/.../grpc/v2/consumer/ReceiveMessageActivity.java,
ReceiveMessageResponseStreamWriter.java, AckMessageActivity.java,
ChangeInvisibleDurationActivity.java, proxy/.../grpc/v2/producer/ForwardMessageToDLQActivity.java,
proxy/.../config/ProxyConfig.java
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from skylarkmq.broker.filter.consumer_filter import EXPRESSION_SQL92
from skylarkmq.broker.filter.tag_filter import EXPRESSION_TAG
from skylarkmq.broker.grpc.calls import (
    OK,
    Call,
    RpcHandlers,
    RpcRefused,
    Send,
    common_status,
    failure,
    rpc,
    status,
)
from skylarkmq.broker.grpc.messages import fill_message, set_time
from skylarkmq.broker.grpc.names import group_of, topic_of
from skylarkmq.broker.grpc.validation import later_fields
from skylarkmq.broker.pop.handles import Receipt, parse
from skylarkmq.broker.pop.requests import COUNT_MAX, PopFilter, Popped, PopRequest, pop_filter
from skylarkmq.broker.pop.service import PopService
from skylarkmq.broker.requests.processor import Context
from skylarkmq.broker.requests.read_checks import check_read
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.v5.codes import Code
from skylarkmq.protocol.v5.schema_pb2 import (
    FILTER_TYPE_UNSPECIFIED,
    SQL,
    TAG,
    AckMessageRequest,
    AckMessageResponse,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    FilterExpression,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    Status,
)

log = logging.getLogger(__name__)

POLL_MIN_S: Final = 5.0
"""Of a poll whose client does not say how long."""
POLL_MAX_S: Final = 20.0
DEADLINE_MARGIN_S: Final = 0.2
"""The answer has this time for its way to the client."""
RENEWED_MS: Final = 60_000
"""The invisible time with which a delivery begins that is prolonged."""
INVISIBLE_MIN_MS: Final = 10_000
INVISIBLE_MAX_MS: Final = 12 * 3_600_000
SUSPEND: Final = 7
"""Of ChangeInvisibleDurationRequest, since RocketMQ 5.5; the schema here has it not."""
ENTRIES_MAX: Final = 1024
"""Messages of one acknowledgement."""
TURN_SIZE: Final = 1 << 20
"""Bytes of bodies after which other work of the loop has its turn: to make digests takes time."""
ATTEMPT_ID_MAX: Final = 255
"""Characters; an ordered queue remembers one."""

_FOUND: Final = ReceiveMessageResponse(status=OK)
_EMPTY: Final = ReceiveMessageResponse(
    status=status(Code.MESSAGE_NOT_FOUND, "no message within the time of the poll")
)
_ENDED: Final = status(
    Code.INVALID_RECEIPT_HANDLE,
    "INVALID_RECEIPT_HANDLE: the receipt handle is expired, or is not of this group, topic and "
    "broker: the message comes again with a new one, unless it is done",
)

_FILTERS: Final[dict[int, str]] = {
    FILTER_TYPE_UNSPECIFIED: EXPRESSION_TAG,
    TAG: EXPRESSION_TAG,
    SQL: EXPRESSION_SQL92,
}

NoteReceive = Callable[[Call, str, str, FilterExpression], float]
"""Called with group, topic and filter; returns how long the client waits for other answers, s."""


class _Duration(Protocol):
    """As protobuf has it."""

    seconds: int
    nanos: int


class Receiving(RpcHandlers):
    """The calls of consumers about messages. Loop thread."""

    def __init__(
        self, context: Context, pop: PopService, note_receive: NoteReceive, peer_clock: Clock
    ) -> None:
        """Make the handlers.

        Args:
            note_receive: told of each receive, before it takes anything; may refuse it.
                Knows how long the client waits for other answers.
            peer_clock: on which deadlines are told, and polls end.
        """
        self._context = context
        self._clock = context.clock
        self._pop = pop
        self._note_receive = note_receive
        self._peer_clock = peer_clock
        self._body_max = context.config.store.max_message_size
        self._broker_name = context.config.broker_name

    @rpc("ReceiveMessage", ReceiveMessageRequest, ReceiveMessageResponse)
    async def receive_message(self, call: Call, request: ReceiveMessageRequest, send: Send) -> None:
        """Send messages when there are some."""
        wanted = self._wanted(call, request)
        popped = await self._pop.receiver.receive(wanted, call.source)
        try:
            await self._send(wanted, request.message_queue.topic.resource_namespace, popped, send)
        except BaseException:
            if popped:
                receipts = [receipt for receipt, _, _ in popped]
                self._pop.settlement.give_back(wanted.group, wanted.topic, receipts)
            raise

    async def _send(
        self, wanted: PopRequest, namespace: str, popped: Sequence[Popped], send: Send
    ) -> None:
        is_empty, size = True, 0
        for receipt, record, attempt in popped:
            response = ReceiveMessageResponse()
            try:
                size += fill_message(
                    response.message,
                    record,
                    wanted.topic,
                    self._body_max,
                    namespace=namespace,
                    handle=receipt.to_text(self._broker_name),
                    attempt=attempt,
                )
            except RemoteProtocolError as error:  # it comes again when its time is over
                log.error("%s for group %s: %s", wanted.topic, wanted.group, error)
                continue
            if is_empty:
                await send(_FOUND)
                is_empty = False
            await send(response)
            if size > TURN_SIZE:  # bodies that are opened here may be many times their records
                size = 0
                await asyncio.sleep(0)
        if is_empty:
            await send(_EMPTY)
        last = ReceiveMessageResponse()
        set_time(last.delivery_timestamp, self._clock.now_ms())
        await send(last)

    def _wanted(self, call: Call, request: ReceiveMessageRequest) -> PopRequest:
        """Check and note a receive, and return it as pop consumption understands it."""
        group, topic = group_of(request.group), topic_of(request.message_queue.topic)
        settings, _ = check_read(self._context, group, topic, call.source)
        if len(request.attempt_id) > ATTEMPT_ID_MAX:
            why = f"an attempt id has up to {ATTEMPT_ID_MAX} characters"
            raise RpcRefused(Code.BAD_REQUEST, why)
        is_renewed = request.auto_renew
        invisible_ms = RENEWED_MS
        if not is_renewed:
            invisible_ms = _invisible_ms(request.invisible_duration, INVISIBLE_MIN_MS)
        matches = self._filter(request.filter_expression)
        timeout_s = self._note_receive(call, group, topic, request.filter_expression)
        return PopRequest(
            group=group,
            topic=topic,
            client_id=call.client_id,
            matches=matches,
            count=min(max(request.batch_size, 1), COUNT_MAX),
            invisible_ms=invisible_ms,
            until_s=self._poll_end(call, request, timeout_s),
            attempt_id=request.attempt_id,
            is_fifo=settings.is_orderly,
            is_renewed=is_renewed,
        )

    def _poll_end(self, call: Call, request: ReceiveMessageRequest, timeout_s: float) -> float:
        """Return when a receive is answered at the latest.

        Args:
            timeout_s: how long the client waits for other answers; of a poll that names no time,
                half of it is left for the answer's way.
        """
        now_s = self._peer_clock.monotonic()
        wait_s = POLL_MAX_S
        if request.HasField("long_polling_timeout"):
            wait_s = min(max(_ms(request.long_polling_timeout) / 1000, 0.0), POLL_MAX_S)
        elif call.deadline_s is not None:
            left_s = call.deadline_s - now_s
            wait_s = min(max(left_s - timeout_s / 2, POLL_MIN_S), POLL_MAX_S)
        if call.deadline_s is None:
            return now_s + wait_s
        last_s = call.deadline_s - DEADLINE_MARGIN_S
        if last_s < now_s:
            raise RpcRefused(
                Code.ILLEGAL_POLLING_TIME,
                f"the deadline is in {max(0.0, call.deadline_s - now_s):.3f} s, which is too soon "
                f"for an answer: it needs {DEADLINE_MARGIN_S} s and the time of the poll",
            )
        return min(now_s + wait_s, last_s)

    def _filter(self, expression: FilterExpression) -> PopFilter:
        kind = _FILTERS.get(expression.type)
        if kind is None:
            why = f"no filter has the number {expression.type}: TAG and SQL are known"
            raise RpcRefused(Code.ILLEGAL_FILTER_EXPRESSION, why)
        enabled = self._context.config.enable_property_filter
        try:
            return pop_filter(kind, expression.expression, sql_enabled=enabled)
        except RemoteProtocolError as error:
            raise RpcRefused(Code.ILLEGAL_FILTER_EXPRESSION, error.remark) from error

    @rpc("AckMessage", AckMessageRequest, AckMessageResponse, needs_task=False)
    async def ack_message(self, call: Call, request: AckMessageRequest) -> AckMessageResponse:
        """Note messages as done; each has a status of its own."""
        group, topic = group_of(request.group), topic_of(request.topic)
        entries = request.entries
        if not 0 < len(entries) <= ENTRIES_MAX:
            raise RpcRefused(
                Code.BAD_REQUEST,
                f"{len(entries)} messages are acknowledged at once: 1 to {ENTRIES_MAX} may be",
            )
        receipts = [self._parsed(entry.receipt_handle) for entry in entries]
        statuses = await self._ack(call, group, topic, receipts)
        response = AckMessageResponse(status=common_status(statuses))
        for entry, result in zip(entries, statuses, strict=True):
            response.entries.add(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=result
            )
        return response

    @rpc("ChangeInvisibleDuration", ChangeInvisibleDurationRequest, ChangeInvisibleDurationResponse)
    async def change_invisible_duration(
        self, call: Call, request: ChangeInvisibleDurationRequest
    ) -> ChangeInvisibleDurationResponse:
        """Let a message come again after another time; what it suspends, does not count."""
        group, topic = group_of(request.group), topic_of(request.topic)
        invisible_ms = _invisible_ms(request.invisible_duration, 0)
        receipt = self._receipt(request.receipt_handle)
        changed = await self._pop.settlement.change_invisible(
            group, topic, receipt, invisible_ms, suspends=_suspends(request)
        )
        if changed is None:
            raise _ended()
        return ChangeInvisibleDurationResponse(
            status=OK, receipt_handle=changed.to_text(self._broker_name)
        )

    @rpc(
        "ForwardMessageToDeadLetterQueue",
        ForwardMessageToDeadLetterQueueRequest,
        ForwardMessageToDeadLetterQueueResponse,
    )
    async def forward_message_to_dead_letter_queue(
        self, call: Call, request: ForwardMessageToDeadLetterQueueRequest
    ) -> ForwardMessageToDeadLetterQueueResponse:
        """Move a message to the group's dead letters."""
        group, topic = group_of(request.group), topic_of(request.topic)
        receipt = self._receipt(request.receipt_handle)
        is_moved = await self._pop.settlement.forward_to_dlq(group, topic, receipt)
        if not is_moved:
            raise _ended()
        return ForwardMessageToDeadLetterQueueResponse(status=OK)

    def _parsed(self, handle: str) -> Receipt | None:
        try:
            receipt, broker_name = parse(handle)
        except ValueError:
            return None
        return receipt if broker_name == self._broker_name else None

    def _receipt(self, handle: str) -> Receipt:
        receipt = self._parsed(handle)
        if receipt is None:
            raise _ended()
        return receipt

    async def _ack(
        self, call: Call, group: str, topic: str, receipts: Sequence[Receipt | None]
    ) -> list[Status]:
        known = [receipt for receipt in receipts if receipt is not None]
        try:
            results = iter(await self._pop.settlement.ack_all(group, topic, known))
        except RemoteProtocolError as error:
            failed = failure(error, "AckMessage", call)
            return [_ENDED if receipt is None else failed for receipt in receipts]
        return [OK if receipt is not None and next(results) else _ENDED for receipt in receipts]


def _ended() -> RpcRefused:
    return RpcRefused(_ENDED.code, _ENDED.message)


def _ms(duration: _Duration) -> int:
    return duration.seconds * 1000 + duration.nanos // 1_000_000


def _suspends(request: ChangeInvisibleDurationRequest) -> bool:
    """Tell whether the delivery is not to count, which RocketMQ 5.5's clients say in field 7."""
    return bool(later_fields(request).get(SUSPEND))


def _invisible_ms(duration: _Duration, least_ms: int) -> int:
    invisible_ms = _ms(duration)
    if not least_ms <= invisible_ms <= INVISIBLE_MAX_MS:
        # The words of RocketMQ's proxy, which programs look for.
        is_small = invisible_ms < least_ms
        which = f"small. min is {least_ms}" if is_small else f"large. max is {INVISIBLE_MAX_MS}"
        why = f"the invisibleTime is too {which} ms, it is {invisible_ms} ms"
        raise RpcRefused(Code.ILLEGAL_INVISIBLE_TIME, why)
    return invisible_ms
