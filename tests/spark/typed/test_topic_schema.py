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
    ddl,
    parse,
    table_ddl,
)
from skylarkmq.spark.typed.decoding import BodyDecoder
from skylarkmq.spark.typed.topic_schema import load
from tests.spark.support.typed_values import structs, types
from tests.spark.typed.test_protobuf_bodies import PROTO, descriptors

ITEM = {"type": "record", "name": "Item", "fields": [{"name": "n", "type": "int"}]}
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "item", "type": "Item"}]}
BOTH = {"type": "record", "name": "Order", "fields": [{"name": "item", "type": ITEM}]}


@given(structs(types))
def test_types_are_what_their_texts_say(kind: Struct) -> None:
    assert ddl(parse(ddl(kind))) == ddl(kind)
    assert table_ddl(parse(table_ddl(kind))) == table_ddl(kind)


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


def test_avro_files(tmp_path: Path) -> None:
    written(tmp_path, "Item.avsc", ITEM)
    path = written(tmp_path, "Order.avsc", ORDER)
    found = load(path)
    assert (found.format, found.head) == ("avro", "none")
    assert table_ddl(BodyDecoder(found).columns) == "struct<item:struct<n:int>>"
    assert load(written(tmp_path, "order.v2.json", BOTH)).format == "avro"
    inline = load(written(tmp_path, "a.json", own(format="avro", schema=BOTH)))
    assert json.loads(inline.definition) == BOTH


def test_our_own_form_of_avro_with_writers(tmp_path: Path) -> None:
    written(tmp_path, "both.avsc", BOTH)
    more = own(format="avro", schema="both.avsc", head="confluent", writers={"3": "both.avsc"})
    found = load(written(tmp_path, "orders.json", more))
    assert found.writers.keys() == {"3"} and found.head == "confluent"
    more = own(format="avro", schema="both.avsc", head="single-object", writers=["both.avsc"])
    assert load(written(tmp_path, "orders.json", more)).writers.keys() == {"0"}
    BodyDecoder(pickle.loads(pickle.dumps(found)))


def test_protobuf_files(tmp_path: Path) -> None:
    path = written(tmp_path, "shop.desc", descriptors())
    found = load(f"{path}#shop.Order")
    assert (found.format, found.message) == ("protobuf", "shop.Order")
    named = own(format="protobuf", descriptors="shop.desc", message="shop.Item", head="confluent")
    assert load(written(tmp_path, "orders.json", named)).head == "confluent"
    proto = written(tmp_path, "shop.proto", PROTO)
    columns = BodyDecoder(load(f"{proto}#shop.Item")).columns
    assert table_ddl(columns) == "struct<sku:string,n:int>"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "is no JSON"),
        ({"columns": {}}, "is no schema: it is neither of Avro"),
        (own(format="xml"), "format 'xml' is none"),
        ({"format": "text"}, "version None is not known"),
        (own(format="json", colums={}), "'colums' is no key of format json"),
        (own(format="json"), '"columns" has to be an object'),
        (own(format="json", columns={"a": 1}), '"columns" has to be an object'),
        (own(format="json", columns={"a": "in"}), "column 'a': 'in' is no type"),
        (own(format="json", columns={"a": "int"}, head="single-object"), "none of json"),
        (own(format="text", head="confluent"), "head 'confluent' is none of text"),
        (own(format="avro"), '"schema" is missing'),
        (own(format="avro", schema="gone.avsc"), "gone.avsc cannot be read: No such file"),
        (own(format="avro", schema=BOTH, head="confluent"), "a Confluent head needs writers"),
        (own(format="avro", schema=BOTH, writers={"1": BOTH}), "writers go with a head"),
        (
            own(format="avro", schema=BOTH, head="confluent", writers=[BOTH]),
            "writers are an object by schema ids",
        ),
        (own(format="protobuf"), '"descriptors" has to name a file'),
        ({"type": "record", "name": "R", "fields": [{"name": "x", "type": "Lost"}]}, "Lost"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, content: Any, why: str) -> None:
    path = written(tmp_path, "orders.json", content)
    with pytest.raises(TypedSchemaError) as raised:
        load(path)
    assert why in str(raised.value)


def test_a_message_belongs_to_protobuf(tmp_path: Path) -> None:
    with pytest.raises(TypedSchemaError, match="only Protobuf has messages by name"):
        load(written(tmp_path, "both.avsc", BOTH) + "#Order")
    with pytest.raises(TypedSchemaError, match="larger than"):
        load(written(tmp_path, "big.desc", bytes(17 << 20)))
