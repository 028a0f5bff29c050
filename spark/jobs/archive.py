"""The job `archive`: topics into Parquet files by topic and date, each message exactly once.

    topic(s) --stream--> batches --> staged files --> commit --> TABLE/topic=.../date=.../*.parquet

The table itself knows which offsets of each queue it has (see `archive_table`), so the job keeps no
checkpoint from one run to the next: after a kill at any moment, or a month later, it continues
where the table ends, and a reader that lists the folder finds each message once. It waits for
enough messages, or long enough, before it writes a file, and makes one file of many small ones.

    python -m skylarkmq.spark.jobs.archive orders /data/archive
    skylarkmq-spark-submit -m skylarkmq.spark.jobs.archive orders refunds /data/archive
    python -m skylarkmq.spark.jobs.archive orders /data/archive --follow 1m

The table lies on a local disk, or on one that driver and executors mount at the same path.
Driver process. Batches come on a thread of Spark's, one at a time; all else is on the main thread,
before the stream starts or after it has ended.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from skylarkmq.spark.archive.commits import (
    RUNS,
    STAGING,
    TABLE,
    ArchiveWriter,
    DataFile,
    TableState,
    load,
    open_files,
)
from skylarkmq.spark.archive.compaction import CompactPlan, compact, compact_group, groups
from skylarkmq.spark.archive.spans import gaps
from skylarkmq.spark.archive.writer import COMPRESSIONS, WritePlan
from skylarkmq.spark.clock import SystemClock
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.durable_folder import DurableFolder
from skylarkmq.spark.jobs.common import (
    Duration,
    JobSettings,
    UsageError,
    argument,
    batch_option,
    follow_option,
    job_command,
    option,
)
from skylarkmq.spark.jobs.reporting import Cell, Progress, Summary, Table
from skylarkmq.spark.jobs.running import open_session, run_batches
from skylarkmq.spark.offsets import QueueKey, QueueOffsets
from skylarkmq.spark.options import SourceOptions, Subject
from skylarkmq.spark.reading.positions import EARLIEST, LATEST, Position, instant_ms, resolve
from skylarkmq.spark.reading.queue_view import QueueView
from skylarkmq.spark.settings import ConnectionSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WHOLE: Final = "an archive holds whole topics: select when you read it"
REFUSED: Final = {
    "subExpression": _WHOLE,
    "expressionType": _WHOLE,
    "assign": _WHOLE,
    "topic": "topics are arguments of the job",
    "subscribe": "topics are arguments of the job",
    "subscribePattern": "use --pattern",
    "startingOffsets": "use --starting; a table that has messages goes on where it ends",
    "startingTimestamp": "use --starting; a table that has messages goes on where it ends",
    "startingOffsetsByTimestamp": "use --starting",
}
"""Options of the source that would take the job's promise away."""


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """What to archive, where to, and how."""

    topics: tuple[str, ...] = argument("[TOPIC]...", nargs=-1)
    table: str = argument("TABLE", type=click.Path(file_okay=False))
    pattern: str | None = option(
        "--pattern", metavar="REGEX", help="Topics whose whole name matches, new ones too."
    )
    starting: str = option(
        "--starting",
        default="earliest",
        metavar="WHERE",
        help="Where a topic that is new to the table starts: earliest, latest, or a time, as "
        "2026-01-31T08:00Z.",
    )
    follow_ms: int | None = follow_option()
    min_messages: int | None = option(
        "--min-messages",
        type=click.IntRange(min=1),
        metavar="N",
        help="With --follow: wait for N messages, to write fewer files, ...",
    )
    max_delay_ms: int = option(
        "--max-delay",
        type=Duration(low=1),
        default="15m",
        metavar="TIME",
        help="... but no longer than TIME.",
    )
    batch_messages: int = batch_option(500_000)
    hourly: bool | None = option("--hourly/--daily", help="Divide a new table by hour too.")
    file_mib: int = option(
        "--file-mib",
        type=click.IntRange(min=1, max=4096),
        default=128,
        help="About how large files are to be.",
    )
    files_per_batch: int | None = option(
        "--files-per-batch",
        type=click.IntRange(min=1),
        metavar="N",
        help="Tasks that write a batch; each writes a file for each topic and date. "
        "Default: one for each core.",
    )
    compression: str = option(
        "--compression", type=click.Choice(COMPRESSIONS), default="zstd", help="Of new files."
    )
    compact_files: int = option(
        "--compact-files",
        type=click.IntRange(min=0),
        default=32,
        metavar="N",
        help="Merge the small files of a topic and date when there are N; 0: never.",
    )
    only_compact: bool = option(
        "--compact", is_flag=True, help="Only merge small files, from two on; no broker."
    )
    allow_data_loss: bool = option(
        "--allow-data-loss",
        is_flag=True,
        help="Go on after messages that have expired before they were archived, and list them.",
    )
    dry_run: bool = option(
        "--dry-run", is_flag=True, help="Tell what would be archived, and write nothing."
    )

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


