"""A schema that has changed, beside the column `value` of a table that is there.

    the schema has                       the table                          new rows
    a field more                         gets a column, at any depth        old rows have null there
    a field fewer                        keeps the column                   have null there
    a narrower type (int for bigint)     keeps its type                     are widened
    a wider type, or another one         see below                          see below

Delta Lake has type widening, which would change a column from int to bigint without a rewrite; but
deltalake 1.6, with which these tables are written, cannot turn it on, and a table where it is on
shuts out readers that do not know it. So such a change is refused, or, where that is asked for, the
field goes into a new column beside the old one from here on, NAME_TYPE as in `count_bigint`; once
that column is there, it is used without being asked for again.

Names are told without case, as Spark tells them. Pure. Driver process; `Evolution.fit` in workers.
Source: delta-io/delta PROTOCOL.md (Type Widening); deltalake 1.6.6, seen: alter.add_columns merges
into structs, lists and maps, refuses int beside long, and enableTypeWidening is no property
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.types as kinds

from skylarkmq.spark.typed.column_types import TypedSchemaError

Fit = Callable[["pa.Array[Any]"], "pa.Array[Any]"]
_INTEGERS: Final[dict[pa.DataType, int]] = {
    pa.int8(): 3,
    pa.int16(): 5,
    pa.int32(): 10,
    pa.int64(): 19,
}
"""With the digits that they may have."""
_NAMES: Final[dict[pa.DataType, str]] = {
    pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint",
    pa.float32(): "float", pa.float64(): "double", pa.bool_(): "boolean", pa.string(): "string",
    pa.binary(): "binary", pa.date32(): "date", pa.timestamp("us", tz="UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Evolution:
    """What a table has to become, and how decoded columns become its."""

    kind: pa.DataType
    """The type of the column `value` afterwards."""
    fit: Fit
    """Makes an array of the schema's type one of `kind`."""
    added: tuple[str, ...]
    """Columns that the table lacks, as `value.items.element.n`."""
    missing: tuple[str, ...]
    """Columns that the schema lacks: null from here on."""
    moved: tuple[tuple[str, str], ...]
    """Columns that a field no longer fits, and those beside them that it goes into."""


def evolve(
    table: pa.DataType, new: pa.DataType, where: str = "value", *, new_columns: bool = False
) -> Evolution:
    """Return what a table has to become so that it takes arrays of another type.

    Args:
        table: of its column now.
        new: of the schema.
        new_columns: fields that no longer fit their columns go into new ones.

    Raises:
        TypedSchemaError: a field does not fit its column; all are named.
    """
    merge = _Merge(new_columns)
    kind, fit = merge.struct(table, new, where)
    if merge.refused:
        raise TypedSchemaError(
            "; ".join(merge.refused),
            hint="Archive with --new-columns: such a field then goes into a new column beside the "
            "old one, as count_bigint. Or archive into another table",
        )
    return Evolution(kind, fit, tuple(merge.added), tuple(merge.missing), tuple(merge.moved))


def type_name(kind: pa.DataType) -> str:
    """Return the name of a type in Spark's words."""
    if kinds.is_struct(kind):
        fields = ",".join(f"{each.name}:{type_name(each.type)}" for each in _fields(kind))
        return f"struct<{fields}>"
    if kinds.is_map(kind):
        of: Any = kind
        return f"map<{type_name(of.key_type)},{type_name(of.item_type)}>"
    if _is_list(kind):
        return f"array<{type_name(item_type(kind))}>"
    if kinds.is_decimal(kind):
        digits: Any = kind
        return f"decimal({digits.precision},{digits.scale})"
    return _NAMES.get(_plain(kind), str(kind))


