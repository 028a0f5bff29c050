"""Protobuf bodies into columns, by descriptors that protoc itself makes."""

import datetime
import decimal
import importlib
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.spark.typed.column_types import TypedSchemaError, arrow_type, table_ddl
from skylarkmq.spark.typed.decoding import BodyDecoder
from skylarkmq.spark.typed.protobuf_bodies import compiled
from skylarkmq.spark.typed.topic_schema import TopicSchema
from tests.spark.support.typed_values import EPOCH, MICROSECOND, UTC, decoded, reasons, texts

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
enum Color { NONE = 0; RED = 1; }
message Item { string sku = 1; int32 n = 2; message Part { bool ok = 1; } }
message Nothing {}
message Order {
  int64 id = 1;
  uint64 big = 2;
  uint32 medium = 3;
  double price = 4;
  float weight = 5;
  bool paid = 6;
  string class = 7;
  bytes raw = 8;
  Color color = 9;
  google.protobuf.Timestamp placed = 10;
  repeated Item items = 11;
  map<string, Item> by_name = 12;
  map<int32, int64> counts = 13;
  optional int32 maybe = 14;
  oneof either { string left = 15; Item right = 16; }
  google.protobuf.Int64Value wrapped = 17;
  google.protobuf.Struct more = 18;
  Order parent = 19;
  Nothing nothing = 20;
  repeated Color colors = 21;
  repeated sint64 signed = 22;
}
"""
TYPES = {
    "id": "bigint",
    "big": "decimal(20,0)",
    "medium": "bigint",
    "price": "double",
    "weight": "float",
    "paid": "boolean",
    "class": "string",
    "raw": "binary",
    "color": "string",
    "placed": "timestamp",
    "items": "array<struct<sku:string,n:int>>",
    "by_name": "map<string,struct<sku:string,n:int>>",
    "counts": "map<int,bigint>",
    "maybe": "int",
    "left": "string",
    "right": "struct<sku:string,n:int>",
    "wrapped": "bigint",
    "more": "string",
    "parent": "string",
    "nothing": "string",
    "colors": "array<string>",
    "signed": "array<bigint>",
}


@cache
def descriptors() -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "shop.proto"
        path.write_text(PROTO)
        return compiled(path)


@cache
def order_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def decoder(message: str = "shop.Order", head: str = "none") -> BodyDecoder:
    return BodyDecoder(TopicSchema("protobuf", head, descriptors=descriptors(), message=message))


item = st.fixed_dictionaries({"sku": texts, "n": st.integers(-(2**31), 2**31 - 1)})
INT64 = st.integers(-(2**63), 2**63 - 1)
orders = st.fixed_dictionaries(
    {
        "id": INT64,
        "big": st.integers(0, 2**64 - 1),
        "medium": st.integers(0, 2**32 - 1),
        "price": st.floats(allow_nan=False),
        "weight": st.floats(width=32, allow_nan=False),
        "paid": st.booleans(),
        "class": texts,
        "raw": st.binary(max_size=5),
        "color": st.sampled_from([0, 1, 7]),
        "items": st.lists(item, max_size=3),
        "by_name": st.dictionaries(texts, item, max_size=3),
        "counts": st.dictionaries(st.integers(-9, 9), INT64, max_size=3),
        "colors": st.lists(st.sampled_from([0, 1, 7]), max_size=3),
        "signed": st.lists(INT64, max_size=3),
    },
    optional={
        "maybe": st.integers(-5, 5),
        "left": texts,
        "wrapped": st.builds(lambda value: {"value": value}, INT64),
    },
)
COLORS = {0: "NONE", 1: "RED", 7: "7"}


@given(st.lists(orders, min_size=1, max_size=3))
def test_values_come_back(rows: list[dict[str, Any]]) -> None:
    reader = decoder()
    found = decoded(reader, *(order_class()(**row).SerializeToString() for row in rows))
    assert found.quarantine.to_pylist() == [None] * len(rows)
    assert found.value.type == arrow_type(reader.columns)
    for row, value in zip(rows, found.value.to_pylist(), strict=True):
        for name in ("by_name", "counts"):
            value[name] = dict(value[name])
        wrapped = row.get("wrapped")
        assert {name: each for name, each in value.items() if each is not None} == {
            **row,
            "color": COLORS[row["color"]],
            "colors": [COLORS[each] for each in row["colors"]],
            **({"wrapped": wrapped["value"]} if wrapped else {}),
        }


def test_the_types_of_columns() -> None:
    fields = decoder().columns.fields
    assert {field.name: table_ddl(field.type) for field in fields} == TYPES


def test_messages_of_google_and_messages_within_themselves() -> None:
    order = order_class()(id=1)
    order.placed.FromDatetime(datetime.datetime(2026, 1, 31, 8))
    order.placed.nanos = 1_999
    order.more["a"] = [1, "x"]
    order.parent.id = 5
    order.right.n = 4
    order.nothing.SetInParent()
    (value,) = decoded(decoder(), order.SerializeToString()).value.to_pylist()
    assert value["placed"] == datetime.datetime(2026, 1, 31, 8, tzinfo=UTC) + MICROSECOND
    assert (value["left"], value["right"]) == (None, {"sku": "", "n": 4})
    assert value["more"] == '{"a": [1.0, "x"]}'
    assert value["parent"] == '{"id": "5"}'
    assert value["nothing"] == "{}"
    assert (value["maybe"], value["wrapped"]) == (None, None)
    assert value["big"] == decimal.Decimal(0)
    (before,) = decoded(decoder(), order_class()(placed={"seconds": -1}).SerializeToString()).value
    assert before.as_py()["placed"] == EPOCH - 1_000_000 * MICROSECOND


def test_confluent_heads_name_the_message() -> None:
    body = order_class()(id=3).SerializeToString()
    reader = decoder(head="confluent")
    found = decoded(
        reader,
        b"\0\0\0\0\x05\x02\x04" + body,  # one index, 2: Order is the third message of its file
        b"\0\0\0\0\x05\x00" + body,
        b"\0\0\0\0\x05\x04\x04",
        body,
    )
    assert [value is not None for value in found.value.to_pylist()] == [True, *[False] * 3]
    assert found.quarantine.to_pylist()[1:3] == [
        "Protobuf: its Confluent head names message [0] of the file, and shop.Order is [2]",
        "Protobuf: the message indexes after its Confluent head are cut",
    ]
    parts = decoder("shop.Item.Part", "confluent")
    assert decoded(parts, b"\0\0\0\0\x05\x04\x00\x00\x08\x01").value.to_pylist() == [{"ok": True}]
    first = decoder("shop.Item", "confluent")
    assert decoded(first, b"\0\0\0\0\x05\x00\x10\x04").value.to_pylist() == [{"sku": "", "n": 4}]


def test_reasons() -> None:
    body = order_class()(id=3, **{"class": "x" * 9}).SerializeToString()
    cut, other, text, gzip = reasons(
        decoder(), body[:-1], b"\xba\x05\x01x", b'{"id": 3}', b"\x1f\x8b\x08\0"
    )
    assert cut and cut.startswith("Protobuf: ")
    assert other == "Protobuf: it has no field of shop.Order, but others"
    assert text and gzip and "like gzip" in gzip
    assert reasons(decoder(), b"") == [None]


def test_what_names_no_message() -> None:
    with pytest.raises(TypedSchemaError, match=r"no message 'shop\.Ordr'") as raised:
        decoder("shop.Ordr")
    assert "shop.Item, shop.Nothing, shop.Order" in str(raised.value.hint)
    with pytest.raises(TypedSchemaError, match="have 3 messages, and none was named"):
        decoder("")
    with pytest.raises(TypedSchemaError, match="has no fields"):
        decoder("shop.Nothing")
    with pytest.raises(TypedSchemaError, match="no FileDescriptorSet"):
        BodyDecoder(TopicSchema("protobuf", descriptors=b"\xff\xff"))
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file
    alone = descriptor_pb2.FileDescriptorSet(file=[files[-1]]).SerializeToString()
    with pytest.raises(TypedSchemaError, match="descriptors are wrong"):
        BodyDecoder(TopicSchema("protobuf", descriptors=alone))


def test_a_proto_file_that_protoc_refuses(tmp_path: Path) -> None:
    path = tmp_path / "a.proto"
    path.write_text("message {")
    with pytest.raises(TypedSchemaError, match=r"protoc refused a\.proto"):
        compiled(path)


def test_without_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc_tools.protoc", None)
    monkeypatch.setattr(importlib, "import_module", _missing)
    with pytest.raises(TypedSchemaError, match="grpcio-tools is not installed"):
        compiled(tmp_path / "a.proto")


def _missing(name: str) -> Any:
    raise ImportError(name)
