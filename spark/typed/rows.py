"""What a task adds to the rows of an archive: the columns `value` and `quarantine`.

    driver   TypedPlan: the schema, and the type of the table's column; goes to tasks by value
    task     TypedRows: rows with the two columns more, and how often which reason was given

Reasons are counted by their text. Of those that differ more than REASONS_MAX times the rest count
together, since a topic of other bodies has as many as messages.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kinds

from skylarkmq.spark.typed.column_types import arrow_type
from skylarkmq.spark.typed.decoding import QUARANTINE, VALUE, BodyDecoder
from skylarkmq.spark.typed.evolution import evolve, item_type
from skylarkmq.spark.typed.topic_schema import TopicSchema

REASONS_MAX: Final = 20
OTHER_REASONS: Final = "others"


@dataclass(frozen=True, slots=True)
class TypedPlan:
    """What tasks are told; picklable."""

    schema: TopicSchema
    kind: pa.DataType
    """Of the table's column `value`, which has all columns that the schema needs."""


class TypedRows:
    """Adds the columns to a task's batches.

    Attributes:
        reasons: how many rows have a reason instead of a value, by the reason.
    """

    def __init__(self, plan: TypedPlan) -> None:
        """Take the plan. Raises what `BodyDecoder` does."""
        self._decoder: Final = BodyDecoder(plan.schema)
        new = arrow_type(self._decoder.columns)
        self._fit: Final = evolve(plan.kind, new).fit
        self._fields: Final = columns(plan.kind)
        self.reasons: Counter[str] = Counter()

    def add_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the two columns after its own."""
        found = self._decoder.decode(batch)
        if found.quarantine.null_count < len(found.quarantine):
            self._count(found.quarantine)
        value, quarantine = self._fields
        return batch.append_column(value, self._fit(found.value)).append_column(
            quarantine, found.quarantine
        )

    def _count(self, quarantine: pa.Array[Any]) -> None:
        texts: list[Any] = quarantine.drop_null().to_pylist()
        for reason, count in Counter(texts).items():
            known = reason in self.reasons or len(self.reasons) < REASONS_MAX
            self.reasons[reason if known else OTHER_REASONS] += count


def leaf_paths(field: pa.Field[Any]) -> Iterator[str]:
    """Yield how Parquet calls the columns that a column is written as."""
    kind: Any = field.type
    if kinds.is_struct(kind):
        parts = [(kind.field(at), "") for at in range(kind.num_fields)]
    elif kinds.is_map(kind):
        parts = [(pa.field(name, part), "key_value.") for name, part in
                 (("key", kind.key_type), ("value", kind.item_type))]  # fmt: skip
    elif kinds.is_nested(kind):
        parts = [(pa.field("element", item_type(kind)), "list.")]
    else:
        yield field.name
        return
    for part, between in parts:
        yield from (f"{field.name}.{between}{path}" for path in leaf_paths(part))


def columns(kind: pa.DataType) -> tuple[pa.Field[Any], pa.Field[Any]]:
    """Return the two columns of a table."""
    return pa.field(VALUE, kind), pa.field(QUARANTINE, pa.string())
