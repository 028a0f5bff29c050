"""The job `metrics`: messages, bytes, delay and retries by window, topic and tag.

    topic(s) --stream--> sums of a batch --> windows --> Delta table, and on request a topic

Windows are final once: a watermark closes them, and what comes later is a row of its own, so that
nothing is dropped. A run that was killed goes on with the same windows (see `window_table`). Delay
is from a message's birth at its producer to its store at the broker.

    python -m skylarkmq.spark.jobs.metrics orders --output /data/metrics
    skylarkmq-spark-submit -m skylarkmq.spark.jobs.metrics orders --output s3://bucket/metrics

Rows in a topic are JSON objects with the columns of the table, times as ISO 8601; a row that is
sent again, after a crash, has the message id that it had before.

Spark sums up what its tasks read, and only a row for each window comes to the driver. Sums, counts
and extremes alone: messages that are read again give the same numbers, however tasks are cut.
Driver process. Batches come on a thread of Spark's, one after the other.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click
from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from skylarkmq.protocol.flags import (
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    dlq_topic,
    retry_topic,
)
from skylarkmq.protocol.properties import RETRY_TOPIC
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.jobs.common import (
    Duration,
    JobError,
    JobSettings,
    UsageError,
    argument,
    batch_option,
    follow_option,
    job_command,
    option,
)
from skylarkmq.spark.jobs.reporting import Cell, Progress, Summary, Table, instant
from skylarkmq.spark.jobs.running import follow_topics, open_session
from skylarkmq.spark.jobs.window_table import WindowTable, row_values
from skylarkmq.spark.jobs.windows import (
    DELAY_BOUNDS_MS,
    Partial,
    Tally,
    WindowBook,
    WindowKey,
    WindowRow,
)
from skylarkmq.spark.offsets import QueueOffsets, describe
from skylarkmq.spark.options import SourceOptions
from skylarkmq.spark.progress import watch
from skylarkmq.spark.reading.last_read import used_again
from skylarkmq.spark.reading.queue_view import QueueView
from skylarkmq.spark.settings import CONNECTION_OPTIONS
from skylarkmq.spark.writing.unique_keys import key_of_values

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """What to count, and where to. Times in ms."""

    topics: tuple[str, ...] = argument("TOPIC...", nargs=-1, required=True)
    output: str = option(
        "--output",
        required=True,
        metavar="PLACE",
        help="The Delta table of the windows: a folder, or s3://BUCKET/PATH and the like.",
    )
    window_ms: int = option(
        "--window",
        type=Duration(low=1),
        default="1m",
        metavar="TIME",
        help="Length of a window, as 30s, 5m, 1h.",
    )
    delay_ms: int = option(
        "--watermark",
        type=Duration(),
        default="10m",
        metavar="TIME",
        help="How long after its time a message counts for its window; later it is a row `late`.",
    )
    event_time: str = option(
        "--time",
        type=click.Choice(["store", "born"]),
        default="store",
        help="A message's time: the broker's clock, or its producer's.",
    )
    groups: tuple[str, ...] = option(
        "--group",
        multiple=True,
        metavar="GROUP",
        help="Also count what this consumer group tries again and gives up; repeatable.",
    )
    body_bytes: bool = option(
        "--body-bytes", is_flag=True, help="Also add up the sizes of bodies: all of them are read."
    )
    to_topic: str | None = option(
        "--to-topic", metavar="TOPIC", help="Also send each final row there, as JSON."
    )
    starting: str = option(
        "--starting",
        default="earliest",
        metavar="OFFSETS",
        help="Where the first run starts: earliest, latest, or the source's JSON.",
    )
    batch_messages: int = batch_option(200_000)
    follow_ms: int | None = follow_option()
    metrics_port: int | None = option(
        "--metrics-port",
        type=click.IntRange(0, 65535),
        help="Serve lag and windows to Prometheus.",
    )
    dry_run: bool = option(
        "--dry-run", is_flag=True, help="Count from the start, and write nothing."
    )

    def __post_init__(self) -> None:
        names = [name.strip() for text in self.topics for name in text.split(",")]
        object.__setattr__(self, "topics", tuple(filter(None, names)))

    def subject(self) -> dict[str, str]:
        """Return the source's option that says what to read.

        With groups it is a pattern, so that a topic that is made later is found: a group has a
        retry topic from its first retry on.
        """
        if not self.groups:
            return {"topic": ",".join(self.topics)}
        names = [*self.topics]
        names += [name for group in self.groups for name in (retry_topic(group), dlq_topic(group))]
        return {"subscribePattern": "|".join(re.escape(name) for name in names)}

    def source_options(self, settings: JobSettings, starting: str = "") -> dict[str, str]:
        """Return all options of the source.

        Args:
            starting: where a later run starts.
        """
        more: dict[str, str | int | bool] = {
            "startingOffsets": starting or self.starting,
            "maxOffsetsPerTrigger": self.batch_messages,
        }
        if self.dry_run:
            more["commitOffsets"] = False
        return settings.connector_options(**self.subject(), **more)


def check(options: MetricsOptions, settings: JobSettings) -> None:
    """Ask the cluster for the topics, before Spark takes its time to start.

    Raises:
        UsageError: an option says where to start, which the table says from the second run on.
        OptionError: an option of the source is unknown or wrong.
        RocketMQError: a topic is not there or cannot be read, or no name server answers.
    """
    for name in settings.options:
        if name.lower().startswith("starting"):
            raise UsageError(f"--option {name}: use --starting; a later run goes on by itself")
    source = SourceOptions.from_options(options.source_options(settings), streaming=True)
    with closing(BlockingClient(source.connection)) as client:
        for topic in options.topics:
            if not client.read_queues(topic):
                raise JobError(f"topic {topic} has no queue that can be read: see its permission")


def run(options: MetricsOptions, settings: JobSettings) -> Summary:
    """Do the job; the files are done when it returns.

    Raises:
        JobError: the output belongs to other settings, or is no table of this job.
        RocketMQError: a topic is not there, another job writes there, or the place cannot be used.
    """
    check(options, settings)
    place = settings.location(options.output)
    with ExitStack() as stack:
        table = stack.enter_context(WindowTable(place, dry=options.dry_run))
        book = table.load(options.window_ms, options.delay_ms, options.event_time)
        if not table.offsets and options.starting.lower() == "latest":
            table.begin(book, ends_now(options, settings))
        starting = starting_text(options, settings, table.offsets)
        spark = stack.enter_context(open_session("skylarkmq metrics", settings))
        if options.metrics_port is not None:
            watching = watch(spark, port=options.metrics_port)
            stack.callback(watching.close)
            windows = WindowMetrics(book)
            REGISTRY.register(windows)
            stack.callback(REGISTRY.unregister, windows)
        progress = stack.enter_context(settings.progress("counting"))
        counting = Counting(options, settings, table, book)
        counting.finish_last(spark)
        counting.stream(spark, starting, progress)
    return counting.summary()


def starting_text(options: MetricsOptions, settings: JobSettings, known: QueueOffsets) -> str:
    """Return where a later run starts, as the source's startingOffsets; empty for a first run.

    Queues that have come since the last run start at their first messages. Those that are not there
    now, because their broker is away, are left out, and their offsets stay in the table's state.

    Raises:
        JobError: a queue ends before the place where it was counted up to, or has other messages.
        RocketMQError: no such topic, or no answer.
    """
    if not known:
        return ""
    source = SourceOptions.from_options(options.source_options(settings), streaming=True)
    with closing(BlockingClient(source.connection)) as client:
        view = QueueView(client, source.subject, patience_s=source.connection.retry_timeout_s)
        queues = view.patiently(view.queues)
        firsts = view.patiently(lambda: client.min_offsets(queues))
        ends = view.patiently(lambda: client.max_offsets(queues))
        again = used_again(view, known, ends, patient=True)
    found = {queue: known.get(queue, firsts[queue]) for queue in queues}
    for queue in [each for each, offset in found.items() if offset > ends[each] or each in again]:
        if source.reading.fail_on_data_loss:
            raise JobError(
                f"{describe(queue)} ends at {ends[queue]}, and was counted up to {found[queue]}, "
                "where its messages are others now: its topic was made anew, or its broker lost "
                "messages. Give another --output, or --option failOnDataLoss=false to count what "
                "is there from its first message"
            )
        found[queue] = firsts[queue]
    return json.dumps(QueueOffsets(found).nested())


def ends_now(options: MetricsOptions, settings: JobSettings) -> QueueOffsets:
    """Return where the queues end. RocketMQError: no such topic, or no answer."""
    source = SourceOptions.from_options(options.source_options(settings), streaming=True)
    with closing(BlockingClient(source.connection)) as client:
        view = QueueView(client, source.subject, patience_s=source.connection.retry_timeout_s)
        queues = view.patiently(view.queues)
        return QueueOffsets(view.patiently(lambda: client.max_offsets(queues)))


SHOWN_WINDOWS: Final = 20
"""The latest final windows that the summary shows, and as many open ones."""
SENT_COLUMNS: Final = "body string, keys string, tags string, msgId string"


class Counting:
    """One run: takes the batches of the stream. Driver process; `take` on a thread of Spark's."""

    def __init__(
        self,
        options: MetricsOptions,
        settings: JobSettings,
        table: WindowTable,
        book: WindowBook,
    ) -> None:
        """Go on with `book`, as the table has it."""
        self._options = options
        self._settings = settings
        self._table = table
        self._book = book
        self._latest: list[WindowRow] = []
        self._batches = 0
        self._counts = {"window": 0, "late": 0, "ahead": 0}
        self._windows = 0
        self._messages = 0

    def finish_last(self, spark: SparkSession) -> None:
        """Do what an earlier run may have left of its last batch: commit its rows, send them."""
        table, options = self._table, self._options
        if table.pending:
            table.commit(table.pending, self._book.window_ms, body_bytes=options.body_bytes)
            if table.to_send and options.to_topic:
                self._send(spark, table.pending)
            table.sent()

    def stream(self, spark: SparkSession, starting: str, progress: Progress) -> None:
        """Read until the end, or until a signal. Raises what a batch or the source raised.

        Args:
            starting: the source's startingOffsets.
        """
        options = self._options

        def show(behind: int | None) -> None:
            known = None if behind is None else self._messages + behind
            watermark = instant(self._book.watermark_ms)
            progress.show(self._messages, known, f"watermark {watermark}" if watermark else "")

        follow_topics(
            spark,
            options.source_options(self._settings, starting),
            "metrics",
            self.take,
            follow_ms=options.follow_ms,
            schema=columns(with_groups=bool(options.groups), body_bytes=options.body_bytes),
            on_progress=show,
        )

    def take(self, frame: DataFrame, end: QueueOffsets) -> None:
        """Count a batch, and keep it. Raises what `WindowTable.write` does."""
        options, book = self._options, self._book
        found = partials(
            frame,
            options.window_ms,
            options.delay_ms,
            options.event_time,
            body_bytes=options.body_bytes,
        )
        rows = book.apply(book.batch_id + 1, found)
        is_sent = bool(rows) and options.to_topic is not None and not options.dry_run
        self._table.write(book, rows, end, body_bytes=options.body_bytes, to_send=is_sent)
        if is_sent:
            self._send(frame.sparkSession, rows)
            self._table.sent()
        self._batches += 1
        self._messages += sum(partial.tally.rows for partial in found)
        self._windows += sum(row.kind == "window" for row in rows)
        for row in rows:
            self._counts[row.kind] += row.tally.rows
        self._latest = [*self._latest, *rows][-SHOWN_WINDOWS:]

    def _send(self, spark: SparkSession, rows: Sequence[WindowRow]) -> None:
        known = {each.name.lower() for each in CONNECTION_OPTIONS}
        given = self._settings.connector_options()
        options = {name: value for name, value in given.items() if name.lower() in known}
        sent = [
            (
                row_text(row, self._book.window_ms, body_bytes=self._options.body_bytes),
                row.key.topic,
                row.kind,
                key_of_values((self._table.query_id, *row.key, row.kind, row.batch_id)),
            )
            for row in rows
        ]
        writer = spark.createDataFrame(sent, SENT_COLUMNS).coalesce(1).write.format("skylarkmq")
        writer.mode("append").options(**options, topic=self._options.to_topic).save()

    def summary(self) -> Summary:
        """Return what the run did."""
        book, counts = self._book, self._counts
        figures = {
            "batches": self._batches,
            "messages": self._messages,
            "windows_closed": self._windows,
            "messages_in_closed_windows": counts["window"],
            "late_messages": counts["late"],
            "messages_ahead_of_time": counts["ahead"],
            "windows_open": len(book.open),
            "messages_in_open_windows": sum(tally.rows for tally in book.open.values()),
            "watermark": instant(book.watermark_ms),
            "output": str(self._table.place),
        }
        opened = sorted(book.open.items())[-SHOWN_WINDOWS:]
        latest = [(row.key, row.kind, row.tally) for row in self._latest]
        notes: list[str] = []
        if counts["late"]:
            notes.append(
                f"{counts['late']:,} messages came after their windows had closed: they are rows "
                "of kind late. A longer --watermark waits for such."
            )
        if counts["ahead"]:
            notes.append(
                f"{counts['ahead']:,} messages were born later than stored: clocks of producers "
                "are wrong. They are rows of kind ahead."
            )
        return Summary(
            "metrics",
            figures,
            (
                Table("latest final windows", SUMMARY_COLUMNS, _table_rows(latest)),
                Table(
                    "open windows",
                    SUMMARY_COLUMNS,
                    _table_rows((key, "open", tally) for key, tally in opened),
                ),
            ),
            tuple(notes),
            dry_run=self._options.dry_run,
        )


