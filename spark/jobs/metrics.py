"""The job `metrics`: messages, bytes, delay and retries by window, topic and tag.

    topic(s) --stream--> sums of a batch --> windows --> Parquet files, and on request a topic

Windows are final once: a watermark closes them, and what comes later is a row of its own, so that
nothing is dropped (see `windows`); a run that was killed goes on with the same windows (see
`window_files`). Delay is from a message's birth at its producer to its store at the broker.

    python -m skylarkmq.spark.jobs.metrics orders --output /data/metrics
    skylarkmq-spark-submit -m skylarkmq.spark.jobs.metrics orders --output /data/metrics

Rows in a topic are JSON objects with the columns of the files, times as ISO 8601; a row that is
sent again, after a crash, has the message id that it had before.
"""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import ExitStack, closing
from typing import Any

import click
from prometheus_client import REGISTRY

from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.jobs.common import (
    Duration,
    JobError,
    JobSettings,
    Summary,
    job_options,
    open_session,
    run_job,
)
from skylarkmq.spark.jobs.counting.run import Counting, MetricsOptions, WindowMetrics
from skylarkmq.spark.jobs.counting.window_files import WindowFiles
from skylarkmq.spark.options import SourceOptions
from skylarkmq.spark.progress import watch


@click.command()
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--output", required=True, metavar="DIR", help="Folder of the windows.")
@click.option(
    "--window",
    "window_ms",
    type=Duration(low=1),
    default="1m",
    show_default=True,
    metavar="TIME",
    help="Length of a window, as 30s, 5m, 1h.",
)
@click.option(
    "--watermark",
    "delay_ms",
    type=Duration(),
    default="10m",
    show_default=True,
    metavar="TIME",
    help="How long after its time a message counts for its window; later it is a row `late`.",
)
@click.option(
    "--time",
    "event_time",
    type=click.Choice(["store", "born"]),
    default="store",
    show_default=True,
    help="A message's time: the broker's clock, or its producer's.",
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="GROUP",
    help="Also count what this consumer group tries again and gives up; repeatable.",
)
@click.option("--body-bytes", is_flag=True, help="Also sum up bodies: all of them are read.")
@click.option("--to-topic", metavar="TOPIC", help="Also send each final row there, as JSON.")
@click.option(
    "--starting",
    default="earliest",
    show_default=True,
    metavar="OFFSETS",
    help="Where the first run starts: earliest, latest, or the source's JSON.",
)
@click.option(
    "--batch-messages",
    type=click.IntRange(min=1),
    default=200_000,
    show_default=True,
    help="Messages of one batch at most.",
)
@click.option(
    "--follow",
    "follow_ms",
    type=Duration(low=100),
    metavar="TIME",
    help="Go on with a batch every TIME. Default: what is there now, then end.",
)
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), help="Serve lag and windows to Prometheus."
)
@click.option("--dry-run", is_flag=True, help="Count from the start, and write nothing.")
@job_options
def main(settings: JobSettings, **options: Any) -> None:
    """Count messages, bytes, delay and retries of TOPICs by window, topic and tag.

    Windows go to Parquet files below --output, each once; run it again and it goes on where it
    ended. Late messages are rows of their own: nothing is dropped.
    """
    names = [name.strip() for text in options.pop("topics") for name in text.split(",")]
    chosen = MetricsOptions(topics=tuple(name for name in names if name), **options)
    run_job("metrics", settings, lambda: run(chosen, settings))


def check(options: MetricsOptions, settings: JobSettings) -> None:
    """Ask the cluster for the topics, before Spark takes its time to start.

    Raises:
        OptionError: an option of the source is unknown or wrong.
        RocketMQError: a topic is not there or cannot be read, or no name server answers.
    """
    source = SourceOptions.from_options(options.source_options(settings), streaming=True)
    with closing(BlockingClient(source.connection)) as client:
        for topic in options.topics:
            if not client.read_queues(topic):
                raise JobError(f"topic {topic} has no queue that can be read: see its permission")


def run(options: MetricsOptions, settings: JobSettings) -> Summary:
    """Do the job; the files are done when it returns.

    Raises:
        JobError: the output folder belongs to other settings or to another query.
        RocketMQError: a topic is not there, another job writes to the folder.
    """
    check(options, settings)
    with ExitStack() as stack:
        files = WindowFiles(options.output, dry=options.dry_run)
        files.open(f"metrics, process {os.getpid()} on {socket.gethostname()}")
        stack.callback(files.close)
        book, query_id = files.load(options.window_ms, options.delay_ms, options.event_time)
        checkpoint = files.checkpoint
        if options.dry_run:
            checkpoint = stack.enter_context(tempfile.TemporaryDirectory())
        spark = stack.enter_context(open_session("skylarkmq metrics", settings))
        if options.metrics_port is not None:
            watching = watch(spark, port=options.metrics_port)
            stack.callback(watching.close)
            windows = WindowMetrics(book)
            REGISTRY.register(windows)
            stack.callback(REGISTRY.unregister, windows)
        progress = stack.enter_context(settings.progress("counting"))
        counting = Counting(options, settings, files, book, query_id)
        counting.stream(spark, checkpoint, progress)
    return counting.summary()


if __name__ == "__main__":
    main()
