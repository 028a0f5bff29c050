"""What stands for a running task where a sink's writer is used without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructField, StructType

BODY: Final = StructType([StructField("body", BinaryType())])
LOCAL: Final = {
    "sql.streaming.queryId": "the-query",
    "streaming.sql.batchId": "7",
    "spark.sql.execution.root.id": "12",
}


@dataclass
class Context:
    """Stands for the running task's context."""

    partition: int = 0
    attempt: int = 0
    local: dict[str, str] | None = None

    def partitionId(self) -> int:
        return self.partition

    def attemptNumber(self) -> int:
        return self.attempt

    def getLocalProperty(self, name: str) -> str | None:
        return (self.local or {}).get(name)


def in_task(patch: pytest.MonkeyPatch, context: Context) -> None:
    patch.setattr(TaskContext, "get", classmethod(lambda kind: context))


def batches(bodies: Sequence[bytes], step: int = 100) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(bodies), step):
        column = pa.array(bodies[start : start + step], pa.binary())
        yield pa.record_batch([column], names=["body"])