class WindowMetrics:
    """The book's figures for Prometheus, made at scrape; a collector for a registry, any thread.

    skylarkmq_spark_window_messages_total{kind}    messages in final rows, since the first run
    skylarkmq_spark_windows_open
    skylarkmq_spark_windows_watermark_timestamp_seconds
    """

    def __init__(self, book: WindowBook) -> None:
        self._book = book

    def collect(self) -> Iterator[Metric]:
        """Yield the families, as prometheus_client asks for them."""
        book, totals = self._book, self._book.totals
        messages = CounterMetricFamily(
            "skylarkmq_spark_window_messages", "Messages in final rows.", labels=["kind"]
        )
        for kind, count in (
            ("window", totals.closed), ("late", totals.late), ("ahead", totals.ahead),
        ):  # fmt: skip
            messages.add_metric([kind], count)
        yield messages
        yield GaugeMetricFamily(
            "skylarkmq_spark_windows_open", "Windows that still get messages.", len(book.open)
        )
        if book.watermark_ms is not None:
            yield GaugeMetricFamily(
                "skylarkmq_spark_windows_watermark_timestamp_seconds",
                "Windows that end before are final.",
                book.watermark_ms / 1000,
            )


SUMMARY_COLUMNS: Final = (
    "window", "topic", "tag", "kind", "messages", "retries", "dead_letters", "stored_bytes",
    "mean_delay_ms", "p99_delay_ms",
)  # fmt: skip


