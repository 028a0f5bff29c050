"""The job `audit`: compares two places that should hold the same messages.

    audit topic TABLE [TOPIC]...   the topics on the brokers   against an archive of them
    audit store FOLDER             a store's commit log        against its consume queues

    missing     the left side has it, the right side has not
    extra       the right side has it, the left side has not
    duplicate   the right side has it more than once
    differing   both have it, and they differ in what the column `what` names

    gone          the table's log names the file, and it is not there
    unreadable    the file is there, and is not the Parquet file that the log says: its footer, its
                  size or the number of its rows

Exit code 1 when anything is found. Nothing is changed. Spark compares; neighbouring offsets with
the same fault are one line, and only these lines come to the driver.

    topic   Messages that have expired on the brokers are compared with what the archive's commits
            promise: each has to be there once, with a body that has the checksum it says. Holes,
            which no commit has, count as missing. Messages that were expired or erased from the
            archive must not be there: one that is counts as extra. What came after the archive's
            end is told, and is no difference.
    store   Of a stopped store or a copy. Each record's queue must lead to it, and each unit of a
            queue to a record. Records that transactions hide, and topics that were deleted, have
            no unit. Tag codes and key indexes are for `skylarkmq store verify`.
"""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from skylarkmq.protocol.flags import RMQ_SYS_TRANS_HALF_TOPIC
from skylarkmq.spark import archive_table
from skylarkmq.spark.archive.delta_log import DataFile
from skylarkmq.spark.archive.spans import Spans, gaps
from skylarkmq.spark.archive.state import ArchiveError, ArchiveState
from skylarkmq.spark.archive.table import ArchiveTable
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.jobs.common import JobSettings, UsageError, argument, job_command
from skylarkmq.spark.jobs.reporting import DIFFERENCES, DONE, Cell, Summary, Table
from skylarkmq.spark.jobs.running import by_queue, open_session
from skylarkmq.spark.offsets import QueueKey, QueueOffsets, describe

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FACTS = ("body", "properties", "other_columns", "checksum")
COMPRESSED = 1
"""The bit of sysFlag that says that the stored body, and so its checksum, is of packed bytes."""
STEP = 100_000
"""Offsets that one row is exploded into."""
TRIES = 5
"""How often to begin anew while others delete files that are read."""


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """Which archive to compare, and of which topics; of none: all of it."""

    table: str = argument("TABLE")
    topics: tuple[str, ...] = argument("[TOPIC]...", nargs=-1)


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Which store to check."""

    folder: str = argument("FOLDER", type=click.Path(file_okay=False, exists=True))


def audit_topic(options: TopicOptions, settings: JobSettings) -> Summary:
    """Compare an archive with its topics.

    Raises:
        ArchiveError: no archive, or a damaged one.
        RocketMQError: a topic is not there, or no answer.
    """
    table = ArchiveTable.open(settings.location(options.table))
    with (
        closing(settings.client()) as client,
        open_session("skylarkmq audit", settings) as spark,
        settings.progress("comparing") as progress,
    ):

        def once() -> tuple[ArchivePlan, CheckedFiles, list[Run]]:
            plan = plan_archive(table.state, options.topics, client)
            files = check_files(table, plan.topics)
            progress.say(f"{plan.live.count():,} messages on the brokers, {files.rows:,} archived")
            return plan, files, compare(spark, table, files.sound, plan, settings)

        plan, files, found = of_one_version(table, once)
    found = sorted([*found, *(Run("missing", *hole, "expired") for hole in plan.holes)])
    figures = {
        "messages_compared": plan.live.without(plan.gone).count(),
        "messages_expired": plan.expired.count(),
        "messages_in_archive": files.rows,
        "messages_removed_from_archive": plan.gone.count(),
        "messages_not_archived_yet": plan.ahead,
        "version": table.log.version,
    }
    notes = [*([table.state.note] if table.state.note else []), *plan.notes, *files.notes()]
    return report(figures, found, notes, files.tables())


Found = TypeVar("Found")


def of_one_version(table: ArchiveTable, work: Callable[[], Found]) -> Found:
    """Do work on the loaded version; on a newer one if files were deleted that it read."""
    from pyspark.errors import PySparkException

    for _ in range(TRIES - 1):
        try:
            return work()
        except PySparkException:
            version = table.log.version
            table.reload()
            if table.log.version == version:
                raise
    return work()


def compare(
    spark: SparkSession,
    table: ArchiveTable,
    sound: Sequence[DataFile],
    plan: ArchivePlan,
    settings: JobSettings,
) -> list[Run]:
    """Return where the sides do not agree; reads the files of one version of the table."""
    left = promised(spark, plan.expired)
    if plan.live.count():
        left = left.unionAll(facts(live(spark, plan, settings)))
    right = within(archive_table.read_files(spark, table, sound), plan.stops)
    gone = places(spark, within_reach(plan.gone, sound))
    return runs(differences(left, facts(right), FACTS, gone=gone))


def within_reach(gone: Spans, files: Sequence[DataFile]) -> Spans:
    """Return what of these offsets files could have: after years most lie below all of them."""
    least: dict[str, int] = {}
    for file in files:
        first = file.first_offset or 0
        least[file.topic] = min(first, least.get(file.topic, first))
    return Spans.of(
        (key, max(start, least[key.topic]), end)
        for key, start, end in gone.items()
        if key.topic in least
    )


def within(rows: DataFrame, stops: Mapping[QueueKey, int]) -> DataFrame:
    """Return the rows below these offsets: a job may archive more while this one compares.

    Queues that are not named came later, and have none.
    """
    from pyspark.sql import functions as F

    return rows.where(F.col("queueOffset") < by_queue(stops))


def live(spark: SparkSession, plan: ArchivePlan, settings: JobSettings) -> DataFrame:
    """Return the messages of the topics between the bounds of the plan."""
    import json

    starts = QueueOffsets({key: start for key, start, _ in plan.live.items()})
    ends = QueueOffsets({key: end for key, _, end in plan.live.items()})
    queues: dict[str, dict[str, list[int]]] = {}
    for key in starts:
        queues.setdefault(key.topic, {}).setdefault(key.broker_name, []).append(key.queue_id)
    options = settings.connector_options(
        assign=json.dumps(queues),
        startingOffsets=json.dumps(starts.nested()),
        endingOffsets=json.dumps(ends.nested()),
    )
    return spark.read.format("skylarkmq").options(**options).load()


def facts(frame: DataFrame) -> DataFrame:
    """Return PLACE and FACTS of messages in the columns of the source."""
    from pyspark.sql import functions as F

    from skylarkmq.spark import schema

    plain = [name for name in schema.names() if name not in {*PLACE, "body", "properties"}]
    body_crc = F.crc32("body")
    stored = F.when(
        (F.col("sysFlag").bitwiseAND(COMPRESSED) == 0)
        & (body_crc.bitwiseAND(0x7FFFFFFF) != F.col("bodyCRC")),
        F.lit(1),
    ).otherwise(F.lit(0))
    entries = F.array_sort(F.map_entries("properties"))
    return frame.select(
        *PLACE,
        F.concat_ws("/", body_crc, F.length("body"), F.xxhash64("body")).alias("body"),
        F.xxhash64(entries).cast("string").alias("properties"),
        F.xxhash64(*plain).cast("string").alias("other_columns"),
        stored.cast("string").alias("checksum"),
    )


def promised(spark: SparkSession, spans: Spans) -> DataFrame:
    """Return PLACE of all offsets of some spans; the facts are not known, but for the checksum."""
    return places(spark, spans).selectExpr(
        *PLACE,
        *(f"CAST({'0' if fact == 'checksum' else 'NULL'} AS string) AS {fact}" for fact in FACTS),
    )


def places(spark: SparkSession, spans: Spans) -> DataFrame:
    """Return PLACE of all offsets of some spans."""
    pieces = [
        (*key, low, min(low + STEP, end))
        for key, start, end in spans.items()
        for low in range(start, end, STEP)
    ]
    columns = "topic string, brokerName string, queueId int, low bigint, high bigint"
    offsets = "explode(sequence(low, high - 1)) AS queueOffset"
    return spark.createDataFrame(pieces, columns).selectExpr(*PLACE[:3], offsets)


def audit_store(options: StoreOptions, settings: JobSettings) -> Summary:
    """Compare a store's commit log with its consume queues.

    Raises:
        LogNotFoundError: the folder holds no store.
    """
    from skylarkmq.spark.log.queue_units import (
        FORMAT,
        QueueUnitsSource,
        list_queue_files,
        removed_ends,
    )
    from skylarkmq.spark.log.source import list_log

    folder = options.folder
    begin = list_log(folder)[0].base
    queue_files = list_queue_files(folder)
    removed = removed_ends(folder)
    with (
        open_session("skylarkmq audit", settings) as spark,
        settings.progress("comparing") as progress,
    ):
        spark.dataSource.register(QueueUnitsSource)
        records = log_records(spark, folder, removed, settings).cache()
        progress.say(f"{len(queue_files):,} files of queues against the log")
        units = spark.read.format(FORMAT).load(folder)
        units = units.where(f"physicalOffset >= {begin} AND NOT startswith(topic, '%LMQ%')")
        units = units.selectExpr(*UNIT_PLACE, *UNIT_FACTS).cache()
        damaged = records.where("NOT crcOk").selectExpr(
            *PLACE, "'damaged' AS kind", "'body' AS what"
        )
        wrong = differences(records, units, ("place",))
        found = runs(wrong.unionAll(damaged))
        figures = {"records_in_log": records.count(), "units_in_queues": units.count()}
    return report(figures, found, [])


UNIT_PLACE = ("topic", "'' AS brokerName", "queueId", "queueOffset")
UNIT_FACTS = ("concat_ws('+', physicalOffset, storeSize) AS place",)


def log_records(
    spark: SparkSession, folder: str, removed: dict[str, int], settings: JobSettings
) -> DataFrame:
    """Return PLACE, place and crcOk of the records that a unit should lead to.

    Where a queue goes back, its topic was deleted and made again: what lies before belongs to the
    old one. A half message has a unit in the queue of the half messages; a record that is prepared
    in any other topic has none.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    columns = (
        "topic string, queueId int, queueOffset bigint, physicalOffset bigint, storeSize int, "
        "crcOk boolean, recordKind string"
    )
    options = {"verifyCrc": "false", "onCorruption": "skip", **settings.options}
    reader = spark.read.format("skylarkmq-commitlog").schema(columns).options(**options)
    records = reader.load(folder).where(
        F.col("recordKind").isin("message", "commit") | (F.col("topic") == RMQ_SYS_TRANS_HALF_TOPIC)
    )
    for topic, end in removed.items():
        gone = (F.col("topic") == topic) & (F.col("physicalOffset") < end)
        records = records.where(~gone)
    later = (
        Window.partitionBy("topic", "queueId")
        .orderBy("physicalOffset")
        .rowsBetween(1, Window.unboundedFollowing)
    )
    records = records.withColumn("least_later", F.min("queueOffset").over(later))
    records = records.where("least_later IS NULL OR least_later > queueOffset")
    return records.selectExpr(*UNIT_PLACE, *UNIT_FACTS, "crcOk")


