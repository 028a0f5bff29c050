"""Avro bodies into columns; fastavro's own writer and its logical types are the oracle."""

import datetime
import decimal
import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.spark.typed.column_types import TypedSchemaError, arrow_type, table_ddl
from skylarkmq.spark.typed.decoding import BodyDecoder
from skylarkmq.spark.typed.topic_schema import TopicSchema
from tests.spark.support.typed_values import EPOCH, MICROSECOND, UTC, decoded, reasons, texts

TIMES = st.integers(-(10**15), 10**15).map(lambda number: EPOCH + number * MICROSECOND)
MILLIS = st.integers(-(10**12), 10**12).map(lambda number: EPOCH + number * 1000 * MICROSECOND)
DECIMALS = st.integers(-(10**9), 10**9).map(lambda number: decimal.Decimal(number).scaleb(-3))
LONG_DIGITS = st.integers(-(10**38) + 1, 10**38 - 1).map(decimal.Decimal)

# An Avro type, the column's type, values for fastavro's writer, and what the column says of them.
FIELDS: list[tuple[Any, str, st.SearchStrategy[Any], Any]] = [
    ("boolean", "boolean", st.booleans(), None),
    ("int", "int", st.integers(-(2**31), 2**31 - 1), None),
    ("long", "bigint", st.integers(-(2**63), 2**63 - 1), None),
    ("float", "float", st.floats(width=32, allow_nan=False), None),
    ("double", "double", st.floats(allow_nan=False), None),
    ("string", "string", texts, None),
    ("bytes", "binary", st.binary(max_size=6), None),
    ({"type": "fixed", "name": "F", "size": 3}, "binary", st.binary(min_size=3, max_size=3), None),
    ({"type": "enum", "name": "E", "symbols": ["X", "Y"]}, "string", st.sampled_from("XY"), None),
    ({"type": "int", "logicalType": "date"}, "date", st.dates(), None),
    ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp", MILLIS, None),
    ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp", TIMES, None),
    (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        "timestamp_ntz",
        TIMES.map(lambda time: time.replace(tzinfo=None)),
        None,
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
        "decimal(12,3)",
        DECIMALS,
        None,
    ),
    (
        {"type": "fixed", "name": "D", "size": 16, "logicalType": "decimal", "precision": 38},
        "decimal(38,0)",
        LONG_DIGITS,
        None,
    ),
    ({"type": "string", "logicalType": "uuid"}, "string", st.uuids(), str),
    ({"type": "array", "items": "long"}, "array<bigint>", st.lists(st.integers(0, 9)), None),
    (
        {"type": "map", "values": ["null", "string"]},
        "map<string,string>",
        st.dictionaries(texts, st.none() | texts, max_size=3),
        lambda value: list(value.items()),
    ),
    (
        {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]},
        "struct<x:int>",
        st.fixed_dictionaries({"x": st.integers(0, 9)}),
        None,
    ),
    (["int", "long"], "bigint", st.integers(-(2**63), 2**63 - 1), None),
]
EMPTY = {"type": "fixed", "name": "F", "size": 0}
UNION = [
    "null",
    "string",
    {"type": "record", "name": "A", "fields": [{"name": "x", "type": "int"}]},
    {"type": "record", "name": "B", "fields": [{"name": "x", "type": "int"}]},
    {"type": "map", "values": "long"},
]


def record(*fields: tuple[str, Any], name: str = "Order") -> dict[str, Any]:
    found = [{"name": each, "type": kind} for each, kind in fields]
    return {"type": "record", "name": name, "namespace": "shop", "fields": found}


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def decoder(schema: Any, **more: Any) -> BodyDecoder:
    return BodyDecoder(TopicSchema("avro", definition=json.dumps(schema), **more))