def _table_rows(windows: Iterable[tuple[WindowKey, str, Tally]]) -> list[tuple[Cell, ...]]:
    return [
        (
            instant(key.start_ms),
            key.topic,
            key.tag,
            kind,
            tally.messages,
            tally.retries,
            tally.dead_letters,
            tally.stored_bytes,
            tally.delay_ms_sum / tally.messages if tally.messages else None,
            tally.percentile(99),
        )
        for key, kind, tally in windows
    ]


def row_text(row: WindowRow, window_ms: int, *, body_bytes: bool) -> str:
    """Return a row as the JSON object that goes to a topic."""
    values = row_values(row, window_ms, body_bytes=body_bytes)
    for name in ("windowStart", "windowEnd"):
        values[name] = instant(values[name] // 1000)
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)


_COLUMNS: Final = (
    "topic string, tags string, bornTimestamp timestamp, storeTimestamp timestamp, storeSize int"
)


def columns(*, with_groups: bool, body_bytes: bool) -> str:
    """Return the source's columns that are needed, as a schema: what is not named is not decoded.

    Args:
        with_groups: retry and dead-letter topics are among what is read.
    """
    more = (", properties map<string,string>" if with_groups else "") + (
        ", body binary" if body_bytes else ""
    )
    return _COLUMNS + more


