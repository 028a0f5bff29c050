# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""The job `replay`: messages of an archive are sent to a topic again, each once.

    archive --topics, times, condition--> rows of one source queue to one task, by offset --> sink

The order of each source queue is kept: all its messages go to one queue of the target, one after
another. Each keeps its body, keys, tags, properties and flag. Its message id is made of where it
was archived from (--keep-ids: stays what it was), so a message has the same id however often it is
sent, and a target with a deduplication window stores it once: after a kill start the same command
again. A target without a window is refused, unless --option delivery=atLeastOnce says that copies
are welcome. Delayed messages are sent for now.

    python -m skylarkmq.spark.jobs.replay /data/archive orders-again --topic orders
    skylarkmq-spark-submit -m skylarkmq.spark.jobs.replay /data/archive orders-again ...

Driver process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from skylarkmq.protocol.message import MessageQueue
from skylarkmq.spark import archive_table
from skylarkmq.spark.archive.table import ArchiveTable
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.jobs.common import (
    JobSettings,
    UsageError,
    argument,
    explain,
    job_command,
    option,
)
from skylarkmq.spark.jobs.reporting import Summary, Table
from skylarkmq.spark.jobs.running import open_session
from skylarkmq.spark.reading.positions import instant_ms
from skylarkmq.spark.writing.promises import Promises, lasting_write_queues
from skylarkmq.spark.writing.sink_options import EXACTLY_ONCE, SinkOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

QUEUE: Final = ("topic", "brokerName", "queueId")
PLACE: Final = {name: f"source_{name}" for name in (*QUEUE, "queueOffset")}
"""The columns that say where a message was archived from, and their names for the sink."""
MESSAGE: Final = ("body", "keys", "tags", "properties", "flag")

_AGAIN: Final = "the same command sends each message once"
GONE: Final = {
    "--ledger": _AGAIN,
    "--restart": f"{_AGAIN}; give another TARGET, or --option delivery=atLeastOnce",
    "--rate": "replay parts, by --start and --end",
}
"""Options that were there, and what to use instead."""


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
    keep_ids: bool = option(
        "--keep-ids",
        is_flag=True,
        help="Messages keep their ids; consumers that remember ids may skip them.",
    )
    force: bool = option(
        "--force", is_flag=True, help="Replay into a topic that the messages come from."
    )
    dry_run: bool = option(
        "--dry-run", is_flag=True, help="Tell what would be sent where, and send nothing."
    )


def run(options: ReplayOptions, settings: JobSettings) -> Summary:
    """Do the job; everything it sent is acknowledged when it returns.

    Raises:
        UsageError: it makes no sense.
        OptionError: the target cannot promise to store each message once.
        RocketMQError: no archive, no target, or no answer.
    """
    table = ArchiveTable.open(settings.location(options.archive))
    topics = topics_of(options, table)
    given = settings.connector_options(delivery=EXACTLY_ONCE)
    sink = SinkOptions.from_options(given)
    with closing(BlockingClient(sink.connection)) as client:
        client.await_start()
        client.route(options.target)  # unlike a send, a replay creates no topic
        targets = lasting_write_queues(client, options.target, sink.topic_brokers)
        Promises(client, sink).of(options.target)
    plan = assign([queue for queue in table.state.queues() if queue.topic in topics], targets)
    with open_session("skylarkmq replay", settings) as spark:
        count = select(spark, table, topics, options).count()
        if count and not options.dry_run:
            rows = select(spark, table, topics, options, *PLACE, *MESSAGE, "msgId")
            send(rows, plan, options, given)
    name = "messages_to_send" if options.dry_run else "messages_sent"
    columns = ("topic", "broker", "queue", "to_broker", "to_queue")
    queues = Table("queues", columns, [(*source, *plan[source][1:]) for source in plan])
    notes = () if count else ("Nothing is selected: see --topic, --start, --end and --where.",)
    figures = {"target": options.target, name: count}
    return Summary("replay", figures, (queues,), notes, dry_run=options.dry_run)


