"""What 5.x's remoting clients and brokers say to each other of pop consumption: texts, records.

    checkpoint    startOffset popTime invisibleTime reviveQueueId retry broker queueId queueOffset
                  the handle of one delivery; a client makes it of the answer to 200050
    start info    retry queueId startOffset;...       where each queue of an answer begins
    offset info   retry queueId offset,offset;...     which offsets of each queue it has
    count info    retry queueId count;...             how often an ordered queue came again,
                  retry qo<queueId>%<offset> count    or one message of it

`retry` is 0 for the topic, 1 for its retry topic `%RETRY%<group>_<topic>`, 2 for the newer name
`%RETRY%<group>+<topic>`. The parts are separated by one blank.

Source: apache/rocketmq@rocketmq-all-5.3.3 remoting/.../protocol/header/ExtraInfoUtil.java,
common/.../KeyBuilder.java
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError, shown
from skylarkmq.protocol.flags import RETRY_GROUP_TOPIC_PREFIX, is_retry_topic
from skylarkmq.protocol.headers.fields import java_int, java_long
from skylarkmq.protocol.record import (
    FIXED_BY_HOSTS,
    HOSTS_MASK,
    HOSTS_SHIFT,
    SYS_FLAG_POSITION,
)

POP_CK: Final = "POP_CK"
"""The property in which a broker may send the checkpoint itself."""
ORDERED_QUEUE: Final = 999
"""The revive queue id that says: an ordered batch."""
NORMAL: Final = "0"
RETRY: Final = "1"
RETRY_V2: Final = "2"
BITS_MAX: Final = 1 << 15
"""How far apart the messages of one batch may lie; RocketMQ's clients send 32 at once."""

_INT: Final = struct.Struct(">i")
_QUEUE_ID_AT: Final = struct.calcsize(">iii")
_AFTER_TIMES: Final = struct.calcsize(">iqi")
"""Of a record's fixed part: the reconsume times, the transaction's offset, the body's size."""
_PARTS: Final = 8
_QUEUE_OFFSET: Final = "qo"

OffsetKey = tuple[str, int]  # retry, queue id


class Checkpoint(NamedTuple):
    """One delivery, as its client names it."""

    start_offset: int
    pop_time: int
    invisible_ms: int
    revive_queue_id: int
    retry: str
    broker_name: str
    queue_id: int
    queue_offset: int

    @property
    def text(self) -> str:
        """As it goes over the wire."""
        return " ".join(map(str, self))

    @property
    def is_ordered(self) -> bool:
        """It is part of an ordered batch."""
        return self.revive_queue_id == ORDERED_QUEUE


def parse_checkpoint(text: str) -> Checkpoint:
    """Return what a handle says; parts beyond the eighth are passed over.

    Raises:
        RemoteProtocolError: it is none.
    """
    parts = text.split(" ", _PARTS)
    if len(parts) < _PARTS:
        raise _unreadable("extraInfo", text)
    start, popped, invisible, revive, retry, broker, queue, offset = parts[:_PARTS]
    if retry not in (NORMAL, RETRY, RETRY_V2):
        raise _unreadable("extraInfo", text)
    return Checkpoint(
        java_long(start, "extraInfo.startOffset"),
        java_long(popped, "extraInfo.popTime"),
        java_long(invisible, "extraInfo.invisibleTime"),
        java_int(revive, "extraInfo.reviveQueueId"),
        retry,
        broker,
        java_int(queue, "extraInfo.queueId"),
        java_long(offset, "extraInfo.queueOffset"),
    )


def start_offset_info(starts: Mapping[OffsetKey, int]) -> str:
    """Return the text that says where each queue begins."""
    return ";".join(f"{retry} {queue} {start}" for (retry, queue), start in starts.items())


def msg_offset_info(offsets: Mapping[OffsetKey, Iterable[int]]) -> str:
    """Return the text that says which offsets of each queue there are."""
    return ";".join(
        f"{retry} {queue} {','.join(map(str, those))}" for (retry, queue), those in offsets.items()
    )


def order_count_info(counts: Mapping[OffsetKey, Mapping[int, int]]) -> str:
    """Return the text that says how often each message came before; by queue, then by offset.

    Clients that know no offsets in it read the queue's number, which is that of its first message.
    """
    parts: list[str] = []
    for (retry, queue), by_offset in counts.items():
        parts += [
            f"{retry} {_QUEUE_OFFSET}{queue}%{offset} {count}"
            for offset, count in by_offset.items()
        ]
        parts.append(f"{retry} {queue} {next(iter(by_offset.values()), 0)}")
    return ";".join(parts)


