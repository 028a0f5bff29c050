# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Arrow columns of the rows that a reader gathered, a column at a time.

The fixed parts of all rows lie back to back, 88 bytes each, big-endian, and numbers never become
Python objects. The kernel writes a field of all rows into an Arrow buffer in the machine's order.
In Python byte k of a field of all rows is one strided slice of them, and is put down in strides
again:

    fixed parts   ... | b3 b2 b1 b0 | ...      one row each
    out[0::4] = b0 of all rows, out[1::4] = b1 of all rows, ...

That is twenty times as fast as unpacking numbers and handing them to `pa.array`.
Pure; in executors, one thread.
Source: apache/arrow docs/source/format/Columnar.rst (buffer layouts)
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from skylarkmq.kernel import twin
from skylarkmq.protocol.host_address import IPV4_HOST_SIZE, unpack_host
from skylarkmq.protocol.properties import KEYS, TAGS, UNIQ_KEY
from skylarkmq.protocol.record import (
    BORN_HOST_POSITION,
    BORN_TIMESTAMP_POSITION,
    FIXED_IPV4_SIZE,
    PHYSICAL_OFFSET_POSITION,
    QUEUE_OFFSET_POSITION,
    STORE_TIMESTAMP_POSITION_IPV4,
    SYS_FLAG_POSITION,
)
from skylarkmq.spark.columns.gathered import Gathered, LongHosts
from skylarkmq.spark.columns.property_columns import PropertyColumns, compute

_LITTLE: Final = sys.byteorder == "little"
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
    texts = None
    if not OF_PROPERTIES.isdisjoint(schema.names):
        single = [PROPERTY_FIELDS[name] for name in schema.names if name in PROPERTY_FIELDS]
        texts = PropertyColumns(rows.properties, single)
    columns = [_column(field.name, rows, texts) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(name: str, rows: Gathered, texts: PropertyColumns | None) -> pa.Array[Any]:
    heads, count = rows.heads, rows.count
    if name in INT32_FIELDS:
        return int32_column(heads, INT32_FIELDS[name], count)
    if name in INT64_FIELDS:
        return int64_column(heads, INT64_FIELDS[name], count)
    if name in TIME_FIELDS:
        return time_column(heads, TIME_FIELDS[name], count)
    if name in HOST_FIELDS:
        return host_column(heads, HOST_FIELDS[name], count, rows.long_hosts)
    if name == "body":
        bodies = rows.bodies.slice(0, rows.bodies_size)
        return pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(rows.body_ends), bodies]
        )
    if name == "offsetMsgId":
        return offset_id_column(heads, count, rows.long_hosts)
    if name == "brokerName":
        return _runs(rows.brokers)
    if texts is not None and name == "properties":
        return texts.maps
    if texts is not None and name in PROPERTY_FIELDS:
        found = texts.values[PROPERTY_FIELDS[name]]
        if name == "msgId" and found.null_count:
            found = compute.coalesce(found, offset_id_column(heads, count, rows.long_hosts))
        return found
    return pa.array(rows.topics, pa.string()) if name == "topic" else rows.extra[name]


def int32_column(heads: bytearray, position: int, count: int) -> pa.Array[Any]:
    """Return the field of 4 bytes at `position` of so many fixed parts."""
    return _number(pa.int32(), heads, position, 4, count)


def int64_column(heads: bytearray, position: int, count: int) -> pa.Array[Any]:
    """Return the field of 8 bytes at `position` of so many fixed parts."""
    return _number(pa.int64(), heads, position, 8, count)


def _number(
    kind: pa.DataType, heads: bytearray, position: int, size: int, count: int
) -> pa.Array[Any]:
    buffers = [None, pa.py_buffer(numbers(heads, position, size, count))]
    made: pa.Array[Any] = pa.Array.from_buffers(kind, count, buffers)
    return made


@twin
def numbers(heads: bytearray, position: int, size: int, count: int) -> bytes | bytearray:
    """Return a field of 4 or 8 bytes of so many fixed parts, in the machine's order."""
    out, end = bytearray(size * count), FIXED_IPV4_SIZE * count
    for place in range(size):
        source = position + (size - 1 - place if _LITTLE else place)
        out[place::size] = heads[source:end:FIXED_IPV4_SIZE]
    return out


def time_column(heads: bytearray, position: int, count: int) -> pa.Array[Any]:
    """Return the field of milliseconds at `position` as instants; null beyond what they can be.

    A producer's clock may say anything, and microseconds end a thousand times earlier.
    """
    values = int64_column(heads, position, count)
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


def host_column(
    heads: bytearray, position: int, count: int, long_hosts: LongHosts
) -> pa.Array[Any]:
    """Return the hosts at `position` as `address:port`, the address in brackets when IPv6."""
    encoded: Any = int64_column(heads, position, count).dictionary_encode()
    hosts = [host.to_bytes(IPV4_HOST_SIZE, signed=True) for host in encoded.dictionary.to_pylist()]
    known = pa.array(map(host_text, hosts), pa.string())
    texts = known.take(encoded.indices)
    if not long_hosts:
        return texts
    which = 0 if position == BORN_HOST_POSITION else 1
    values = texts.to_pylist()
    for row, both in long_hosts.items():
        values[row] = host_text(both[which])
    return pa.array(values, pa.string())


@lru_cache(maxsize=4096)
def host_text(packed: bytes) -> str:
    """Return the text of a packed host, 8 or 20 bytes."""
    return str(unpack_host(packed))


def offset_id_column(heads: bytearray, count: int, long_hosts: LongHosts) -> pa.Array[Any]:
    """Return the offset ids: store host and physical offset in upper-case hex."""
    text = offset_ids(heads, count)
    if not long_hosts:
        fixed = pa.Array.from_buffers(pa.binary(_HEX_SIZE), count, [None, pa.py_buffer(text)])
        return fixed.cast(pa.binary()).view(pa.string())
    ids = [text[at : at + _HEX_SIZE].decode() for at in range(0, len(text), _HEX_SIZE)]
    for row, (_, store_host) in long_hosts.items():
        ids[row] = store_host.hex().upper() + ids[row][-16:]
    return pa.array(ids, pa.string())


@twin
def offset_ids(heads: bytearray, count: int) -> bytes:
    """Return the offset ids of so many fixed parts back to back, 32 characters each."""
    packed, end = bytearray((IPV4_HOST_SIZE + 8) * count), FIXED_IPV4_SIZE * count
    for place in range(IPV4_HOST_SIZE + 8):
        source = STORE_HOST_POSITION + place
        if place >= IPV4_HOST_SIZE:
            source = PHYSICAL_OFFSET_POSITION + place - IPV4_HOST_SIZE
        packed[place :: IPV4_HOST_SIZE + 8] = heads[source:end:FIXED_IPV4_SIZE]
    return packed.hex().upper().encode()


def _runs(runs: Sequence[tuple[str, int]]) -> pa.Array[Any]:
    parts = [pa.repeat(pa.scalar(name, pa.string()), count) for name, count in runs if count]
    if len(parts) == 1:
        return parts[0]
    return pa.concat_arrays(parts) if parts else pa.array([], pa.string())
