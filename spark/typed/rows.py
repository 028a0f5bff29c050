"""What a task adds to the rows of an archive: the columns `value` and `quarantine`.

Reasons are counted by their text. Of those that differ more than REASONS_MAX times the rest count
together, since a topic of other bodies has as many as messages.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as kinds

from skylarkmq.spark.typed.column_types import arrow_type
from skylarkmq.spark.typed.decoding import QUARANTINE, VALUE, BodyDecoder
from skylarkmq.spark.typed.topic_schema import TopicSchema

REASONS_MAX: Final = 20
OTHER_REASONS: Final = "others"


class TypedRows:
    """Adds the columns to a task's batches.

    Attributes:
        reasons: how many rows have a reason instead of a value, by the reason.
    """

    def __init__(self, schema: TopicSchema) -> None:
        """Take the schema. Raises what `BodyDecoder` does."""
        self._decoder: Final = BodyDecoder(schema)
        self.reasons: Counter[str] = Counter()

    def add_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the two columns after its own."""
        found = self._decoder.decode(batch)
        if found.quarantine.null_count < len(found.quarantine):
            self._count(found.quarantine)
        return batch.append_column(VALUE, found.value).append_column(QUARANTINE, found.quarantine)

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
        items: Any = kind
        parts = [(pa.field("element", items.value_type), "list.")]
    else:
        yield field.name
        return
    for part, between in parts:
        yield from (f"{field.name}.{between}{path}" for path in leaf_paths(part))


def columns_of_bodies(schema: TopicSchema) -> tuple[pa.Field[Any], pa.Field[Any]]:
    """Return the two columns of a table. Raises what `BodyDecoder` does."""
    value = pa.field(VALUE, arrow_type(BodyDecoder(schema).columns))
    return value, pa.field(QUARANTINE, pa.string())
