# pyright: reportPrivateUsage=false
"""RocketMQ's message trace: records of what this client sends and consumes, in the trace topic.

    a send, a handler, the end of a transaction --> records --> one message with many of them
        as soon as they fill BATCH_SIZE or KEYS_SIZE, or the first of them is WAIT_S old

A record costs no task, delays nothing and fails nothing: records that cannot be sent are dropped
and counted. A broker that answers `TRACE_ON=false` gets no records of its messages, and trace
messages are not traced. The topic is RMQ_SYS_TRACE_TOPIC (`traceTopicEnable` on the broker) or
another one. `mqadmin queryMsgTraceById`, RocketMQ's dashboard and `Admin.trace` read it.

    body of a trace message = record*          UTF-8
    record                  = field (0x01 field)* 0x02

    Pub             kind, time, region, group, topic, id, tags, keys, store host, body size, cost,
                    message type, offset id, success [, client host]
    SubBefore       kind, time, region, group, request id, id, retries, keys
    SubAfter        kind, request id, id, cost, success, keys, context code [, time, group]
    EndTransaction  kind, time, region, group, topic, id, tags, keys, store host, message type,
                    transaction id, state, from a check

A SimpleConsumer has no handlers: SubBefore is written when a receive returns the message, SubAfter
when it is acknowledged (success), given back, or its acknowledgement came too late.

Times are milliseconds since the epoch, costs milliseconds, sizes bytes. A field without a value is
the text `null`: Java's reader drops empty fields at the end of a record and then fails on the rest.
The index keys of a trace message are the ids and keys of the messages in its records.

Unlike RocketMQ: each message of a batch has a record of its own, under its own id; and a trace
message also ends where its index keys would no longer fit into the properties.
Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../trace/ (AsyncTraceDispatcher.java,
TraceDataEncoder.java, TraceContext.java, TraceBean.java, hook/SendMessageTraceHookImpl.java,
hook/ConsumeMessageTraceHookImpl.java, hook/EndTransactionTraceHookImpl.java),
client/.../consumer/listener/ConsumeReturnType.java, common/.../message/MessageType.java
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Literal, NamedTuple, TypeVar

from skylarkmq.client.config import ProducerConfig
from skylarkmq.client.errors import ReceiptExpired
from skylarkmq.client.observe.hooks import (
    ClientHook,
    ConsumeContext,
    Consumed,
    ReceiveContext,
    SendContext,
    SettleContext,
    TransactionEnd,
)
from skylarkmq.client.popped_message import PoppedMessage
from skylarkmq.client.producer.send_pipeline import SendPipeline
from skylarkmq.client.received_message import ConsumeOutcome, ReceivedMessage
from skylarkmq.client.send_result import SendResult, SendStatus
from skylarkmq.client.services import Services
from skylarkmq.client.wire.api_send import SendRequest
from skylarkmq.common.clock import TimerHandle
from skylarkmq.protocol.compression import CompressionKind, compress, compression_flags
from skylarkmq.protocol.message_id import UniqueIdGenerator
from skylarkmq.protocol.properties import KEYS, MSG_REGION, TRACE_ON, UNIQ_KEY, encode_properties
from skylarkmq.remoting.waiting import within

log = logging.getLogger(__name__)

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
TRACE_GROUP_PREFIX: Final = "_INNER_TRACE_PRODUCER"
DEFAULT_REGION: Final = "DefaultRegion"

FIELD_SEPARATOR: Final = "\x01"
RECORD_SEPARATOR: Final = "\x02"
NULL: Final = "null"
PUB_FIELDS_WITHOUT_ID: Final = 12
"""Fields of old clients, which wrote no offset id before `success`."""

TransactionStateName = Literal["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"]


class TraceMessageType(IntEnum):
    """What kind of message was sent."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAYED = 3