def run(options: ArchiveOptions, settings: JobSettings) -> Summary:
    """Do the job; what it has archived is durable when it returns.

    Raises:
        JobError, OptionError: options that contradict, or that are not known.
        ArchiveError: the table is in use, damaged, or would be given an offset again.
        RocketMQError: a topic is not there, messages have expired, no answer.
    """
    check(options, settings)
    if options.only_compact:
        return compact_alone(options, settings)
    files = open_files(options.table)
    view = view_of(options, settings)
    if options.dry_run:
        return dry_run(options, files, view)
    view.patiently(view.queues)  # no folder is made for a topic that is not there
    writer = ArchiveWriter(files, hourly=options.hourly, now_ms=SystemClock().now_ms)
    with writer:
        found = survey(options, writer.state, view)
        writer.begin(found.new)
        with (
            open_session("skylarkmq archive", settings) as spark,
            settings.progress("archiving") as progress,
        ):
            archiving = Archiving(options, settings, writer, spark, progress)
            archiving.stream(found)
        return archiving.summary()


def compact_alone(options: ArchiveOptions, settings: JobSettings) -> Summary:
    """Compact what there is, in this process; with --dry-run tell what would be."""
    files = open_files(options.table)
    if options.dry_run:
        from skylarkmq.spark import archive_table

        chosen = groups(archive_table.state(options.table), file_bytes=options.file_bytes)
        figures: dict[str, Any] = {
            "files_now": len(archive_table.files(options.table)),
            "files_to_merge": sum(map(len, chosen)),
            "files_to_write": len(chosen),
        }
        return Summary("archive", figures, dry_run=True)
    # Only a table that is there: compaction makes none.
    if files.size(TABLE) is None:
        raise UsageError(f"there is no archive in {files.root}")
    with ArchiveWriter(files, hourly=options.hourly, now_ms=SystemClock().now_ms) as writer:
        chosen = groups(writer.state, file_bytes=options.file_bytes)
        before = len(writer.state.files)
        with settings.progress("compacting", "files") as progress:
            progress.show(0, sum(map(len, chosen)))
            compact(
                writer,
                chosen,
                compression=options.compression,
                on_progress=progress.advance,
            )
        figures = {
            "files_before": before,
            "files_after": len(writer.state.files),
            "messages": sum(file.rows for file in writer.state.files.values()),
            "table": str(files.root),
        }
        return Summary("archive", figures, tuple(holes_table(writer.state)))


def check(options: ArchiveOptions, settings: JobSettings) -> None:
    """Refuse options that contradict, or that would break the promise.

    Raises:
        JobError, OptionError: which, and what to do.
    """
    refused = {name.lower(): why for name, why in REFUSED.items()}
    for name in settings.options:
        if name.lower() in refused:
            raise UsageError(f"--option {name}: {refused[name.lower()]}")
    if options.only_compact:
        if options.topics or options.pattern:
            raise UsageError("--compact takes the table alone, no topics")
        return
    if bool(options.topics) == bool(options.pattern):
        raise UsageError("name topics, or --pattern: one of the two")
    if options.min_messages is not None and options.follow_ms is None:
        raise UsageError("--min-messages goes with --follow: a run that ends does not wait")
    if options.min_messages is not None and options.min_messages > options.batch_messages:
        raise UsageError("--min-messages is above --batch-messages: no batch could have as many")
    if options.pattern:
        try:
            re.compile(options.pattern)
        except re.error as error:
            raise UsageError(f"--pattern: {error}") from error
    starting(options.starting)
    # Before anything is asked or made: a misspelled option is not found out by a query later.
    SourceOptions.from_options(options.source_options(settings, QueueOffsets()), streaming=True)


HOLE_COLUMNS: Final = ("topic", "broker", "queue", "from_offset", "to_offset", "messages")


@dataclass(frozen=True, slots=True)
class Survey:
    """Each readable queue, as it is when the job starts."""

    start: QueueOffsets
    """Where archiving goes on."""
    new: QueueOffsets
    """Of these, the queues that the table does not know."""
    begins: Mapping[QueueKey, int]
    ends: Mapping[QueueKey, int]

    @property
    def backlog(self) -> int:
        """Messages that can be archived now."""
        return sum(
            max(0, self.ends[key] - max(at, self.begins[key])) for key, at in self.start.items()
        )

    def expired(self, key: QueueKey) -> int:
        """Messages of a queue that are gone before they were archived."""
        return max(0, self.begins[key] - self.start[key])

    def remade(self, key: QueueKey) -> bool:
        """Return whether a queue ends before the table does: its offsets are used again."""
        return self.ends[key] < self.start[key]


