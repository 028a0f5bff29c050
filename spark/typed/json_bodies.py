"""JSON bodies by columns: strict types, unknown names passed over, missing ones null.

msgspec reads a body into a class that is made of the columns, so that a fault names its place in
the body (`$.items[1].n`), without the value.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from operator import attrgetter
from typing import Annotated, Any, Final

import msgspec

from skylarkmq.spark.typed.building import Take, Values
from skylarkmq.spark.typed.column_types import (
    Array,
    Field,
    Leaf,
    Map,
    Struct,
    Type,
    TypedSchemaError,
)
from skylarkmq.spark.typed.heads import CONFLUENT, NONE, without_confluent

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
    """Reads JSON bodies, and takes what it read apart."""

    def __init__(self, columns: Struct, head: str = NONE) -> None:
        """Take the columns, and what stands before the JSON.

        Raises:
            TypedSchemaError: a map's keys are of a type that JSON's names are not.
        """
        self.columns: Final = columns
        self.faults: Final = (ValueError, RecursionError)  # msgspec's own are ValueErrors
        decode = msgspec.json.Decoder(_python(columns)).decode
        self.decode: Final[Callable[[bytes], Any]] = (
            (lambda body: decode(without_confluent(body))) if head == CONFLUENT else decode
        )

    def field(self, struct: Struct, field: Field) -> Take:
        """Return what takes a field out of the objects."""
        get = attrgetter(f"f{struct.fields.index(field)}")
        return lambda values: list(map(get, values))

    def prepare(self, kind: Type) -> Take | None:
        """Return what makes texts of the column type `json`."""
        return _texts if isinstance(kind, Leaf) and kind.kind == "json" else None


def _texts(values: Values) -> Values:
    texts = [None if value is None else str(bytes(value), "utf-8") for value in values]
    return [None if text == "null" else text for text in texts]


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
        [(f"f{at}", _nullable(field.type), None) for at, field in enumerate(kind.fields)],
        rename={f"f{at}": field.key for at, field in enumerate(kind.fields)},
        gc=False,
    )
