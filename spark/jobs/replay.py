"""The job `replay`: messages of an archive are sent to a topic again.

    archive --topics, times, condition--> rows --> counts by source queue
                                           |
                     rows of one source queue to one task, sorted by offset --> target topic

The order of each source queue is kept: all its messages go to one queue of the target, one after
another. Each keeps its body, keys, tags, properties and flag; its message id is made of where it
was archived from (--keep-ids: stays what it was), so the same message has the same id however often
it is sent. Delayed messages are sent for now.

At least once. What was acknowledged stands in a ledger: the same command run again, after whatever
ended the first run, goes on where that ended, and sends at most those messages again that were
under way. A target with a deduplication window stores those once, if the run begins again within
it; --option delivery=exactlyOnce refuses others. A run that has nothing left to send says so;
--restart sends all again.

    python -m skylarkmq.spark.jobs.replay /data/archive orders-again --topic orders
    skylarkmq-spark-submit -m skylarkmq.spark.jobs.replay /data/archive orders-again ...

Driver process. Tasks run in parallel, one source queue after another in each.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import click

from skylarkmq.client.errors import RocketMQError
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.spark import archive_table
from skylarkmq.spark.archive.table import ArchiveTable
from skylarkmq.spark.clock import SystemClock
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.jobs.common import (
    JobError,
    JobSettings,
    UsageError,
    argument,
    explain,
    job_command,
    option,
    rate_option,
)
from skylarkmq.spark.jobs.replay_ledger import Done, Ledger, ReplayPlan, Selection, assign
from skylarkmq.spark.jobs.replay_task import COLUMNS, RECORD_S, ReplaySetup, send_rows
from skylarkmq.spark.jobs.reporting import DONE, INTERRUPTED, Summary, Table
from skylarkmq.spark.jobs.running import (
    EACH_QUEUE,
    POLL_S,
    StopRequest,
    by_queue,
    hush,
    open_session,
    tasks_at_once,
)
from skylarkmq.spark.offsets import describe
from skylarkmq.spark.reading.positions import instant_ms
from skylarkmq.spark.storage import Location
from skylarkmq.spark.writing.promises import Promises, lasting_write_queues
from skylarkmq.spark.writing.sink_options import EXACTLY_ONCE, SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

LEDGER_SUFFIX: Final = ".replays"
"""Ledgers lie beside the archive: /data/archive.replays/<target>-<selection>."""


class Instant(click.ParamType[int]):
    """A time on the command line."""

    name = "time"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds since the epoch."""
        try:
            return instant_ms(value)
        except ValueError as error:
            self.fail(f"{value!r} is not {error}", param, ctx)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What to send again, where to, and how."""

    archive: str = argument("ARCHIVE")
    target: str = argument("TARGET")
    topics: tuple[str, ...] = option(
        "--topic",
        multiple=True,
        metavar="SOURCE",
        help="Replay this archived topic; repeatable. Needed when the archive has several.",
    )
    start_ms: int | None = option(
        "--start",
        type=Instant(),
        metavar="TIME",
        help="Stored at this time or later: ISO 8601 with a zone, or ms since 1970.",
    )
    end_ms: int | None = option(
        "--end", type=Instant(), metavar="TIME", help="Stored before this time."
    )
    where: str = option(
        "--where",
        default="",
        show_default=False,
        metavar="SQL",
        help="A condition on the archive's columns, as \"tags = 'paid'\".",
    )
    rate: float | None = rate_option("At most N messages a second, all tasks together.")
    keep_ids: bool = option(
        "--keep-ids",
        is_flag=True,
        help="Messages keep their ids; consumers that remember ids may skip them.",
    )
    force: bool = option(
        "--force", is_flag=True, help="Replay into a topic that the messages come from."
    )
    ledger: str | None = option(
        "--ledger",
        metavar="PLACE",
        help="What was sent, for later runs: a folder that driver and executors see, or "
        "s3://BUCKET/PATH and the like.  [default: beside the archive]",
    )
    restart: bool = option("--restart", is_flag=True, help="Forget the ledger and send all again.")
    dry_run: bool = option(
        "--dry-run", is_flag=True, help="Tell what would be sent where, and send nothing."
    )


def run(options: ReplayOptions, settings: JobSettings) -> Summary:
    """Do the job; everything it sent is acknowledged when it returns.

    Raises:
        JobError: it makes no sense, or a task failed; the text says how to go on.
        RocketMQError: no archive, no target, another run at work.
    """
    table = ArchiveTable.open(settings.location(options.archive))
    selection = selection_of(options, settings, table)
    sink = SinkOptions.from_options(settings.connector_options())
    sink = replace(sink, topic=options.target)
    client = BlockingClient(sink.connection)
    try:
        client.route(options.target)  # unlike a send, a replay creates no topic
        targets = lasting_write_queues(client, options.target, sink.topic_brokers)
        if sink.delivery == EXACTLY_ONCE:
            Promises(client, sink).of(options.target)
    finally:
        client.close()
    ledger = Ledger(ledger_place(options, selection, settings))
    if options.dry_run:
        with open_session("skylarkmq replay", settings) as spark:
            rows = select(spark, selection, table)
            return _dry_run(rows, selection, ledger, targets, restart=options.restart)
    with ledger, open_session("skylarkmq replay", settings) as spark:
        if options.restart:
            ledger.forget()
        return _Replay(spark, selection, table, ledger, sink, settings).run(targets, options.rate)


def selection_of(options: ReplayOptions, settings: JobSettings, table: ArchiveTable) -> Selection:
    """Return what is to be replayed.

    Raises:
        JobError: no topic is chosen, an unknown one, the source as target, or an empty time range.
    """
    known = table.state.topics()
    topics = tuple(sorted(set(options.topics))) or tuple(known)
    unknown = [topic for topic in topics if topic not in known]
    if unknown:
        has = ", ".join(known) or "none yet"
        raise UsageError(f"the archive has no topic {unknown[0]}; it has {has}")
    if not options.topics and len(known) != 1:
        has = ", ".join(known) or "none yet"
        raise UsageError(f"say with --topic what to replay: the archive has {has}")
    if options.target in topics and not options.force:
        raise UsageError(
            f"the messages come from topic {options.target}: replayed into it, all its consumers "
            "would get them again. Name another topic, or use --force"
        )
    start_ms, end_ms = options.start_ms, options.end_ms
    if start_ms is not None and end_ms is not None and start_ms >= end_ms:
        raise UsageError("--start is not before --end: nothing lies between")
    return Selection(
        str(settings.location(options.archive)),
        topics,
        options.target,
        start_ms,
        end_ms,
        options.where.strip(),
        options.keep_ids,
    )


def ledger_place(options: ReplayOptions, selection: Selection, settings: JobSettings) -> Location:
    """Return where the ledger is: the place that was named, or the selection's own."""
    if options.ledger is not None:
        return settings.location(options.ledger)
    ledgers = settings.location(selection.archive).sibling(LEDGER_SUFFIX)
    return ledgers.child(f"{options.target}-{selection.name}")


