# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Arrow columns out of the parts of records that somebody gathered, a column at a time.

Numbers never become Python objects (`int_columns.py`), texts rarely.

Pure functions of their arguments; in executors, one thread.
Source: apache/arrow format/Columnar.rst (buffer layouts)
"""

from __future__ import annotations

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
    FIXED_IPV4_SIZE,
    PHYSICAL_OFFSET_POSITION,
    QUEUE_OFFSET_POSITION,
    STORE_TIMESTAMP_POSITION_IPV4,
    SYS_FLAG_POSITION,
)
from skylarkmq.spark.columns.gathered import Gathered, LongHosts
from skylarkmq.spark.columns.int_columns import int32_column, int64_column, steps
from skylarkmq.spark.columns.property_columns import PropertyColumns

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
