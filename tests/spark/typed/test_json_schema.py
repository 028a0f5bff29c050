"""JSON Schemas: what of them becomes columns."""

import json
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.spark.typed.column_types import TypedSchemaError
from skylarkmq.spark.typed.decoding import BodyDecoder
from skylarkmq.spark.typed.json_schema import columns_of_json_schema
from skylarkmq.spark.typed.topic_schema import load
from tests.spark.support.typed_values import decoded

TEXT, NUMBER = {"type": "string"}, {"type": "number"}


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def test_types() -> None:
    document = of(
        id={"type": "integer"},
        price=NUMBER,
        paid={"type": "boolean"},
        placed={"type": "string", "format": "date-time"},
        day={"type": "string", "format": "date"},
        mail={"type": "string", "format": "email"},
        raw={"type": "string", "contentEncoding": "base64"},
        note={"type": ["string", "null"]},
        either={"type": ["string", "integer"]},
        nothing={"type": "null"},
        items={"type": "array", "items": {"$ref": "#/$defs/item"}},
        things={"type": "array"},
        labels={"type": "object", "additionalProperties": TEXT},
        free={"type": "object"},
        maybe={"anyOf": [{"$ref": "#/$defs/item"}, {"type": "null"}]},
        several={"oneOf": [TEXT, NUMBER]},
        untold={},
        anything=True,
        tree={"$ref": "#/$defs/node"},
        cases=of(x=TEXT, X=TEXT),
    ) | {
        "$defs": {
            "item": of(**{"the sku": TEXT, "n": {"type": "integer"}}),
            "node": of(name=TEXT, next={"$ref": "#/$defs/node"}),
        }
    }
    assert columns_of_json_schema(document) == {
        "id": "bigint",
        "price": "double",
        "paid": "boolean",
        "placed": "timestamp",
        "day": "date",
        "mail": "string",
        "raw": "binary",
        "note": "string",
        "either": "json",
        "items": "array<struct<`the sku`:string,n:bigint>>",
        "things": "array<json>",
        "labels": "map<string,string>",
        "free": "json",
        "maybe": "struct<`the sku`:string,n:bigint>",
        "several": "json",
        "untold": "json",
        "anything": "json",
        "tree": "struct<name:string,next:json>",
        "cases": "json",
    }


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"$schema": "https://json-schema.org/draft/2020-12/schema"}, "has no properties"),
        (of(), "has no properties"),
        (of(a={"$ref": "other.json#/x"}), "is not in the same file"),
        (of(a={"$ref": "#/$defs/x"}), "names nothing"),
        (of(a=TEXT, A=TEXT), "several fields"),
    ],
)
def test_schemas_without_columns(tmp_path: Path, document: Any, why: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document))
    with pytest.raises(TypedSchemaError, match=why):
        load(str(path))


def test_references_in_a_circle_are_json() -> None:
    document = of(a={"$ref": "#/$defs/x"}) | {"$defs": {"x": {"$ref": "#/$defs/x"}}}
    assert columns_of_json_schema(document) == {"a": "json"}


def test_a_file_of_our_own_names_one(tmp_path: Path) -> None:
    (tmp_path / "order.schema.json").write_text(json.dumps(of(id={"type": "integer"})))
    path = tmp_path / "orders.json"
    own = {"version": 1, "format": "json", "head": "confluent", "schema": "order.schema.json"}
    path.write_text(json.dumps(own))
    found = decoded(BodyDecoder(load(str(path))), b'\0\0\0\0\x01{"id": 5}')
    assert found.value.to_pylist() == [{"id": 5}]
    path.write_text(json.dumps(own | {"columns": {"id": "int"}}))
    with pytest.raises(TypedSchemaError, match='"columns" and "schema" both say the columns'):
        load(str(path))
    path.write_text(json.dumps(own | {"schema": of(id={"type": "integer"})}))
    assert load(str(path)).columns == {"id": "bigint"}
