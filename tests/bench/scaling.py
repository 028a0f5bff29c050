"""Measures how throughput grows with the broker processes of `serve --brokers N`.

    python -m tests.bench.scaling [--processes N] [--rounds 5] [--seconds 1.0]
                                  [--bytes 128] [--store DIR]

One fleet of N brokers runs, and N echo servers on the same cores. In each round 1, 2, 4, ... up to
N of them get the same load, each from a load process of its own, brokers and echo servers in turns.
A row says what all of them did together:

    messages/s   the sum, and beside it how often that is the one of a single process
    CPU us       of all threads of the server processes, for each message
    ratio        growth of the brokers divided by that of the echo servers in the same round: 1 is
                 all that the machine gives; the median, and the lowest and highest of the rounds

Load processes need cores as well. With four cores or more the servers are pinned to the first half
of them and the load to the second half, and N is at most a half. With fewer, nothing is pinned, N
is the number of cores, and servers and load share them all: then the rate of one process is not
that of a core, and the CPU time and the ratio tell more.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from statistics import median

from tests.bench.load import Figures, Job, cpu_seconds
from tests.bench.peers import Load, Server, children_of, echo, fleet, load
from tests.bench.report import cpu_us, machine
from tests.bench.scenarios import ASYNC, SIZES, job

PROCESSES_MAX = 8
PINNED_FROM = 4
"""Cores that there must be for servers and load to have their own."""
WORK = (
    ("8 connections, 32 in flight each", 8, 32),
    ("64 connections, 1 in flight each", 64, 1),
)
HEAD = (
    "processes", "messages/s", "times", "CPU us", "p99 ms",
    "echo messages/s", "times", "CPU us", "ratio (rounds)",
)  # fmt: skip


@dataclass(frozen=True)
class Cores:
    """Which cores servers and load may use, and how many servers there are at most."""

    servers: frozenset[int]
    load: frozenset[int]
    processes_max: int

    @classmethod
    def of(cls, available: Sequence[int]) -> Cores:
        half = len(available) // 2
        if len(available) < PINNED_FROM:
            every = frozenset(available)
            return cls(every, every, min(len(available), PROCESSES_MAX))
        return cls(
            frozenset(available[:half]), frozenset(available[half:]), min(half, PROCESSES_MAX)
        )

    def text(self) -> str:
        """Say what was pinned."""
        if self.servers == self.load:
            return f"nothing pinned: servers and load share {len(self.load)} cores"
        return f"servers pinned to cores {_list(self.servers)}, load to {_list(self.load)}"


def _list(cores: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(cores)))


def counts_up_to(processes: int) -> list[int]:
    """Return 1, 2, 4, ... and `processes` itself."""
    powers = takewhile(lambda count: count < processes, (1 << shift for shift in range(16)))
    return [*powers, processes]


def together(parts: Sequence[Figures]) -> Figures:
    """Return what several loads did at the same time: messages and CPU time are sums, the seconds
    those that give the sum of the rates, and the latency is that of the slowest."""
    messages = sum(part.messages for part in parts)
    rate = sum(part.messages / part.seconds for part in parts)
    return Figures(
        messages=messages,
        seconds=messages / rate if rate else 0.0,
        cpu_s=sum(part.cpu_s for part in parts),
        p99_s=max(part.p99_s for part in parts),
    )


def rate_of(figures: Figures) -> float:
    """Return messages a second."""
    return figures.messages / figures.seconds if figures.seconds else 0.0


@dataclass
class Row:
    """What the rounds gave for one number of processes."""

    count: int
    brokers: list[Figures] = field(default_factory=list[Figures])
    echoes: list[Figures] = field(default_factory=list[Figures])

    def shown(self, one: Row) -> list[str]:
        """Return the cells; `one` is the row of a single process."""
        brokers, echoes = growth(self.brokers, one.brokers), growth(self.echoes, one.echoes)
        ratios = [mine / echo for mine, echo in zip(brokers, echoes, strict=True)]
        return [
            str(self.count),
            f"{median(map(rate_of, self.brokers)):,.0f}",
            f"{median(brokers):.2f}",
            f"{cpu_us(self.brokers):.2f}",
            f"{median(part.p99_s for part in self.brokers) * 1000:.1f}",
            f"{median(map(rate_of, self.echoes)):,.0f}",
            f"{median(echoes):.2f}",
            f"{cpu_us(self.echoes):.2f}",
            f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        ]


def growth(rounds: Sequence[Figures], first: Sequence[Figures]) -> list[float]:
    """Return how often the rate is that of a single process in the same round."""
    return [rate_of(many) / rate_of(one) for many, one in zip(rounds, first, strict=True)]


class Bench:
    """Servers and their loads, which run at the same time."""

    def __init__(self, loads: Sequence[Load]) -> None:
        self._loads = loads
        self._pool = ThreadPoolExecutor(len(loads))

    def run(self, work: Job, servers: Sequence[Server]) -> Figures:
        """Put the same load on each server and return what they did together."""
        jobs = [replace(work, port=server.port, pid=server.pid) for server in servers]
        return together([*self._pool.map(Load.run, self._loads[: len(jobs)], jobs)])


def measure(processes: int, cores: Cores, options: argparse.Namespace, folder: Path) -> None:
    with contextlib.ExitStack() as stack:
        os.sched_setaffinity(0, cores.servers)  # children begin with what their parent may use
        supervisor, brokers = stack.enter_context(fleet(folder, ASYNC, processes))
        echoes = [stack.enter_context(echo()) for _ in brokers]
        os.sched_setaffinity(0, cores.load)
        bench = Bench([stack.enter_context(load()) for _ in brokers])
        others = [supervisor, *set(children_of(supervisor)) - {one.pid for one in brokers}]
        for name, connections, window in WORK:
            name = f"send of {options.bytes} B, {name}"
            work = job("send", options.bytes, connections, window, "JSON")
            work = replace(work, seconds=options.seconds)
            bench.run(work, brokers)  # topics are made, loads have their requests ready
            rows = [Row(count) for count in counts_up_to(processes)]
            idle_s, busy_s = sum(map(cpu_seconds, others)), 0.0
            for number in range(options.rounds):
                for row in rows:
                    print(f"\r\x1b[K{name}: round {number + 1}", end="", file=sys.stderr)
                    row.brokers.append(bench.run(work, brokers[: row.count]))
                    row.echoes.append(bench.run(replace(work, check=False), echoes[: row.count]))
                    busy_s += row.brokers[-1].cpu_s
            print("\r\x1b[K", end="", file=sys.stderr)
            print_table(name, rows)
            share = (sum(map(cpu_seconds, others)) - idle_s) / busy_s
            print(f"  supervisor and name server: {share:.2%} of the brokers' CPU time\n")


def print_table(name: str, rows: Sequence[Row]) -> None:
    cells = [HEAD, *(row.shown(rows[0]) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEAD))]
    print(f"{name}, asynchronous flush")
    for line in cells:
        print("  " + "  ".join(map(str.rjust, line, widths)))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--processes", type=int, help="instead of what fits the cores")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each load")
    parser.add_argument("--bytes", type=int, default=SIZES[0], help="of each message")
    parser.add_argument("--store", type=Path, help="folder on the disk to measure; default: ./var")
    options = parser.parse_args()
    cores = Cores.of(sorted(os.sched_getaffinity(0)))
    parent = options.store or Path(__file__).resolve().parents[2] / "var"
    parent.mkdir(parents=True, exist_ok=True)
    print(f"{machine()}; {cores.text()}\n")
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as folder:
        measure(options.processes or cores.processes_max, cores, options, Path(folder))


if __name__ == "__main__":
    main()
