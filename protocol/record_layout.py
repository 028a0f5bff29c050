"""The layout of the commit log's record; `record.py` is the door to it.

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
Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../CommitLog.java,
common/.../message/MessageDecoder.java
"""

import struct
from enum import Enum
from typing import Final, NamedTuple

from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.protocol.host_address import IPV4_HOST_SIZE, IPV6_HOST_SIZE

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

PROPERTIES_SIZE: Final = struct.Struct(">h")

# The fields that recovery and dispatch need; the rest is passed over inside C.
VIEW_BY_HOSTS: Final = (
    struct.Struct(">iiii4xqqiq8xq8x4xqi"),
    struct.Struct(">iiii4xqqiq20xq8x4xqi"),
    struct.Struct(">iiii4xqqiq8xq20x4xqi"),
    struct.Struct(">iiii4xqqiq20xq20x4xqi"),
)
VIEW_IPV4: Final = VIEW_BY_HOSTS[0]
assert [layout.size for layout in VIEW_BY_HOSTS] == [layout.size for layout in FIXED_BY_HOSTS]

HOSTS_BITS: Final = HOSTS_MASK << HOSTS_SHIFT


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


def record_size(body_size: int, topic_size: int, properties_size: int, sys_flag: int) -> int:
    """Return the bytes of a record; only the host bits of `sys_flag` count."""
    layout = FIXED_BY_HOSTS[(sys_flag >> HOSTS_SHIFT) & HOSTS_MASK]
    return layout.size + body_size + topic_size + properties_size + LENGTHS_SIZE


_BODY_SIZE: Final = struct.Struct(">i")
_BODY_SIZE_POSITION: Final = FIXED_IPV4_SIZE - _BODY_SIZE.size
_SYS_FLAG_LOW_POSITION: Final = SYS_FLAG_POSITION + 3


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


_STORE_TIMESTAMP: Final = struct.Struct(">q")
_BORN_HOST_IPV6: Final = MessageSysFlag.BORNHOST_V6_FLAG


def store_timestamp_at(buffer: memoryview | bytes, position: int) -> int:
    """Return the store time, ms, of the record at a position; nothing else of it is looked at."""
    if buffer[position + _SYS_FLAG_LOW_POSITION] & _BORN_HOST_IPV6:
        position += STORE_TIMESTAMP_POSITION_IPV6
    else:
        position += STORE_TIMESTAMP_POSITION_IPV4
    timestamp: int = _STORE_TIMESTAMP.unpack_from(buffer, position)[0]
    return timestamp
