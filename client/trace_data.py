"""Records of RocketMQ's message trace: what happened to a message, as lines of text.

    body of a trace message = record*          UTF-8
    record                  = field (0x01 field)* 0x02

    Pub             kind, time, region, group, topic, id, tags, keys, store host, body size, cost,
                    message type, offset id, success [, client host]
    SubBefore       kind, time, region, group, request id, id, retries, keys
    SubAfter        kind, request id, id, cost, success, keys, context code [, time, group]
    EndTransaction  kind, time, region, group, topic, id, tags, keys, store host, message type,
                    transaction id, state, from a check

Times are milliseconds since the epoch, costs milliseconds, sizes bytes. A field without a value is
the text `null`: Java's reader drops empty fields at the end of a record and then fails on the rest.
The trace message's index keys are the ids and keys of the messages it tells of.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../trace/TraceDataEncoder.java,
TraceContext.java, TraceBean.java, client/.../consumer/listener/ConsumeReturnType.java,
common/.../message/MessageType.java
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
TRACE_GROUP_PREFIX: Final = "_INNER_TRACE_PRODUCER"
DEFAULT_REGION: Final = "DefaultRegion"

FIELD_SEPARATOR: Final = "\x01"
RECORD_SEPARATOR: Final = "\x02"
NULL: Final = "null"

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
    """Written by 5.x only."""


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
    """A `TransactionStateName`, unless somebody else's client knows more of them."""
    from_check: bool


TraceRecord = PubTrace | SubBeforeTrace | SubAfterTrace | EndTransactionTrace


def encode_trace(record: TraceRecord) -> str:
    """Return the record's text, its end mark included."""
    kind, fields = _FIELDS[type(record)](record)
    return FIELD_SEPARATOR.join([kind, *map(_text, fields)]) + RECORD_SEPARATOR


def decode_traces(body: bytes) -> list[TraceRecord]:
    """Return the records of a trace message's body; what is no record is passed over."""
    records: list[TraceRecord] = []
    for line in body.decode("utf-8", "replace").split(RECORD_SEPARATOR):
        fields = line.split(FIELD_SEPARATOR)
        decode = _DECODERS.get(fields[0])
        if decode is None:
            continue
        try:
            records.append(decode(["" if field == NULL else field for field in fields]))
        except (IndexError, ValueError):
            continue
    return records


def trace_keys(record: TraceRecord) -> list[str]:
    """Return the index keys under which the record is to be found."""
    return [record.msg_id, *record.keys.split()]


def _text(value: str | int | bool) -> str:
    """A field; separators inside it, which only a foreign peer sends, become blanks."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if FIELD_SEPARATOR in value or RECORD_SEPARATOR in value:
        value = value.replace(FIELD_SEPARATOR, " ").replace(RECORD_SEPARATOR, " ")
    return value or NULL


_Fields = tuple[str, Iterable[str | int | bool]]


def _pub_fields(record: TraceRecord) -> _Fields:
    assert isinstance(record, PubTrace)
    fields: list[str | int | bool] = [
        record.timestamp_ms,
        record.region_id,
        record.group,
        record.topic,
        record.msg_id,
        record.tags,
        record.keys,
        record.store_host,
        record.body_size,
        record.cost_ms,
        record.message_type,
        record.offset_msg_id,
        record.success,
    ]
    if record.client_host:
        fields.append(record.client_host)
    return "Pub", fields


def _sub_before_fields(record: TraceRecord) -> _Fields:
    assert isinstance(record, SubBeforeTrace)
    return "SubBefore", (
        record.timestamp_ms,
        record.region_id,
        record.group,
        record.request_id,
        record.msg_id,
        record.retry_times,
        record.keys,
    )


def _sub_after_fields(record: TraceRecord) -> _Fields:
    assert isinstance(record, SubAfterTrace)
    return "SubAfter", (
        record.request_id,
        record.msg_id,
        record.cost_ms,
        record.success,
        record.keys,
        record.context_code,
        record.timestamp_ms,
        record.group,
    )


def _end_fields(record: TraceRecord) -> _Fields:
    assert isinstance(record, EndTransactionTrace)
    return "EndTransaction", (
        record.timestamp_ms,
        record.region_id,
        record.group,
        record.topic,
        record.msg_id,
        record.tags,
        record.keys,
        record.store_host,
        record.message_type,
        record.transaction_id,
        record.state,
        record.from_check,
    )


_FIELDS: Final[dict[type[TraceRecord], Callable[[TraceRecord], _Fields]]] = {
    PubTrace: _pub_fields,
    SubBeforeTrace: _sub_before_fields,
    SubAfterTrace: _sub_after_fields,
    EndTransactionTrace: _end_fields,
}


def _decode_pub(fields: list[str]) -> PubTrace:
    """Read 13 fields (from before the offset id), 14, or 15 and more."""
    has_offset_id = len(fields) > 13
    return PubTrace(
        timestamp_ms=int(fields[1]),
        region_id=fields[2],
        group=fields[3],
        topic=fields[4],
        msg_id=fields[5],
        tags=fields[6],
        keys=fields[7],
        store_host=fields[8],
        body_size=int(fields[9]),
        cost_ms=int(fields[10]),
        message_type=int(fields[11]),
        offset_msg_id=fields[12] if has_offset_id else "",
        success=_true(fields[13] if has_offset_id else fields[12]),
        client_host=fields[14] if len(fields) > 14 else "",
    )


def _decode_sub_before(fields: list[str]) -> SubBeforeTrace:
    return SubBeforeTrace(
        timestamp_ms=int(fields[1]),
        region_id=fields[2],
        group=fields[3],
        request_id=fields[4],
        msg_id=fields[5],
        retry_times=int(fields[6]),
        keys=fields[7] if len(fields) > 7 else "",
    )


def _decode_sub_after(fields: list[str]) -> SubAfterTrace:
    return SubAfterTrace(
        request_id=fields[1],
        msg_id=fields[2],
        cost_ms=int(fields[3]),
        success=_true(fields[4]),
        keys=fields[5] if len(fields) > 5 else "",
        context_code=int(fields[6]) if len(fields) > 6 and fields[6] else 0,
        timestamp_ms=int(fields[7]) if len(fields) > 7 and fields[7] else 0,
        group=fields[8] if len(fields) > 8 else "",
    )


def _decode_end(fields: list[str]) -> EndTransactionTrace:
    return EndTransactionTrace(
        timestamp_ms=int(fields[1]),
        region_id=fields[2],
        group=fields[3],
        topic=fields[4],
        msg_id=fields[5],
        tags=fields[6],
        keys=fields[7],
        store_host=fields[8],
        message_type=int(fields[9]),
        transaction_id=fields[10],
        state=fields[11],
        from_check=_true(fields[12]),
    )


def _true(text: str) -> bool:
    return text.lower() == "true"


_DECODERS: Final[dict[str, Callable[[list[str]], TraceRecord]]] = {
    "Pub": _decode_pub,
    "SubBefore": _decode_sub_before,
    "SubAfter": _decode_sub_after,
    "EndTransaction": _decode_end,
}
