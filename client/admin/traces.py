"""What clients told of a message: its traces.

Clients with tracing on write a trace some moments after the event. They need a broker with
`traceTopicEnable`, or a trace topic of their own.

Source: apache/rocketmq@rocketmq-all-4.9.8 tools/.../message/QueryMsgTraceByIdSubCommand.java
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from skylarkmq.client.admin.base import from_ms
from skylarkmq.client.admin.messages import MessageAdmin
from skylarkmq.client.admin.results import Result
from skylarkmq.client.producer.trace import TRACE_TOPIC
from skylarkmq.client.producer.trace_records import (
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceContextCode,
    TraceMessageType,
    TraceRecord,
    decode_traces,
)
from skylarkmq.protocol.errors import WireError

TRACE_MESSAGES_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class SendTrace(Result):
    """One send, by its producer. `kind` is normal, half, commit or delayed."""

    at: datetime | None
    group: str
    topic: str
    tags: str
    keys: str
    store_host: str
    client_host: str
    size: int
    cost_ms: int
    kind: str
    offset_msg_id: str
    success: bool


@dataclass(frozen=True, slots=True)
class DeliveryTrace(Result):
    """One delivery to a handler. `outcome` is success, time_out, exception, returned_null or
    failed; empty while the handler has not ended, or its client has not told."""

    group: str
    started_at: datetime | None
    retries: int
    cost_ms: int | None = None
    success: bool | None = None
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class EndTrace(Result):
    """How a transaction ended, by its producer; `state` is RocketMQ's name."""

    at: datetime | None
    group: str
    topic: str
    transaction_id: str
    state: str
    from_check: bool


@dataclass(frozen=True, slots=True)
class MessageTrace(Result):
    """All that is known of a message, the oldest first; three empty parts when that is nothing."""

    msg_id: str
    sends: tuple[SendTrace, ...]
    deliveries: tuple[DeliveryTrace, ...]
    ends: tuple[EndTrace, ...]


class TraceAdmin(MessageAdmin):
    """The part of Admin for traces."""

    async def trace(self, msg_id: str, *, topic: str = TRACE_TOPIC) -> MessageTrace:
        """Return what clients told of the message with this `msg_id`.

        Args:
            topic: where they tell it, as brokers know it: namespaces do not part traces.

        Raises:
            RouteNotFound: there is no trace topic.
        """
        place = await self._place(topic)
        told = await self._by_key(place, msg_id, False, None, None, TRACE_MESSAGES_MAX)
        records: list[TraceRecord] = []
        for message in told:
            try:
                found = decode_traces(message.body)
            except WireError:
                continue  # somebody else's message
            records += [record for record in found if record.msg_id == msg_id]
        sends = [record for record in records if isinstance(record, PubTrace)]
        ends = [record for record in records if isinstance(record, EndTransactionTrace)]
        return MessageTrace(
            msg_id,
            tuple(self._send(one) for one in sorted(sends, key=lambda one: one.timestamp_ms)),
            tuple(self._deliveries(records)),
            tuple(self._end(one) for one in sorted(ends, key=lambda one: one.timestamp_ms)),
        )

    def _send(self, record: PubTrace) -> SendTrace:
        return SendTrace(
            from_ms(record.timestamp_ms),
            self._namespace.unwrap(record.group),
            self._namespace.unwrap(record.topic),
            record.tags,
            record.keys,
            record.store_host,
            record.client_host,
            record.body_size,
            record.cost_ms,
            _kind(record.message_type),
            record.offset_msg_id,
            record.success,
        )

    def _deliveries(self, records: list[TraceRecord]) -> list[DeliveryTrace]:
        """Join the begin and the end of each delivery."""
        befores = {
            record.request_id: record for record in records if isinstance(record, SubBeforeTrace)
        }
        afters = {
            record.request_id: record for record in records if isinstance(record, SubAfterTrace)
        }
        found: list[tuple[int, DeliveryTrace]] = []
        for request_id in befores.keys() | afters.keys():
            before, after = befores.get(request_id), afters.get(request_id)
            group = before.group if before is not None else after.group if after is not None else ""
            started_ms = before.timestamp_ms if before is not None else 0
            one = DeliveryTrace(
                self._namespace.unwrap(group),
                from_ms(started_ms),
                before.retry_times if before is not None else 0,
                after.cost_ms if after is not None else None,
                after.success if after is not None else None,
                _outcome(after.context_code) if after is not None else "",
            )
            found.append((started_ms, one))
        return [one for _, one in sorted(found, key=lambda item: item[0])]

    def _end(self, record: EndTransactionTrace) -> EndTrace:
        return EndTrace(
            from_ms(record.timestamp_ms),
            self._namespace.unwrap(record.group),
            self._namespace.unwrap(record.topic),
            record.transaction_id,
            record.state,
            record.from_check,
        )


def _kind(number: int) -> str:
    known = TraceMessageType._value2member_map_.get(number)
    return known.name.lower() if isinstance(known, TraceMessageType) else str(number)


def _outcome(number: int) -> str:
    known = TraceContextCode._value2member_map_.get(number)
    return known.name.lower() if isinstance(known, TraceContextCode) else str(number)