def extended(
    plan: ReplayPlan | None,
    selection: Selection,
    sources: Iterable[MessageQueue],
    targets: Sequence[MessageQueue],
) -> ReplayPlan:
    """Return the plan of an earlier run with the source queues that have come since.

    Raises:
        JobError: it is the plan of another replay, or queues that it sends to are gone.
    """
    if plan is None:
        return ReplayPlan(selection, assign(list(sources), targets))
    if plan.selection != selection:
        raise UsageError(
            "the ledger belongs to another replay: other topics, target, times, condition or "
            "--keep-ids. Name another --ledger, or use --restart"
        )
    gone = sorted(set(plan.targets.values()) - set(targets))
    if gone:
        raise JobError(
            f"{describe(gone[0])} takes no messages now, and earlier runs replayed into it: "
            "elsewhere the order would be lost. Bring its broker back, or use --restart"
        )
    new = sorted(set(sources) - plan.targets.keys())
    return ReplayPlan(selection, {**plan.targets, **assign(new, targets)})


@dataclass(frozen=True, slots=True)
class _Replay:
    """A run that sends."""

    spark: SparkSession
    selection: Selection
    table: ArchiveTable
    ledger: Ledger
    sink: SinkOptions
    settings: JobSettings

    def run(self, targets: Sequence[MessageQueue], rate: float | None) -> Summary:
        """Send what is left, and tell."""
        plan = self.ledger.plan()
        before = self.ledger.all_done(plan)
        next_offsets = {queue: done.next_offset for queue, done in before.items()}
        places = select(self.spark, self.selection, self.table, bodies=False)
        left = count(places, next_offsets, with_sizes=False)
        plan = extended(plan, self.selection, left, targets)
        if not left:
            return self._summary(plan, before, left, DONE)
        self.ledger.begin(plan)
        tasks = share_out({queue: each.count for queue, each in left.items()},
                          tasks_at_once(self.spark))  # fmt: skip
        share = None if rate is None else rate / (max(tasks.values()) + 1)
        numbers = {queue: number for number, queue in enumerate(plan.targets)}
        setup = ReplaySetup(
            self.sink, self.ledger, numbers, dict(plan.targets), share, self.selection.keep_ids,
        )  # fmt: skip
        total = sum(each.count for each in left.values())
        sent_before = sum(done.sent for done in before.values())
        with self.settings.progress(f"replaying into {self.selection.target}") as progress:

            def poll() -> None:
                if self.settings.shows_progress:
                    with suppress(RocketMQError, OSError):  # the tasks see what is wrong as well
                        progress.show(self._sent(plan) - sent_before, total)

            try:
                rows = from_on(select(self.spark, self.selection, self.table), next_offsets)
                complete = send(self.spark, rows, setup, tasks, poll)
            except Exception as error:  # whatever a task failed with, the ledger knows the rest
                raise JobError(
                    f"{explain(error)} ({self._sent(plan) - sent_before:,} of {total:,} messages "
                    "are sent; the same command continues after them)"
                ) from error
            if not complete:  # tasks live on for a moment: let them write down what they have done
                SystemClock().sleep(RECORD_S)
                self.ledger.end_run()
            poll()
        return self._summary(plan, before, left, DONE if complete else INTERRUPTED)

    def _sent(self, plan: ReplayPlan) -> int:
        return sum(done.sent for done in self.ledger.all_done(plan).values())

    def _summary(
        self,
        plan: ReplayPlan,
        before: Mapping[MessageQueue, Done],
        left: Mapping[MessageQueue, Selected],
        exit_code: int,
    ) -> Summary:
        after = self.ledger.all_done(plan)
        table = [
            (*source, f"{target.broker_name} {target.queue_id}",
             after[source].sent - before.get(source, Done()).sent,
             before.get(source, Done()).sent, after[source].next_offset)
            for source, target in plan.targets.items()
        ]  # fmt: skip
        sent_before = sum(done.sent for done in before.values())
        figures = {
            "target": self.selection.target,
            "messages_sent": sum(done.sent for done in after.values()) - sent_before,
            "body_bytes_sent": sum(done.size for done in after.values())
            - sum(done.size for done in before.values()),
            "sent_by_earlier_runs": sent_before,
            "ledger": str(self.ledger.place),
        }
        notes: list[str] = []
        if exit_code == INTERRUPTED:
            notes.append("Not all are sent: the same command continues after them.")
        elif not left and sent_before:
            notes.append("Earlier runs have sent all of it. --restart sends all again.")
        elif not left:
            notes.append("Nothing is selected: see --topic, --start, --end and --where.")
        columns = ("topic", "broker", "queue", "to", "sent", "sent_before", "next_offset")
        return Summary(
            "replay", figures, (Table("by source queue", columns, table),), tuple(notes), exit_code
        )


