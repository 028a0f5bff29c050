"""The job `archive`: topics into Parquet files by topic and date, each message exactly once.

    topic(s) --stream--> batches --> staged files --> commit --> TABLE/topic=.../date=.../*.parquet

The table itself knows which offsets of each queue it has (see `archive_table`), so the job keeps no
checkpoint of its own from one run to the next: killed at any moment, or run again a month later, it
goes on where the table ends, and whoever lists the folder finds each message once. It waits for
enough messages, or long enough, before it writes a file, and makes one of many small files.

    python -m skylarkmq.spark.jobs.archive orders /data/archive
    skylarkmq-spark-submit -m skylarkmq.spark.jobs.archive orders refunds /data/archive
    python -m skylarkmq.spark.jobs.archive orders /data/archive --follow 1m

The table lies on a local disk, or on one that driver and executors mount at the same path.
"""

from __future__ import annotations

import re
from typing import Any, Final

import click

from skylarkmq.spark.archive.commits import TABLE, ArchiveWriter, open_files
from skylarkmq.spark.archive.compaction import compact, groups
from skylarkmq.spark.archive.writer import COMPRESSIONS
from skylarkmq.spark.clock import SystemClock
from skylarkmq.spark.jobs.archiving.run import ArchiveOptions, Archiving
from skylarkmq.spark.jobs.archiving.survey import (
    dry_run,
    holes_table,
    starting,
    survey,
    view_of,
)
from skylarkmq.spark.jobs.common import (
    USAGE,
    Duration,
    JobError,
    JobSettings,
    Summary,
    job_options,
    open_session,
    run_job,
)
from skylarkmq.spark.offsets import QueueOffsets
from skylarkmq.spark.options import SourceOptions

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


@click.command()
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.argument("table", metavar="TABLE", type=click.Path(file_okay=False))
@click.option("--pattern", metavar="REGEX", help="Topics whose whole name matches, new ones too.")
@click.option(
    "--starting",
    default="earliest",
    show_default=True,
    metavar="WHERE",
    help="Where a topic that is new to the table starts: earliest, latest, or a time, as "
    "2026-01-31T08:00Z.",
)
@click.option(
    "--follow",
    "follow_ms",
    type=Duration(low=100),
    metavar="TIME",
    help="Go on with a batch every TIME. Default: what is there now, then end.",
)
@click.option(
    "--min-messages",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --follow: wait for N messages, to write fewer files, ...",
)
@click.option(
    "--max-delay",
    "max_delay_ms",
    type=Duration(low=1),
    default="15m",
    show_default=True,
    metavar="TIME",
    help="... but no longer than TIME.",
)
@click.option(
    "--batch-messages",
    type=click.IntRange(min=1),
    default=500_000,
    show_default=True,
    help="Messages of one batch at most.",
)
@click.option("--hourly/--daily", default=None, help="Part a new table by hour too.")
@click.option(
    "--file-mib",
    type=click.IntRange(min=1, max=4096),
    default=128,
    show_default=True,
    help="About how large files are to be.",
)
@click.option(
    "--files-per-batch",
    type=click.IntRange(min=1),
    metavar="N",
    help="Tasks that write a batch; each writes a file a topic and date. Default: one a core.",
)
@click.option(
    "--compression", type=click.Choice(COMPRESSIONS), default="zstd", show_default=True,
    help="Of new files.",
)  # fmt: skip
@click.option(
    "--compact-files",
    type=click.IntRange(min=0),
    default=32,
    show_default=True,
    metavar="N",
    help="Make one of the small files of a topic and date when there are N; 0: never.",
)
@click.option(
    "--compact", "only_compact", is_flag=True, help="Only do that, for any two files; no broker."
)
@click.option(
    "--allow-data-loss",
    is_flag=True,
    help="Go on behind messages that have expired before they were archived, and list them.",
)
@click.option("--dry-run", is_flag=True, help="Tell what would be archived, and write nothing.")
@job_options
def main(settings: JobSettings, **options: Any) -> None:
    """Archive TOPICs into the Parquet table TABLE, each message exactly once.

    Run it again, whatever ended it: it goes on where the table ends. Only one job writes at a time,
    and readers need not wait.
    """
    chosen = ArchiveOptions(**options)
    run_job("archive", settings, lambda: run(chosen, settings))


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
        raise JobError(f"there is no archive in {files.root}", exit_code=USAGE)
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
            raise JobError(f"--option {name}: {refused[name.lower()]}", exit_code=USAGE)
    if options.only_compact:
        if options.topics or options.pattern:
            raise JobError("--compact takes the table alone, no topics", exit_code=USAGE)
        return
    if bool(options.topics) == bool(options.pattern):
        raise JobError("name topics, or --pattern: one of the two", exit_code=USAGE)
    if options.min_messages is not None and options.follow_ms is None:
        raise JobError("--min-messages goes with --follow: a run that ends does not wait",
                       exit_code=USAGE)  # fmt: skip
    if options.min_messages is not None and options.min_messages > options.batch_messages:
        raise JobError(
            "--min-messages is above --batch-messages: no batch could have as many",
            exit_code=USAGE,
        )
    if options.pattern:
        try:
            re.compile(options.pattern)
        except re.error as error:
            raise JobError(f"--pattern: {error}", exit_code=USAGE) from error
    starting(options.starting)
    # Before anything is asked or made: a misspelled option is not found out by a query later.
    SourceOptions.from_options(options.source_options(settings, QueueOffsets()), streaming=True)


if __name__ == "__main__":
    main()
