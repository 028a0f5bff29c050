"""The codec of the commit log's record, which is also a pulled message; for everybody, once.

The byte table stands in `record_layout.py`, whose names are given on here. The store's appender
packs `FIXED_IPV4` and its sisters itself and joins the parts of many records; all others write
with `encode_record`. `read_record` is for recovery and dispatch, which walk over gigabytes and
need no body; `decode_message` and `decode_messages` are for whoever wants the message.
Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../CommitLog.java (checkMessageAndReturnSize),
common/.../message/MessageDecoder.java (decode)
"""

import struct
from typing import Any, Final

from skylarkmq.common.crc import body_crc
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import LocalProtocolError, RemoteProtocolError
from skylarkmq.protocol.flags import MAX_TOPIC_SIZE
from skylarkmq.protocol.host_address import IPV4_HOST_SIZE, IPV6_HOST_SIZE, unpack_host
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.properties import (
    MAX_PROPERTIES_SIZE,
    TAGS,
    decode_properties,
    find_property,
)
from skylarkmq.protocol.record_faults import (
    failed_message,
    misplaced_message,
    read_no_message,
    suspicious_message,
)
from skylarkmq.protocol.record_layout import (
    BLANK_MAGIC,
    BORN_HOST_POSITION,
    BORN_TIMESTAMP_POSITION,
    FIXED_BORN_IPV6,
    FIXED_BY_HOSTS,
    FIXED_IPV4,
    FIXED_IPV4_SIZE,
    FIXED_IPV6,
    FIXED_STORE_IPV6,
    HEAD,
    HOSTS_BITS,
    HOSTS_MASK,
    HOSTS_SHIFT,
    LENGTHS_SIZE,
    MAGIC_POSITION,
    MESSAGE_MAGIC,
    MIN_BLANK_SIZE,
    MIN_RECORD_SIZE,
    PHYSICAL_OFFSET_POSITION,
    PROPERTIES_SIZE,
    QUEUE_OFFSET_POSITION,
    STORE_TIMESTAMP_POSITION_IPV4,
    STORE_TIMESTAMP_POSITION_IPV6,
    SYS_FLAG_POSITION,
    VIEW_BY_HOSTS,
    VIEW_IPV4,
    RecordStatus,
    RecordView,
    record_properties,
    record_size,
)

__all__ = [
    "BLANK_MAGIC",
    "BORN_HOST_POSITION",
    "BORN_TIMESTAMP_POSITION",
    "FIXED_BORN_IPV6",
    "FIXED_BY_HOSTS",
    "FIXED_IPV4",
    "FIXED_IPV4_SIZE",
    "FIXED_IPV6",
    "FIXED_STORE_IPV6",
    "HOSTS_MASK",
    "HOSTS_SHIFT",
    "LENGTHS_SIZE",
    "MAGIC_POSITION",
    "MESSAGE_MAGIC",
    "MIN_BLANK_SIZE",
    "MIN_RECORD_SIZE",
    "PHYSICAL_OFFSET_POSITION",
    "PROPERTIES_SIZE",
    "QUEUE_OFFSET_POSITION",
    "STORE_TIMESTAMP_POSITION_IPV4",
    "STORE_TIMESTAMP_POSITION_IPV6",
    "SYS_FLAG_POSITION",
    "RecordStatus",
    "RecordView",
    "decode_message",
    "decode_messages",
    "encode_blank",
    "encode_record",
    "is_intact",
    "read_record",
    "record_properties",
    "record_size",
]

_MESSAGE: Final = RecordStatus.MESSAGE
_TAGS_AND_SEPARATOR: Final = TAGS.encode() + b"\x01"
_make_view: Final = RecordView._make


def encode_record(
    *,
    queue_id: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
    body: bytes,
    topic: bytes,
    properties: bytes,
) -> bytes:
    """Return one record. The hosts are packed and must have the sizes that `sys_flag` says.

    Raises:
        LocalProtocolError: a part does not fit into its field.
    """
    _check_parts(sys_flag, born_host, store_host, topic, properties)
    try:
        fixed = FIXED_BY_HOSTS[(sys_flag >> HOSTS_SHIFT) & HOSTS_MASK].pack(
            record_size(len(body), len(topic), len(properties), sys_flag),
            MESSAGE_MAGIC,
            body_crc(body),
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            len(body),
        )
    except struct.error as error:
        raise LocalProtocolError(f"a number does not fit into its field: {error}") from error
    topic_size = len(topic).to_bytes(1, "big")
    properties_size = PROPERTIES_SIZE.pack(len(properties))
    return b"".join((fixed, body, topic_size, topic, properties_size, properties))


