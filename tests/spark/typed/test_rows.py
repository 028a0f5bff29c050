"""Columns added to the batches of a task, as the table has them."""

import json

import pyarrow as pa

from skylarkmq.spark.typed.column_types import arrow_type, parse
from skylarkmq.spark.typed.rows import OTHER_REASONS, REASONS_MAX, TypedPlan, TypedRows
from skylarkmq.spark.typed.topic_schema import TopicSchema

KIND = arrow_type(parse("struct<id:bigint,gone:string>"))
PLAN = TypedPlan(TopicSchema("json", columns={"id": "int"}), KIND)


def batch(*bodies: bytes) -> pa.RecordBatch:
    return pa.record_batch({"queueId": list(range(len(bodies))), "body": pa.array(bodies)})


def test_the_plan_goes_to_tasks_as_json() -> None:
    assert TypedPlan.from_json(json.loads(json.dumps(PLAN.to_json()))) == PLAN


def test_columns_are_of_the_tables_type() -> None:
    rows = TypedRows(PLAN)
    found = rows.add_columns(batch(b'{"id": 7}', b"x"))
    assert found.schema.names == ["queueId", "body", "value", "quarantine"]
    assert found.column("value").type == KIND
    assert found.column("value").to_pylist() == [{"id": 7, "gone": None}, None]
    (reason,) = rows.reasons
    assert found.column("quarantine").to_pylist() == [None, reason]


def test_reasons_are_counted_up_to_a_limit() -> None:
    rows = TypedRows(PLAN)
    for _ in range(2):
        rows.add_columns(batch(*(b"{" + b" " * at + b"x" for at in range(50)), b"x"))
    assert sum(rows.reasons.values()) == 102
    assert len(rows.reasons) == REASONS_MAX + 1
    assert rows.reasons[OTHER_REASONS] > 50
