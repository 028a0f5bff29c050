"""One run of the job `archive`: the stream, its batches, the commits, the compaction between them.

Driver process. `take` runs on a thread of Spark's, one batch at a time; all else on the main
thread, before the stream starts or after it has ended.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skylarkmq.spark.archive.commits import RUNS, STAGING, ArchiveWriter
from skylarkmq.spark.archive.compaction import CompactPlan, compact, compact_group, groups
from skylarkmq.spark.archive.state import DataFile
from skylarkmq.spark.archive.writer import WritePlan
from skylarkmq.spark.jobs.archiving.survey import Survey, holes_table
from skylarkmq.spark.jobs.common import (
    JobSettings,
    Progress,
    Summary,
    Table,
    await_query,
    explain,
)
from skylarkmq.spark.jobs.quiet import BatchError
from skylarkmq.spark.offsets import QueueOffsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """The options of the command line."""

    topics: tuple[str, ...]
    table: str
    pattern: str | None = None
    starting: str = "earliest"
    follow_ms: int | None = None
    min_messages: int | None = None
    max_delay_ms: int = 900_000
    batch_messages: int = 500_000
    hourly: bool | None = None
    file_mib: int = 128
    files_per_batch: int | None = None
    compression: str = "zstd"
    compact_files: int = 32
    only_compact: bool = False
    allow_data_loss: bool = False
    dry_run: bool = False

    @property
    def file_bytes(self) -> int:
        """About how large files are to be."""
        return self.file_mib * 1024 * 1024

    def source_options(self, settings: JobSettings, start: QueueOffsets) -> dict[str, str]:
        """Return all options of the source."""
        more: dict[str, str | int | bool] = {
            "maxOffsetsPerTrigger": self.batch_messages,
            "failOnDataLoss": not self.allow_data_loss,
        }
        if self.pattern:
            more["subscribePattern"] = self.pattern
        else:
            more["topic"] = ",".join(self.topics)
        # No queue yet, as with a pattern that nothing matches: what comes is read from its start.
        more["startingOffsets"] = json.dumps(start.nested()) if start else "earliest"
        if self.min_messages is not None:
            more["minOffsetsPerTrigger"] = self.min_messages
            more["maxTriggerDelay"] = f"{self.max_delay_ms}ms"
        return settings.connector_options(**more)


class Archiving:
    """One run."""

    def __init__(
        self,
        options: ArchiveOptions,
        settings: JobSettings,
        writer: ArchiveWriter,
        spark: SparkSession,
        progress: Progress,
    ) -> None:
        self._options = options
        self._settings = settings
        self._writer = writer
        self._spark = spark
        self._progress = progress
        self._tasks = options.files_per_batch or spark.sparkContext.defaultParallelism
        self._batch = threading.Lock()
        self._failure: Exception | None = None
        self._total: int | None = None
        self._messages: Counter[str] = Counter()
        self._batches = 0
        self._repeated = 0
        self._compacted = 0

    def stream(self, found: Survey) -> None:
        """Archive until the end, or until a signal. Raises what a batch or the source raised."""
        options = self._options
        self._total = found.backlog if options.follow_ms is None else None
        self._progress.show(0, self._total)
        reader = self._spark.readStream.format("skylarkmq")
        stream = reader.options(**options.source_options(self._settings, found.start)).load()
        # Gone with the run: where to go on is the table's to say.
        checkpoint = f"file://{self._writer.files.root}/{RUNS}/{self._writer.run}"
        writer = stream.writeStream.option("checkpointLocation", checkpoint)
        writer = writer.foreachBatch(self._take)
        if options.follow_ms is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{options.follow_ms} milliseconds")
        try:
            await_query(writer.queryName("archive").start())
        except Exception:
            if self._failure is not None:
                raise self._failure from None
            raise
        finally:
            # A query that was stopped may leave a batch that has still to see that it is.
            with self._batch:
                self._tasks = 0
        self._compact()

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        with self._batch:
            if not self._tasks:
                return
            try:
                self.take(frame, str(batch_id))
            except Exception as error:
                self._failure = error  # Spark gives back its text alone
                raise BatchError(explain(error)) from None

    def take(self, frame: DataFrame, batch: str) -> None:
        """Archive a batch: tasks stage, then one commit."""
        from skylarkmq.spark.archive.sink import stage

        reports = stage(frame.coalesce(self._tasks), self._plan(batch))
        count = self._writer.append(batch, reports)
        for report in reports:
            self._repeated += report["repeated"]
            for entry in report["files"]:
                file = DataFile(*entry)
                self._messages[file.value("topic") or ""] += file.rows
        self._batches += bool(count)
        self._progress.show(
            self._messages.total(), self._total, f"{len(self._writer.state.files)} files"
        )
        self._compact()

    def _plan(self, batch: str) -> WritePlan:
        writer, options = self._writer, self._options
        return WritePlan(
            f"{writer.files.root}/{STAGING}/{writer.stage(batch)}",
            writer.state.number + 1,
            hourly=writer.hourly,
            file_bytes=options.file_bytes,
            compression=options.compression,
            known=writer.state.spans.to_json(),
            known_last_ms=QueueOffsets(writer.state.last_ms).to_json(),
        )

    def _compact(self) -> None:
        least = self._options.compact_files
        if least < 2:
            return
        chosen = groups(self._writer.state, file_bytes=self._options.file_bytes, files_min=least)
        self._compacted += compact(
            self._writer,
            chosen,
            run_tasks=tasks_of(self._spark),
            compression=self._options.compression,
        )

    def summary(self) -> Summary:
        """Return what the run did."""
        state = self._writer.state
        archived: Counter[str] = Counter()
        files: Counter[str] = Counter()
        for file in state.files.values():
            archived[file.value("topic") or ""] += file.rows
            files[file.value("topic") or ""] += 1
        rows = [
            (topic, self._messages[topic], archived[topic], files[topic])
            for topic in sorted({*archived, *self._messages})
        ]
        figures = {
            "messages": self._messages.total(),
            "batches": self._batches,
            "files": len(state.files),
            "bytes": sum(file.size for file in state.files.values()),
            "files_compacted_away": self._compacted,
            "messages_archived_before": self._repeated,
            "table": str(self._writer.files.root),
        }
        tables = [Table("by topic", ("topic", "messages", "in_table", "files_in_table"), rows)]
        return Summary("archive", figures, (*tables, *holes_table(state)))


def tasks_of(
    spark: SparkSession,
) -> Callable[[Sequence[CompactPlan]], Iterable[DataFile]]:
    """Return what compacts groups in Spark's tasks, all at once."""

    def run(plans: Sequence[CompactPlan]) -> Iterable[DataFile]:
        if not plans:
            return []
        return spark.sparkContext.parallelize(plans, len(plans)).map(compact_group).collect()

    return run