def report(
    figures: dict[str, Any], found: list[Run], notes: list[str], more: tuple[Table, ...] = ()
) -> Summary:
    """Return the summary; its exit code says whether anything was found."""
    listed = found[:RUNS_MAX]
    if len(found) > len(listed):
        notes = [*notes, f"Only the first {len(listed):,} runs are listed and counted."]
    figures = {**figures, "differences": sum(run.messages for run in listed)}
    figures |= counts(listed)
    tables = ((table(listed),) if listed else ()) + more
    code = DIFFERENCES if tables else DONE
    return Summary("audit", figures, tables, tuple(notes), exit_code=code)


Hole = tuple[str, str, int, int, int]
"""Topic, broker, queue, start, end."""


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """What to compare."""

    topics: tuple[str, ...]
    live: Spans
    """What the brokers have, and the archive should have but for `gone`."""
    expired: Spans
    """What the archive alone can have."""
    gone: Spans
    """What was expired or erased from the archive, and may not be there."""
    holes: list[Hole]
    """What neither has: messages that expired without being archived."""
    ahead: int
    """Messages after the archive's end."""
    stops: dict[QueueKey, int]
    """The archive's end in each queue that it knows: what came after it is not compared."""
    notes: list[str]


def plan_archive(
    state: ArchiveState, topics: Sequence[str], brokers: BlockingClient
) -> ArchivePlan:
    """Return what to compare; asks name servers and brokers.

    Raises:
        JobError: a topic that the archive does not have.
        ArchiveError: the archive has no topic at all.
        RocketMQError: no such topic, or no answer.
    """
    known = state.topics()
    if not known:
        raise ArchiveError("the archive is empty: there is nothing to compare")
    unknown = sorted(set(topics) - set(known))
    if unknown:
        raise UsageError(
            f"the archive does not have {', '.join(unknown)}; it has {', '.join(known)}"
        )
    chosen = tuple(topics) or tuple(known)
    gone = state.gone.only(chosen)
    live, expired, notes = Spans(), Spans(), list[str]()
    holes: list[Hole] = []
    ahead = 0
    queues = [QueueKey(*queue) for topic in chosen for queue in brokers.read_queues(topic)]
    begins, ends = brokers.min_offsets(queues), brokers.max_offsets(queues)
    for key in sorted({*queues, *state.queues(chosen)}):
        start, stop = state.start.get(key), state.next_offset(key)
        runs = state.spans.runs(key)
        if key not in begins:
            notes.append(f"{describe(key)} is not there any more: only its commits are checked.")
            begin = end = stop or 0
        else:
            begin, end = begins[key], ends[key]
        if stop is None:  # a queue that came after the last run
            ahead += max(0, end - begin)
            continue
        first = min([low for low in (start, runs[0][0] if runs else None) if low is not None])
        if end < stop:
            notes.append(
                f"{describe(key)} ends at {end}, before the archive's {stop}: its topic was made "
                "anew, or its broker lost its last messages."
            )
        ahead += max(0, end - max(stop, begin))
        for low, high in trimmed(gone.runs(key), max(first, begin), min(stop, end)):
            live.add(key, low, high)
        for low, high in runs:
            for promise in gaps(gone.runs(key), low, min(high, begin)):
                expired.add(key, *promise)
        holes += [
            (key.topic, key.broker_name, key.queue_id, low, high)
            for low, high in gaps(runs, first, min(begin, stop))
        ]
    known_queues = state.queues(chosen)
    stops = {key: stop for key in known_queues if (stop := state.next_offset(key)) is not None}
    return ArchivePlan(chosen, live, expired, gone, holes, ahead, stops, notes)


