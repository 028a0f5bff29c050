# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""The properties of many records as one map column, and single properties as text columns.

The kernel splits all texts in one pass into the buffers of the map column, and says which pair
has a property that is a column of its own. Texts that are not UTF-8, or hold very many pairs, are
read by the protocol's own decoder, as all are where there is no kernel: same result.
Pure; in executors, one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as _compute

from skylarkmq.kernel import compiled
from skylarkmq.protocol.properties import decode_properties

compute: Final[Any] = _compute  # its functions are made at import, so no stub knows them all
_map_array: Final[Any] = pa.MapArray.from_arrays  # its stub knows 64-bit offsets alone


class PropertyColumns:
    """Columns of the encoded property texts of some rows.

    Attributes:
        maps: the map column; of a name that repeats in a row the last value counts.
        values: the columns of single properties by name, null where there is none.
    """

    __slots__ = ("maps", "values")

    def __init__(self, texts: list[bytes], names: Sequence[str]) -> None:
        """Split the texts.

        Args:
            names: of the properties that become columns.
        """
        self.maps: pa.Array[Any]
        self.values: dict[str, pa.Array[Any]]
        wanted = tuple(name.encode() for name in names)
        split = None if compiled is None else compiled.split_pairs(texts, wanted)
        if split is None:
            self.maps, self.values = _read(texts, names)
            return
        starts, name_ends, name_data, value_ends, value_data, places = split
        values = _texts(value_ends, value_data)
        self.maps = _map_array(_int32(starts), _texts(name_ends, name_data), values)
        self.values = {
            name: _taken(values, _int32(column)) for name, column in zip(names, places, strict=True)
        }


def _texts(ends: bytearray, data: bytearray) -> pa.Array[Any]:
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(ends) // 4 - 1, buffers)


def _int32(data: bytearray) -> pa.Array[Any]:
    return pa.Array.from_buffers(pa.int32(), len(data) // 4, [None, pa.py_buffer(data)])


def _taken(values: pa.Array[Any], places: pa.Array[Any]) -> pa.Array[Any]:
    """Return the values at these places, null where the place is -1."""
    there = compute.greater_equal(places, 0)
    if not compute.all(there, min_count=0).as_py():
        places = compute.if_else(there, places, pa.scalar(None, pa.int32()))
    return values.take(places)


def _read(
    texts: Sequence[bytes], names: Sequence[str]
) -> tuple[pa.Array[Any], dict[str, pa.Array[Any]]]:
    """Return maps and values of any texts, one text at a time."""
    rows = [decode_properties(text.decode("utf-8", "replace")) for text in texts]
    maps = _map_array(
        pa.array(accumulate(map(len, rows), initial=0), pa.int32()),
        pa.array([name for row in rows for name in row], pa.string()),
        pa.array([value for row in rows for value in row.values()], pa.string()),
    )
    return maps, {name: pa.array([row.get(name) for row in rows], pa.string()) for name in names}