def _dry_run(
    rows: DataFrame,
    selection: Selection,
    ledger: Ledger,
    targets: Sequence[MessageQueue],
    *,
    restart: bool,
) -> Summary:
    """Tell what would be sent."""
    plan = None if restart else ledger.plan()
    before = ledger.all_done(plan)
    next_offsets = {queue: done.next_offset for queue, done in before.items()}
    left = count(rows, next_offsets, with_sizes=True)
    plan = extended(plan, selection, left, targets)
    table = [
        (*source, f"{plan.targets[source].broker_name} {plan.targets[source].queue_id}", each.count,
         each.size, each.first_offset, each.last_offset, each.first_stored, each.last_stored)
        for source, each in left.items()
    ]  # fmt: skip
    figures = {
        "target": selection.target,
        "messages_to_send": sum(each.count for each in left.values()),
        "body_bytes_to_send": sum(each.size or 0 for each in left.values()),
        "sent_by_earlier_runs": sum(done.sent for done in before.values()),
        "ledger": str(ledger.place),
    }
    columns = (
        "topic", "broker", "queue", "to", "messages", "bytes", "first_offset", "last_offset",
        "first_stored", "last_stored",
    )  # fmt: skip
    return Summary("replay", figures, (Table("by source queue", columns, table),), dry_run=True)


