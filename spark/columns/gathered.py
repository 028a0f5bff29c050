# pyright: reportUnknownMemberType=false
"""Records into the rows of a batch, in one pass over their bytes.

A row's parts go to where columns are made of them, `columns/record_columns.py`:

    record       fixed part | body | topic | properties
    heads        fixed parts back to back, in the layout of two IPv4 hosts
    bodies       back to back; `body_ends` has the offsets, both in Arrow's layout
    topics       names
    properties   encoded texts

`gather` takes plain records, compiled where the kernel is there. It stops at any other: one that
is damaged or compressed, of a topic that is not known yet, or larger than the room. The readers,
`spark/batches.py` and `spark/log/log_batches.py`, take such a record apart by `record_at` and
decide what it means.
Pure; in executors, one thread.
Source: apache/arrow docs/source/format/Columnar.rst (buffer layouts)
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from zlib import crc32

import pyarrow as pa

from skylarkmq.common.crc import BODY_CRC_MASK
from skylarkmq.kernel import twin
from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.protocol.properties import TAGS_AND_SEPARATOR, find_property
from skylarkmq.protocol.record import (
    BORN_HOST_POSITION,
    FIXED_BY_HOSTS,
    FIXED_IPV4_SIZE,
    HOSTS_BITS,
    HOSTS_MASK,
    HOSTS_SHIFT,
    LENGTHS_SIZE,
    MESSAGE_MAGIC,
    MIN_RECORD_SIZE,
)

LongHosts = dict[int, tuple[bytes, bytes]]
"""Packed born and store host by row."""
Topics = dict[bytes, str | None]
"""Names by what stands in a record, the size byte included; None: not asked for."""

ROWS_FIRST: Final = 2048
BODIES_FIRST: Final = 4 * 1024 * 1024
"""What a batch has room for at first, when more is allowed."""
UNKNOWN: Final = "\0"
"""Stands for bytes that are not a topic, or not a known one."""
COMPRESSED: Final = int(MessageSysFlag.COMPRESSED_FLAG)
# Size, magic, CRC, physical offset, system flag, body size; see `protocol/record.py`.
_WALK: Final = struct.Struct(">iii16xqi44xi")
# Size, magic, CRC, queue offset, physical offset, system flag, store timestamp, body size.
_RECORD: Final = struct.Struct(">iii8xqqi16xq20xi")
assert _WALK.size == _RECORD.size == FIXED_IPV4_SIZE
_fields: Final[Callable[[bytes, int], tuple[int, ...]]] = _WALK.unpack_from
_BODY_SIZE: Final = struct.Struct(">i")
_number_at: Final = struct.Struct(">q").unpack_from
_END: Final = struct.Struct("=i")  # one of the body column's offsets
_END_SIZE: Final = _END.size
_put_end: Final = _END.pack_into
_TIME_SIZE: Final = 8
_NO_HOST: Final = bytes(8)


class Wanted(NamedTuple):
    """What is gathered of records, and how much of it makes a batch.

    Attributes:
        check_crc: bodies must have their checksum.
        bounded_at: where in a fixed part the number of 8 bytes stands that a range is given of.
        size_max: bytes of a batch's records; a larger one makes a batch alone.
        tags: when given, records with any other tag are left out, and those without one.
    """

    with_body: bool
    with_properties: bool
    check_crc: bool
    bounded_at: int
    rows_max: int
    size_max: int
    topics: Topics
    tags: frozenset[bytes] | None = None


class UnsoundRecordError(ValueError):
    """The bytes are no record; the text says why."""


class Record(NamedTuple):
    """A record whose lengths add up, in slices.

    Attributes:
        size: bytes up to the next one.
        head: its fixed part in the layout of two IPv4 hosts.
        long_hosts: packed born and store host when one is IPv6; in the head stand zeros then.
        topic: as it stands there, its size byte first.
        body: as stored.
        properties: the encoded text.
    """

    size: int
    crc: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    store_timestamp: int
    head: bytes
    long_hosts: tuple[bytes, bytes] | None
    topic: bytes
    body: memoryview
    properties: bytes


class Gathered:
    """The rows of a batch that grows.

    Attributes:
        count: how many rows there are.
        size: bytes of their records, bodies as they are shown, none where they are not asked for.
        is_full: no row is added any more.
        heads: fixed parts, 88 bytes each; what follows those of `count` rows is room.
        long_hosts: the hosts of the rows where one is IPv6; in their heads stand zeros.
        topics: names.
        brokers: runs: a broker's name and how many rows in a row have it.
        bodies: back to back, `bodies_size` bytes, then room; empty when they are not asked for.
        body_ends: the offsets of the body column, int32 each, the first one 0.
        properties: encoded texts; empty when no column of them is asked for.
        extra: further columns by name, made by the one that gathered the records.
    """

    __slots__ = (
        "bodies", "bodies_size", "body_ends", "brokers", "count", "extra", "heads", "is_full",
        "long_hosts", "properties", "size", "topics",
    )  # fmt: skip

    def __init__(self, wanted: Wanted) -> None:
        """Make room for the first rows."""
        rows = min(wanted.rows_max, ROWS_FIRST)
        self.count = 0
        self.size = 0
        self.is_full = False
        self.heads = bytearray(FIXED_IPV4_SIZE * rows)
        self.long_hosts: LongHosts = {}
        self.topics: list[str] = []
        self.brokers: list[tuple[str, int]] = []
        size = min(wanted.size_max, BODIES_FIRST) if wanted.with_body else 0
        self.bodies: pa.Buffer = pa.allocate_buffer(size)
        self.bodies_size = 0
        self.body_ends = bytearray(_END_SIZE * (rows + 1))
        self.properties: list[bytes] = []
        self.extra: dict[str, Any] = {}

    def take(
        self, record: Record, topic: str, body: bytes | memoryview | None, wanted: Wanted
    ) -> bool:
        """Add a row, whatever room it takes; False when the batch is full without it.

        Args:
            body: what its column shows; None when it is not asked for.
        """
        shown = body or b""
        size = record.size - len(record.body) + len(shown)
        if self.count and self.size + size > wanted.size_max:
            self.is_full = True
            return False
        row = self.count
        begin, end = row * FIXED_IPV4_SIZE, (row + 1) * FIXED_IPV4_SIZE
        self._make_room(end, self.bodies_size + len(shown))
        self.heads[begin:end] = record.head
        if record.long_hosts is not None:
            self.long_hosts[row] = record.long_hosts
        self.topics.append(topic)
        _bytes_in(self.bodies)[self.bodies_size : self.bodies_size + len(shown)] = shown
        self.bodies_size += len(shown)
        _put_end(self.body_ends, _END_SIZE * (row + 1), self.bodies_size)
        if wanted.with_properties:
            self.properties.append(record.properties)
        self.count += 1
        self.size += size
        self.is_full = self.count >= wanted.rows_max or self.size >= wanted.size_max
        return True

    def _make_room(self, heads_size: int, bodies_size: int) -> None:
        if heads_size > len(self.heads):
            self.heads += bytes(len(self.heads))
            self.body_ends += bytes(len(self.body_ends))
        if bodies_size > self.bodies.size:
            larger = pa.allocate_buffer(max(bodies_size, 2 * self.bodies.size))
            _bytes_in(larger)[: self.bodies_size] = _bytes_in(self.bodies)[: self.bodies_size]
            self.bodies = larger


def _bytes_in(buffer: pa.Buffer) -> memoryview:
    return memoryview(buffer).cast("B")


@twin
def gather(
    rows: Gathered,
    data: bytes,
    position: int,
    limit: int,
    base: int,
    low: int,
    last: int,
    wanted: Wanted,
) -> int:
    """Add the plain records that begin from `position` on and before `limit`, until it is full.

    Those outside the range, of other topics or with other tags are passed over. Return the place
    of the first record that is neither added nor passed over.

    Args:
        base: the physical offset of the data's first byte, when it is a piece of a log: records
            carry theirs, and zeros in their properties are not plain; -1 when it is none.
        low, last: the range; see `Wanted.bounded_at`.
    """
    with_body, with_properties, check_crc, bounded_at, rows_max, size_max, topics, tags = wanted
    heads, body_ends, names, properties = rows.heads, rows.body_ends, rows.topics, rows.properties
    view, bodies, stop = memoryview(data), _bytes_in(rows.bodies), len(data)
    rows_room, room = min(rows_max, len(heads) // FIXED_IPV4_SIZE), len(bodies)
    row, gathered, end, is_full = rows.count, rows.size, rows.bodies_size, rows.is_full
    while position < limit and not is_full and stop - position >= MIN_RECORD_SIZE:
        size, magic, crc, offset, sys_flag, body_size = _fields(data, position)
        body_start, hosts = position + FIXED_IPV4_SIZE, None
        head = data[position:body_start]
        if sys_flag & HOSTS_BITS:
            head, hosts, body_start, body_size = _narrowed(data, position, sys_flag)
        following, tail = position + size, body_start + body_size
        if magic != MESSAGE_MAGIC or following > stop or (base >= 0 and offset != base + position):
            break
        if body_size < 0 or tail + LENGTHS_SIZE > following:
            break
        text = data[tail:following]
        at = text[0] + 1
        encoded = text[at + 2 :]
        if len(text) < at + 2 or text[at] << 8 | text[at + 1] != len(encoded):
            break
        topic = topics.get(text[:at], UNKNOWN)
        if topic is UNKNOWN or (base >= 0 and encoded.find(0) >= 0):
            break
        if topic is None or not low <= _number_at(head, bounded_at)[0] <= last:
            position = following
            continue
        if tags is not None and not has_tag(encoded, tags):
            position = following
            continue
        if check_crc and crc32(view[body_start:tail]) & BODY_CRC_MASK != crc:
            break
        if not with_body:
            size, tail = size - body_size, body_start
        elif sys_flag & COMPRESSED:
            break
        if row and gathered + size > size_max:
            is_full = True
            break
        if row == rows_room or end + tail - body_start > room:
            break
        begin, end = end, end + tail - body_start
        bodies[begin:end] = view[body_start:tail]
        heads[row * FIXED_IPV4_SIZE : (row + 1) * FIXED_IPV4_SIZE] = head
        if hosts is not None:
            rows.long_hosts[row] = hosts
        names.append(topic)
        if with_properties:
            properties.append(encoded)
        row, gathered, position = row + 1, gathered + size, following
        _put_end(body_ends, _END_SIZE * row, end)
        is_full = row >= rows_max or gathered >= size_max
    rows.count, rows.size, rows.bodies_size, rows.is_full = row, gathered, end, is_full
    return position


def has_tag(encoded: bytes, tags: frozenset[bytes] | None) -> bool:
    """Return whether encoded properties have one of the tags, when there are any."""
    return tags is None or find_property(encoded, TAGS_AND_SEPARATOR) in tags


def record_at(data: bytes, position: int) -> Record:
    """Return the record at `position`, its body's checksum not looked at.

    Raises:
        UnsoundRecordError: there is none, or not a whole one.
    """
    stop = len(data)
    if stop - position < MIN_RECORD_SIZE:
        raise UnsoundRecordError("it is cut")
    size, magic, crc, queue_offset, physical_offset, sys_flag, stored_ms, body_size = (
        _RECORD.unpack_from(data, position)
    )
    body_start, hosts = position + FIXED_IPV4_SIZE, None
    head = data[position:body_start]
    if sys_flag & HOSTS_BITS:
        head, hosts, body_start, body_size = _narrowed(data, position, sys_flag)
    following, tail = position + size, body_start + body_size
    if magic != MESSAGE_MAGIC or size < MIN_RECORD_SIZE or following > stop:
        raise UnsoundRecordError("its size or its magic is wrong, or it is cut")
    if body_size < 0 or tail + LENGTHS_SIZE > following:
        raise UnsoundRecordError("the body is larger than the record")
    if hosts is not None:
        stored_ms = _RECORD.unpack(head)[6]
    text = data[tail:following]
    at = text[0] + 1
    encoded = text[at + 2 :]
    if len(text) < at + 2 or text[at] << 8 | text[at + 1] != len(encoded):
        raise UnsoundRecordError("topic and properties do not add up")
    return Record(
        size,
        crc,
        queue_offset,
        physical_offset,
        sys_flag,
        stored_ms,
        head,
        hosts,
        text[:at],
        memoryview(data)[body_start:tail],
        encoded,
    )


def _narrowed(
    data: bytes, position: int, sys_flag: int
) -> tuple[bytes, tuple[bytes, bytes], int, int]:
    """Return the record at `position`, which has an IPv6 host, as if it had none.

    That is its fixed part with zeros for hosts, the two packed hosts, where its body starts in
    `data`, and its body's size: -1 when the data ends before.
    """
    hosts = sys_flag >> HOSTS_SHIFT & HOSTS_MASK
    born_size, store_size = 20 if hosts & 1 else 8, 20 if hosts & 2 else 8
    body_start = position + FIXED_BY_HOSTS[hosts].size
    born = position + BORN_HOST_POSITION
    time = born + born_size
    store = time + _TIME_SIZE
    tail = store + store_size
    head = b"".join(
        (
            data[position:born],
            _NO_HOST,
            data[time:store],
            _NO_HOST,
            data[tail:body_start],
        )
    )
    packed = data[born:time], data[store:tail]
    if len(data) < body_start:
        return head, packed, body_start, -1
    return head, packed, body_start, _BODY_SIZE.unpack_from(data, body_start - _BODY_SIZE.size)[0]
