# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""The properties of many records as one map column, and single properties as text columns."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from skylarkmq.protocol.properties import decode_properties

_map_array: Final[Any] = pa.MapArray.from_arrays  # its stub knows 64-bit offsets alone


class PropertyColumns:
    """Columns of the encoded property texts of some rows."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self._decoded = [decode_properties(text.decode("utf-8", "replace")) for text in texts]

    def maps(self) -> pa.Array[Any]:
        """Return the map column; of a name that repeats in a row the last value counts."""
        offsets = array("i", [0])
        names: list[str] = []
        values: list[str] = []
        for properties in self._decoded:
            names += properties.keys()
            values += properties.values()
            offsets.append(len(names))
        made: pa.Array[Any] = _map_array(
            pa.array(offsets, pa.int32()),
            pa.array(names, pa.string()),
            pa.array(values, pa.string()),
        )
        return made

    def values_of(self, name: str) -> pa.Array[Any]:
        """Return the property's value in each row, null where there is none."""
        return pa.array([properties.get(name) for properties in self._decoded], pa.string())
