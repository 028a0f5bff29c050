"""Measures the Spark connector: source, sink, commit-log reader, the cost of a trigger.

    python -m tests.bench.spark [--quick] [--rounds 5] [--warm-up 1] [--only source log]

    pulls        fetch and throw away, without Spark: what broker and wire allow
    plain        fetch and decode into Arrow, all columns, without Spark: the floor of the source
    source       format("skylarkmq") into the noop sink, one core
    tuples       a source that yields a tuple a message from the same pulls: the baseline
    body only    the source with the schema `body binary`: what the projection gains
    sink, plain  as many rows into a topic as a task sends them, without Spark
    sink, named  the same with idempotencyColumns
    sink, once   the same as plain into a topic with a deduplication window
    sink         a data frame of as many messages into a topic, at least once
    log, plain   the commit-log reader's decode of the same store, without Spark
    log          format("skylarkmq-commitlog"), one core
    trigger      micro-batches of a hundred messages: what each costs beside its messages

The roads take turns, so that what else the machine does meets all of them; medians of the rounds.
A Spark job costs some tenths of a second before it reads anything; what a job over a few messages
takes is taken off the figures of Spark's roads and printed. CPU time is that of Python, driver and
workers, and beside it that of the JVM, which compiles for some millions of rows: see --warm-up;
the broker's is in neither. "a core" is what one core does
that works for Python and JVM in turn: it holds on a busy machine, messages/s do not. Prints ratios
beside their targets; asserts nothing. What the decode alone takes: `tests.bench.spark_columns`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from skylarkmq.client import DeduplicationWindow
from skylarkmq.client.sync import Admin
from tests.bench import peers
from tests.bench.load import Job
from tests.bench.report import machine
from tests.bench.spark_roads import (
    Timed,
    TupleSource,
    log_plain,
    log_through,
    made_up_rows,
    plain,
    pull_only,
    ranges_of,
    read_through,
    sink_alone,
    sink_through,
    timed,
    trigger_ms,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "bench-send"
FEW = "bench-few"
SUNK = "bench-sunk"
ONCE = "bench-once"
SOURCE_TARGET = 200_000  # messages/s a core
SINK_TARGET = 150_000  # messages/s a core
LOG_TARGET_MB = 400.0  # of bodies, a core
FEW_COUNT = 200
LIMIT_S = 300.0


@dataclass
class Road:
    """A way to move messages, and what its rounds gave."""

    name: str
    run: Callable[[], int]
    in_spark: bool = True
    rounds: list[Timed] = field(default_factory=list[Timed])

    def net(self, fixed: Timed) -> Timed:
        """Medians of the rounds beyond what a Spark job costs anyway."""
        off = fixed if self.in_spark else Timed(0, 0.0, 0.0)
        return Timed(
            round(median(one.rows for one in self.rounds)),
            max(1e-6, median(one.seconds for one in self.rounds) - off.seconds),
            max(1e-6, median(one.cpu_s for one in self.rounds) - off.cpu_s),
            max(0.0, median(one.jvm_cpu_s for one in self.rounds) - off.jvm_cpu_s),
        )


def fill(port: int, pid: int, topic: str, size: int, count: int) -> None:
    """Store messages as the Java client writes them: unique key and tag."""
    with peers.load() as load:
        load.run(
            Job(
                "send",
                port,
                pid,
                topic,
                window=256,
                body_size=size,
                messages=count,
                limit_s=LIMIT_S,
            )
        )


def session() -> SparkSession:
    """One core for the tasks; what Spark costs is its own."""
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    )  # the workers import this folder
    from skylarkmq.spark import register
    from skylarkmq.spark.session import build_session

    spark = build_session("bench", "local[1]", **{"spark.ui.enabled": "false"})
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    spark.dataSource.register(TupleSource)
    return spark


def roads(spark: SparkSession, namesrv: str, store: Path, size: int) -> list[Road]:
    """All roads over the filled topic."""
    parts = ranges_of(namesrv, TOPIC)
    count = sum(part.message_count for part in parts)
    whole = {"nameServer": namesrv, "topic": TOPIC}
    in_log = 0  # messages: the sink's rounds come to it

    def log_alone() -> int:
        nonlocal in_log
        in_log = log_plain(store)
        return in_log

    def through(name: str, schema: str | None = None) -> Callable[[], int]:
        return lambda: read_through(spark, name, whole, schema) or count

    rows = made_up_rows(size, count // 2)
    sunk = {"nameServer": namesrv, "topic": SUNK}
    return [
        Road("pulls", lambda: pull_only(namesrv, parts), in_spark=False),
        Road("plain", lambda: plain(namesrv, parts), in_spark=False),
        Road("source", through("skylarkmq")),
        Road("tuples", through("bench-tuples")),
        Road("body only", through("skylarkmq", "body binary")),
        Road("sink, plain", lambda: sink_alone(rows, sunk), in_spark=False),
        Road(
            "sink, named",
            lambda: sink_alone(rows, {**sunk, "idempotencyColumns": "tags,number"}),
            in_spark=False,
        ),
        Road("sink, once", lambda: sink_alone(rows, {**sunk, "topic": ONCE}), in_spark=False),
        Road("sink", lambda: sink_through(spark, namesrv, SUNK, size, count // 2)),
        Road("log, plain", log_alone, in_spark=False),
        Road("log", lambda: log_through(spark, store, in_log)),
    ]


def measure(
    every: list[Road], few: Callable[[], int], rounds: int, but: int = 0, warm_up: int = 1
) -> Timed:
    """Run the roads in turn, after rounds that do not count; return what a job costs anyway.

    The CPU time of the child `but`, the broker, is not counted.
    """
    fixed: list[Timed] = []
    for number in range(1 - warm_up, rounds + 1):
        for road in every:
            print(f"\r\x1b[Kround {number} of {rounds}: {road.name}", end="", file=sys.stderr)
            one = timed(road.run, but)
            if number > 0:
                road.rounds.append(one)
        one = timed(few, but)
        if number > 0:
            fixed.append(one)
    print("\r\x1b[K", end="", file=sys.stderr)
    return Road("few", few, False, fixed).net(Timed(0, 0.0, 0.0))


def show(every: list[Road], fixed: Timed, trigger: float, size: int) -> dict[str, Any]:
    """Print the table and return it."""
    net = {road.name: road.net(fixed) for road in every}
    plain_a_core = 1e6 / net["plain"].a_row_us(net["plain"].cpu_s)
    print(
        f"{'':<12}{'messages/s':>12}{'CPU us':>9}{'JVM us':>9}{'a core':>10}{'MB/s':>7}  of plain"
    )
    found: dict[str, Any] = {}
    for name, one in net.items():
        cpu_us, jvm_us = one.a_row_us(one.cpu_s), one.a_row_us(one.jvm_cpu_s)
        a_core = 1e6 / (cpu_us + jvm_us)
        share = a_core / plain_a_core
        print(
            f"{name:<12}{one.rate:>12,.0f}{cpu_us:>9.2f}{jvm_us:>9.2f}{a_core:>10,.0f}"
            f"{a_core * size / 1e6:>7.0f}  {share:.2f}"
        )
        found[name] = {
            "messages_per_s": round(one.rate),
            "cpu_us": round(cpu_us, 2),
            "jvm_us": round(jvm_us, 2),
            "a_core": round(a_core),
            "of_plain": round(share, 3),
        }
    ratios = {"job_fixed_ms": fixed.seconds * 1000, "trigger_ms": trigger}
    if "source" in found:
        rate = found["source"]["a_core"]
        print(f"source: {rate:,} messages/s a core, target >= {SOURCE_TARGET:,}")
    if "source" in found and "tuples" in found:
        ratios["source_of_tuples"] = found["source"]["a_core"] / found["tuples"]["a_core"]
        print(f"source / tuples: {ratios['source_of_tuples']:.2f}")
    if "sink" in found:
        rate = found["sink"]["a_core"]
        print(f"sink: {rate:,} messages/s a core, target >= {SINK_TARGET:,}")
    if "log" in found:
        ratios["log_mb_per_s"] = found["log"]["a_core"] * size / 1e6
        rate_mb = ratios["log_mb_per_s"]
        print(f"commit-log reader: {rate_mb:.0f} MB/s a core, target >= {LOG_TARGET_MB:g}")
    print(f"a job before it reads: {ratios['job_fixed_ms']:.0f} ms; a trigger: {trigger:.0f} ms")
    return {"machine": machine(), "roads": found, **ratios}


def run(
    count: int, size: int, rounds: int, warm_up: int = 1, only: Sequence[str] = ()
) -> dict[str, Any]:
    """Fill a broker, run everything or some roads beside `plain`, end it."""
    root = Path(tempfile.mkdtemp(prefix="skylarkmq-bench-"))
    try:
        with peers.broker(root, "ASYNC_FLUSH") as server:
            namesrv = namesrv_of(root / "broker.log")
            fill(server.port, server.pid, TOPIC, size, count)
            fill(server.port, server.pid, FEW, size, FEW_COUNT)
            with Admin(namesrv_addr=namesrv) as admin:
                admin.create_topic(SUNK)
                admin.create_topic(ONCE, deduplication=DeduplicationWindow(600, 2 * count))
            spark = session()
            try:
                few = {"nameServer": namesrv, "topic": FEW}
                every = [
                    road
                    for road in roads(spark, namesrv, root / "store", size)
                    if not only or road.name in ("plain", "log, plain", *only)
                ]
                fixed = measure(
                    every,
                    lambda: read_through(spark, "skylarkmq", few) or 1,
                    rounds,
                    but=server.pid,
                    warm_up=warm_up,
                )
                trigger = trigger_ms(spark, namesrv, TOPIC, root / "checkpoint", LIMIT_S)
            finally:
                spark.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return show(every, fixed, trigger, size)


def namesrv_of(log: Path) -> str:
    """The name server's address, as the broker printed it."""
    ready = next(line for line in log.read_text().splitlines() if '"event":"ready"' in line)
    address: str = json.loads(ready)["namesrvAddr"]
    return address


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=200_000, help="messages")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=1, help="rounds before, that do not count")
    parser.add_argument("--only", nargs="+", default=[], metavar="ROAD", help="run fewer roads")
    parser.add_argument("--quick", action="store_true", help="30,000 messages, 2 rounds")
    parser.add_argument("--json", type=Path, help="write the figures into this file, too")
    options = parser.parse_args()
    if options.quick:
        options.count, options.rounds = 30_000, 2
    figures = run(options.count, options.size, options.rounds, options.warm_up, options.only)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