def partials(
    messages: DataFrame, window_ms: int, delay_ms: int, event_time: str, *, body_bytes: bool
) -> list[Partial]:
    """Return the sums of a batch. Runs a Spark job; driver process.

    Args:
        event_time: "store" or "born": which of its times puts a message into a window.
    """
    from pyspark.sql import functions as F

    born, stored = F.unix_millis("bornTimestamp"), F.unix_millis("storeTimestamp")
    event = stored if event_time == "store" else born
    again = F.col("topic").startswith(RETRY_GROUP_TOPIC_PREFIX)
    dead = F.col("topic").startswith(DLQ_GROUP_TOPIC_PREFIX)
    origin = F.col("topic")
    if "properties" in messages.columns:
        sent_to = F.coalesce(F.col("properties").getItem(RETRY_TOPIC), F.col("topic"))
        origin = F.when(again | dead, sent_to).otherwise(F.col("topic"))
    rows = messages.select(
        (event - F.pmod(event, F.lit(window_ms))).alias("start_ms"),
        origin.alias("origin"),
        F.coalesce(F.col("tags"), F.lit("")).alias("tag"),
        (event > stored + F.lit(delay_ms)).alias("ahead"),
        F.least(event, stored).alias("latest_ms"),
        again.alias("again"),
        dead.alias("dead"),
        (~again & ~dead).alias("first"),
        (stored - born).alias("delay_ms"),
        F.col("storeSize").alias("stored_bytes"),
        (F.length("body") if body_bytes else F.lit(0)).alias("body_bytes"),
    )
    grouped = rows.groupBy("start_ms", "origin", "tag", "ahead").agg(*_sums())
    return [_partial(row) for row in grouped.collect()]