def trimmed(gone: Sequence[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Return [start, end) without what has gone at both its ends; nothing if all has."""
    left = gaps(gone, start, end)
    return [(left[0][0], left[-1][1])] if left else []


PLACE: Final = ("topic", "brokerName", "queueId", "queueOffset")
RUNS_MAX: Final = 10_000
"""Runs that are listed; the counts are of all."""
REMOVED: Final = "expired or erased"
COLUMNS: Final = (
    "kind",
    "topic",
    "broker",
    "queue",
    "from_offset",
    "to_offset",
    "messages",
    "what",
)


class Run(NamedTuple):
    """Neighbouring offsets [start, end) with the same fault."""

    kind: str
    topic: str
    broker_name: str
    queue_id: int
    start: int
    end: int
    what: str
    """What differs; else empty."""

    @property
    def messages(self) -> int:
        """How many."""
        return self.end - self.start


def differences(
    left: DataFrame, right: DataFrame, facts: Sequence[str], *, gone: DataFrame | None = None
) -> DataFrame:
    """Return a row for each place where the sides do not agree: PLACE, kind, what.

    Args:
        left, right: have PLACE and `facts`; a fact that is null agrees with everything. What is
            twice counts on the right alone: the left side says what there is.
        gone: has PLACE: what the right side may not have, whatever the left one has.
    """
    from pyspark.sql import functions as F

    def side(frame: DataFrame, name: str, columns: Sequence[Column]) -> DataFrame:
        counts = [F.lit(int(name == each)).alias(each) for each in "lrg"]
        return frame.select(*PLACE, *columns, *counts)

    known = [F.col(fact) for fact in facts]
    found = side(left, "l", known).unionAll(side(right, "r", known))
    if gone is not None:
        nothing = [F.lit(None).cast("string").alias(fact) for fact in facts]
        found = found.unionAll(side(gone, "g", nothing))
    grouped = found.groupBy(*PLACE).agg(
        *(F.sum(each).alias(each) for each in "lrg"),
        *(F.min(fact).alias(f"low_{fact}") for fact in facts),
        *(F.max(fact).alias(f"high_{fact}") for fact in facts),
    )
    unequal: list[Column] = [
        F.when(F.col(f"low_{fact}") != F.col(f"high_{fact}"), F.lit(fact)) for fact in facts
    ]
    kind = (
        F.when(F.col("g") > 0, F.when(F.col("r") > 0, "extra"))
        .when(F.col("r") == 0, "missing")
        .when(F.col("l") == 0, F.when(F.col("r") > 1, "duplicate").otherwise("extra"))
        .when(F.col("r") > 1, "duplicate")
        .when(F.col("what") != "", "differing")
    )
    what = F.when(F.col("g") > 0, F.lit(REMOVED)).otherwise(F.concat_ws(", ", *unequal))
    named = grouped.withColumn("what", what).withColumn("kind", kind)
    return named.where("kind IS NOT NULL").select(*PLACE, "kind", "what")


def runs(found: DataFrame) -> list[Run]:
    """Return the differences as runs, by kind and place; at most RUNS_MAX + 1. Runs Spark jobs."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    same = ("kind", "topic", "brokerName", "queueId", "what")
    order = Window.partitionBy(*same).orderBy("queueOffset")
    island = F.col("queueOffset") - F.row_number().over(order)
    folded = (
        found.withColumn("island", island)
        .groupBy(*same, "island")
        .agg(F.min("queueOffset").alias("start"), F.max("queueOffset").alias("last"))
        .orderBy("kind", "topic", "brokerName", "queueId", "start")
    )
    rows = folded.select(*same[:4], "start", F.col("last") + 1, "what").limit(RUNS_MAX + 1)
    return [Run(*row) for row in rows.collect()]


def table(found: Sequence[Run]) -> Table:
    """Return runs for a summary."""
    rows = [(*run[:6], run.messages, run.what) for run in found]
    return Table("differences", COLUMNS, rows)


def counts(found: Sequence[Run]) -> dict[str, int]:
    """Return the number of messages of each kind."""
    counter: Counter[str] = Counter()
    for run in found:
        counter[run.kind] += run.messages
    return dict(sorted(counter.items()))


class FileFault(NamedTuple):
    """A file with which something is wrong."""

    kind: str
    name: str
    """Below the table."""
    rows: int | None
    """Messages that the log says it has."""


@dataclass(frozen=True, slots=True)
class CheckedFiles:
    """An archive's files of some topics, of one version."""

    sound: list[DataFile]
    faults: list[FileFault]
    rows: int
    """Messages in all of them, by the log."""

    def tables(self) -> tuple[Table, ...]:
        """Return the faults for a summary; nothing when there are none."""
        rows: list[tuple[Cell, ...]] = []
        for fault in self.faults:
            folder, _, file = fault.name.rpartition("/")
            rows.append((fault.kind, folder, file, fault.rows))
        return (Table("files", ("kind", "folder", "file", "messages"), rows),) if rows else ()

    def notes(self) -> Iterator[str]:
        """Yield what to do about them."""
        if self.faults:
            yield "Messages of files that are gone or unreadable count as missing: restore them."


def check_files(table: ArchiveTable, topics: Collection[str]) -> CheckedFiles:
    """Look at all files of these topics in the loaded version; opens each for its footer."""
    filesystem = table.location.filesystem()
    sound: list[DataFile] = []
    faults: list[FileFault] = []
    chosen = [file for file in table.files() if file.topic in topics]
    for file in chosen:
        with table.location.errors():
            fault = _fault(filesystem, file)
        if fault:
            faults.append(FileFault(fault, file.name, file.rows))
        else:
            sound.append(file)
    faults.sort(key=lambda fault: fault[:2])
    return CheckedFiles(sound, faults, sum(file.rows or 0 for file in chosen))


def _fault(filesystem: FileSystem, file: DataFile) -> str:
    """Return what is wrong with a file, "" if nothing is."""
    try:
        with filesystem.open_input_file(file.name) as opened:
            size, metadata = opened.size(), pq.read_metadata(opened)
    except FileNotFoundError:
        return "gone"
    except pa.ArrowInvalid:
        return "unreadable"
    is_whole = size == file.size and file.rows in (None, metadata.num_rows)
    return "" if is_whole else "unreadable"


main = click.Group(
    help="""Compare two sides that should hold the same messages; list what does not agree.

    Exit code 1 when anything differs.
    """
)
main.add_command(
    job_command(
        "audit",
        TopicOptions,
        audit_topic,
        name="topic",
        help="Compare the archive TABLE with its TOPICs on the brokers; without TOPIC all of it.",
    )
)
main.add_command(
    job_command(
        "audit",
        StoreOptions,
        audit_store,
        name="store",
        help="Compare the consume queues of the store in FOLDER with its commit log; no broker.",
    )
)

if __name__ == "__main__":
    main()