FORMAT: Final = "skylarkmq-replay"
JOB_TAG: Final = "skylarkmq-replay"


@dataclass(frozen=True, slots=True)
class Selected:
    """What of one source queue is selected."""

    count: int
    size: int | None
    """Bytes of bodies; None when they were not looked at."""
    first_offset: int
    last_offset: int
    first_stored: str
    last_stored: str
    """storeTimestamp of the first and the last by offset's extremes, ISO 8601 in UTC."""


def select(
    spark: SparkSession, selection: Selection, table: ArchiveTable, *, bodies: bool = True
) -> DataFrame:
    """Return the selected rows of the table's loaded version, unsorted.

    Args:
        bodies: False: the columns that count them are enough.

    Raises:
        JobError: `where` is no condition on the archive's columns.
        ArchiveError: only delta-spark can read the table.
    """
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f

    files = archive_table.choose(
        table.files(),
        topics=selection.topics,
        start_ms=selection.start_ms,
        end_ms=selection.end_ms,
    )
    needed = [*(name for name, _ in COLUMNS)] if bodies else [*EACH_QUEUE, "queueOffset"]
    # A condition may name any column.
    columns = None if selection.where else [*needed, "storeTimestamp"]
    rows = archive_table.read_files(spark, table, files, columns=columns)
    if selection.start_ms is not None:
        rows = rows.where(f.col("storeTimestamp") >= f.timestamp_millis(f.lit(selection.start_ms)))
    if selection.end_ms is not None:
        rows = rows.where(f.col("storeTimestamp") < f.timestamp_millis(f.lit(selection.end_ms)))
    if selection.where:
        try:
            rows = rows.where(selection.where)
        except (AnalysisException, ParseException) as error:
            raise UsageError(
                f"--where {selection.where!r} is no condition on the columns of the archive: "
                f"{explain(error)}"
            ) from error
    return rows


def count(
    rows: DataFrame, from_offsets: Mapping[MessageQueue, int], *, with_sizes: bool
) -> dict[MessageQueue, Selected]:
    """Return what is selected by source queue, below `from_offsets` nothing. Runs a Spark job."""
    from pyspark.sql import functions as f

    stored = [
        f.date_format(aggregate("storeTimestamp"), "yyyy-MM-dd'T'HH:mm:ss.SSSXXX").alias(name)
        for name, aggregate in (("first_stored", f.min), ("last_stored", f.max))
    ]
    size = f.sum(f.length("body")) if with_sizes else f.lit(None)
    counted = (
        from_on(rows, from_offsets)
        .groupBy(*EACH_QUEUE)
        .agg(
            f.count(f.lit(1)).alias("count"),
            size.alias("size"),
            f.min("queueOffset").alias("first_offset"),
            f.max("queueOffset").alias("last_offset"),
            *stored,
        )
        .collect()
    )
    found = {MessageQueue(*row[:3]): Selected(*row[3:]) for row in counted}
    return dict(sorted(found.items()))


