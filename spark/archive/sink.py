# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""How a batch of Spark comes into an archive's files: a data source that only writes.

Each task writes its files (`writer`) and hands in a report. When all have, the reports come to the
job through an object of the table's own place, which goes with it: with Spark Connect the job and
Spark's driver share nothing else. For the job `archive` alone.

    <table>/_skylarkmq/3f9c02d1.json     the reports of one batch; Delta passes over such a name

A data source, and not `mapInArrow`, since that asks for pandas. The plan holds secrets of the
store, so it is part of the class, which goes to the workers by value, and no option, which plans of
queries would show. `write` runs on executors, `commit` in a short-lived process at Spark's driver.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from skylarkmq.spark.archive.writer import WritePlan, write_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

FORMAT: Final = "skylarkmq-archive-files"
REPORTS: Final = "_skylarkmq"


def write_files(frame: DataFrame, plan: WritePlan) -> list[dict[str, Any]]:
    """Write a batch with Spark's tasks; return their reports. The job's process."""
    name = f"{REPORTS}/{uuid.uuid4().hex}.json"
    frame.sparkSession.dataSource.register(_sink(plan, name))
    frame.write.format(FORMAT).mode("append").save()
    store = plan.location.store()
    with plan.location.errors():
        reports: list[dict[str, Any]] = json.loads(bytes(store.get(name).bytes()))
        store.delete(name)
    return reports


def _sink(plan: WritePlan, name: str) -> type[Any]:
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    class Written(WriterCommitMessage):
        """What a task has written."""

        def __init__(self, report: dict[str, Any]) -> None:
            self.report = report

    class FilesWriter(DataSourceArrowWriter):
        """Writes one batch."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:  # type: ignore[override]
            return Written(write_batches(plan, iterator))

        def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
            found = [message.report for message in messages if isinstance(message, Written)]
            with plan.location.errors():
                plan.location.store().put(name, json.dumps(found).encode())

    class ArchiveSink(DataSource):
        """The data source."""

        @classmethod
        def name(cls) -> str:
            return FORMAT

        def writer(self, schema: StructType, overwrite: bool) -> FilesWriter:
            return FilesWriter()

    return ArchiveSink
