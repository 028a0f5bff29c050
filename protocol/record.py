"""The commit log's record, which is also a pulled message: its layout and its codec, once for all.

    position  size  field                      type
    0         4     total size                 int32 BE   the whole record, bytes
    4         4     magic                      int32 BE   0xDAA320A7
    8         4     body CRC                   int32 BE   `crc.body_crc` of the stored body
    12        4     queue id                   int32 BE
    16        4     flag                       int32 BE   the user's, untouched
    20        8     queue offset               int64 BE   the message's number in its queue
    28        8     physical offset            int64 BE   of this record's first byte in the log
    36        4     system flag                int32 BE   see `flags.MessageSysFlag`
    40        8     born timestamp             int64 BE   the producer's clock, ms
    48        8     born host                  address, port int32 BE; 20 bytes with bit 4
    56        8     store timestamp            int64 BE   the broker's clock, ms
    64        8     store host                 as the born host; 20 bytes with bit 5
    72        4     reconsume times            int32 BE
    76        8     prepared transaction off.  int64 BE   of the half message, else 0
    84        4     body size                  int32 BE
    88        b     body
    88+b      1     topic size                 int8       so at most 127
    89+b      t     topic                      UTF-8
    89+b+t    2     properties size            int16 BE   so at most 32,767
    91+b+t    p     properties                 see `properties.py`

Positions after the born host shift by 12 with each IPv6 host. Records follow each other without
padding. A file ends with a blank record: size of the rest of the file int32 BE, 0xCBD43194; the
bytes after these 8 mean nothing. Where neither was ever written the file holds zeros.

The store's appender packs `FIXED_IPV4` and its sisters itself and joins the parts of many records;
all others write with `encode_record`. `read_record` is for recovery and dispatch, which walk over
gigabytes and need no body; `decode_message` and `decode_messages` return whole messages.

A disk writes sectors of 512 bytes whole. After a crash each sector of what was not yet synced
holds either the new bytes or what was there before, in a new file zeros. So a record that does not
add up and has a sector of zeros was torn by a crash. One without such a sector was damaged, and
recovery must not take it for the end of the log in silence.
Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../CommitLog.java (checkMessageAndReturnSize),
common/.../message/MessageDecoder.java (decode)
"""

import struct
from enum import Enum
from typing import Final, NamedTuple

from skylarkmq.common.crc import body_crc
from skylarkmq.kernel import twin, twins
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import LocalProtocolError, RemoteProtocolError
from skylarkmq.protocol.flags import MAX_TOPIC_SIZE, MessageSysFlag
from skylarkmq.protocol.host_address import IPV4_HOST_SIZE, IPV6_HOST_SIZE, unpack_host
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.properties import (
    MAX_PROPERTIES_SIZE,
    TAGS_AND_SEPARATOR,
    decode_properties,
    find_property,
)

MESSAGE_MAGIC: Final = -626843481
BLANK_MAGIC: Final = -875286124
assert MESSAGE_MAGIC & 0xFFFFFFFF == 0xDAA320A7
assert BLANK_MAGIC & 0xFFFFFFFF == 0xCBD43194

HEAD: Final = struct.Struct(">ii")
MIN_BLANK_SIZE: Final = HEAD.size
"""Bytes that each append leaves free at a file's end for the blank record."""

FIXED_IPV4: Final = struct.Struct(">iiiiiqqiq8sq8siqi")
"""Fields 1-14 and the body size, both hosts IPv4: all that stands before the body."""
FIXED_BORN_IPV6: Final = struct.Struct(">iiiiiqqiq20sq8siqi")
FIXED_STORE_IPV6: Final = struct.Struct(">iiiiiqqiq8sq20siqi")
FIXED_IPV6: Final = struct.Struct(">iiiiiqqiq20sq20siqi")
FIXED_BY_HOSTS: Final = (FIXED_IPV4, FIXED_BORN_IPV6, FIXED_STORE_IPV6, FIXED_IPV6)
"""The layout by `(sys_flag >> HOSTS_SHIFT) & HOSTS_MASK`."""
HOSTS_SHIFT: Final = 4
HOSTS_MASK: Final = 3
HOSTS_BITS: Final = HOSTS_MASK << HOSTS_SHIFT
assert MessageSysFlag.BORNHOST_V6_FLAG == 1 << HOSTS_SHIFT
assert MessageSysFlag.STOREHOSTADDRESS_V6_FLAG == 2 << HOSTS_SHIFT

