"""The job `archive`: topics into one Delta Lake table, each message exactly once.

    topic(s) --stream--> batches --> data files --> commit --> TABLE

The table itself knows which offsets of each queue it has (see `archive.table`), so the job keeps
nothing from one run to the next: after a kill at any moment, or a month later, it continues where
the table ends. It waits for enough messages, or long enough, before it writes a file. Several jobs
may write into one table, of other topics or of the same ones.

    python -m skylarkmq.spark.jobs.archive orders /data/archive
    skylarkmq-spark-submit -m skylarkmq.spark.jobs.archive orders refunds s3://bucket/archive
    python -m skylarkmq.spark.jobs.archive orders /data/archive --follow 1m

The table lies in an object store, or on a disk that driver and executors mount at the same path.
Other commands of the group expire, erase, optimize and vacuum (`archive_upkeep`).

Driver process. Batches come on a thread of Spark's, one at a time; all else is on the main thread,
before the stream starts or after it has ended.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from skylarkmq.spark.archive.delta_log import DeltaLog
from skylarkmq.spark.archive.sink import write_files
from skylarkmq.spark.archive.spans import OverlapError, Spans, gaps
from skylarkmq.spark.archive.state import ArchiveError, ArchiveState
from skylarkmq.spark.archive.table import ArchiveTable
from skylarkmq.spark.archive.writer import COMPRESSIONS, WritePlan
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.jobs import archive_typed
from skylarkmq.spark.jobs.archive_typed import Prepared
from skylarkmq.spark.jobs.archive_upkeep import COMMANDS, ArchiveGroup
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
from skylarkmq.spark.jobs.running import follow_topics, open_session, tasks_at_once
from skylarkmq.spark.offsets import QueueKey, QueueOffsets
from skylarkmq.spark.options import SourceOptions, Subject
from skylarkmq.spark.reading.last_read import used_again
from skylarkmq.spark.reading.positions import (
    EARLIEST,
    LATEST,
    Position,
    instant_ms,
    listed,
    resolve,
)
from skylarkmq.spark.reading.queue_view import QueueView
from skylarkmq.spark.settings import ConnectionSettings
from skylarkmq.spark.storage import Location
from skylarkmq.spark.typed.topic_schema import TopicSchema

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
}
"""Options of the source that would take the job's promise away."""


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """What to archive, where to, and how."""

    topics: tuple[str, ...] = argument("[TOPIC]...", nargs=-1)
    table: str = argument("TABLE")
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
    allow_data_loss: bool = option(
        "--allow-data-loss",
        is_flag=True,
        help="Go on after messages that have expired before they were archived, and list them.",
    )
    schema: str | None = option(
        "--schema",
        metavar="FILE",
        help="Make columns of the bodies of one topic, JSON or text, by this JSON file: "
        "docs/spark/typed.md says how it looks.",
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
        if self.schema:
            more["onCorruption"] = "raw"  # the row then says what its body lacks
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
        ArchiveError: the table is damaged, or something else lies there.
        StorageError: the place cannot be used.
        RocketMQError: a topic is not there, messages have expired, no answer.
    """
    check(options, settings)
    location = settings.location(options.table)
    view = view_of(options, settings)
    schema = archive_typed.load(options.schema) if options.schema else None
    view.brokers.await_start()
    if options.dry_run:
        return dry_run(options, location, view, schema)
    view.patiently(view.queues)  # no table is made for a topic that is not there
    table = ArchiveTable.open_or_make(location)
    found = survey(options, table.state, view)
    found.refuse_remade()
    typed = prepared(options, schema, table)
    table.begin(found.new)
    with open_session("skylarkmq archive", settings) as spark:
        progress = settings.progress("archiving")
        archiving = Archiving(options, settings, table, spark, progress, typed)
        archiving.stream(found)
    return archiving.summary()


def check(options: ArchiveOptions, settings: JobSettings) -> None:
    """Refuse options that contradict, or that would break the promise.

    Raises:
        JobError, OptionError: which, and what to do.
    """
    refused = {name.lower(): why for name, why in REFUSED.items()}
    for name in settings.options:
        if name.lower() in refused:
            raise UsageError(f"--option {name}: {refused[name.lower()]}")
    if bool(options.topics) == bool(options.pattern):
        raise UsageError("name topics, or --pattern: one of the two")
    if options.min_messages is not None and options.follow_ms is None:
        raise UsageError("--min-messages goes with --follow: a run that ends does not wait")
    if options.min_messages is not None and options.min_messages > options.batch_messages:
        raise UsageError("--min-messages is above --batch-messages: no batch could have as many")
    if options.schema is not None and len(options.topics) != 1:
        raise UsageError("--schema is of one topic: name it, and no other")
    if options.pattern:
        try:
            re.compile(options.pattern)
        except re.error as error:
            raise UsageError(f"--pattern: {error}") from error
    starting(options.starting)
    # Before anything is asked or made: a misspelled option is not found out by a query later.
    SourceOptions.from_options(options.source_options(settings, QueueOffsets()), streaming=True)


def prepared(
    options: ArchiveOptions, schema: TopicSchema | None, table: ArchiveTable
) -> Prepared | None:
    """Return what --schema makes of the table, None without it; with --dry-run what it would.

    Raises:
        UsageError: the table has columns of bodies, and there is no schema.
    """
    if schema is not None:
        return archive_typed.prepare(table, schema, options.topics[0], dry_run=options.dry_run)
    if archive_typed.value_type(table) is not None:
        raise UsageError("the table has columns of its topic's bodies: give --schema")
    return None


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
    used_again: Collection[QueueKey] = ()
    """Queues whose broker has other messages at the table's offsets."""

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
        """Return whether the offsets of a queue are used again: it ends before the table does, or
        has another message where the table ends."""
        return self.ends[key] < self.start[key] or key in self.used_again

    def refuse_remade(self) -> None:
        """Refuse a table whose offsets are used again: each stands for one message there.

        Raises:
            ArchiveError: with the queues.
        """
        refuse([key for key in self.start if self.remade(key)])


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


def survey(options: ArchiveOptions, state: ArchiveState, view: QueueView) -> Survey:
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
    topics, brokers = set(state.topics()), view.brokers
    grown = [key for key in queues if key not in known and key.topic in topics]
    fresh = [key for key in queues if key not in known and key.topic not in topics]
    new: dict[QueueKey, int] = {}
    if grown:
        new |= view.patiently(lambda: resolve(EARLIEST, grown, brokers, ""))
    if fresh:
        new |= view.patiently(lambda: resolve(position, fresh, brokers, ""))
    ends = view.patiently(lambda: brokers.max_offsets(queues))
    before, _ = view.fingerprints({key: at - 1 for key, at in new.items() if at}, patient=True)
    return Survey(
        QueueOffsets({**known, **new}),
        QueueOffsets(new, before),
        view.patiently(lambda: brokers.min_offsets(queues)),
        ends,
        used_again(view, state.ends, ends, patient=True),
    )


def refuse(remade: Collection[QueueKey]) -> None:
    """Refuse queues whose offsets are used again.

    Raises:
        ArchiveError: there are some.
    """
    if remade:
        raise ArchiveError(
            f"the table holds other messages at the offsets of {listed(remade)}: the topic was "
            "made anew, or its broker lost messages or has an older disk",
            hint="Archive into another folder from here on",
        )


def dry_run(
    options: ArchiveOptions,
    location: Location,
    view: QueueView,
    schema: TopicSchema | None = None,
) -> Summary:
    """Return what a run would archive."""
    log = DeltaLog.open(location)
    table = None if log is None else ArchiveTable(log)
    typed = None if table is None else prepared(options, schema, table)
    state = ArchiveState() if table is None else table.state
    files = [] if table is None else table.files()
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
        "table": str(location),
        "table_exists": table is not None,
        "archived_messages": sum(file.rows or 0 for file in files),
        "archived_files": len(files),
        "messages_to_archive": found.backlog,
    }
    tables = (Table("queues", columns, rows), *holes_table(state))
    notes = (*_warnings(found, state), *(typed.notes if typed else ()))
    return Summary("archive", figures, tables, notes, dry_run=True)