@given(st.data(), st.lists(st.integers(0, len(FIELDS) - 1), min_size=1, max_size=5, unique=True))
def test_values_come_back(data: st.DataObject, chosen: list[int]) -> None:
    fields = [FIELDS[at] for at in chosen]
    schema = record(*((f"f{at}", ["null", kind] if at % 2 and not isinstance(kind, list) else kind)
                      for at, (kind, *_) in enumerate(fields)))  # fmt: skip
    rows = data.draw(
        st.lists(st.tuples(*(values for _, _, values, _ in fields)), min_size=1, max_size=3)
    )
    bodies = [written(schema, {f"f{at}": each for at, each in enumerate(row)}) for row in rows]
    reader = decoder(schema)
    found = decoded(reader, *bodies)
    assert found.quarantine.to_pylist() == [None] * len(rows)
    assert found.value.type == arrow_type(reader.columns)
    assert [table_ddl(each.type) for each in reader.columns.fields] == [kind for _, kind, *_ in
                                                                        fields]  # fmt: skip
    assert found.value.to_pylist() == [
        {
            f"f{at}": says(each) if says else each
            for at, (each, (*_, says)) in enumerate(zip(row, fields, strict=True))
        }
        for row in rows
    ]


def test_a_union_has_a_member_for_each_type() -> None:
    schema = record(("u", UNION), ("l", {"type": "array", "items": ["shop.A", "shop.B"]}),
                    ("n", ["null", "shop.A"]))  # fmt: skip
    reader = decoder(schema)
    members = "struct<member0:string,member1:struct<x:int>,member2:struct<x:int>,"
    assert table_ddl(reader.columns.fields[0].type) == members + "member3:map<string,bigint>>"
    rows = [
        {"u": "s", "l": [("shop.B", {"x": 1}), ("shop.A", {"x": 2})], "n": {"x": 3}},
        {"u": ("shop.B", {"x": 4}), "l": [], "n": None},
        {"u": {"k": 5}, "l": [], "n": None},
        {"u": None, "l": [], "n": None},
    ]
    found = decoded(reader, *(written(schema, row) for row in rows))
    assert found.quarantine.null_count == 4
    nothing = {"member0": None, "member1": None, "member2": None, "member3": None}
    assert [row["u"] for row in found.value.to_pylist()] == [
        nothing | {"member0": "s"},
        nothing | {"member2": {"x": 4}},
        nothing | {"member3": [("k", 5)]},
        None,
    ]
    first = found.value.to_pylist()[0]
    assert first["l"] == [{"member0": None, "member1": {"x": 1}}, {"member0": {"x": 2},
                                                                   "member1": None}]  # fmt: skip
    assert first["n"] == {"x": 3}


def test_confluent_ids_tell_the_writer() -> None:
    old = record(("id", "int"))
    new = record(("id", "long"), ("note", ["null", "string"]))
    new["fields"][1]["default"] = None
    writers = {"3": json.dumps(old), "4": json.dumps(new)}
    reader = decoder(new, head="confluent", writers=writers)
    bodies = [
        b"\0\0\0\0\x03" + written(old, {"id": 7}),
        b"\0\0\0\0\x04" + written(new, {"id": 8, "note": "x"}),
        b"\0\0\0\0\x05" + written(new, {"id": 9, "note": "x"}),
        written(new, {"id": 9, "note": "x"}),
    ]
    found = decoded(reader, *bodies)
    assert found.value.to_pylist() == [
        {"id": 7, "note": None},
        {"id": 8, "note": "x"},
        None,
        None,
    ]
    assert found.quarantine.to_pylist()[2:] == [
        "Avro: its Confluent schema id 5 is none of the schema's writers",
        "Avro: it has no Confluent head (a zero byte and the schema id, 5 bytes)",
    ]


def test_a_fingerprint_tells_the_writer() -> None:
    old, new = record(("id", "int")), record(("id", "long"))
    reader = decoder(new, head="single-object", writers={"0": json.dumps(old)})
    # The fingerprint of the specification's algorithm, in its order of bytes.
    heads = [b"\xc3\x01" + rabin(each) for each in (old, new)]
    other = b"\xc3\x01" + bytes(8)
    found = decoded(
        reader, heads[0] + written(old, {"id": 7}), heads[1] + written(new, {"id": 8}), other, b""
    )
    assert found.value.to_pylist() == [{"id": 7}, {"id": 8}, None, None]
    reason, without = found.quarantine.to_pylist()[2:]
    assert reason == "Avro: no writer of the schema has its fingerprint 0000000000000000"
    assert "no head of Avro's single-object encoding" in without


def rabin(schema: Any) -> bytes:
    """CRC-64-AVRO as the specification writes it, little-endian."""
    text = fastavro.schema.to_parsing_canonical_form(schema).encode()
    empty = 0xC15D213AA4D7A795
    found = empty
    for byte in text:
        entry = (found ^ byte) & 0xFF
        for _ in range(8):
            entry = (entry >> 1) ^ (empty & -(entry & 1))
        found = (found >> 8) ^ entry
    return found.to_bytes(8, "little")