class TraceContextCode(IntEnum):
    """How a handler ended."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


@dataclass(frozen=True, slots=True)
class PubTrace:
    """A message was sent."""

    timestamp_ms: int
    region_id: str
    group: str
    topic: str
    msg_id: str
    tags: str
    keys: str
    store_host: str
    body_size: int
    cost_ms: int
    message_type: int
    offset_msg_id: str
    success: bool
    client_host: str = ""
    """Only clients of 5.x write it."""


@dataclass(frozen=True, slots=True)
class SubBeforeTrace:
    """A handler was given a message; `request_id` joins this to the record of its end."""

    timestamp_ms: int
    region_id: str
    group: str
    request_id: str
    msg_id: str
    retry_times: int
    keys: str


@dataclass(frozen=True, slots=True)
class SubAfterTrace:
    """A handler has ended."""

    request_id: str
    msg_id: str
    cost_ms: int
    success: bool
    keys: str
    context_code: int = TraceContextCode.SUCCESS
    timestamp_ms: int = 0
    """0 in records of clients before 4.9.1."""
    group: str = ""


@dataclass(frozen=True, slots=True)
class EndTransactionTrace:
    """A producer told the broker how a transaction ended."""

    timestamp_ms: int
    region_id: str
    group: str
    topic: str
    msg_id: str
    tags: str
    keys: str
    store_host: str
    message_type: int
    transaction_id: str
    state: str
    """A `TransactionStateName`; another client may write other names."""
    from_check: bool


TraceRecord = PubTrace | SubBeforeTrace | SubAfterTrace | EndTransactionTrace


def encode_trace(record: TraceRecord) -> str:
    """Return the record's text, its end mark included."""
    layout = _LAYOUTS[type(record)]
    fields = [_text(getattr(record, name)) for name in layout.names]
    if isinstance(record, PubTrace) and not record.client_host:
        fields.pop()
    return FIELD_SEPARATOR.join([layout.word, *fields]) + RECORD_SEPARATOR


def decode_traces(body: bytes) -> list[TraceRecord]:
    """Return the records in the body of a trace message; skip text that is no record."""
    records: list[TraceRecord] = []
    for line in body.decode("utf-8", "replace").split(RECORD_SEPARATOR):
        word, *fields = line.split(FIELD_SEPARATOR)
        layout = _LAYOUT_OF.get(word)
        if layout is None:
            continue
        try:
            records.append(layout.decode(["" if field == NULL else field for field in fields]))
        except ValueError:
            continue
    return records


def trace_keys(record: TraceRecord) -> list[str]:
    """Return the index keys under which the record is to be found."""
    return [record.msg_id, *record.keys.split()]


