"""What becomes of a table's column when the topic's schema changes; deltalake has the last word."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.spark.typed.column_types import (
    Struct,
    TypedSchemaError,
    arrow_type,
    parse,
    table_ddl,
)
from skylarkmq.spark.typed.evolution import Evolution, evolve, type_name
from tests.spark.support.typed_values import present, structs, types


def evolved(table: str, new: str, *, new_columns: bool = False) -> Evolution:
    return evolve(arrow_type(parse(table)), arrow_type(parse(new)), new_columns=new_columns)


def test_a_field_more_and_a_field_fewer_at_any_depth() -> None:
    found = evolved(
        "struct<id:int,gone:string,items:array<struct<n:int,old:int>>,"
        "by:map<string,struct<x:int>>>",
        "struct<items:array<struct<more:string,n:int>>,by:map<string,struct<x:int,y:date>>,id:int,"
        "b:boolean>",
    )
    assert type_name(found.kind) == (
        "struct<id:int,gone:string,items:array<struct<n:int,old:int,more:string>>,"
        "by:map<string,struct<x:int,y:date>>,b:boolean>"
    )
    assert found.added == ("value.items.element.more", "value.by.value.y", "value.b")
    assert found.missing == ("value.items.element.old", "value.gone")
    values = [
        {"items": [{"more": "m", "n": 1}, None], "by": [("k", {"x": 1, "y": None})], "id": 5,
         "b": True},
        None,
        {"items": None, "by": None, "id": None, "b": None},
    ]  # fmt: skip
    new = pa.array(values, arrow_type(parse(
        "struct<items:array<struct<more:string,n:int>>,by:map<string,struct<x:int,y:date>>,id:int,"
        "b:boolean>")))  # fmt: skip
    assert found.fit(new).to_pylist() == [
        {"id": 5, "gone": None, "items": [{"n": 1, "old": None, "more": "m"}, None],
         "by": [("k", {"x": 1, "y": None})], "b": True},
        None,
        {"id": None, "gone": None, "items": None, "by": None, "b": None},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("table", "new"),
    [
        ("bigint", "int"),
        ("int", "tinyint"),
        ("double", "float"),
        ("double", "int"),
        ("decimal(12,3)", "decimal(10,2)"),
        ("decimal(10,0)", "int"),
        ("timestamp_ntz", "date"),
        ("array<bigint>", "array<smallint>"),
        ("map<string,double>", "map<string,float>"),
    ],
)
def test_a_narrower_type_is_widened_as_it_is_written(table: str, new: str) -> None:
    found = evolved(f"struct<a:{table}>", f"struct<a:{new}>")
    assert type_name(found.kind) == f"struct<a:{table}>"
    assert not found.added and not found.moved


WIDER = [
    ("int", "bigint", "a_bigint"),
    ("bigint", "double", "a_double"),
    ("float", "double", "a_double"),
    ("decimal(10,2)", "decimal(12,3)", "a_decimal_12_3"),
    ("string", "int", "a_int"),
    ("int", "struct<x:int>", "a_struct_x_int"),
    ("array<int>", "array<bigint>", "a_array_bigint"),
    ("map<string,int>", "map<string,string>", "a_map_string_string"),
    ("timestamp", "timestamp_ntz", "a_timestamp_ntz"),
]


@pytest.mark.parametrize(("table", "new", "column"), WIDER)
def test_a_type_that_does_not_fit(table: str, new: str, column: str) -> None:
    with pytest.raises(TypedSchemaError) as raised:
        evolved(f"struct<a:{table}>", f"struct<a:{new}>")
    assert f"value.a is {table} in the table and {new} in the schema" in str(raised.value)
    assert "--new-columns" in str(raised.value.hint)
    found = evolved(f"struct<a:{table}>", f"struct<a:{new}>", new_columns=True)
    assert type_name(found.kind) == f"struct<a:{table},{column}:{new}>"
    assert found.moved == (("value.a", f"value.{column}"),)
    # Once it is there it is used without being asked for.
    again = evolved(type_name(found.kind), f"struct<a:{new}>")
    assert (again.kind, again.moved, again.added) == (found.kind, (), ())
    assert again.fit(
        pa.array([{"a": None}], arrow_type(parse(f"struct<a:{new}>")))
    ).to_pylist() == [{"a": None, column: None}]


def test_several_are_named_together_and_two_never_share_a_column() -> None:
    with pytest.raises(TypedSchemaError, match=r"value.a is int.*; value.b.c is int"):
        evolved("struct<a:int,b:struct<c:int>>", "struct<a:string,b:struct<c:string>>")
    with pytest.raises(TypedSchemaError, match=r"several fields would go into value\.a_bigint"):
        evolved("struct<a:int,a_bigint:bigint>", "struct<a:bigint,a_bigint:bigint>")


def test_names_are_told_without_case() -> None:
    found = evolved("struct<Id:bigint>", "struct<ID:int>")
    assert type_name(found.kind) == "struct<Id:bigint>"


@given(structs(types), st.data())
def test_the_same_schema_changes_nothing(kind: Struct, data: st.DataObject) -> None:
    of = arrow_type(kind)
    found = evolve(of, of)
    assert (found.kind, found.added, found.missing, found.moved) == (of, (), (), ())
    values = pa.array(data.draw(st.lists(st.none() | present(kind), max_size=3)), of)
    assert found.fit(values).equals(values)
    assert found.fit(values[1:]).equals(values[1:])
    assert type_name(of) == table_ddl(kind).replace("`", "")


def test_deltalake_takes_what_evolves(tmp_path: Path) -> None:
    """Old files stay as they are, and every reader of the table finds nulls in them."""
    old = "struct<id:int,items:array<struct<n:int>>,by:map<string,struct<x:int>>>"
    new = (
        "struct<id:int,items:array<struct<n:int,m:date>>,by:map<string,struct<x:int,y:int>>,z:int>"
    )
    path = str(tmp_path / "table")
    row: dict[str, Any] = {"id": 1, "items": [{"n": 1}], "by": [("k", {"x": 1})]}
    write_deltalake(path, _table(old, row))
    found = evolved(old, new)
    table = DeltaTable(path)
    column = pa.schema([("value", found.kind)])
    table.alter.add_columns([Schema.from_arrow(column).fields[0]])
    after = pa.schema(DeltaTable(path).schema().to_arrow()).field("value").type
    assert type_name(after) == type_name(found.kind)
    write_deltalake(path, _table(type_name(found.kind), {**row, "z": 9}), mode="append")
    rows = pa.table(DeltaTable(path).to_pyarrow_table()).column("value").to_pylist()
    assert sorted((each["z"] or 0, each["items"][0]["m"]) for each in rows) == [
        (0, None),
        (9, None),
    ]


def _table(kind: str, value: dict[str, Any]) -> pa.Table:
    return pa.table({"value": pa.array([value], arrow_type(parse(kind)))})