def parse_start_offset_info(text: str) -> dict[OffsetKey, int]:
    """Return where each queue begins.

    Raises:
        RemoteProtocolError: the text cannot be read.
    """
    return {
        (retry, java_int(queue, "queueId")): java_long(start, "startOffset")
        for retry, queue, start in _triples(text, "startOffsetInfo")
    }


def parse_msg_offset_info(text: str) -> dict[OffsetKey, list[int]]:
    """Return which offsets of each queue there are.

    Raises:
        RemoteProtocolError: the text cannot be read.
    """
    return {
        (retry, java_int(queue, "queueId")): [
            java_long(each, "msgOffset") for each in offsets.split(",")
        ]
        for retry, queue, offsets in _triples(text, "msgOffsetInfo")
    }


def parse_order_count_info(text: str) -> dict[tuple[str, str], int]:
    """Return how often messages came before: by retry, and `<queue>` or `qo<queue>%<offset>`.

    Raises:
        RemoteProtocolError: the text cannot be read.
    """
    return {
        (retry, key): java_int(count, "orderCount")
        for retry, key, count in _triples(text, "orderCountInfo")
    }


def order_count_of(counts: Mapping[tuple[str, str], int], key: OffsetKey, offset: int) -> int:
    """Return how often the message at an offset came before."""
    retry, queue = key
    exact = counts.get((retry, f"{_QUEUE_OFFSET}{queue}%{offset}"))
    return counts.get((retry, str(queue)), 0) if exact is None else exact


def retry_mark(topic: str) -> str:
    """Return the mark of the topic that a record names."""
    if not is_retry_topic(topic):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY


def topic_of_delivery(topic: str, group: str, retry: str) -> str:
    """Return the topic that a request about a delivery names.

    Args:
        topic: the one that the messages were asked for by.
        retry: of the checkpoint.
    """
    if retry == NORMAL:
        return topic
    separator = "_" if retry == RETRY else "+"
    return f"{RETRY_GROUP_TOPIC_PREFIX}{group}{separator}{topic}"


def asked_topic(topic: str, group: str) -> str:
    """Return the topic that the messages of a topic of retries were asked for by, else the same."""
    found = topic.removeprefix(f"{RETRY_GROUP_TOPIC_PREFIX}{group}")
    return found[1:] if found != topic and found[:1] in ("_", "+") else topic


def delivered(
    record: bytes | memoryview, queue_id: int, reconsume_times: int
) -> bytes | memoryview:
    """Return a stored record as a client is to see it; the same where it says that already."""
    flags: int = _INT.unpack_from(record, SYS_FLAG_POSITION)[0]
    times_at = FIXED_BY_HOSTS[flags >> HOSTS_SHIFT & HOSTS_MASK].size - _AFTER_TIMES
    is_same = _INT.unpack_from(record, times_at)[0] == reconsume_times
    if is_same and _INT.unpack_from(record, _QUEUE_ID_AT)[0] == queue_id:
        return record
    changed = bytearray(record)
    _INT.pack_into(changed, _QUEUE_ID_AT, queue_id)
    _INT.pack_into(changed, times_at, reconsume_times)
    return bytes(changed)


def offsets_of(bits: bytes, start: int) -> list[int]:
    """Return the offsets of a bit set that begins at `start`.

    Raises:
        RemoteProtocolError: it is longer than BITS_MAX.
    """
    if len(bits) * 8 > BITS_MAX:
        why = f"the bit set has {len(bits)} bytes, at most {BITS_MAX // 8} are read"
        raise RemoteProtocolError(ResponseCode.SYSTEM_ERROR, why)
    return [
        start + 8 * index + bit
        for index, byte in enumerate(bits)
        for bit in range(8)
        if byte >> bit & 1
    ]


def _triples(text: str, name: str) -> list[tuple[str, str, str]]:
    triples: list[tuple[str, str, str]] = []
    for part in text.split(";") if text else ():
        parts = part.split(" ")
        if len(parts) != 3:
            raise _unreadable(name, text)
        triples.append((parts[0], parts[1], parts[2]))
    return triples


def _unreadable(name: str, text: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        ResponseCode.SYSTEM_ERROR, f"the field {name} cannot be read: {shown(text)}"
    )
