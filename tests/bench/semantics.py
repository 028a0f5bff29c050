"""Measures what applications rely on: filters, many groups, topics, queues, timers, connections.

    python -m tests.bench.semantics [--quick] [--rounds 3] [--only TEXT] [--store DIR] [--json FILE]

Broker, load and the crowd of consumers are processes of their own. CPU time is that of all broker
threads for each message; each figure that follows an amount stands beside the same without it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.crowd import Work, as_line
from tests.bench.load import Job, cpu_seconds
from tests.bench.peers import Load, Server, broker, echo, load, output_of, process, resident_mib
from tests.bench.report import machine
from tests.bench.scenarios import ASYNC
from tests.bench.store import Line

WINDOW = 64
IDLE_MAX = 10_000
FILTERING = "a > 4 AND b = 'x'"
REFUSING = "a > 400 AND b = 'x'"
SETTLE_S = 1.0


class Crowd:
    """The process of the other ends."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child

    def run(self, work: Work) -> dict[str, float]:
        assert self._child.stdin is not None
        self._child.stdin.write(as_line(work))
        self._child.stdin.flush()
        line = output_of(self._child).readline()
        if not line:
            raise RuntimeError(f"the crowd ended at {work}")
        result: dict[str, float] = json.loads(line)
        return result


@contextlib.contextmanager
def crowd() -> Iterator[Crowd]:
    command = [sys.executable, "-m", "tests.bench.crowd"]
    with process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        yield Crowd(child)


class Bench:
    """One broker, its load and its crowd."""

    def __init__(self, server: Server, source: Load, others: Crowd, rounds: int, *, quick: bool):
        self.server = server
        self.source = source
        self.others = others
        self.rounds = rounds
        self.quick = quick

    def ask(self, kind: str, **values: Any) -> dict[str, float]:
        return self.others.run(Work(kind, port=values.pop("port", self.server.port), **values))

    def sends(self, topic: str, topics: int = 1, queues: int = 4) -> float:
        """CPU us of a send, 64 in flight on one connection; the median of the rounds."""
        job = Job(
            "spread", self.server.port, self.server.pid, topic, window=WINDOW, topics=topics,
            queues=queues, seconds=0.5 if self.quick else 1.0,
        )  # fmt: skip
        if topics > 1:  # once around first: a queue's first message makes its file
            self.source.run(replace(job, messages=topics, limit_s=120.0))
        runs = [self.source.run(job) for _ in range(self.rounds)]
        return median(run.cpu_s / run.messages * 1e6 for run in runs)

    def resident(self) -> float:
        time.sleep(SETTLE_S)
        return resident_mib(self.server.pid)


def filters(bench: Bench) -> Iterator[Line]:
    """Sends to a topic on which 16 consumers wait, each with a filter."""
    consumers = 16
    bench.ask("topics", topic="filtered", count=1, queues=4)
    alone = bench.sends("filtered")
    yield Line("send, nobody waits", alone, "us CPU")
    for name, expression, kind in (
        ("a tag that none has", "other", "TAG"),
        ("SQL that none passes", REFUSING, "SQL92"),
        ("SQL that half of them pass", FILTERING, "SQL92"),
    ):
        work = {"topic": "filtered", "count": consumers, "queues": 4}
        bench.ask("hold", expression=expression, expression_type=kind, **work)
        cost = bench.sends("filtered")
        bench.ask("close")
        unit = "us CPU"
        yield Line(
            f"send, {consumers} consumers wait for {name}", cost, unit, f"x {cost / alone:.2f}"
        )


def many_topics(bench: Bench) -> Iterator[Line]:
    """1,000 groups with a client each, 10,000 topics."""
    groups, topics = (200, 1000) if bench.quick else (1000, 10_000)
    bench.ask("topics", topic="few", count=1, queues=4)
    alone, before = bench.sends("few"), bench.resident()
    bench.ask("topics", topic="many", count=topics, queues=1)
    bench.ask("groups", topic="many-00000", count=groups)
    cost = bench.sends("many", topics=topics, queues=1)
    yield Line("send, 1 topic", alone, "us CPU")
    yield Line(
        f"send, {topics:,} topics, {groups:,} groups", cost, "us CPU", f"x {cost / alone:.2f}"
    )
    grown = bench.resident() - before
    yield Line(f"memory of {topics:,} topics and {groups:,} groups", grown, "MiB")
    bench.ask("close")


def many_queues(bench: Bench) -> Iterator[Line]:
    """A topic of 1,024 queues, alone and with a pull held on each."""
    queues = 1024
    bench.ask("topics", topic="narrow", count=1, queues=4)
    bench.ask("topics", topic="wide", count=1, queues=queues)
    alone = bench.sends("narrow")
    bench.sends("wide", queues=queues)  # the files of its queues
    wide = bench.sends("wide", queues=queues)
    bench.ask("hold", topic="wide", count=1, queues=queues)
    held = bench.sends("wide", queues=queues)
    bench.ask("close")
    yield Line("send, 4 queues", alone, "us CPU")
    yield Line(f"send, {queues:,} queues", wide, "us CPU", f"x {wide / alone:.2f}")
    yield Line(
        f"send, {queues:,} queues, a pull waits on each", held, "us CPU", f"x {held / alone:.2f}"
    )