def _warnings(found: Survey, state: ArchiveState) -> Iterator[str]:
    if state.note:
        yield state.note
    if any(found.expired(key) for key in found.start):
        yield (
            "Messages have expired before they were archived: the job fails on them, or with "
            "--allow-data-loss continues after them."
        )
    if any(found.remade(key) for key in found.start):
        yield (
            "The table holds other messages at a queue's offsets: its topic was made anew, or its "
            "broker lost messages. Archive into another folder from here on."
        )


def holes_table(state: ArchiveState) -> list[Table]:
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
        table: ArchiveTable,
        spark: SparkSession,
        progress: Progress,
        typed: Prepared | None = None,
    ) -> None:
        self._options = options
        self._typed = typed
        self._reasons: Counter[str] = Counter()
        self._settings = settings
        self._table = table
        self._spark = spark
        self._progress = progress
        self._tasks = options.files_per_batch or tasks_at_once(spark)
        self._total: int | None = None
        self._messages: Counter[str] = Counter()
        self._batches = 0
        self._repeated = 0
        self._note = table.state.note
        # What the source may give although the table has it.
        self._known = Spans()

    def stream(self, found: Survey) -> None:
        """Archive until the end, or until a signal. Raises what a batch or the source raised."""
        options = self._options
        self._total = found.backlog if options.follow_ms is None else None
        self._progress.show(0, self._total)
        # A queue whose broker was away when the run began, and comes back, is read from its start.
        away = [key for key in self._table.state.queues() if key not in found.start]
        self._known = self._table.state.spans.of_queues(away)
        follow_topics(
            self._spark,
            options.source_options(self._settings, found.start),
            "archive",
            self.take,
            follow_ms=options.follow_ms,
        )

    def take(self, frame: DataFrame, end: QueueOffsets) -> None:
        """Archive a batch: tasks write, then one commit, which has their offsets."""
        while True:
            written = Written.of(write_files(frame.coalesce(self._tasks), self._plan()))
            wanted = written.spans.queues()
            try:
                ends = end.without(end.keys() - wanted)
                self._table.append(written.files, written.spans, ends)
                break
            except OverlapError:
                # Another run has archived some of it meanwhile: tasks leave that out.
                written.remove(self._table.location)
                self._refuse_remade(wanted)
                self._known.merge_all(self._table.state.spans.of_queues(wanted))
        self._repeated += written.repeated
        self._reasons.update(written.reasons)
        for file in written.files:
            self._messages[file["topic"]] += file["rows"]
        self._batches += bool(written.files)
        self._progress.show(self._messages.total(), self._total)

    def _refuse_remade(self, queues: Iterable[QueueKey]) -> None:
        """Refuse to take new messages for archived ones, with --allow-data-loss.

        Raises:
            ArchiveError: offsets are used again.
        """
        view = view_of(self._options, self._settings)
        with closing(view.brokers):
            ends = view.ends_of(queues)
            refuse(used_again(view, self._table.state.ends, ends, patient=False))

    def _plan(self) -> WritePlan:
        return WritePlan(
            self._table.location,
            file_bytes=self._options.file_bytes,
            compression=self._options.compression,
            known=self._known.to_json(),
            typed=self._typed.schema if self._typed else None,
        )

    def summary(self) -> Summary:
        """Return what the run did."""
        table = self._table
        table.reload()
        archived: Counter[str] = Counter()
        files: Counter[str] = Counter()
        size = 0
        for file in table.files():
            archived[file.topic] += file.rows or 0
            files[file.topic] += 1
            size += file.size
        rows = [
            (topic, self._messages[topic], archived[topic], files[topic])
            for topic in sorted({*archived, *self._messages})
        ]
        figures = {
            "messages": self._messages.total(),
            "batches": self._batches,
            "files": files.total(),
            "bytes": size,
            "messages_archived_before": self._repeated,
            "table": str(table.location),
            "version": table.log.version,
        }
        tables = [Table("by topic", ("topic", "messages", "in_table", "files_in_table"), rows)]
        notes = [self._note] if self._note else []
        if self._typed:
            figures["quarantined"] = self._reasons.total()
            tables += archive_typed.quarantine_tables(self._reasons)
            notes += self._typed.notes
        return Summary("archive", figures, (*tables, *holes_table(table.state)), tuple(notes))


