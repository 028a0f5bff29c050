"""Python values of decoded bodies into Arrow arrays, a column at a time.

The reader of JSON gives one object a body, whose attributes are called as `attribute` says. So a
column of all rows is made by one call of pyarrow's. Pure; in Spark's workers, one thread.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as _compute

from skylarkmq.spark.typed.column_types import (
    Array,
    Leaf,
    Map,
    Struct,
    Type,
    arrow_type,
)

compute: Final[Any] = _compute  # its functions are made at import, so no stub knows them all
Values = list[Any]
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


def attribute(at: int) -> str:
    """Return what a struct's field is called in objects: its name may be no word of Python's."""
    return f"f{at}"


def builder(kind: Type) -> Build:
    """Return what makes the array of a type; it raises one of FAULTS for a value that is none."""
    if isinstance(kind, Leaf):
        return _json_texts if kind.kind == "json" else _leaf_builder(kind)
    if isinstance(kind, Array):
        item = builder(kind.item)
        return _over_present(lambda values: _lists(values, item))
    if isinstance(kind, Map):
        keys, items = builder(kind.key), builder(kind.value)
        return _over_present(lambda values: _maps(values, keys, items))
    return _over_present(_struct_builder(kind))


def _json_texts(values: Values) -> pa.Array[Any]:
    texts = [None if value is None else str(bytes(value), "utf-8") for value in values]
    return pa.array([None if text == "null" else text for text in texts], pa.string())


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


def _struct_builder(struct: Struct) -> Build:
    names = [field.name for field in struct.fields]
    parts = [
        (attrgetter(attribute(at)), builder(field.type)) for at, field in enumerate(struct.fields)
    ]

    def build(values: Values) -> pa.Array[Any]:
        arrays = [build_part(list(map(get, values))) for get, build_part in parts]
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