def encode_blank(size: int) -> bytes:
    """Return the 8 bytes that declare a file's last `size` bytes blank, themselves included."""
    if size < MIN_BLANK_SIZE:
        raise LocalProtocolError(f"a blank record has at least {MIN_BLANK_SIZE} bytes, not {size}")
    return HEAD.pack(size, BLANK_MAGIC)


def read_record(
    buffer: memoryview | bytes,
    position: int,
    *,
    limit: int | None = None,
    check_crc: bool = True,
    physical_offset: int | None = None,
) -> RecordView:
    """Return what stands at `position` of a log file. Never raises for what the bytes hold.

    Args:
        buffer: unsigned bytes; begins where a sector of the file does (see `record_faults`).
        position: byte place within `buffer`, not negative.
        limit: the place in `buffer` where the readable bytes end; its own end when None.
        physical_offset: what the record must say of itself; a leftover of an older file says
            another.
    """
    end = len(buffer)
    if limit is not None and limit < end:
        end = limit
    if end - position < FIXED_IPV4_SIZE:
        return read_no_message(buffer, position, end)
    fields = VIEW_IPV4.unpack_from(buffer, position)
    size: int = fields[0]
    if fields[1] != MESSAGE_MAGIC or size > end - position:
        return read_no_message(buffer, position, end)
    body_position = position + FIXED_IPV4_SIZE
    sys_flag: int = fields[6]
    if sys_flag & HOSTS_BITS:
        layout = VIEW_BY_HOSTS[(sys_flag >> HOSTS_SHIFT) & HOSTS_MASK]
        body_position = position + layout.size
        if layout.size > size:
            return failed_message(buffer, position, end, "the record is shorter than its fields")
        fields = layout.unpack_from(buffer, position)
    body_size: int = fields[10]
    tail_position = body_position + body_size
    if body_size < 0 or position + size - tail_position < LENGTHS_SIZE:
        return failed_message(buffer, position, end, "the body is larger than the record")
    parts = _split_tail(bytes(buffer[tail_position : position + size]))
    if parts is None:
        return failed_message(buffer, position, end, "topic and properties do not add up")
    topic, properties = parts
    tags = find_property(properties, _TAGS_AND_SEPARATOR)
    view = _make_view(
        (_MESSAGE, size, "", *fields[3:10], topic, tags, properties, body_position, body_size)
    )
    if physical_offset is not None and view.physical_offset != physical_offset:
        return misplaced_message(buffer, position, end, physical_offset, view)
    if check_crc:
        if body_crc(buffer[body_position:tail_position]) != fields[2]:
            return failed_message(buffer, position, end, "the body's checksum is wrong", view)
        if properties.find(0) >= 0 or topic.find(0) >= 0:
            return suspicious_message(buffer, tail_position, position + size, end, view)
    return view


def is_intact(
    buffer: memoryview | bytes,
    position: int,
    size: int,
    physical_offset: int,
    queue_offset: int,
    owner: tuple[int, bytes] | None,
) -> bool:
    """Whether the record that a queue says is at `position` is there, its checksum included.

    For readers who hand it out as it is: a quarter of the time of `read_record`.

    Args:
        owner: queue id, and topic behind its size byte, that the record and `queue_offset` must
            belong to; None for any.
    """
    if position < 0 or size < MIN_RECORD_SIZE or position + size > len(buffer):
        return False
    fields = VIEW_IPV4.unpack_from(buffer, position)
    body_position = position + FIXED_IPV4_SIZE
    hosts: int = fields[6] & HOSTS_BITS
    if hosts:
        layout = VIEW_BY_HOSTS[hosts >> HOSTS_SHIFT]
        if layout.size > size:
            return False
        fields = layout.unpack_from(buffer, position)
        body_position = position + layout.size
    body_end = body_position + fields[10]
    return bool(
        fields[0] == size
        and fields[1] == MESSAGE_MAGIC
        and fields[5] == physical_offset
        and body_position <= body_end <= position + size - LENGTHS_SIZE
        and (
            owner is None
            or (
                (fields[4] == queue_offset and fields[3] == owner[0])
                and buffer[body_end : body_end + len(owner[1])] == owner[1]
            )
        )
        and body_crc(buffer[body_position:body_end]) == fields[2]
    )


