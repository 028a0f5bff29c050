# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Arrow columns of the parts of records that a reader gathered, a column at a time.

Reading a record in Python costs by the operation, so a reader keeps three slices of each one: the
fixed part, the body and the properties. A record with an IPv6 host has a longer fixed part; it is
narrowed to the layout of the others and its hosts lie aside.

So the fixed parts of all rows lie back to back, 88 bytes each, big-endian, and numbers never become
Python objects. Byte k of a field of all rows is one strided slice of them, and put down in strides
again it makes an Arrow buffer in the machine's order:

    fixed parts   ... | b3 b2 b1 b0 | ...      one row each
    out[0::4] = b0 of all rows, out[1::4] = b1 of all rows, ...

That is twenty times as fast as unpacking numbers and handing them to `pa.array`.
Pure; in executors, one thread.
Source: apache/arrow docs/source/format/Columnar.rst (buffer layouts)
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as _compute

from skylarkmq.protocol.host_address import IPV4_HOST_SIZE, unpack_host
from skylarkmq.protocol.properties import KEYS, TAGS, UNIQ_KEY
from skylarkmq.protocol.record import (
    BORN_HOST_POSITION,
    BORN_TIMESTAMP_POSITION,
    FIXED_BY_HOSTS,
    FIXED_IPV4_SIZE,
    HOSTS_MASK,
    HOSTS_SHIFT,
    PHYSICAL_OFFSET_POSITION,
    QUEUE_OFFSET_POSITION,
    STORE_TIMESTAMP_POSITION_IPV4,
    SYS_FLAG_POSITION,
)
from skylarkmq.spark.columns.property_columns import PropertyColumns, steps

LongHosts = dict[int, tuple[bytes, bytes]]
"""Packed born and store host by row."""

_BODY_SIZE: Final = struct.Struct(">i")
_TIME_SIZE: Final = 8
_NO_HOST: Final = bytes(8)


class Gathered:
    """Lists with one item a row.

    Attributes:
        heads: fixed parts in the layout of two IPv4 hosts, 88 bytes each.
        long_hosts: the hosts of the rows where one is IPv6; in their heads stand zeros.
        topics: names.
        brokers: runs: a broker's name and how many rows in a row have it.
        bodies: what the column is to show; empty when it is not asked for.
        properties: encoded texts; empty when no column of them is asked for.
        extra: further columns by name, made by the one that gathered the records.
    """

    __slots__ = ("bodies", "brokers", "extra", "heads", "long_hosts", "properties", "topics")

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.long_hosts: LongHosts = {}
        self.topics: list[str] = []
        self.brokers: list[tuple[str, int]] = []
        self.bodies: list[bytes | memoryview] = []
        self.properties: list[bytes] = []
        self.extra: dict[str, Any] = {}