def _text(value: str | int | bool) -> str:
    """Return the text of a field; separators in it, as other clients may send, become blanks."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if FIELD_SEPARATOR in value or RECORD_SEPARATOR in value:
        value = value.replace(FIELD_SEPARATOR, " ").replace(RECORD_SEPARATOR, " ")
    return value or NULL


def _true(text: str) -> bool:
    return text.lower() == "true"


_READERS: Final[dict[str, Callable[[str], str | int | bool]]] = {
    "str": str,
    "int": int,
    "bool": _true,
}


class _Layout:
    """How one kind of record is written: its word, then the fields of its class in their order."""

    def __init__(self, word: str, kind: type[TraceRecord], needed: int) -> None:
        """Take the layout: every client writes the first `needed` fields, maybe not the others."""
        self.word = word
        self.names = tuple(field.name for field in dataclasses.fields(kind))
        self._kind = kind
        self._needed = needed
        self._readers = [_READERS[str(field.type)] for field in dataclasses.fields(kind)]

    def decode(self, fields: list[str]) -> TraceRecord:
        """Return the record.

        Raises:
            ValueError: a field that must be there is not, or is no number.
        """
        if self._kind is PubTrace and len(fields) == PUB_FIELDS_WITHOUT_ID:
            fields = [*fields[:-1], "", fields[-1]]
        if len(fields) < self._needed:
            raise ValueError(f"{len(fields)} fields, {self._needed} are needed")
        values: dict[str, Any] = {}
        for place, (name, read) in enumerate(zip(self.names, self._readers, strict=True)):
            field = fields[place] if place < len(fields) else ""
            values[name] = read(field) if field or place < self._needed else _EMPTY[read]
        return self._kind(**values)


_EMPTY: Final[dict[Callable[[str], str | int | bool], str | int | bool]] = {
    str: "",
    int: 0,
    _true: False,
}
_LAYOUTS: Final = {
    PubTrace: _Layout("Pub", PubTrace, 13),
    SubBeforeTrace: _Layout("SubBefore", SubBeforeTrace, 6),
    SubAfterTrace: _Layout("SubAfter", SubAfterTrace, 4),
    EndTransactionTrace: _Layout("EndTransaction", EndTransactionTrace, 12),
}
_LAYOUT_OF: Final = {layout.word: layout for layout in _LAYOUTS.values()}


BATCH_SIZE: Final = 118_000
"""Characters of records in one trace message, as in Java."""
KEYS_SIZE: Final = 24_000
"""Bytes of its index keys; they share 32,767 with the other properties."""
WAIT_S: Final = 0.5
IN_FLIGHT_MAX: Final = 16
"""Trace messages under way; records of more than that are dropped."""
SEND_TIMEOUT_S: Final = 5.0
COMPRESS_OVER: Final = 4096
STOP_TIMEOUT_S: Final = 3.0

TracedKind = Literal["PRODUCE", "CONSUME"]
M = TypeVar("M", ReceivedMessage, PoppedMessage)

_numbers = itertools.count(1)


class TraceSink:
    """Collects records and sends them. Loop thread."""

    def __init__(self, services: Services, ids: UniqueIdGenerator, group: str, topic: str) -> None:
        self.topic = topic
        self.dropped_count = 0
        """Records that were not stored, for any reason."""
        self._services = services
        self._next_id = ids.next
        self._texts: list[str] = []
        self._keys: dict[str, None] = {}
        self._size = 0
        self._keys_size = 0
        self._timer: TimerHandle | None = None
        config = ProducerConfig(
            group=group,
            send_timeout=SEND_TIMEOUT_S,
            max_message_size=2 * BATCH_SIZE,
            max_in_flight=IN_FLIGHT_MAX,
            max_in_flight_bytes=2 * BATCH_SIZE * IN_FLIGHT_MAX,
        )
        self._pipeline = SendPipeline(config, services, services.random)

    def add(self, record: TraceRecord) -> None:
        """Take a record."""
        text, keys = encode_trace(record), trace_keys(record)
        keys_size = sum(len(key.encode()) + 1 for key in keys)
        if len(text) > BATCH_SIZE or keys_size > KEYS_SIZE:
            self._dropped(1, "it is too large")
            return
        if self._size + len(text) > BATCH_SIZE or self._keys_size + keys_size > KEYS_SIZE:
            self.send()
        self._texts.append(text)
        self._keys.update(dict.fromkeys(keys))
        self._size += len(text)
        self._keys_size += keys_size
        if self._timer is None:
            clock = self._services.clock
            self._timer = clock.call_at(clock.monotonic() + WAIT_S, self.send)

    def send(self) -> None:
        """Send the records that wait, now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        texts, keys = self._texts, self._keys
        if not texts:
            return
        self._texts, self._keys, self._size, self._keys_size = [], {}, 0, 0
        body, sys_flag = "".join(texts).encode(), 0
        if len(body) >= COMPRESS_OVER:
            body, sys_flag = compress(body), compression_flags(CompressionKind.ZLIB)
        if not self._pipeline.in_flight.has_room(len(body)):
            self._dropped(len(texts), "the trace topic takes too little")
            return
        unique_id = self._next_id()
        properties = encode_properties({UNIQ_KEY: unique_id, KEYS: " ".join(keys)})
        now_ms = self._services.clock.now_ms()
        request = SendRequest(self.topic, body, properties, unique_id, now_ms, 0, sys_flag)
        count = len(texts)

        def ended(future: asyncio.Future[SendResult]) -> None:
            error = None if future.cancelled() else future.exception()
            if error is not None:
                self._dropped(count, str(error))

        self._pipeline.begin(request, None, None).future.add_done_callback(ended)

    async def stop(self) -> None:
        """Send the records that wait, and wait for the end of all sends, STOP_TIMEOUT_S at most."""
        self.send()
        try:
            await within(self._services.clock, STOP_TIMEOUT_S, self._pipeline.in_flight.idle())
        except TimeoutError:
            log.warning("trace records were still under way at the end")
        finally:
            await self._pipeline.stop()

    def _dropped(self, count: int, why: str) -> None:
        """Count dropped records; log the first time, and each time the number has doubled."""
        before = self.dropped_count
        self.dropped_count += count
        if before.bit_length() != self.dropped_count.bit_length():
            log.warning("%d trace records dropped so far, now: %s", self.dropped_count, why)