MAGIC_POSITION: Final = struct.calcsize(">i")
QUEUE_OFFSET_POSITION: Final = struct.calcsize(">iiiii")
PHYSICAL_OFFSET_POSITION: Final = struct.calcsize(">iiiiiq")
SYS_FLAG_POSITION: Final = struct.calcsize(">iiiiiqq")
BORN_TIMESTAMP_POSITION: Final = struct.calcsize(">iiiiiqqi")
BORN_HOST_POSITION: Final = struct.calcsize(">iiiiiqqiq")
STORE_TIMESTAMP_POSITION_IPV4: Final = BORN_HOST_POSITION + IPV4_HOST_SIZE
STORE_TIMESTAMP_POSITION_IPV6: Final = BORN_HOST_POSITION + IPV6_HOST_SIZE
assert (QUEUE_OFFSET_POSITION, PHYSICAL_OFFSET_POSITION, SYS_FLAG_POSITION) == (20, 28, 36)

FIXED_IPV4_SIZE: Final = FIXED_IPV4.size
LENGTHS_SIZE: Final = 3
"""The topic size byte and the properties size."""
MIN_RECORD_SIZE: Final = FIXED_IPV4_SIZE + LENGTHS_SIZE
assert (FIXED_IPV4_SIZE, MIN_RECORD_SIZE) == (88, 91)
assert FIXED_IPV6.size == FIXED_IPV4_SIZE + 2 * (IPV6_HOST_SIZE - IPV4_HOST_SIZE)

RecordParts = tuple[
    str, int, int, int, int, int, int, bytes, int, bytes, int, int, bytes, str, int, int
]
"""A record taken apart: the fields of `MessageExt` in their order, but the hosts still packed and
the properties still one text."""
TOPIC: Final = 0
QUEUE_ID: Final = 1
QUEUE_OFFSET: Final = 3
SYS_FLAG: Final = 5
RECONSUME_TIMES: Final = 10
BODY: Final = 12
PROPERTIES: Final = 13
SIZE: Final = 15

PROPERTIES_SIZE: Final = struct.Struct(">h")
PLACE: Final = struct.Struct(">i16xqq")
"""Total size, queue offset and physical offset of a record."""
assert PLACE.size == SYS_FLAG_POSITION

# The fields that recovery and dispatch need; the rest is passed over inside C.
VIEW_BY_HOSTS: Final = (
    struct.Struct(">iiii4xqqiq8xq8x4xqi"),
    struct.Struct(">iiii4xqqiq20xq8x4xqi"),
    struct.Struct(">iiii4xqqiq8xq20x4xqi"),
    struct.Struct(">iiii4xqqiq20xq20x4xqi"),
)
VIEW_IPV4: Final = VIEW_BY_HOSTS[0]
assert [layout.size for layout in VIEW_BY_HOSTS] == [layout.size for layout in FIXED_BY_HOSTS]
WALK_IPV4: Final = struct.Struct(">iiii4xqqi16xq20xi")
"""What tells whether a record without IPv6 hosts is sound; the rest is passed over."""
assert WALK_IPV4.size == FIXED_IPV4.size

_BODY_SIZE: Final = struct.Struct(">i")
_BODY_SIZE_POSITION: Final = FIXED_IPV4_SIZE - _BODY_SIZE.size
_SYS_FLAG_LOW_POSITION: Final = SYS_FLAG_POSITION + 3
_TIMESTAMP: Final = struct.Struct(">q")

SECTOR_SIZE: Final = 512
_MIN_FRONT_SIZE: Final = 4


class RecordStatus(Enum):
    """What stands at a position of the log.

    MESSAGE a sound record; BLANK the end of a file; UNWRITTEN zeros, where the writing stopped;
    TORN a record of which a part never reached the disk; CORRUPT anything else, which no crash
    explains.
    """

    MESSAGE = "message"
    BLANK = "blank"
    UNWRITTEN = "unwritten"
    TORN = "torn"
    CORRUPT = "corrupt"


class RecordView(NamedTuple):
    """What recovery and dispatch read of one record.

    `size` is the bytes to the next record: of a MESSAGE, of a BLANK the rest of its file; of a
    TORN or CORRUPT one what it claims when its lengths agree with each other, else 0. `why` is for
    the log. The other fields have a meaning for a MESSAGE only, and where a TORN or CORRUPT one
    has a size. `tags` is None without tags. `body_position` is a byte place within the buffer.
    """

    status: RecordStatus
    size: int
    why: str = ""
    queue_id: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    store_timestamp: int = 0
    prepared_transaction_offset: int = 0
    topic: bytes = b""
    tags: bytes | None = None
    properties: bytes = b""
    body_position: int = 0
    body_size: int = 0


