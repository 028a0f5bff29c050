"""Columns guessed from JSON bodies: what a person then looks through."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.spark.typed.column_types import TypedSchemaError
from skylarkmq.spark.typed.decoding import BodyDecoder
from skylarkmq.spark.typed.inference import infer
from skylarkmq.spark.typed.topic_schema import load, own_text
from tests.spark.support.typed_values import decoded, texts


def guessed(*bodies: object) -> dict[str, str]:
    return dict(infer(msgspec.json.encode(each) for each in bodies).schema.columns)


def test_types() -> None:
    assert guessed(
        {
            "id": 1,
            "big": 2**70,
            "price": 1,
            "paid": True,
            "placed": "2026-01-31T08:00:00Z",
            "local": "2026-01-31T08:00:00",
            "day": "2026-01-31",
            "zip": "10115",
            "items": [{"sku": "x", "n": 1}, {"sku": "y", "m": 2.5}],
            "empty": [],
            "address": {"city": "x", "a b": 1},
            "nothing": None,
        },
        {"id": 2, "price": 1.5, "placed": "2026-01-31T08:00:00.5+02:00", "day": "2026-02-01"},
    ) == {
        "id": "bigint",
        "big": "decimal(38,0)",
        "price": "double",
        "paid": "boolean",
        "placed": "timestamp",
        "local": "timestamp_ntz",
        "day": "date",
        "zip": "string",
        "items": "array<struct<sku:string,n:bigint,m:double>>",
        "empty": "array<json>",
        "address": "struct<city:string,`a b`:bigint>",
    }


def test_what_a_person_has_to_decide() -> None:
    found = infer(
        msgspec.json.encode(each)
        for each in (
            {"a": 1, "n": None, "day": "2026-01-31", "o": {}, "c": {"x": 1, "X": 2}},
            {"a": "x", "n": None, "day": "tomorrow", "o": {}},
        )
    )
    assert found.schema.columns == {"a": "json", "day": "string", "o": "json", "c": "json"}
    assert found.notes == (
        "a has values of several kinds (int, str): it is kept as JSON text",
        "n was null in all bodies: it got no column",
        "c has names that differ by case alone, or that no column can have: it is kept as "
        "JSON text",
    )


def test_many_names_are_keys_of_a_map() -> None:
    found = guessed({"by": {f"k{at}": {"n": at} for at in range(99)}, "few": {"a": 1}})
    assert found == {"by": "map<string,struct<n:bigint>>", "few": "struct<a:bigint>"}


def test_confluent_heads_are_seen() -> None:
    found = infer([b"\0\0\0\0\x07" + b'{"a": 1}'])
    assert (found.schema.head, found.schema.columns) == ("confluent", {"a": "bigint"})


def test_other_bodies() -> None:
    found = infer([b'{"a": 1}', b"x", b'{"a": 2}'])
    assert (found.bodies, found.others) == (2, 1)
    with pytest.raises(
        TypedSchemaError, match="no JSON objects: it begins like Avro's single"
    ) as e:
        infer([b"\xc3\x01" + bytes(9), b'{"a": 1}', b"x"])
    assert "FileDescriptorSet" in str(e.value.hint)
    with pytest.raises(TypedSchemaError, match="no messages to guess"):
        infer([])
    with pytest.raises(TypedSchemaError, match="several fields"):
        infer([b'{"a": 1, "A": 2}'])


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | texts
    | st.floats(allow_nan=False, allow_infinity=False) | st.dates().map(str),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
names = st.sampled_from(["a", "b", "c d", "e", "ü", 'q"'])


@given(bodies=st.lists(st.dictionaries(names, values, max_size=4), min_size=1, max_size=5))
def test_the_sample_itself_decodes(
    bodies: list[dict[str, object]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Through the file, as the job does it."""
    encoded = [json.dumps({"id": 1, **each}).encode() for each in bodies]
    found = infer(encoded).schema
    path: Path = tmp_path_factory.mktemp("schemas") / "topic.json"
    path.write_text(own_text(found), encoding="utf-8")
    assert load(str(path)) == found
    assert decoded(BodyDecoder(found), *encoded).quarantine.to_pylist() == [None] * len(bodies)
