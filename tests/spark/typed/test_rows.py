"""Columns added to the batches of a task, as the table has them."""

import pickle

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given

from skylarkmq.spark.typed.column_types import Struct, arrow_type
from skylarkmq.spark.typed.rows import (
    OTHER_REASONS,
    REASONS_MAX,
    TypedRows,
    columns_of_bodies,
    leaf_paths,
)
from skylarkmq.spark.typed.topic_schema import TopicSchema
from tests.spark.support.typed_values import structs, types

SCHEMA = TopicSchema("json", columns={"id": "int", "note": "string"})


def batch(*bodies: bytes) -> pa.RecordBatch:
    return pa.record_batch({"queueId": list(range(len(bodies))), "body": pa.array(bodies)})


def test_the_schema_goes_to_tasks_by_value() -> None:
    assert pickle.loads(pickle.dumps(SCHEMA)) == SCHEMA


def test_columns_are_those_of_the_table() -> None:
    rows = TypedRows(SCHEMA)
    found = rows.add_columns(batch(b'{"id": 7}', b"x"))
    assert found.schema.names == ["queueId", "body", "value", "quarantine"]
    assert [found.schema.field(name) for name in ("value", "quarantine")] == [
        *columns_of_bodies(SCHEMA)
    ]
    assert found.column("value").to_pylist() == [{"id": 7, "note": None}, None]
    (reason,) = rows.reasons
    assert found.column("quarantine").to_pylist() == [None, reason]


@given(structs(types))
def test_paths_are_those_of_parquet(kind: Struct) -> None:
    column = pa.field("value", arrow_type(kind))
    out = pa.BufferOutputStream()
    pq.write_table(pa.schema([column]).empty_table(), out)
    written = pq.ParquetFile(pa.BufferReader(out.getvalue())).metadata.schema
    assert list(leaf_paths(column)) == [written.column(at).path for at in range(len(written))]


def test_reasons_are_counted_up_to_a_limit() -> None:
    rows = TypedRows(SCHEMA)
    for _ in range(2):
        rows.add_columns(batch(*(b"{" + b" " * at + b"x" for at in range(50)), b"x"))
    assert sum(rows.reasons.values()) == 102
    assert len(rows.reasons) == REASONS_MAX + 1
    assert rows.reasons[OTHER_REASONS] > 50
