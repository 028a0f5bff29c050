"""Measures the store without a broker: storing, reading, recovery, key index, memory.

    python -m tests.bench.store [--quick] [--rounds 3] [--store DIR] [--json FILE]

Each figure comes from a process of its own (`store_jobs.py`). CPU time is that of all its threads;
medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.report import machine
from tests.bench.store_jobs import CLEAN, KILLED, StoreJob

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 900
TOPIC_COUNTS = (1, 10, 100, 1_000, 10_000)


@dataclass(frozen=True)
class Line:
    """One figure of the report."""

    name: str
    figure: float
    unit: str
    target: str = ""

    def shown(self) -> str:
        digits = 0 if self.figure >= 1000 else 1 if self.figure >= 10 else 2
        return f"{self.name:<62}{self.figure:>12,.{digits}f} {self.unit:<12}{self.target}".rstrip()


def run(job: StoreJob) -> dict[str, Any]:
    """Run a job in a process and return its figures."""
    print(
        f"\r\x1b[K{job.kind}: {job.messages or ''} {Path(job.root).name}", end="", file=sys.stderr
    )
    child = subprocess.run(
        [sys.executable, "-m", "tests.bench.store_jobs", json.dumps(asdict(job))],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    if child.returncode or not child.stdout:
        raise RuntimeError(f"{job}:\n{child.stderr}")
    figures: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return figures


def medians(job: StoreJob, folder: Path, rounds: int) -> dict[str, float]:
    """Figures of a job that begins with an empty store, medians of the rounds."""
    found: list[dict[str, Any]] = []
    for number in range(rounds):
        root = folder / f"round-{number}"
        found.append(run(replace(job, root=str(root))))
        shutil.rmtree(root)
    return {key: median(figures[key] for figures in found) for key in found[0]}


def growing(folder: Path, rounds: int, messages: int) -> Iterator[Line]:
    """How the cost of a message follows the number of topics and the size of the log."""
    unit = "us CPU"
    base = 0.0
    for topics in TOPIC_COUNTS:
        job = StoreJob("fill", "", messages=max(messages // 5, topics), topics=topics)
        cost = medians(job, folder, rounds)["cpu_us"]
        base = base or cost
        yield Line(f"store a message of 128 B, {topics} topics", cost, unit, f"x {cost / base:.2f}")
    figures = medians(StoreJob("fill", "", messages=messages, body_size=1024), folder, rounds)
    ratio = figures["last_cpu_us"] / figures["first_cpu_us"]
    yield Line("store a message of 1 KiB, first tenth of the log", figures["first_cpu_us"], unit)
    yield Line(
        "store a message of 1 KiB, last tenth of the log",
        figures["last_cpu_us"],
        unit,
        f"x {ratio:.2f}",
    )


def syncing(folder: Path, rounds: int, messages: int) -> Iterator[Line]:
    """What a sync of the log costs, and what it adds to say how far the log is synced."""
    figures = medians(StoreJob("sync", "", messages=max(1000, messages // 200)), folder, rounds)
    yield Line("sync the log after a message of 128 B", figures["sync_us"], "us")
    yield Line("  the same without the flushed offset", figures["silent_us"], "us")
    yield Line("  writing the flushed offset", figures["saying_us"], "us")


def starting(folder: Path, messages: int) -> Iterator[Line]:
    """Recovery and memory, on stores that differ in size."""
    small, large = max(1000, messages // 20), messages
    memory: dict[tuple[int, str], dict[str, Any]] = {}
    for count in (small, large):
        for end in (KILLED, CLEAN):
            root = folder / f"{end}-{count}"
            run(StoreJob("fill", str(root), messages=count, end=end))
            memory[count, end] = run(StoreJob("recover", str(root)))
            if (count, end) != (large, CLEAN):
                shutil.rmtree(root)
    killed, clean = memory[large, KILLED], memory[large, CLEAN]
    yield Line(f"recover {large:,} messages, process killed", killed["seconds"], "s")
    yield Line("  records that the recovery read again", killed["records"], "")
    yield Line(f"start on {large:,} messages, clean stop", clean["seconds"], "s")
    for count in (small, large):
        name = f"own memory after the start on {count:,} messages"
        yield Line(name, memory[count, CLEAN]["anonymous_mib"], "MiB")
    figures = run(StoreJob("read", str(folder / f"{CLEAN}-{large}")))
    yield Line("read in order, 32 at a time", figures["sequential_us"], "us CPU")
    yield Line("read one message at a random place", figures["random_us"], "us CPU")
    shutil.rmtree(folder / f"{CLEAN}-{large}")
    queues = messages // 200
    for end in (CLEAN, KILLED):
        root = folder / f"queues-{end}"
        run(StoreJob("fill", str(root), messages=queues, topics=queues, end=end))
        figures = run(StoreJob("recover", str(root)))
        yield Line(f"start with {queues:,} queues, {end}", figures["cpu_s"], "s CPU")
        shutil.rmtree(root)


def indexing(folder: Path, messages: int) -> Iterator[Line]:
    """The key index: building it live and again, and queries."""
    job = StoreJob("index", str(folder / "index"), messages=messages, topics=10, keys=True)
    figures = run(job)
    yield Line("index a unique key, on the loop", figures["take_us"], "us CPU", "< 0.3")
    yield Line("index a unique key, on the index thread", figures["build_us"], "us CPU")
    yield Line(
        "store messages with keys until all are in the index", figures["messages_per_s"], "msg/s"
    )
    yield Line("query by unique key, median", figures["query_us"], "us")
    yield Line("query by unique key, 99 of 100", figures["query_p99_us"], "us")
    again = run(replace(job, kind="rebuild"))
    yield Line("build the index again from the log", again["messages_per_s"], "msg/s")
    yield Line("build the index again from the log, a message", again["cpu_us"], "us CPU")
    shutil.rmtree(folder / "index")


def measure(options: argparse.Namespace, folder: Path) -> list[Line]:
    messages = 50_000 if options.quick else 1_000_000
    lines = [
        *growing(folder, options.rounds, messages),
        *syncing(folder, options.rounds, messages),
        *starting(folder, messages),
        *indexing(folder, messages),
    ]
    print("\r\x1b[K", end="", file=sys.stderr)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.store",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="one round, 50,000 messages")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", type=Path, help="folder on the disk to measure; default: ./var")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 1
    parent = options.store or ROOT / "var"
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-store-", dir=parent) as folder:
        lines = measure(options, Path(folder))
    print(machine())
    print()
    for line in lines:
        print(line.shown())
    if options.json:
        rows = [asdict(line) for line in lines]
        options.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