@dataclass(frozen=True, slots=True)
class Written:
    """What the tasks of a batch have written."""

    files: list[dict[str, Any]]
    spans: Spans
    repeated: int
    """Rows left out."""
    reasons: Counter[str]
    """Why bodies were not decoded, with a schema of them."""

    @classmethod
    def of(cls, reports: Iterable[Mapping[str, Any]]) -> Written:
        """Return what reports say together.

        Raises:
            OverlapError: two tasks have written the same message.
        """
        files: list[dict[str, Any]] = []
        spans, repeated = Spans(), 0
        reasons: Counter[str] = Counter()
        for report in reports:
            files += report["files"]
            spans.add_all(Spans.from_json(report["spans"]))
            repeated += report["repeated"]
            reasons.update(report["reasons"])
        return cls(files, spans, repeated, reasons)

    def remove(self, location: Location) -> None:
        """Remove the files, which no commit names."""
        filesystem = location.filesystem()
        with location.errors():
            for file in self.files:
                filesystem.delete_file(file["path"])


main = ArchiveGroup(
    help="""Archive topics into a Delta Lake table, and take care of it.

    `archive [TOPIC]... TABLE` is short for `archive run [TOPIC]... TABLE`.
    """
)
run_command = job_command(
    "archive",
    ArchiveOptions,
    run,
    name="run",
    help="""Archive TOPICs into the Delta Lake table TABLE, each message exactly once.

    TABLE is a folder, or s3://BUCKET/PATH and the like. Run it again, whatever ended it: it goes on
    where the table ends. Several jobs may write into one table.
    """,
)
run_command.params += archive_typed.refused_options()
for command in (run_command, *COMMANDS):
    main.add_command(command)

if __name__ == "__main__":
    main()
