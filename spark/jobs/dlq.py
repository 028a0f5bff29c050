"""The job `dlq`: what a consumer group gave up, and sending it back.

    report GROUP     how many dead letters, by first topic, tag, number of tries and age
    redrive GROUP    send them to the topics they were sent to first; a dry run unless --send

A letter stays in its topic, %DLQ%GROUP, until it expires there: the ledger says which were sent
back. A redrive never sends a letter again whose copy is known to be stored. A run that was killed
or got no answer leaves letters with an unknown outcome. The next run looks for their copies, and
says for which of them it cannot tell.

    python -m skylarkmq.spark.jobs.dlq report billing
    python -m skylarkmq.spark.jobs.dlq redrive billing --filter "tags = 'invoice'" --send

Spark reads and selects; the driver sends, one rate for all. Driver process, main thread.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from skylarkmq.client.errors import RouteNotFound
from skylarkmq.client.state_folder import file_name, state_folder
from skylarkmq.protocol.flags import dlq_topic, validate_group
from skylarkmq.protocol.properties import RETRY_TOPIC
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
from skylarkmq.spark.jobs.redrive import COLUMNS, Letter, RedriveCounts, Redriver, age_of, letter_of
from skylarkmq.spark.jobs.redrive_ledger import RedriveLedger
from skylarkmq.spark.jobs.reporting import DIFFERENCES, DONE, Cell, Summary, Table, instant
from skylarkmq.spark.jobs.running import open_session
from skylarkmq.spark.ledgers.objects import make_folder
from skylarkmq.spark.storage import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TASK_LETTERS: Final = 1000
"""Letters of one task: the driver holds one task's letters at a time."""
GROUPS_MAX: Final = 100_000
"""Combinations of topic, tag, tries and age that a report holds."""
BAD_OUTCOMES: Final = ("failed", "unknown", "no_topic")


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Which dead letters to report."""

    group: str = argument("GROUP")
    where: str | None = option(
        "--filter",
        metavar="SQL",
        help="Only letters for which this is true, of the source's columns and originTopic, "
        "bodyText: \"originTopic = 'orders' and storeTimestamp > '2026-01-31'\".",
    )


@dataclass(frozen=True, slots=True)
class RedriveOptions(ReportOptions):
    """What to send back, and how."""

    rate: float | None = rate_option("Letters a second at most. Default: as fast as it goes.")
    ledger: str | None = option(
        "--ledger",
        metavar="PLACE",
        help="What became of each letter, kept from run to run: a file, or s3://BUCKET/PATH and "
        "the like. Default: a file for each cluster and group, in the user's folder for state: "
        "name a place where that is not kept, as in a container.",
    )
    dry_run: bool = option(
        "--dry-run/--send", default=True, help="Say what would be sent (the default), or send it."
    )
    resend_unknown: bool = option(
        "--resend-unknown",
        is_flag=True,
        help="Also send letters of which an earlier run could not learn whether they were stored.",
    )


def run_report(options: ReportOptions, settings: JobSettings) -> Summary:
    """Return the report. Raises what `check_readable` does."""
    with closing(settings.client()) as client:
        if not check_readable(client, options.group):
            return _nothing("dlq report", options.group)
    with open_session("skylarkmq dlq", settings) as spark:
        return report_of(letters(spark, options.group, options.where, settings), options.group)


def report_of(frame: DataFrame, group: str) -> Summary:
    """Return the report on the letters of a frame of `letters`. Runs a Spark job."""
    from pyspark.sql import functions as F

    now_ms = SystemClock().now_ms()
    hour = F.floor((F.lit(now_ms) - F.unix_millis("storeTimestamp")) / F.lit(3_600_000))
    rows = (
        frame.groupBy(
            F.coalesce("originTopic", F.lit("")).alias("topic"),
            F.coalesce("tags", F.lit("")).alias("tag"),
            "reconsumeTimes",
            hour.alias("hours"),
        )
        .agg(
            F.count("*").alias("letters"),
            F.sum(F.col("storeSize").cast("bigint")).alias("bytes"),
            F.min(F.unix_millis("storeTimestamp")).alias("oldest"),
            F.max(F.unix_millis("storeTimestamp")).alias("newest"),
        )
        .limit(GROUPS_MAX + 1)
        .collect()
    )
    if len(rows) > GROUPS_MAX:
        raise JobError(
            f"the letters have over {GROUPS_MAX:,} combinations of topic, tag, tries and age: "
            "choose fewer with --filter"
        )
    return summarise_report([row.asDict() for row in rows], group)


def summarise_report(rows: Sequence[dict[str, Any]], group: str) -> Summary:
    """Return the report of counted letters; ages are of when they were given up."""
    by: dict[str, Counter[Cell]] = {name: Counter() for name in ("topic", "tag", "tries", "age")}
    for row in rows:
        count = row["letters"]
        by["topic"][row["topic"]] += count
        by["tag"][row["tag"]] += count
        by["tries"][row["reconsumeTimes"]] += count
        by["age"][age_of(row["hours"] * 3_600_000)] += count
    figures = {
        "group": group,
        "letters": sum(row["letters"] for row in rows),
        "stored_bytes": sum(row["bytes"] for row in rows),
        "oldest": instant(min((row["oldest"] for row in rows), default=None), "seconds"),
        "newest": instant(max((row["newest"] for row in rows), default=None), "seconds"),
    }
    titles = {"topic": "by first topic", "tag": "by tag", "tries": "by tries", "age": "by age"}
    tables = tuple(
        Table(titles[name], (name, "letters"), counter.most_common())
        for name, counter in by.items()
    )
    notes: list[str] = []
    if by["topic"][""]:
        notes.append("Letters without a first topic cannot be sent back: they do not say it.")
    return Summary("dlq report", figures, tables, tuple(notes))


def run_redrive(options: RedriveOptions, settings: JobSettings) -> Summary:
    """Send what is to be sent; return what became of it.

    Raises:
        JobError: the topic cannot be read, the ledger cannot be used, the filter is no SQL.
    """
    with closing(settings.client()) as client, ExitStack() as stack:
        if not check_readable(client, options.group):
            return _nothing("dlq redrive", options.group)
        place = ledger_place(client, options, settings)
        if options.ledger is None and not options.dry_run and place.path is not None:
            make_folder(place.path.parent)
        ledger = stack.enter_context(RedriveLedger(place, options.group, read_only=options.dry_run))
        redriver = Redriver(
            client,
            ledger,
            rate=options.rate,
            dry_run=options.dry_run,
            resend_unknown=options.resend_unknown,
        )
        with (
            open_session("skylarkmq dlq", settings) as spark,
            settings.progress("redriving", "letters") as progress,
        ):
            frame = letters(spark, options.group, options.where, settings)
            redriver.run(fetched(frame), progress.show)
        return summarise_redrive(redriver.counts, options, place)


def ledger_place(
    client: BlockingClient, options: RedriveOptions, settings: JobSettings
) -> Location:
    """Return where the ledger is: the same place from whichever folder the job is started.

    Raises:
        JobError: it is to be named, because there are several clusters; or what is named is none.
    """
    if options.ledger is not None:
        return settings.location(options.ledger)
    known = client.clusters()
    names = sorted({known.get(name, "") for name in client.route(dlq_topic(options.group)).brokers})
    if len(names) != 1:
        raise UsageError(
            f"the dead letters lie in several clusters ({', '.join(names)}): name a --ledger for "
            "this group of them, and the same one each time"
        )
    group = client.namespace.wrap(options.group)
    path = state_folder("redrive") / file_name(names[0]) / f"{file_name(group)}.jsonl"
    return settings.location(str(path))


def summarise_redrive(counts: RedriveCounts, options: RedriveOptions, ledger: Location) -> Summary:
    """Return what a run of the redrive did."""
    outcomes = counts.outcomes
    bad = sum(outcomes[name] for name in BAD_OUTCOMES)
    names = ("would_send" if options.dry_run else "sent", "found")
    figures: dict[str, Any] = {
        "group": options.group,
        "letters": outcomes.total(),
        **{name: outcomes[name] for name in (*names, "done_before", *BAD_OUTCOMES)},
        "ledger": str(ledger),
    }
    rows = [(topic, outcome, count) for (topic, outcome), count in sorted(counts.topics.items())]
    tables = [Table("by first topic", ("topic", "outcome", "letters"), rows)]
    if counts.errors:
        tables.append(Table("reasons", ("reason", "letters"), counts.errors.most_common()))
    notes: list[str] = []
    if outcomes["found"]:
        notes.append(
            "found: an earlier run did not learn what became of them, and their copies are there."
        )
    if outcomes["unknown"]:
        notes.append(
            "unknown: their copies may be stored or not. Run the same command again to look for "
            "them; --resend-unknown sends them whatever became of the first copies."
        )
    if counts.unmet:
        notes.append(
            f"{counts.unmet:,} letters of the ledger without a known outcome were not met: they "
            "have expired, or --filter leaves them out."
        )
    if counts.gave_up:
        notes.append("Too many failures in a row: the rest is left for another run.")
    if options.dry_run and outcomes["would_send"]:
        notes.append("Nothing was sent: --send does it.")
    return Summary(
        "dlq redrive",
        figures,
        tuple(tables),
        tuple(notes),
        exit_code=DIFFERENCES if bad or counts.gave_up else DONE,
        dry_run=options.dry_run,
    )


def check_readable(client: BlockingClient, group: str) -> bool:
    """Return whether the group has a topic of dead letters.

    Raises:
        JobError: it has one that cannot be read, as RocketMQ 4.9.1 makes it.
        RouteNotFound: there are no brokers.
        RocketMQError: no name server answered.
    """
    fault = validate_group(group)
    if fault is not None:
        raise UsageError(fault)
    topic = dlq_topic(group)
    try:
        if client.read_queues(topic):
            return True
        brokers = sorted(client.route(topic).brokers)
    except RouteNotFound:
        if not client.clusters():
            hint = f"No broker is registered with {client.settings.text} (yet)"
            raise RouteNotFound(topic, "no_broker", hint) from None
        return False
    raise JobError(
        f"topic {topic} cannot be read: on {', '.join(brokers) or 'its brokers'} it has the "
        "permission to write alone, as RocketMQ 4.9.1 makes it. Nothing is lost; set its "
        f"permission to 6: mqadmin updateTopicPerm -n NAMESRV -b BROKER -t '{topic}' -p 6, or "
        f"await admin.update_topic('{topic}', perm='RW')"
    )


def letters(spark: SparkSession, group: str, where: str | None, settings: JobSettings) -> DataFrame:
    """Return the letters as a frame, with originTopic and bodyText beside their columns.

    Raises:
        JobError: the filter is no SQL of these columns.
    """
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as F

    options = settings.connector_options(
        topic=dlq_topic(group), startingOffsets="earliest", maxRecordsPerPartition=TASK_LETTERS
    )
    frame = spark.read.format("skylarkmq").schema(COLUMNS).options(**options).load()
    frame = frame.withColumn("originTopic", F.col("properties").getItem(RETRY_TOPIC))
    frame = frame.withColumn("bodyText", F.col("body").cast("string"))
    try:
        return frame if where is None else frame.where(where)
    except (AnalysisException, ParseException) as error:
        raise UsageError(f"--filter: {explain(error)}") from error


def fetched(frame: DataFrame) -> Iterator[Letter]:
    """Yield the letters, a task's at a time, in the order of their queues. Runs Spark jobs."""
    from pyspark.sql import functions as F

    rows = frame.withColumn("bornMs", F.unix_millis("bornTimestamp"))
    names = [part.split()[0] for part in COLUMNS.replace("<string,string>", "").split(", ")]
    for row in rows.select(*names, "bornMs").toLocalIterator():
        yield letter_of(row.asDict())


def _nothing(job: str, group: str) -> Summary:
    note = (
        f"Group {group} has no dead letters: there is no topic {dlq_topic(group)}. Brokers make it "
        "with the first letter."
    )
    return Summary(job, {"group": group, "letters": 0}, notes=(note,))


main = click.Group(help="Dead letters of a consumer group: report them, or send them back.")
main.add_command(
    job_command(
        "dlq report",
        ReportOptions,
        run_report,
        name="report",
        help="Count the dead letters of GROUP by first topic, tag, number of tries and age.",
    )
)
main.add_command(
    job_command(
        "dlq redrive",
        RedriveOptions,
        run_redrive,
        name="redrive",
        help="""Send dead letters of GROUP back to the topics that they were sent to first.

        A dry run unless --send is given. Copies keep body, keys, tags, properties and message id,
        and start with a full number of tries. All consumer groups of the topic get them.
        """,
    )
)

if __name__ == "__main__":
    main()