_MESSAGE: Final = RecordStatus.MESSAGE
_UNWRITTEN: Final = RecordView(RecordStatus.UNWRITTEN, 0, "nothing was written here")
_make_view: Final = RecordView._make


def record_size(body_size: int, topic_size: int, properties_size: int, sys_flag: int) -> int:
    """Return the bytes of a record; only the host bits of `sys_flag` count."""
    layout = FIXED_BY_HOSTS[(sys_flag >> HOSTS_SHIFT) & HOSTS_MASK]
    return layout.size + body_size + topic_size + properties_size + LENGTHS_SIZE


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
        buffer: unsigned bytes; begins where a sector of the file does (see the head of this file).
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
    tags = find_property(properties, TAGS_AND_SEPARATOR)
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


@twin
def is_intact(
    buffer: memoryview | bytes,
    position: int,
    size: int,
    physical_offset: int,
    queue_offset: int,
    owner: tuple[int, bytes] | None,
) -> bool:
    """Return whether the record that a queue says is at `position` is there and sound.

    The checksum is checked too. For readers who hand the record out as it is; it takes a quarter of
    the time of `read_record`.

    Args:
        owner: queue id, and topic after its size byte, that the record and `queue_offset` must
            belong to; None for any.
    """
    if position < 0 or size < MIN_RECORD_SIZE or position + size > len(buffer):
        return False
    return size == _intact_size(buffer, position, len(buffer), physical_offset, queue_offset, owner)


def _intact_size(
    buffer: memoryview | bytes,
    position: int,
    end: int,
    physical_offset: int,
    queue_offset: int,
    owner: tuple[int, bytes] | None,
) -> int:
    """Return the size of a record that is sound and the one that is meant; 0 when it is not."""
    if end - position < MIN_RECORD_SIZE:
        return 0
    size, magic, crc, queue_id, at_queue, at_log, sys_flag, _, body_size = WALK_IPV4.unpack_from(
        buffer, position
    )
    start = position + FIXED_IPV4_SIZE
    hosts: int = sys_flag & HOSTS_BITS
    if hosts:
        start = position + FIXED_BY_HOSTS[hosts >> HOSTS_SHIFT].size
        if start > end:
            return 0
        (body_size,) = _BODY_SIZE.unpack_from(buffer, start - _BODY_SIZE.size)
    body_end = start + body_size
    if (
        magic != MESSAGE_MAGIC
        or at_log != physical_offset
        or not start <= body_end <= position + size - LENGTHS_SIZE <= end - LENGTHS_SIZE
    ):
        return 0
    if owner is not None:
        expected_id, topic = owner
        if (
            at_queue != queue_offset
            or queue_id != expected_id
            or buffer[body_end : body_end + len(topic)] != topic
        ):
            return 0
    return size if body_crc(buffer[start:body_end]) == crc else 0


@twin
def intact_count(
    buffer: memoryview | bytes,
    position: int,
    end: int,
    physical_offset: int,
    queue_offset: int,
    owner: tuple[int, bytes],
) -> int:
    """Return how many records fill a part of a buffer; -1 when one of them is not sound.

    Args:
        queue_offset: of the first; they are neighbours in their queue, too.
        owner: as for `is_intact`.
    """
    count = 0
    if position < 0 or end > len(buffer):
        return -1
    while position < end:
        size = _intact_size(buffer, position, end, physical_offset, queue_offset + count, owner)
        if not size:
            return -1
        position += size
        physical_offset += size
        count += 1
    return count


def store_timestamp_at(buffer: memoryview | bytes, position: int) -> int:
    """Return the store time, ms, of the record at a position."""
    if buffer[position + _SYS_FLAG_LOW_POSITION] & MessageSysFlag.BORNHOST_V6_FLAG:
        position += STORE_TIMESTAMP_POSITION_IPV6
    else:
        position += STORE_TIMESTAMP_POSITION_IPV4
    timestamp: int = _TIMESTAMP.unpack_from(buffer, position)[0]
    return timestamp


def record_properties(buffer: memoryview | bytes, position: int, size: int) -> bytes | None:
    """Return the encoded properties of the record at a position; nothing else of it is looked at.

    None when the lengths inside do not add up to `size`, or the buffer ends before.
    """
    end = position + size
    if position < 0 or size < MIN_RECORD_SIZE or end > len(buffer):
        return None
    at = position + _BODY_SIZE_POSITION
    hosts = buffer[position + _SYS_FLAG_LOW_POSITION] & HOSTS_BITS
    if hosts:
        at = position + FIXED_BY_HOSTS[hosts >> HOSTS_SHIFT].size - _BODY_SIZE.size
        if at + _BODY_SIZE.size > end:
            return None
    body_size: int = _BODY_SIZE.unpack_from(buffer, at)[0]
    at += _BODY_SIZE.size + body_size
    if body_size < 0 or at + LENGTHS_SIZE > end:
        return None
    at += 1 + buffer[at]
    start = at + PROPERTIES_SIZE.size
    if start > end or PROPERTIES_SIZE.unpack_from(buffer, at)[0] != end - start:
        return None
    return bytes(buffer[start:end])