@dataclass(slots=True)
class _Merge:
    """One comparison of two types."""

    new_columns: bool
    added: list[str] = field(default_factory=list[str])
    missing: list[str] = field(default_factory=list[str])
    moved: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    refused: list[str] = field(default_factory=list[str])
    _left: set[str] = field(default_factory=set[str])
    """Columns whose fields go into others."""

    def struct(self, table: pa.DataType, new: pa.DataType, where: str) -> tuple[pa.DataType, Fit]:
        """Return the type of both, and what makes arrays of `new` ones of it."""
        old = {each.name.lower(): each for each in _fields(table)}
        wanted: dict[str, tuple[pa.DataType, Fit, int]] = {}
        for at, each in enumerate(_fields(new)):
            name, kind, fit = self._field(old, each, where)
            if name.lower() in {other.lower() for other in wanted}:
                self.refused.append(f"several fields would go into {where}.{name}")
            wanted[name] = (kind, fit, at)
        columns = [each.name for each in _fields(table)]
        lacking = [f"{where}.{name}" for name in columns if name not in wanted]
        self.missing += [column for column in lacking if column not in self._left]
        columns += [name for name in wanted if name not in columns]
        types = {each.name: each.type for each in _fields(table)}
        types |= {name: kind for name, (kind, _, _) in wanted.items()}
        kind = pa.struct([(name, types[name]) for name in columns])

        def fit_struct(array: pa.Array[Any]) -> pa.Array[Any]:
            parts = cast("pa.StructArray", array)
            made: list[pa.Array[Any]] = []
            for name in columns:
                if name in wanted:
                    _, fit, at = wanted[name]
                    made.append(fit(parts.field(at)))
                else:
                    made.append(pa.nulls(len(array), types[name]))
            return pa.StructArray.from_arrays(made, fields=_fields(kind), mask=array.is_null())

        return kind, fit_struct

    def _field(
        self, old: dict[str, pa.Field[Any]], new: pa.Field[Any], where: str
    ) -> tuple[str, pa.DataType, Fit]:
        """Return the column that a field goes into, the column's type, and what makes it fit."""
        column = old.get(new.name.lower())
        if column is None:
            self.added.append(f"{where}.{new.name}")
            return new.name, new.type, _same
        found = self._type(column.type, new.type, f"{where}.{column.name}")
        if found is not None:
            return column.name, *found
        self._left.add(f"{where}.{column.name}")
        moved_to = f"{new.name}_{_slug(new.type)}"
        beside = old.get(moved_to.lower())
        if beside is not None:
            found = self._type(beside.type, new.type, f"{where}.{beside.name}")
            if found is not None:
                return beside.name, *found
        why = f"{where}.{column.name} is {type_name(column.type)} in the table and "
        why += f"{type_name(new.type)} in the schema"
        if beside is not None or not self.new_columns:
            self.refused.append(why)
        else:
            self.moved.append((f"{where}.{column.name}", f"{where}.{moved_to}"))
        return moved_to, new.type, _same

    def _type(
        self, table: pa.DataType, new: pa.DataType, where: str
    ) -> tuple[pa.DataType, Fit] | None:
        """Return what both become, None where the new one does not fit the table's."""
        if kinds.is_struct(table) and kinds.is_struct(new):
            return self.struct(table, new, where)
        if kinds.is_map(table) and kinds.is_map(new):
            return self._map(table, new, where)
        if _is_list(table) and _is_list(new):
            return self._list(table, new, where)
        if kinds.is_nested(table) or kinds.is_nested(new):
            return None
        target = _plain(table)
        if target == new:
            return target, _same
        return (target, lambda array: array.cast(target)) if _fits(new, target) else None

    def _list(
        self, table: pa.DataType, new: pa.DataType, where: str
    ) -> tuple[pa.DataType, Fit] | None:
        found = self._type(item_type(table), item_type(new), f"{where}.element")
        if found is None:
            return None
        kind, fit = pa.list_(found[0]), found[1]

        def fit_list(array: pa.Array[Any]) -> pa.Array[Any]:
            return _with_children(kind, array, fit(cast("pa.ListArray[Any]", array).values))

        return kind, fit_list

    def _map(
        self, table: pa.DataType, new: pa.DataType, where: str
    ) -> tuple[pa.DataType, Fit] | None:
        old_map: Any = table
        new_map: Any = new
        key = self._type(old_map.key_type, new_map.key_type, f"{where}.key")
        value = self._type(old_map.item_type, new_map.item_type, f"{where}.value")
        if key is None or value is None:
            return None
        kind = pa.map_(key[0], value[0])
        fit_key, fit_value = key[1], value[1]

        def fit_map(array: pa.Array[Any]) -> pa.Array[Any]:
            of = cast("pa.MapArray[Any, Any]", array)
            entries = pa.StructArray.from_arrays(
                [fit_key(of.keys), fit_value(of.items)],
                fields=[kind.key_field, kind.item_field],
            )
            return _with_children(kind, array, entries)

        return kind, fit_map


def _same(array: pa.Array[Any]) -> pa.Array[Any]:
    return array


def _with_children(kind: pa.DataType, array: pa.Array[Any], child: pa.Array[Any]) -> pa.Array[Any]:
    made: pa.Array[Any] = pa.Array.from_buffers(
        kind, len(array), array.buffers()[:2], offset=array.offset, children=[child]
    )
    return made


def _fields(kind: pa.DataType) -> list[pa.Field[Any]]:
    of = cast("pa.StructType", kind)
    return [of.field(at) for at in range(of.num_fields)]


def _is_list(kind: pa.DataType) -> bool:
    return kinds.is_list(kind) or kinds.is_large_list(kind)


def item_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a list's values."""
    item: pa.DataType = cast("Any", kind).value_type
    return item


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type as our decoders make it, where a reader of tables has a larger twin."""
    if kinds.is_large_string(kind) or kinds.is_string_view(kind):
        return pa.string()
    if kinds.is_large_binary(kind) or kinds.is_binary_view(kind):
        return pa.binary()
    return kind


def _fits(new: pa.DataType, table: pa.DataType) -> bool:
    """Return whether every value of a type is one of the table's, which is another."""
    if kinds.is_decimal(table):
        of: Any = table
        if new in _INTEGERS:
            return bool(of.precision - of.scale >= _INTEGERS[new])
        if not kinds.is_decimal(new):
            return False
        less: Any = new
        whole = less.precision - less.scale
        return bool(less.scale <= of.scale and whole <= of.precision - of.scale)
    if new in _INTEGERS and table in _INTEGERS:
        return _INTEGERS[new] <= _INTEGERS[table]
    if table == pa.float64():
        return new in (pa.float32(), pa.int8(), pa.int16(), pa.int32())
    return bool(new == pa.date32() and table == pa.timestamp("us"))


def _slug(kind: pa.DataType) -> str:
    """Return a type as a part of a column's name."""
    return re.sub(r"\W+", "_", type_name(kind)).strip("_")