def from_on(rows: DataFrame, from_offsets: Mapping[MessageQueue, int]) -> DataFrame:
    """Return the rows from these offsets on; of queues that are not named, all rows."""
    from pyspark.sql import functions as f

    known = {queue: offset for queue, offset in from_offsets.items() if offset}
    if not known:
        return rows
    return rows.where(f.col("queueOffset") >= f.coalesce(by_queue(known), f.lit(0)))


def share_out(counts: Mapping[MessageQueue, int], tasks_max: int) -> dict[MessageQueue, int]:
    """Return a task number for each source queue, so that tasks have about equally much."""
    loads = [0] * max(1, min(tasks_max, len(counts)))
    found: dict[MessageQueue, int] = {}
    for queue in sorted(counts, key=lambda each: (-counts[each], each)):
        task = loads.index(min(loads))
        loads[task] += counts[queue]
        found[queue] = task
    return found


def send(
    spark: SparkSession,
    rows: DataFrame,
    setup: ReplaySetup,
    tasks: Mapping[MessageQueue, int],
    on_poll: Callable[[], None],
) -> bool:
    """Send the rows; True when all are sent, False when a signal ended it before.

    Raises:
        Exception: what Spark raised because a task failed.
    """
    names = [name for name, _ in COLUMNS]
    plan = (
        rows.select(*names)
        .repartitionById(max(tasks.values()) + 1, by_queue(tasks))
        .sortWithinPartitions(*EACH_QUEUE, "queueOffset")
    )
    failures: list[BaseException] = []

    def act() -> None:
        try:
            spark.addTag(JOB_TAG)  # of this thread's jobs
            write(plan, setup)
        except BaseException as error:  # raised again below, in the main thread
            failures.append(error)

    thread = threading.Thread(target=act, name=JOB_TAG)
    with StopRequest() as stop:
        thread.start()
        cancelled = False
        while thread.is_alive():
            thread.join(POLL_S)
            on_poll()
            if stop.asked:
                if not cancelled:
                    hush()
                    cancelled = True
                spark.interruptTag(JOB_TAG)  # each time: a job may have begun only now
    if failures and not cancelled:
        raise failures[0]
    return not failures


def write(rows: DataFrame, setup: ReplaySetup) -> None:
    """Have Spark's tasks send the rows, partition by partition, through a data source of our own.

    Not `mapInArrow`, since that asks for pandas. The setup holds credentials, so it is part of the
    class, which goes to the workers by value, and no option, which plans would show.

    Raises:
        Exception: what Spark raises because a task failed.
    """
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    class ReplayWriter(DataSourceArrowWriter):
        def write(  # type: ignore[override]
            self, iterator: Iterator[pa.RecordBatch]
        ) -> WriterCommitMessage:
            send_rows(setup, iterator)
            return WriterCommitMessage()

    class ReplaySink(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def writer(self, schema: StructType, overwrite: bool) -> ReplayWriter:
            return ReplayWriter()

    session = rows.sparkSession
    session.dataSource.register(ReplaySink)
    # Spark looks a format up in the active session, which is a thread's own; this makes it ours.
    session.createDataFrame([], "nothing int")
    rows.write.format(FORMAT).mode("append").save()


main = job_command(
    "replay",
    ReplayOptions,
    run,
    help="""Send messages of ARCHIVE to the topic TARGET again; each queue keeps its order.

    The same command goes on where an earlier run ended.
    """,
)

if __name__ == "__main__":
    main()