def _sums() -> list[Column]:
    from pyspark.sql import functions as F

    def count(condition: Column, name: str) -> Column:
        return F.count_if(condition).alias(name)

    first = F.col("first")
    delay = F.when(first, F.col("delay_ms"))
    return [
        count(first, "messages"),
        count(F.col("again"), "retries"),
        count(F.col("dead"), "dead_letters"),
        F.sum(F.col("stored_bytes").cast("bigint")).alias("stored_bytes"),
        F.sum(F.col("body_bytes").cast("bigint")).alias("body_bytes"),
        F.max("latest_ms").alias("latest_ms"),
        F.sum(delay).alias("delay_ms_sum"),
        F.min(delay).alias("delay_ms_min"),
        F.max(delay).alias("delay_ms_max"),
        *(count(delay <= bound, f"d{n}") for n, bound in enumerate(DELAY_BOUNDS_MS)),
    ]


def _partial(row: Row) -> Partial:
    values: dict[str, Any] = row.asDict()
    tally = Tally(
        messages=values["messages"],
        retries=values["retries"],
        dead_letters=values["dead_letters"],
        stored_bytes=values["stored_bytes"],
        body_bytes=values["body_bytes"],
        delay_ms_sum=values["delay_ms_sum"] or 0,
        delay_ms_min=values["delay_ms_min"],
        delay_ms_max=values["delay_ms_max"],
        delays=[values[f"d{number}"] for number in range(len(DELAY_BOUNDS_MS))],
    )
    key = WindowKey(values["start_ms"], values["origin"], values["tag"])
    return Partial(key, tally, values["latest_ms"], values["ahead"])


main = job_command(
    "metrics",
    MetricsOptions,
    run,
    help="""Count messages, bytes, delay and retries of TOPICs by window, topic and tag.

    Windows go to a Delta table, each once; run it again and it goes on where it ended. Late
    messages are rows of their own: nothing is dropped.
    """,
)

if __name__ == "__main__":
    main()