def narrowed(
    data: bytes | memoryview, position: int, sys_flag: int
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
    packed = bytes(data[born:time]), bytes(data[store:tail])
    if len(data) < body_start:
        return head, packed, body_start, -1
    return head, packed, body_start, _BODY_SIZE.unpack_from(data, body_start - _BODY_SIZE.size)[0]


_LITTLE: Final = sys.byteorder == "little"
compute: Final[Any] = _compute  # its functions are made at import, so no stub knows them all
STORE_HOST_POSITION: Final = STORE_TIMESTAMP_POSITION_IPV4 + 8
INT32_FIELDS: Final = {
    "storeSize": 0,
    "bodyCRC": 8,
    "queueId": 12,
    "flag": 16,
    "sysFlag": SYS_FLAG_POSITION,
    "reconsumeTimes": STORE_HOST_POSITION + IPV4_HOST_SIZE,
}
INT64_FIELDS: Final = {
    "queueOffset": QUEUE_OFFSET_POSITION,
    "physicalOffset": PHYSICAL_OFFSET_POSITION,
    "preparedTransactionOffset": STORE_HOST_POSITION + IPV4_HOST_SIZE + 4,
}
TIME_FIELDS: Final = {
    "bornTimestamp": BORN_TIMESTAMP_POSITION,
    "storeTimestamp": STORE_TIMESTAMP_POSITION_IPV4,
}
HOST_FIELDS: Final = {"bornHost": BORN_HOST_POSITION, "storeHost": STORE_HOST_POSITION}
PROPERTY_FIELDS: Final = {"keys": KEYS, "tags": TAGS, "msgId": UNIQ_KEY}
"""Columns that are one property each; `msgId` falls back to the offset id."""
OF_PROPERTIES: Final = frozenset({"properties", *PROPERTY_FIELDS})
_MS_MAX: Final = (2**63 - 1) // 1000
_HEX_SIZE: Final = 2 * (IPV4_HOST_SIZE + 8)


def build_batch(rows: Gathered, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch of all rows with the columns of `schema`."""
    fixed = b"".join(rows.heads)
    count = len(rows.heads)
    texts = None
    if not OF_PROPERTIES.isdisjoint(schema.names):
        texts = PropertyColumns(rows.properties)
    columns = [_column(field.name, field.type, rows, fixed, count, texts) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(
    name: str,
    kind: pa.DataType,
    rows: Gathered,
    fixed: bytes,
    count: int,
    texts: PropertyColumns | None,
) -> pa.Array[Any]:
    if name in INT32_FIELDS:
        return int32_column(fixed, INT32_FIELDS[name], count)
    if name in INT64_FIELDS:
        return int64_column(fixed, INT64_FIELDS[name], count)
    if name in TIME_FIELDS:
        return time_column(fixed, TIME_FIELDS[name], count)
    if name in HOST_FIELDS:
        return host_column(fixed, HOST_FIELDS[name], count, rows.long_hosts)
    if name == "body":
        return binary_column(rows.bodies)
    if name == "offsetMsgId":
        return offset_id_column(fixed, count, rows.long_hosts)
    if name == "brokerName":
        return _runs(rows.brokers)
    if texts is not None and name == "properties":
        return texts.maps()
    if texts is not None and name in PROPERTY_FIELDS:
        found = texts.values_of(PROPERTY_FIELDS[name])
        if name == "msgId" and found.null_count:
            found = compute.coalesce(found, offset_id_column(fixed, count, rows.long_hosts))
        return found
    return pa.array(rows.topics, kind) if name == "topic" else rows.extra[name]


def int32_column(fixed: bytes, position: int, count: int) -> pa.Array[Any]:
    """Return the field of 4 bytes at `position` of every fixed part."""
    return _number(pa.int32(), fixed, position, 4, count)


def int64_column(fixed: bytes, position: int, count: int) -> pa.Array[Any]:
    """Return the field of 8 bytes at `position` of every fixed part."""
    return _number(pa.int64(), fixed, position, 8, count)


def _number(kind: pa.DataType, fixed: bytes, position: int, size: int, count: int) -> pa.Array[Any]:
    out = bytearray(size * count)
    for place in range(size):
        source = position + (size - 1 - place if _LITTLE else place)
        out[place::size] = fixed[source::FIXED_IPV4_SIZE]
    made: pa.Array[Any] = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(out)])
    return made


def time_column(fixed: bytes, position: int, count: int) -> pa.Array[Any]:
    """Return the field of milliseconds at `position` as instants; null beyond what they can be.

    A producer's clock may say anything, and microseconds end a thousand times earlier.
    """
    values = int64_column(fixed, position, count)
    times: pa.Array[Any]
    kind = pa.timestamp("us", tz="UTC")
    try:
        times = compute.multiply_checked(values, 1000).view(kind)
    except pa.ArrowInvalid:
        high, low = pa.scalar(_MS_MAX), pa.scalar(-_MS_MAX)
        sane = compute.and_(compute.less_equal(values, high), compute.greater_equal(values, low))
        kept = compute.if_else(sane, values, pa.scalar(None, pa.int64()))
        times = compute.multiply_checked(kept, 1000).view(kind)
    return times


def host_column(fixed: bytes, position: int, count: int, long_hosts: LongHosts) -> pa.Array[Any]:
    """Return the hosts at `position` as `address:port`, the address in brackets when IPv6."""
    packed = bytearray(IPV4_HOST_SIZE * count)
    for place in range(IPV4_HOST_SIZE):
        packed[place::IPV4_HOST_SIZE] = fixed[position + place :: FIXED_IPV4_SIZE]
    kind = pa.binary(IPV4_HOST_SIZE)
    encoded = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(packed)]).dictionary_encode()
    known = pa.array([host_text(host) for host in encoded.dictionary.to_pylist()], pa.string())
    texts = known.take(encoded.indices)
    if not long_hosts:
        return texts
    which = 0 if position == BORN_HOST_POSITION else 1
    values = texts.to_pylist()
    for row, hosts in long_hosts.items():
        values[row] = host_text(hosts[which])
    return pa.array(values, pa.string())


@lru_cache(maxsize=4096)
def host_text(packed: bytes) -> str:
    """Return the text of a packed host, 8 or 20 bytes."""
    return str(unpack_host(packed))


def offset_id_column(fixed: bytes, count: int, long_hosts: LongHosts) -> pa.Array[Any]:
    """Return the offset ids: store host and physical offset in upper-case hex."""
    packed = bytearray((IPV4_HOST_SIZE + 8) * count)
    for place in range(IPV4_HOST_SIZE + 8):
        source = STORE_HOST_POSITION + place
        if place >= IPV4_HOST_SIZE:
            source = PHYSICAL_OFFSET_POSITION + place - IPV4_HOST_SIZE
        packed[place :: IPV4_HOST_SIZE + 8] = fixed[source::FIXED_IPV4_SIZE]
    text = packed.hex().upper()
    if not long_hosts:
        offsets = steps(0, _HEX_SIZE, count + 1).buffers()[1]
        buffers = [None, offsets, pa.py_buffer(text.encode())]
        return pa.Array.from_buffers(pa.string(), count, buffers)
    ids = [text[at : at + _HEX_SIZE] for at in range(0, len(text), _HEX_SIZE)]
    for row, (_, store_host) in long_hosts.items():
        ids[row] = store_host.hex().upper() + ids[row][-16:]
    return pa.array(ids, pa.string())


def binary_column(values: Sequence[bytes | memoryview]) -> pa.Array[Any]:
    """Return the values as one binary column, copied once; together they stay below 2 GiB."""
    offsets = array("i", accumulate(map(len, values), initial=0))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _runs(runs: Sequence[tuple[str, int]]) -> pa.Array[Any]:
    parts = [pa.repeat(pa.scalar(name, pa.string()), count) for name, count in runs if count]
    if len(parts) == 1:
        return parts[0]
    return pa.concat_arrays(parts) if parts else pa.array([], pa.string())