def topics_of(options: ReplayOptions, table: ArchiveTable) -> tuple[str, ...]:
    """Return the archived topics that are to be replayed.

    Raises:
        UsageError: none is chosen, an unknown one, the source as target, or an empty time range.
    """
    known = table.state.topics()
    has = ", ".join(known) or "none yet"
    topics = tuple(sorted(set(options.topics))) or tuple(known)
    unknown = [topic for topic in topics if topic not in known]
    if unknown:
        raise UsageError(f"the archive has no topic {unknown[0]}; it has {has}")
    if not options.topics and len(known) != 1:
        raise UsageError(f"say with --topic what to replay: the archive has {has}")
    if options.target in topics and not options.force:
        raise UsageError(
            f"the messages come from topic {options.target}: replayed into it, all its consumers "
            "would get them again. Name another topic, or use --force"
        )
    start_ms, end_ms = options.start_ms, options.end_ms
    if start_ms is not None and end_ms is not None and start_ms >= end_ms:
        raise UsageError("--start is not before --end: nothing lies between")
    return topics


def select(
    spark: SparkSession,
    table: ArchiveTable,
    topics: tuple[str, ...],
    options: ReplayOptions,
    *columns: str,
) -> DataFrame:
    """Return the selected rows of the table's loaded version, unsorted.

    Args:
        columns: are there; others may be, too.

    Raises:
        UsageError: --where is no condition on the archive's columns.
        ArchiveError: only delta-spark can read the table.
    """
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f

    start_ms, end_ms = options.start_ms, options.end_ms
    files = archive_table.choose(table.files(), topics=topics, start_ms=start_ms, end_ms=end_ms)
    # A condition may name any column.
    needed = None if options.where else [*columns, "storeTimestamp"]
    rows = archive_table.read_files(spark, table, files, columns=needed)
    if start_ms is not None:
        rows = rows.where(f.col("storeTimestamp") >= f.timestamp_millis(f.lit(start_ms)))
    if end_ms is not None:
        rows = rows.where(f.col("storeTimestamp") < f.timestamp_millis(f.lit(end_ms)))
    if not options.where.strip():
        return rows
    try:
        return rows.where(options.where)
    except (AnalysisException, ParseException) as error:
        raise UsageError(
            f"--where {options.where!r} is no condition on the columns of the archive: "
            f"{explain(error)}"
        ) from error


def assign(
    sources: Sequence[MessageQueue], targets: Sequence[MessageQueue]
) -> dict[MessageQueue, MessageQueue]:
    """Return a target queue for each source queue: all of one source queue go to one queue.

    The queue of the same broker and number where there is one, else one by the number. It is the
    same in every run, whatever else is replayed: copies of a message come to the same broker.
    """
    by_place = {(target.broker_name, target.queue_id): target for target in targets}
    return {
        source: by_place.get((source.broker_name, source.queue_id))
        or targets[source.queue_id % len(targets)]
        for source in sources
    }


def send(
    rows: DataFrame,
    plan: Mapping[MessageQueue, MessageQueue],
    options: ReplayOptions,
    given: Mapping[str, str],
) -> None:
    """Send the rows, those of a source queue by one task, by offset.

    Args:
        given: the sink's options.
    """
    from pyspark.sql import functions as f

    ids: list[str | Column] = ["msgId"]
    sink = dict(given)
    if not options.keep_ids:
        ids = [f.col(name).alias(ours) for name, ours in PLACE.items()]
        sink["idempotencyColumns"] = ",".join(PLACE.values())
    targets = rows.sparkSession.createDataFrame(
        [(*source, *plan[source][1:]) for source in plan],
        "topic string, brokerName string, queueId int, toBroker string, toQueue int",
    )
    messages = (
        rows.join(f.broadcast(targets), [*QUEUE])
        .repartition(len(plan), *QUEUE)
        .sortWithinPartitions(*PLACE)
        .select(
            *MESSAGE,
            *ids,
            f.col("toBroker").alias("brokerName"),
            f.col("toQueue").alias("queueId"),
        )
    )
    sink["topic"] = options.target
    messages.write.format("skylarkmq").mode("append").options(**sink).save()


def _refuse(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        name = parameter.opts[0]
        raise click.UsageError(f"there is no option {name}: {GONE[name]}", context)


main = job_command(
    "replay",
    ReplayOptions,
    run,
    help="""Send messages of ARCHIVE to the topic TARGET again, each once; queues keep their order.

    TARGET needs a deduplication window that is as long as the replay, and the tries after it, may
    take. After a kill start the same command again.
    """,
)

for name in GONE:
    main.params.append(
        click.Option([name], is_flag=False, flag_value="", hidden=True, expose_value=False,
                     is_eager=True, callback=_refuse)
    )  # fmt: skip

if __name__ == "__main__":
    main()
