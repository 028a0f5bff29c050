"""JSON bodies into columns: the values as they were, or the reason why not."""

import decimal

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.spark.typed.column_types import Struct, TypedSchemaError, arrow_type
from skylarkmq.spark.typed.decoding import BodyDecoder
from skylarkmq.spark.typed.topic_schema import TopicSchema
from tests.spark.support.typed_values import (
    ddl,
    decoded,
    jsonable,
    present,
    reasons,
    structs,
    types,
)

ORDER = {
    "id": "bigint",
    "price": "decimal(10,2)",
    "items": "array<struct<sku:string,n:int>>",
    "placed": "timestamp",
    "sent": "timestamp(ms)",
    "more": "json",
}


def decoder(**columns: str) -> BodyDecoder:
    return BodyDecoder(TopicSchema("json", columns or ORDER))


@given(structs(types), st.data(), st.booleans())
def test_values_come_back(kind: Struct, data: st.DataObject, keep_nulls: bool) -> None:
    wanted = data.draw(st.lists(present(kind), max_size=4))
    reader = BodyDecoder(
        TopicSchema("json", columns={field.key: ddl(field.type) for field in kind.fields})
    )
    bodies = [msgspec.json.encode(jsonable(kind, each, keep_nulls)) for each in wanted]
    found = decoded(reader, *bodies)
    assert found.quarantine.to_pylist() == [None] * len(wanted)
    assert found.value.type == arrow_type(reader.columns)
    assert found.value.to_pylist() == wanted
    found.value.validate(full=True)


def test_a_body_that_does_not_decode_leaves_its_neighbours() -> None:
    good = b'{"id": 1, "price": "2.50", "other": [1, {"x": 2}]}'
    found = decoded(decoder(), good, b'{"id": "1"}', b"{", None, good)
    assert [each is None for each in found.value.to_pylist()] == [False, True, True, True, False]
    assert found.value.to_pylist()[0]["price"] == decimal.Decimal("2.50")
    assert found.quarantine.to_pylist() == [
        None,
        "JSON: Expected `int | null`, got `str` - at `$.id`",
        "JSON: Input data was truncated",
        "there is no body",
        None,
    ]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"id": 9223372036854775808}', "Expected `int` <= 9223372036854775807"),
        (b'{"id": 1.0}', "got `float`"),
        (b'{"items": [{"n": 2147483648}]}', "at `$.items[0].n`"),
        (b'{"price": 1.234}', "Rescaling"),
        (b'{"price": "NaN"}', "NaN"),
        (b'{"placed": "2026-01-31T08:00:00"}', "with a timezone"),
        (b'{"placed": "yesterday"}', "RFC3339"),
        (b'{"sent": 9223372036854775807}', "overflow"),
        (b"[1]", "Expected `object`, got `array`"),
        (b'{"id": 1} {"id": 2}', "trailing characters"),
        (b'{"more": {"a": "\xff"}}', "utf-8"),
        (b"", "truncated"),
    ],
)
def test_reasons(body: bytes, reason: str) -> None:
    (found,) = reasons(decoder(), body)
    assert found is not None and reason in found


def test_json_columns_keep_the_text() -> None:
    found = decoded(decoder(), b'{"more": {"a":  [1 ,2.50]}}', b'{"more": null}')
    assert [each["more"] for each in found.value.to_pylist()] == ['{"a":  [1 ,2.50]}', None]


def test_keys_of_maps_are_texts() -> None:
    with pytest.raises(TypedSchemaError, match="keys of string, int, bigint, not date"):
        decoder(days="map<date,int>")


def test_a_batch_without_rows() -> None:
    found = decoded(decoder())
    assert (len(found.value), len(found.quarantine)) == (0, 0)
    assert found.value.type == arrow_type(decoder().columns)
    assert found.quarantine.type == pa.string()
