"""JSON bodies by columns: strict types, unknown names passed over, missing ones null.

msgspec reads a body into a class that is made of the columns, so that a fault names its place in
the body (`$.items[1].n`), without the value.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Annotated, Any, Final

import msgspec

from skylarkmq.spark.typed.building import attribute, builder
from skylarkmq.spark.typed.column_types import (
    Array,
    Leaf,
    Map,
    Struct,
    Type,
    TypedSchemaError,
)

_FLOAT_MAX: Final = 3.4028234663852886e38


def _integer(bits: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]


_LEAVES: Final[dict[str, Any]] = {
    "string": str,
    "boolean": bool,
    "binary": bytes,
    "tinyint": _integer(8),
    "smallint": _integer(16),
    "int": _integer(32),
    "bigint": _integer(64),
    "float": Annotated[float, msgspec.Meta(ge=-_FLOAT_MAX, le=_FLOAT_MAX)],
    "double": float,
    "decimal": decimal.Decimal,
    "date": datetime.date,
    "timestamp": Annotated[datetime.datetime, msgspec.Meta(tz=True)],
    "timestamp_ntz": Annotated[datetime.datetime, msgspec.Meta(tz=False)],
    "json": msgspec.Raw,
}
_KEYS: Final = ("string", "int", "bigint")


class JsonBodies:
    """Reads JSON bodies, and builds the column of what it read."""

    def __init__(self, columns: Struct) -> None:
        """Take the columns.

        Raises:
            TypedSchemaError: a map's keys are of a type that JSON's names are not.
        """
        self.name: Final = "JSON"
        self.columns: Final = columns
        self.faults: Final = (ValueError, RecursionError)  # msgspec's own are ValueErrors
        self.decode: Final[Callable[[bytes], Any]] = msgspec.json.Decoder(_python(columns)).decode
        self.build: Final = builder(columns)


def _nullable(kind: Type) -> Any:
    # msgspec takes nothing but null for a union with Raw, which reads a null itself.
    if isinstance(kind, Leaf) and kind.kind == "json":
        return msgspec.Raw
    return _python(kind) | None


def _python(kind: Type) -> Any:
    """Return the type of Python's that msgspec reads."""
    if isinstance(kind, Leaf):
        return _integer(64) if kind.unit else _LEAVES[kind.kind]
    if isinstance(kind, Array):
        return list[_nullable(kind.item)]  # type: ignore[misc]
    if isinstance(kind, Map):
        if kind.key.kind not in _KEYS or kind.key.unit:
            raise TypedSchemaError(
                f"a map of JSON has keys of {', '.join(_KEYS)}, not {kind.key.kind}"
            )
        return dict[_python(kind.key), _nullable(kind.value)]  # type: ignore[misc]
    return msgspec.defstruct(
        "Body",
        [(attribute(at), _nullable(field.type), None) for at, field in enumerate(kind.fields)],
        rename={attribute(at): field.key for at, field in enumerate(kind.fields)},
        gc=False,
    )