def decode_message(
    buffer: memoryview | bytes, position: int = 0, *, check_crc: bool = True
) -> MessageExt:
    """Return the record at `position` as a message; its body stays as stored, compressed or not.

    Raises:
        RemoteProtocolError: there is no whole, sound record.
    """
    return message_of(_taken_apart(buffer, position, check_crc))


def decode_messages(body: bytes, *, check_crc: bool = True) -> list[MessageExt]:
    """Return the messages of a pull answer's body, which holds records back to back.

    Unlike RocketMQ, whose client passes over the rest of a body at the first bad record and so
    loses messages in silence: ours refuses the body.

    Raises:
        RemoteProtocolError: a record is cut or damaged.
    """
    return [message_of(parts) for parts in split_records(body, check_crc=check_crc)]


def split_records(body: bytes, *, check_crc: bool = True) -> list[RecordParts]:
    """Do as `decode_messages`, for those who may not need all of each message."""
    taken = take_apart(body, check_crc)
    # What the kernel leaves alone is rare, or refused.
    return twins["take_apart"](body, check_crc) if taken is None else taken


@twin
def take_apart(body: bytes, check_crc: bool) -> list[RecordParts] | None:
    parts: list[RecordParts] = []
    position = 0
    while position < len(body):
        parts.append(_taken_apart(body, position, check_crc))
        position += parts[-1][-1]
    return parts


def message_of(parts: RecordParts) -> MessageExt:
    """Return the message of a record that was taken apart."""
    # By position: by name it costs twice as much.
    return MessageExt(
        parts[0],
        parts[1],
        parts[2],
        parts[3],
        parts[4],
        parts[5],
        parts[6],
        unpack_host(parts[7]),
        parts[8],
        unpack_host(parts[9]),
        parts[10],
        parts[11],
        parts[12],
        decode_properties(parts[13]),
        parts[14],
        parts[15],
    )


def _taken_apart(buffer: memoryview | bytes, position: int, check_crc: bool) -> RecordParts:
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
    tail = _split_tail(bytes(buffer[tail_position : position + size]))
    if tail is None:
        raise _undecodable(position, "topic and properties do not add up")
    body = bytes(buffer[body_position:tail_position])
    if check_crc and body_crc(body) != crc:
        raise _undecodable(position, "the body's checksum is wrong")
    topic, properties = tail
    text = properties.decode("utf-8", "replace")
    return (topic.decode("utf-8", "replace"), *fields[3:14], body, text, crc, size)


def _split_tail(tail: bytes) -> tuple[bytes, bytes] | None:
    """Return topic and properties of the bytes after a body, None when they do not add up.

    `tail` has at least the two lengths.
    """
    topic_size = tail[0]
    properties = tail[topic_size + LENGTHS_SIZE :]
    if topic_size > MAX_TOPIC_SIZE or topic_size + LENGTHS_SIZE > len(tail):
        return None
    if tail[topic_size + 1] << 8 | tail[topic_size + 2] != len(properties):
        return None
    return tail[1 : topic_size + 1], properties


def _undecodable(position: int, why: str) -> RemoteProtocolError:
    remark = f"the record at byte {position} cannot be decoded: {why}"
    return RemoteProtocolError(ResponseCode.SYSTEM_ERROR, remark)


# What stands where no sound record does. `read_record` calls these when its quick way failed.


def read_no_message(buffer: memoryview | bytes, position: int, end: int) -> RecordView:
    """Return what stands at `position` when no whole message can: its head says what it is."""
    remaining = end - position
    if remaining < HEAD.size:
        if not any(bytes(buffer[position:end])):
            return _UNWRITTEN
        return RecordView(RecordStatus.TORN, 0, f"only {remaining} bytes are left")
    size, magic = HEAD.unpack_from(buffer, position)
    if magic == MESSAGE_MAGIC:
        return _read_long_message(buffer, position, end, size)
    if magic == BLANK_MAGIC and size >= MIN_BLANK_SIZE:
        if size <= remaining:
            return RecordView(RecordStatus.BLANK, size)
        return RecordView(
            RecordStatus.TORN, size, f"a blank of {size} bytes, but {remaining} are left"
        )
    if magic == 0 and size == 0:
        return _UNWRITTEN
    why = f"no record has magic {magic & 0xFFFFFFFF:#010x} and size {size}"
    return _fault(has_lost_sector(buffer, position, position + HEAD.size, end), why)