def test_a_record_within_itself_is_text() -> None:
    schema = record(("id", "int"), ("next", ["null", "shop.Order"]))
    reader = decoder(schema)
    assert table_ddl(reader.columns.fields[1].type) == "string"
    body = written(schema, {"id": 1, "next": {"id": 2, "next": None}})
    assert decoded(reader, body).value.to_pylist() == [{"id": 1, "next": '{"id":2,"next":null}'}]


@pytest.mark.parametrize("depth", [10, 900, 5_000, 100_000])
def test_records_deep_within_each_other_end_no_process(depth: int) -> None:
    reader = decoder(record(("next", ["null", "shop.Order"])))
    found = decoded(reader, b"\x02" * depth + b"\x00", b"\x00")
    (deep, flat), (reason, none) = found.value.to_pylist(), found.quarantine.to_pylist()
    assert (flat, none) == ({"next": None}, None)
    if depth < 1_000:
        assert deep["next"].count('"next"') == depth
    else:
        assert deep is None and "recursion" in reason


def test_what_a_writer_adds_is_read_with_the_same_care() -> None:
    old = record(("id", "int"), ("next", ["null", "shop.Order"]))
    reader = decoder(record(("id", "int")), head="confluent", writers={"3": json.dumps(old)})
    head = b"\0\0\0\0\x03"
    found = decoded(reader, head + b"\x04\x02" * 50_000, head + b"\x04\x02\x06\x00")
    assert found.value.to_pylist() == [None, {"id": 2}]
    nulls = record(("id", "int"), ("all", {"type": "array", "items": "null"}))
    with pytest.raises(TypedSchemaError, match="take no bytes"):
        decoder(record(("id", "int")), head="confluent", writers={"3": json.dumps(nulls)})


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (record(("a", "shop.Order")), "holds another one, without an end"),
        ("string", "is no record"),
        (record(), "has no fields"),
        (record(("a", "null")), "has no fields"),
        (record(("a", {"type": "array", "items": "null"})), "items of the array shop.Order.a take"),
        (
            record(("a", {"type": "array", "items": record(("n", "null"), name="N")})),
            "take no byte",
        ),
        (record(("a", {"type": "array", "items": record(("n", EMPTY), name="N")})), "take no byte"),
        (record(("id", "int"), ("ID", "int")), "several fields that would be column"),
        (record(("a", "unheard")), "Avro schema is wrong"),
        ({"type": "object"}, "Avro schema is wrong"),
    ],
)
def test_schemas_that_no_table_can_hold(schema: Any, why: str) -> None:
    with pytest.raises(TypedSchemaError, match=why):
        decoder(schema)


def test_reasons() -> None:
    day = {"type": "long", "logicalType": "timestamp-millis"}
    price = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    schema = record(("id", "long"), ("t", day), ("p", price))
    good = {"id": 1, "t": datetime.datetime(2026, 1, 31, tzinfo=UTC), "p": decimal.Decimal("1.25")}
    body = written(schema, good)
    found = decoded(
        decoder(schema),
        body,
        body + b"x",
        body[:-1],
        b"",
        b"\x02" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" + body[-2:],
        body[:-2] + b"\x06\x7f\xff\xff",
        b"\x00\x00\x00\x00\x11" + body,
        b"Obj\x01",
        body,
    )
    assert [each is None for each in found.value.to_pylist()] == [False, *[True] * 7, False]
    told = found.quarantine.to_pylist()
    for reason, part in zip(told[1:8], (
        "1 bytes follow the value", "Avro: ", "EOF", "overflow", "precision", "schema id 17",
        "container file",
    ), strict=True):  # fmt: skip
        assert part in reason


@given(st.binary(max_size=40))
def test_bytes_that_claim_much_cost_little(body: bytes) -> None:
    schema = record(("a", {"type": "array", "items": "int"}), ("u", UNION), ("b", "bytes"))
    found = decoded(decoder(schema), body)
    assert found.value.is_valid()[0].as_py() is not found.quarantine.is_valid()[0].as_py()
    for claim in (b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x01\xfe\xff\xff\xff\x0f"):
        assert reasons(decoder(schema), claim + body) != [None]
