"""The text of RocketMQ's message traces: four kinds of records, one after the other in a body.

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

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../trace/ (TraceDataEncoder.java,
TraceContext.java, TraceBean.java), client/.../consumer/listener/ConsumeReturnType.java,
common/.../message/MessageType.java
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

FIELD_SEPARATOR: Final = "\x01"
RECORD_SEPARATOR: Final = "\x02"
NULL: Final = "null"
PUB_FIELDS_WITHOUT_ID: Final = 12
"""Fields of old clients, which wrote no offset id before `success`."""


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
    """COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW; another client may write other names."""
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