def view_of(options: ArchiveOptions, settings: JobSettings) -> QueueView:
    """Return the queues that the job reads; asks no broker yet."""
    connection = ConnectionSettings.from_options(settings.connector_options())
    client = BlockingClient(connection)
    subject = Subject(topics=options.topics, pattern=options.pattern or "")
    return QueueView(client, subject, patience_s=connection.retry_timeout_s)


def starting(text: str) -> Position:
    """Return what --starting says.

    Raises:
        JobError: neither a word nor a time.
    """
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text in words:
        return words[text]
    try:
        return Position("time", instant_ms(text), option="--starting")
    except ValueError as error:
        raise UsageError(f"--starting {text[:40]!r}: earliest, latest, or {error}") from error


def survey(options: ArchiveOptions, state: TableState, view: QueueView) -> Survey:
    """Return where each queue goes on; asks name servers and brokers.

    A queue that the table does not know, of a topic that it knows, came later: it starts at its
    first message, whatever --starting says.

    Raises:
        JobError: --starting is wrong.
        RocketMQError: no such topic, or no answer.
    """
    position = starting(options.starting)
    queues = view.patiently(view.queues)
    known = {key: at for key in queues if (at := state.next_offset(key)) is not None}
    topics = set(state.topics())
    grown = [key for key in queues if key not in known and key.topic in topics]
    fresh = [key for key in queues if key not in known and key.topic not in topics]
    new: dict[QueueKey, int] = {}
    if grown:
        new |= view.patiently(lambda: resolve(EARLIEST, grown, view.brokers, ""))
    if fresh:
        new |= view.patiently(lambda: resolve(position, fresh, view.brokers, ""))
    return Survey(
        QueueOffsets({**known, **new}),
        QueueOffsets(new),
        view.patiently(lambda: view.brokers.min_offsets(queues)),
        view.patiently(lambda: view.brokers.max_offsets(queues)),
    )


def dry_run(options: ArchiveOptions, files: DurableFolder, view: QueueView) -> Summary:
    """Return what a run would archive."""
    there = files.size(TABLE) is not None
    state = load(files) if there else TableState()
    found = survey(options, state, view)
    rows: list[tuple[Cell, ...]] = [
        (
            key.topic, key.broker_name, key.queue_id, start, found.ends[key],
            max(0, found.ends[key] - max(start, found.begins[key])), found.expired(key),
        )
        for key, start in found.start.items()
    ]  # fmt: skip
    columns = ("topic", "broker", "queue", "from_offset", "to_offset", "messages", "expired")
    figures = {
        "table": str(files.root),
        "table_exists": there,
        "archived_messages": sum(file.rows for file in state.files.values()),
        "archived_files": len(state.files),
        "messages_to_archive": found.backlog,
    }
    tables = (Table("queues", columns, rows), *holes_table(state))
    return Summary("archive", figures, tables, tuple(_warnings(found)), dry_run=True)


def _warnings(found: Survey) -> Iterator[str]:
    if any(found.expired(key) for key in found.start):
        yield (
            "Messages have expired before they were archived: the job fails on them, or with "
            "--allow-data-loss continues after them."
        )
    if any(found.remade(key) for key in found.start):
        yield (
            "A queue ends before the table does: its topic was made anew, or its broker lost "
            "messages. Archive into another folder from here on."
        )


def holes_table(state: TableState) -> list[Table]:
    """Return a table of the offsets that the archive lacks in between, none when it lacks none."""
    rows = [
        (*key, low, high, high - low)
        for key in state.spans.queues()
        for low, high in gaps(
            state.spans.runs(key),
            state.start.get(key, state.spans.runs(key)[0][0]),
            state.spans.end(key) or 0,
        )
    ]
    return [Table("holes: not archived", HOLE_COLUMNS, rows)] if rows else []


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
        run_batches(
            reader.options(**options.source_options(self._settings, found.start)).load(),
            "archive",
            self.take,
            # Removed with the run: the table says where the next run continues.
            checkpoint=f"file://{self._writer.files.root}/{RUNS}/{self._writer.run}",
            follow_ms=options.follow_ms,
        )
        self._compact()

    def take(self, frame: DataFrame, batch_id: int) -> None:
        """Archive a batch: tasks stage, then one commit."""
        from skylarkmq.spark.archive.sink import stage

        batch = str(batch_id)
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


main = job_command(
    "archive",
    ArchiveOptions,
    run,
    help="""Archive TOPICs into the Parquet table TABLE, each message exactly once.

    Run it again, whatever ended it: it goes on where the table ends. Only one job writes at a time,
    and readers need not wait.
    """,
)

if __name__ == "__main__":
    main()
