"""Schema files: which they are, and what is wrong with one."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from skylarkmq.spark.typed.column_types import (
    Leaf,
    Struct,
    TypedSchemaError,
    columns_of,
    parse,
)
from skylarkmq.spark.typed.topic_schema import TopicSchema, load
from tests.spark.support.typed_values import ddl, structs, types


@given(structs(types))
def test_types_are_what_their_texts_say(kind: Struct) -> None:
    assert parse(ddl(kind)) == kind


@pytest.mark.parametrize(
    "text",
    [
        "", "integer", "array", "array<int", "array<int>>", "map<int>", "map<array<int>,int>",
        "struct<>", "struct<a>", "struct<a:int,>", "struct<1:int>", "decimal", "decimal(39,0)",
        "decimal(3,4)", "decimal(0,0)", "timestamp(ns)", "int int", "a;b", "array<" * 40 + "int",
        "struct<a:int,A:int>", "decimal(٣,1)",
    ],
)  # fmt: skip
def test_texts_that_are_no_types(text: str) -> None:
    with pytest.raises(TypedSchemaError):
        parse(text)


def test_names_that_no_table_takes() -> None:
    found = columns_of({"a b": "int", "x=y": " Array< BIGINT > "})
    assert [(field.name, field.key) for field in found.fields] == [("a_b", "a b"), ("x_y", "x=y")]
    assert parse("timestamp(ms)") == Leaf("timestamp", "ms")
    with pytest.raises(TypedSchemaError, match="column 'b': 'integer' is no type"):
        columns_of({"a": "int", "b": "integer"})
    with pytest.raises(TypedSchemaError, match="has no fields"):
        columns_of({})
    with pytest.raises(TypedSchemaError, match="several fields that would be column 'a_b'"):
        columns_of({"a b": "int", "a_b": "int"})


def written(folder: Path, name: str, content: Any) -> str:
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def own(**more: Any) -> dict[str, Any]:
    return {"version": 1, **more}


def test_a_schema_pickles(tmp_path: Path) -> None:
    found = load(written(tmp_path, "orders.json", own(format="json", columns={"id": "int"})))
    assert found == TopicSchema("json", {"id": "int"})
    assert pickle.loads(pickle.dumps(found)) == found
    assert load(written(tmp_path, "lines.json", own(format="text"))) == TopicSchema("text")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "is no JSON"),
        ({"columns": {}}, 'is no schema: it has no "format"'),
        ([], 'is no schema: it has no "format"'),
        (own(format="xml"), "format 'xml' is none. Formats are json, text"),
        ({"format": "text"}, "version None is not known"),
        (own(format="json", colums={}), "'colums' is no key of format json"),
        (own(format="json"), '"columns" has to be an object'),
        (own(format="json", columns={"a": 1}), '"columns" has to be an object'),
        (own(format="json", columns={"a": "in"}), "column 'a': 'in' is no type"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, content: Any, why: str) -> None:
    path = written(tmp_path, "orders.json", content)
    with pytest.raises(TypedSchemaError) as raised:
        load(path)
    assert why in str(raised.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TypedSchemaError, match=r"gone\.json cannot be read: No such file"):
        load(str(tmp_path / "gone.json"))
    with pytest.raises(TypedSchemaError, match="larger than"):
        load(written(tmp_path, "big.json", bytes(17 << 20)))


@pytest.mark.parametrize("name", ["order.avsc", "shop.desc#shop.Order", "shop.proto"])
def test_binary_bodies_are_decoded_when_they_are_read(name: str) -> None:
    with pytest.raises(TypedSchemaError, match=r"without --schema.*docs/spark/avro\.md"):
        load(name)


@pytest.mark.parametrize(
    ("content", "instead"),
    [
        (own(format="avro", schema={}), "docs/spark/avro.md"),
        (own(format="protobuf", descriptors="shop.desc"), "docs/spark/avro.md"),
        ({"type": "record", "name": "Order", "fields": []}, "docs/spark/avro.md"),
        ({"type": "object", "properties": {}}, "JSON Schemas are not read"),
        (own(format="json", schema={}), "JSON Schemas are not read"),
        (
            own(format="json", columns={"a": "int"}, head="confluent"),
            "cut the head off the column body",
        ),
    ],
)
def test_what_is_no_schema_any_more_says_what_to_do(
    tmp_path: Path, content: Any, instead: str
) -> None:
    with pytest.raises(TypedSchemaError) as raised:
        load(written(tmp_path, "orders.json", content))
    assert instead in str(raised.value)