class _Handled(NamedTuple):
    """What a tracer keeps from the begin of a handler to its end."""

    request_id: str
    messages: list[ReceivedMessage]


class Tracer(ClientHook):
    """Turns what one producer or consumer does into records."""

    def __init__(
        self,
        services: Services,
        ids: UniqueIdGenerator,
        group: str,
        kind: TracedKind,
        topic: str,
    ) -> None:
        """Take the group that is traced, by the application's name."""
        self._services = services
        self._group = group
        self._kind = kind
        self._next_id = ids.next
        self._users = 0
        sender = f"{TRACE_GROUP_PREFIX}-{group}-{kind}-{next(_numbers)}"
        self._sink = TraceSink(services, ids, sender, topic)

    @property
    def dropped_count(self) -> int:
        """Records that did not reach the trace topic."""
        return self._sink.dropped_count

    @classmethod
    def join(
        cls,
        services: Services,
        ids: UniqueIdGenerator,
        group: str,
        kind: TracedKind,
        topic: str = TRACE_TOPIC,
    ) -> Tracer:
        """Return the tracer of that group, a hook from now on; `leave` it at the end.

        Producers of one client and group share one, so that no record is written twice.
        """
        for hook in services.hooks:
            if isinstance(hook, Tracer) and (hook._group, hook._kind) == (group, kind):
                hook._users += 1
                return hook
        tracer = cls(services, ids, group, kind, topic)
        tracer._users = 1
        services.hooks.append(tracer)
        return tracer

    async def leave(self) -> None:
        """Undo one `join`; the last one sends the remaining records."""
        self._users -= 1
        if self._users == 0:
            self._services.hooks.remove(self)
            await self._sink.stop()

    # A producer

    def before_send(self, context: SendContext) -> None:
        if self._traces_send(context):
            context.state[self] = self._services.clock.now_ms()

    def after_send(
        self, context: SendContext, result: SendResult | None, error: BaseException | None
    ) -> None:
        began_ms: int | None = context.state.pop(self, None)
        if began_ms is None or result is None or not result.trace_on or not result.region_id:
            return
        cost_s = self._services.clock.monotonic() - context.started_s
        cost_ms = max(round(cost_s * 1000 / len(context.messages)), 0)
        offset_ids = result.offset_msg_id.split(",")
        for index, message in enumerate(context.messages):
            record = PubTrace(
                timestamp_ms=began_ms,
                region_id=result.region_id,
                group=self._group,
                topic=context.topic,
                msg_id=context.unique_ids[index],
                tags=message.tags or "",
                keys=message.keys,
                store_host=context.broker_addr,
                body_size=len(message.body),
                cost_ms=cost_ms,
                message_type=_MESSAGE_TYPES.get(context.kind, TraceMessageType.NORMAL),
                offset_msg_id=offset_ids[index] if index < len(offset_ids) else "",
                success=result.status is SendStatus.SEND_OK,
            )
            self._sink.add(record)

    def transaction_ended(self, end: TransactionEnd) -> None:
        if self._kind != "PRODUCE" or end.group != self._group:
            return
        record = EndTransactionTrace(
            timestamp_ms=self._services.clock.now_ms(),
            region_id=DEFAULT_REGION,
            group=end.group,
            topic=end.topic,
            msg_id=end.unique_id,
            tags=end.tags,
            keys=end.keys,
            store_host=end.broker_addr,
            message_type=TraceMessageType.COMMIT,
            transaction_id=end.transaction_id,
            state=end.state,
            from_check=end.from_check,
        )
        self._sink.add(record)

    # A consumer

    def before_consume(self, context: ConsumeContext) -> None:
        traced = self._traced(context.group, context.messages)
        if traced:
            context.state[self] = _Handled(self._begun(traced), traced)

    def after_consume(
        self, context: ConsumeContext, outcome: ConsumeOutcome, error: BaseException | None
    ) -> None:
        handled: _Handled | None = context.state.pop(self, None)
        if handled is None:
            return
        cost_s = self._services.clock.monotonic() - context.started_s
        cost_ms = round(cost_s * 1000 / len(context.messages))
        if outcome == "ok":
            code = TraceContextCode.SUCCESS
        elif error is not None:
            code = TraceContextCode.EXCEPTION
        else:
            code = TraceContextCode.FAILED
        for message in handled.messages:
            self._ended(message, handled.request_id, cost_ms, code)

    # A SimpleConsumer

    def after_receive(
        self,
        context: ReceiveContext,
        messages: Sequence[PoppedMessage],
        error: BaseException | None,
    ) -> None:
        traced = self._traced(context.group, messages)
        if traced:
            request_id = self._begun(traced)
            for message in traced:
                message._trace_id = request_id

    def after_settle(self, context: SettleContext, error: BaseException | None) -> None:
        message = context.message
        if self._kind != "CONSUME" or not message._trace_id:
            return
        if isinstance(error, ReceiptExpired):
            code = TraceContextCode.TIME_OUT
        elif error is not None or context.invisible_ms:
            return  # it is still this consumer's
        elif context.operation == "ack":
            code = TraceContextCode.SUCCESS
        else:
            code = TraceContextCode.FAILED
        cost_s = self._services.clock.monotonic() - message._received_s
        self._ended(message, message._trace_id, round(cost_s * 1000), code)
        message._trace_id = ""

    # Both

    def _traced(self, group: str, messages: Sequence[M]) -> list[M]:
        """Return those of the messages that a group has got which are traced here."""
        if self._kind != "CONSUME" or self._services.namespace.unwrap(group) != self._group:
            return []
        return [
            message
            for message in messages
            if message.properties.get(TRACE_ON) != "false" and message.topic != self._sink.topic
        ]

    def _begun(self, messages: Sequence[Consumed]) -> str:
        """Write that the work with them begins; return the id that joins its end to it."""
        now_ms, request_id = self._services.clock.now_ms(), self._next_id()
        for message in messages:
            record = SubBeforeTrace(
                timestamp_ms=now_ms,
                region_id=message.properties.get(MSG_REGION, ""),
                group=self._group,
                request_id=request_id,
                msg_id=message.msg_id,
                retry_times=message.reconsume_times,
                keys=message.keys,
            )
            self._sink.add(record)
        return request_id

    def _ended(
        self, message: Consumed, request_id: str, cost_ms: int, code: TraceContextCode
    ) -> None:
        """Write that the work with a message has ended."""
        record = SubAfterTrace(
            request_id=request_id,
            msg_id=message.msg_id,
            cost_ms=max(cost_ms, 0),
            success=code is TraceContextCode.SUCCESS,
            keys=message.keys,
            context_code=code,
            timestamp_ms=self._services.clock.now_ms(),
            group=self._group,
        )
        self._sink.add(record)

    def _traces_send(self, context: SendContext) -> bool:
        return (
            self._kind == "PRODUCE"
            and self._services.namespace.unwrap(context.group) == self._group
            and context.kind != "oneway"
            and not context.topic.startswith(self._sink.topic)
        )


_MESSAGE_TYPES: Final = {
    "half": TraceMessageType.HALF,
    "delayed": TraceMessageType.DELAYED,
}


def trace_topic(trace: bool | str) -> str | None:
    """Return the topic that the argument `trace` asks for; True is RMQ_SYS_TRACE_TOPIC."""
    if isinstance(trace, str):
        return trace
    return TRACE_TOPIC if trace else None