def timers(bench: Bench) -> Iterator[Line]:
    """A million delayed messages, all due within one minute."""
    count, span_s, lead_s = (50_000, 10, 20) if bench.quick else (1_000_000, 60, 180)
    bench.ask("topics", topic="timed", count=1, queues=4)
    before = bench.resident()
    begin_ms = int((time.time() + lead_s) * 1000)
    job = Job(
        "timer", bench.server.port, bench.server.pid, "timed", window=WINDOW, messages=count,
        limit_s=lead_s, begin_ms=begin_ms, span_ms=span_s * 1000,
    )  # fmt: skip
    run = bench.source.run(job)
    yield Line("taking a delayed message in", run.cpu_s / run.messages * 1e6, "us CPU")
    pending = bench.resident()
    yield Line(f"memory that {count:,} pending ones add", pending - before, "MiB")
    wait(begin_ms)
    cpu_s, peak = cpu_seconds(bench.server.pid), pending
    while time.time() * 1000 < begin_ms + (span_s + 2) * 1000:
        peak = max(peak, resident_mib(bench.server.pid))
        time.sleep(0.2)
    result = bench.ask("late", topic="timed", queues=4)
    spent = cpu_seconds(bench.server.pid) - cpu_s
    for _ in range(60):
        if result["stored"] >= run.messages:
            break
        time.sleep(1)
        bench.ask("close")
        result = bench.ask("late", topic="timed", queues=4)
    yield Line("memory at its highest while they are delivered", peak - before, "MiB")
    yield Line("delivered", result["stored"], "messages", f"of {run.messages:,}")
    yield Line("delivering one", spent / run.messages * 1e6, "us CPU")
    for name in ("p50", "p99", "max"):
        yield Line(f"late, {name} (precision 1 s)", result[name], "s")
    yield Line("the earliest", result["earliest"], "s", ">= 0")
    bench.ask("close")


def wait(until_ms: int) -> None:
    time.sleep(max(0.0, until_ms / 1000 - time.time()))


def connections(bench: Bench) -> Iterator[Line]:
    """Idle connections, as many as the descriptors and `maxConnections` allow."""
    before = bench.resident()
    opened = bench.ask("idle", count=1000 if bench.quick else IDLE_MAX - 100)["opened"]
    each = (bench.resident() - before) * 1024 / opened
    yield Line(f"memory of an idle connection, of {opened:,.0f}", each, "KiB", "< 20")
    bench.ask("close")


def wake_up(bench: Bench) -> Iterator[Line]:
    """From a send to the answer of the pull that waited for it, beside a bare round trip."""
    count = 200 if bench.quick else 2000
    bench.ask("topics", topic="waking", count=1, queues=1)
    with echo() as mirror:
        bare = bench.ask("trips", port=mirror.port, count=count)
        woken = bench.ask("wake", topic="waking", count=count)
        bare_again = bench.ask("trips", port=mirror.port, count=count)
    for name in ("p50", "p99"):
        trip = (bare[name] + bare_again[name]) / 2
        ratio = f"x {woken[name] / trip:.1f} of a bare round trip"
        yield Line(f"wake-up of a held pull, {name}", woken[name] * 1e6, "us", ratio)
    bench.ask("close")


SCENARIOS: dict[str, Callable[[Bench], Iterator[Line]]] = {
    "filters": filters,
    "topics": many_topics,
    "queues": many_queues,
    "timers": timers,
    "connections": connections,
    "wake-up": wake_up,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.semantics",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="one round, small amounts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--store", type=Path, help="folder on the disk to measure; default: ./var")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    parent = options.store or Path(__file__).resolve().parents[2] / "var"
    parent.mkdir(parents=True, exist_ok=True)
    lines: list[Line] = []
    print(machine(), end="\n\n")
    for name, scenario in SCENARIOS.items():
        if options.only not in name:
            continue
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=parent))
            keys: dict[str, object] = {"enablePropertyFilter": "true"} if name == "filters" else {}
            server = stack.enter_context(broker(Path(folder), ASYNC, keys))
            bench = Bench(
                server, stack.enter_context(load()), stack.enter_context(crowd()),
                1 if options.quick else options.rounds, quick=options.quick,
            )  # fmt: skip
            for line in scenario(bench):
                lines.append(line)
                print(line.shown(), flush=True)
    if options.json:
        rows = [asdict(line) for line in lines]
        options.json.write_text(json.dumps({"machine": machine(), "lines": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