def failed_message(
    buffer: memoryview | bytes,
    position: int,
    end: int,
    why: str,
    view: RecordView | None = None,
) -> RecordView:
    """Return the fault of a record that has a message's magic and does not add up.

    Args:
        view: what was read of it, where its sizes agree.
    """
    size, _ = HEAD.unpack_from(buffer, position)
    stop = min(position + max(size, MIN_RECORD_SIZE), end)
    return _fault(has_lost_sector(buffer, position, stop, end), why, view)


def misplaced_message(
    buffer: memoryview | bytes, position: int, end: int, expected: int, view: RecordView
) -> RecordView:
    """Return the fault of a record that names another place: a leftover, or its head is torn."""
    why = f"it says physical offset {view.physical_offset}, but lies at {expected}"
    return _fault(has_lost_sector(buffer, position, position + FIXED_IPV4_SIZE, end), why, view)


def suspicious_message(
    buffer: memoryview | bytes, tail_position: int, stop: int, end: int, view: RecordView
) -> RecordView:
    """Return the fault of a record with zeros in its topic or properties, or else the record.

    The body's checksum does not cover them, and their lengths stand before them: without the
    sectors that hold the rest of it such a record looks whole. The broker takes no zeros in
    properties, so the record was torn when a sector of it is all zeros, or when it ends in zeros
    and nothing follows: a short write may stop at any byte.
    """
    following = bytes(buffer[stop - 1 : min(stop - stop % -SECTOR_SIZE, end)])
    if has_lost_sector(buffer, tail_position, stop, end) or not any(following):
        return _fault(True, "topic or properties did not reach the disk", view)
    return view


def has_lost_sector(buffer: memoryview | bytes, start: int, stop: int, end: int) -> bool:
    """Return whether a sector under [start, stop) never reached the disk: it is all zeros.

    Of the first one only the bytes from `start` on count, because earlier records share it; fewer
    than 4 of them say nothing, for they may well be the zeros of a size. The last one is looked at
    whole, up to `end`, because later records share its fate.
    """
    boundary = start - start % SECTOR_SIZE + SECTOR_SIZE
    front = bytes(buffer[start : min(boundary, end)])
    if len(front) >= _MIN_FRONT_SIZE and not any(front):
        return True
    for sector in range(boundary, stop, SECTOR_SIZE):
        held = bytes(buffer[sector : min(sector + SECTOR_SIZE, end)])
        if held == bytes(len(held)):
            return True
    return False


def _read_long_message(
    buffer: memoryview | bytes, position: int, end: int, size: int
) -> RecordView:
    """Return the fault of a message that ends after `end`, or is shorter than any message."""
    remaining = end - position
    if size <= remaining:
        return failed_message(buffer, position, end, "the record is shorter than its fixed fields")
    if size < MIN_RECORD_SIZE or _contradicts_itself(buffer, position, end, size):
        return failed_message(
            buffer, position, end, f"the record claims {size} bytes, its parts have another sum"
        )
    why = f"the record has {size} bytes, but {remaining} are left"
    return RecordView(RecordStatus.TORN, size, why)


def _contradicts_itself(buffer: memoryview | bytes, position: int, end: int, size: int) -> bool:
    """Return whether the inner lengths, as far as one sees, forbid a record of `size` bytes."""
    if end - position < FIXED_IPV4_SIZE:
        return False
    sys_flag = buffer[position + SYS_FLAG_POSITION + 3]
    layout = VIEW_BY_HOSTS[(sys_flag >> HOSTS_SHIFT) & HOSTS_MASK]
    if end - position < layout.size:
        return False
    body_size: int = layout.unpack_from(buffer, position)[-1]
    rest_size = size - layout.size - body_size - LENGTHS_SIZE
    if body_size < 0 or rest_size < 0:
        return True
    topic_position = position + layout.size + body_size
    if topic_position >= end:
        return False
    topic_size = buffer[topic_position]
    if topic_size > rest_size:
        return True
    properties_position = topic_position + topic_size + LENGTHS_SIZE
    if properties_position > end:
        return False
    high, low = buffer[properties_position - 2], buffer[properties_position - 1]
    return (high << 8 | low) != rest_size - topic_size


def _fault(torn: bool, why: str, view: RecordView | None = None) -> RecordView:
    status = RecordStatus.TORN if torn else RecordStatus.CORRUPT
    if view is None:
        return RecordView(status, 0, why)
    return view._replace(status=status, why=why)
