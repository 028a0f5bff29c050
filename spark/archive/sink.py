# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""How a batch of Spark comes to an archive's staging folder: a data source that only writes.

    frame.write.format("skylarkmq-archive-staging").mode("append").option("plan", ...).save()

Each task writes its files (archive_writer) and hands in a report; when all have, the reports stand
in reports.json beside the files, for the driver's commit. For the job `archive` alone. A data
source, and not `mapInArrow`, since that asks for pandas.

`write` runs on executors, the rest in short-lived Python processes at the driver.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from skylarkmq.spark.archive.commits import ArchiveError
from skylarkmq.spark.archive.writer import WritePlan, write_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

FORMAT: Final = "skylarkmq-archive-staging"
REPORTS: Final = "reports.json"


class ArchiveSink(DataSource):
    """The data source; its one option is the plan."""

    @classmethod
    def name(cls) -> str:
        """What `format(...)` takes."""
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> StagingWriter:
        """Return the writer of one batch."""
        return StagingWriter(WritePlan(**json.loads(self.options["plan"])))


@dataclass
class Staged(WriterCommitMessage):
    """What a task has written."""

    report: dict[str, Any]


class StagingWriter(DataSourceArrowWriter):
    """Writes one batch. Picklable."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]
        """Write a task's rows; on an executor."""
        return Staged(write_batches(self._plan, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Hand the reports of all tasks to the driver."""
        reports = [message.report for message in messages if isinstance(message, Staged)]
        folder = Path(self._plan.stage_folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / REPORTS).write_text(json.dumps(reports), encoding="utf-8")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Leave what there is to the next run, which clears it away."""
        log.warning("a batch was given up in %s", self._plan.stage_folder)


def stage(frame: DataFrame, plan: WritePlan) -> list[dict[str, Any]]:
    """Write a batch to its staging folder with Spark's tasks; return their reports. Driver.

    Raises:
        ArchiveError: the tasks are done, and this process does not see what they have written.
    """
    frame.sparkSession.dataSource.register(ArchiveSink)
    writer = frame.write.format(FORMAT).mode("append")
    writer.option("plan", json.dumps(plan.as_json())).save()
    try:
        text = (Path(plan.stage_folder) / REPORTS).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ArchiveError(
            f"the tasks of a batch wrote to {plan.stage_folder}, and the driver does not see it",
            hint="Put the archive on a disk that driver and executors mount at one path",
        ) from None
    reports: list[dict[str, Any]] = json.loads(text)
    return reports
