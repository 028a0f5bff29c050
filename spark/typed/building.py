"""Python values of decoded bodies into Arrow arrays, a column at a time.

A format's reader gives one object a body; `Reads` says how its parts are taken out. So a column of
all rows is made by one call of pyarrow's, whatever the format:

    objects --field--> raw values --prepare--> values --> array

Pure; in Spark's workers, one thread.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, chain
from typing import Any, Final, Protocol, cast

import pyarrow as pa
import pyarrow.compute as _compute

from skylarkmq.spark.typed.column_types import (
    Array,
    Field,
    Leaf,
    Map,
    Struct,
    Type,
    arrow_type,
)

compute: Final[Any] = _compute  # its functions are made at import, so no stub knows them all
Values = list[Any]
Take = Callable[[Values], Values]
Build = Callable[[Values], "pa.Array[Any]"]
FAULTS: Final = (pa.ArrowException, ValueError, TypeError, ArithmeticError, RecursionError)
"""What a value raises that its column cannot hold."""
TEXT_MAX: Final = 300
"""Characters of a reason."""
_PER_UNIT: Final = {"s": 1_000_000, "ms": 1_000, "us": 1}
_DAYS: Final = (-719_162, 2_932_896)
"""Years 1 to 9999 in days since 1970: what Spark's and Python's dates can be."""
_INSTANTS: Final = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)
"""The same in microseconds."""


class Reads(Protocol):
    """How the objects of a format's reader are taken apart."""

    def field(self, struct: Struct, field: Field) -> Take:
        """Return what takes a field's raw values out of objects, none of which is None."""
        ...

    def prepare(self, kind: Type) -> Take | None:
        """Return what makes values of raw ones, None where they are the same."""
        ...


def builder(kind: Type, reads: Reads) -> Build:
    """Return what makes the array of a type; it raises one of FAULTS for a value that is none."""
    build = _builder(kind, reads)
    prepare = reads.prepare(kind)
    if prepare is None:
        return build
    return lambda values: build(prepare(values))


def _builder(kind: Type, reads: Reads) -> Build:
    if isinstance(kind, Leaf):
        return _leaf_builder(kind)
    if isinstance(kind, Array):
        item = builder(kind.item, reads)
        return _over_present(lambda values: _lists(values, item))
    if isinstance(kind, Map):
        keys, items = builder(kind.key, reads), builder(kind.value, reads)
        return _over_present(lambda values: _maps(values, keys, items))
    return _over_present(_struct_builder(kind, reads))


def _leaf_builder(leaf: Leaf) -> Build:
    kind = arrow_type(leaf)
    factor = _PER_UNIT.get(leaf.unit, 1)

    def build(values: Values) -> pa.Array[Any]:
        return pa.array(values, kind)

    def build_times(values: Values) -> pa.Array[Any]:
        if factor == 1:
            times = pa.array(values, kind)
        else:
            times = compute.multiply_checked(pa.array(values, pa.int64()), factor).view(kind)
        numbers = times.view(pa.int32() if leaf.kind == "date" else pa.int64())
        ends = compute.min_max(numbers).as_py()
        first, last = _DAYS if leaf.kind == "date" else _INSTANTS
        if ends["min"] is not None and not first <= ends["min"] <= ends["max"] <= last:
            raise ValueError(f"a {leaf.kind} is not within the years 1 to 9999")
        return cast("pa.Array[Any]", times)

    return build_times if leaf.kind in ("date", "timestamp", "timestamp_ntz") else build


def _struct_builder(struct: Struct, reads: Reads) -> Build:
    names = [field.name for field in struct.fields]
    parts = [(reads.field(struct, field), builder(field.type, reads)) for field in struct.fields]

    def build(values: Values) -> pa.Array[Any]:
        arrays = [build_part(take(values)) for take, build_part in parts]
        return pa.StructArray.from_arrays(arrays, names)

    return build


def _lists(values: Values, item: Build) -> pa.Array[Any]:
    offsets = pa.array(accumulate(map(len, values), initial=0), pa.int32())
    return pa.ListArray.from_arrays(offsets, item(list(chain.from_iterable(values))))


def _maps(values: Values, keys: Build, items: Build) -> pa.Array[Any]:
    offsets: Any = pa.array(accumulate(map(len, values), initial=0), pa.int32())
    found = keys(list(chain.from_iterable(values)))
    every = items([item for value in values for item in value.values()])
    made: pa.Array[Any] = pa.MapArray.from_arrays(offsets, found, every)  # the stubs want int64
    return made


def _over_present(build: Build) -> Build:
    """Return what builds the values that are there, and puts nulls where they were none."""

    def build_all(values: Values) -> pa.Array[Any]:
        present = [value for value in values if value is not None]
        if len(present) == len(values):
            return build(values)
        return spread(build(present), [value is not None for value in values])

    return build_all


def spread(array: pa.Array[Any], present: list[bool]) -> pa.Array[Any]:
    """Return the array with a null at each place that is not present; it has one value for each."""
    places = accumulate(present, initial=0)
    indices = [place if there else None for place, there in zip(places, present, strict=False)]
    return array.take(pa.array(indices, pa.int64()))


def faulty(build: Build, values: Values) -> dict[int, str]:
    """Return the places of the values that cannot be built, with the reasons."""
    found: dict[int, str] = {}
    _search(build, values, 0, found)
    return found


def _search(build: Build, values: Values, start: int, found: dict[int, str]) -> None:
    try:
        build(values)
    except FAULTS as error:
        if len(values) == 1:
            found[start] = reason_of(error)
            return
        half = len(values) // 2
        _search(build, values[:half], start, found)
        _search(build, values[half:], start + half, found)


def reason_of(error: BaseException) -> str:
    """Return an error's text on one short line, its class where it has none."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 3] + "..."