def decode_message(
    buffer: memoryview | bytes, position: int = 0, *, check_crc: bool = True
) -> MessageExt:
    """Return the record at `position` as a message; its body stays as stored, compressed or not.

    Raises:
        RemoteProtocolError: there is no whole, sound record.
    """
    remaining = len(buffer) - position
    if position < 0 or remaining < FIXED_IPV4_SIZE:
        raise _undecodable(position, "fewer bytes are left than its fixed fields have")
    layout = FIXED_IPV4
    hosts = (buffer[position + SYS_FLAG_POSITION + 3] >> HOSTS_SHIFT) & HOSTS_MASK
    if hosts:
        layout = FIXED_BY_HOSTS[hosts]
        if remaining < layout.size:
            raise _undecodable(position, "fewer bytes are left than its fixed fields have")
    fields = layout.unpack_from(buffer, position)
    size: int = fields[0]
    magic: int = fields[1]
    crc: int = fields[2]
    body_size: int = fields[14]
    if magic != MESSAGE_MAGIC:
        raise _undecodable(position, f"its magic is {magic & 0xFFFFFFFF:#010x}")
    if size > remaining:
        raise _undecodable(position, f"it has {size} bytes, but {remaining} are left")
    body_position = position + layout.size
    tail_position = body_position + body_size
    if body_size < 0 or position + size - tail_position < LENGTHS_SIZE:
        raise _undecodable(position, "the body is larger than the record")
    parts = _split_tail(bytes(buffer[tail_position : position + size]))
    if parts is None:
        raise _undecodable(position, "topic and properties do not add up")
    body = bytes(buffer[body_position:tail_position])
    if check_crc and body_crc(body) != crc:
        raise _undecodable(position, "the body's checksum is wrong")
    properties = decode_properties(parts[1].decode("utf-8", "replace"))
    return _message(fields, parts[0].decode("utf-8", "replace"), body, properties)


def decode_messages(body: bytes, *, check_crc: bool = True) -> list[MessageExt]:
    """Return the messages of a pull answer's body, which holds records back to back.

    Unlike RocketMQ, whose client passes over the rest of a body at the first bad record and so
    loses messages in silence: ours refuses the body.

    Raises:
        RemoteProtocolError: a record is cut or damaged.
    """
    messages: list[MessageExt] = []
    position = 0
    while position < len(body):
        message = decode_message(body, position, check_crc=check_crc)
        messages.append(message)
        position += message.store_size
    return messages


def _message(
    fields: tuple[Any, ...], topic: str, body: bytes, properties: dict[str, str]
) -> MessageExt:
    """Return the message of a record's fixed fields, in their order, and its three parts.

    By position, in the order of MessageExt's own fields: by name it costs twice as much.
    """
    return MessageExt(
        topic,
        fields[3],
        fields[4],
        fields[5],
        fields[6],
        fields[7],
        fields[8],
        unpack_host(fields[9]),
        fields[10],
        unpack_host(fields[11]),
        fields[12],
        fields[13],
        body,
        properties,
        fields[2],
        fields[0],
    )


def _split_tail(tail: bytes) -> tuple[bytes, bytes] | None:
    """Return topic and properties of the bytes behind a body, None when they do not add up.

    `tail` has at least the two lengths.
    """
    topic_size = tail[0]
    properties = tail[topic_size + LENGTHS_SIZE :]
    if topic_size > MAX_TOPIC_SIZE or topic_size + LENGTHS_SIZE > len(tail):
        return None
    if tail[topic_size + 1] << 8 | tail[topic_size + 2] != len(properties):
        return None
    return tail[1 : topic_size + 1], properties


def _check_parts(
    sys_flag: int, born_host: bytes, store_host: bytes, topic: bytes, properties: bytes
) -> None:
    hosts = (sys_flag >> HOSTS_SHIFT) & HOSTS_MASK
    born_size = IPV6_HOST_SIZE if hosts & 1 else IPV4_HOST_SIZE
    store_size = IPV6_HOST_SIZE if hosts & 2 else IPV4_HOST_SIZE
    if (len(born_host), len(store_host)) != (born_size, store_size):
        raise LocalProtocolError("the hosts do not have the sizes that the system flag says")
    if len(topic) > MAX_TOPIC_SIZE:
        raise LocalProtocolError(f"a topic of {len(topic)} bytes does not fit into a record")
    if len(properties) > MAX_PROPERTIES_SIZE:
        raise LocalProtocolError(f"properties of {len(properties)} bytes do not fit into a record")


def _undecodable(position: int, why: str) -> RemoteProtocolError:
    remark = f"the record at byte {position} cannot be decoded: {why}"
    return RemoteProtocolError(ResponseCode.SYSTEM_ERROR, remark)
