# pyright: reportPrivateUsage=false
"""RocketMQ's message trace: records of what this client sends and consumes, in the trace topic.

    a send, a handler, the end of a transaction --> records --> one message with many of them
        as soon as they fill BATCH_SIZE or KEYS_SIZE, or the first of them is WAIT_S old

A record costs no task, delays nothing and fails nothing: records that cannot be sent are dropped
and counted. A broker that answers `TRACE_ON=false` gets no records of its messages, and trace
messages are not traced. The topic is RMQ_SYS_TRACE_TOPIC (`traceTopicEnable` on the broker) or
another one. `mqadmin queryMsgTraceById`, RocketMQ's dashboard and `Admin.trace` read it.

`trace_records.py` has the records. A SimpleConsumer has no handlers: SubBefore is written when a
receive returns the message, SubAfter when it is acknowledged (success), given back, or its
acknowledgement came too late.

The index keys of a trace message are the ids and keys of the messages in its records.

Unlike RocketMQ: each message of a batch has a record of its own, under its own id; and a trace
message also ends where its index keys would no longer fit into the properties.
Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../trace/ (AsyncTraceDispatcher.java,
hook/SendMessageTraceHookImpl.java, hook/ConsumeMessageTraceHookImpl.java,
hook/EndTransactionTraceHookImpl.java)
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeVar

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
from skylarkmq.client.producer.trace_records import (
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceContextCode,
    TraceMessageType,
    TraceRecord,
    encode_trace,
    trace_keys,
)
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
