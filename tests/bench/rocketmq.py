"""Measures this broker beside RocketMQ's own, and others: the same load on all of them, in turns.

    python -m tests.bench.rocketmq [--quick] [--rounds 5] [--seconds 1.0] [--only TEXT]
                                   [--peers 4.9 5.3 nats redis kafka] [--heap 4g] [--store DIR]
                                   [--json FILE]

RocketMQ's brokers are the newest of 4.9 and 5.3 that Maven Central has. They run with the JVM
options of their own `runbroker.sh` and with files of the default sizes, as ours does. All processes
live in a network namespace of their own, because RocketMQ's servers listen on every address.

Each round runs each row on each broker. A ratio is the other's CPU time for a message divided by
ours in the same round: above 1, ours takes less. The median is shown with the lowest and highest.
CPU time is that of all threads of the broker, its garbage collection and compiler included; every
broker works before the first round until its CPU time for a message has stopped to fall.

NATS JetStream, Redis streams and Kafka get the rows that they have a form of, with bodies alone, no
keys or tags. `tests/bench/other_frames.py` says what is asked of each, `other_brokers.py` how they
are set and where they come from: Debian has redis-server, the Go proxy NATS, Maven Central Kafka.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Protocol

from tests.bench.crowd import Work
from tests.bench.frames import PULL_COUNT
from tests.bench.load import Figures, Job, cpu_seconds
from tests.bench.other_brokers import OTHERS
from tests.bench.other_frames import FILL_COUNT
from tests.bench.peers import Load, Server, broker, load, resident_mib
from tests.bench.report import machine
from tests.bench.scenarios import ASYNC, SYNC
from tests.bench.semantics import Crowd, crowd
from tests.interop.apache_server import Apache5Broker, ApacheBroker
from tests.interop.children import Children
from tests.interop.java import CLIENT, java, why_not

OURS = "SkylarkMQ"
PEERS: dict[str, type[ApacheBroker]] = {"4.9": ApacheBroker, "5.3": Apache5Broker}
INSIDE = "SKYLARKMQ_BENCH_INSIDE"
WARM_S = 3.0  # of a run, so many at most
WARM_RUNS = 30
STILL_FALLING = 0.9
COLD_BEGIN = 100_000  # offsets of six digits: all pulls have one size
COLD_PULLS = 500  # of a round
TRIP_COUNT = 30_000
WAKE_COUNT = 500
# What runbroker.sh gives the JVM, but for the heap: 8g there, for a machine of its own.
PRODUCTION_JVM = (
    "-server", "-XX:+UseG1GC", "-XX:G1HeapRegionSize=16m", "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30", "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-OmitStackTraceInFastThrow", "-XX:+AlwaysPreTouch", "-XX:MaxDirectMemorySize=15g",
    "-XX:-UseLargePages", "-XX:-UseBiasedLocking",
)  # fmt: skip
# Both brokers refuse a send that waited 200 ms; a shared machine's disk takes longer at times.
COMMON_KEYS: dict[str, object] = {
    "waitTimeMillsInSendQueue": 10_000,
    "osPageCacheBusyTimeOutMills": 10_000,
    "mappedFileSizeCommitLog": 1 << 30,
    "mappedFileSizeConsumeQueue": 300_000 * 20,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
    "enablePropertyFilter": "false",
}


@dataclass(frozen=True)
class Row:
    """What is measured: a load; or `cold`, `wake`, `sdk`, `java`."""

    name: str
    flush: str
    job: Job | None = None
    kind: str = "load"

    @property
    def is_rocketmq_s(self) -> bool:
        """No other protocol has it."""
        job = self.job
        return self.kind != "load" or job is None or job.codec != "JSON" or job.expression != "*"


@dataclass
class Measured:
    """The rounds of a row, by broker."""

    row: Row
    rounds: dict[str, list[Figures]] = field(default_factory=dict[str, list[Figures]])

    def cpu_us(self, name: str) -> float:
        return median(map(cpu_us, self.rounds[name]))

    def ratios(self, name: str) -> list[float]:
        """The other's CPU time divided by ours, round by round, sorted."""
        pairs = zip(self.rounds[name], self.rounds[OURS], strict=True)
        return sorted(cpu_us(theirs) / cpu_us(ours) for theirs, ours in pairs)

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.row.name,
            "flush": self.row.flush,
            "brokers": {
                name: {**self.figures(name), "ratios": [round(one, 3) for one in self.ratios(name)]}
                for name in self.rounds
            },
        }

    def figures(self, name: str) -> dict[str, float]:
        rounds = self.rounds[name]
        return {
            "cpu_us": round(self.cpu_us(name), 3),
            "per_s": round(median(one.messages / one.seconds for one in rounds)),
            "p50_ms": round(median(one.p50_s for one in rounds) * 1000, 3),
            "p99_ms": round(median(one.p99_s for one in rounds) * 1000, 3),
        }


def cpu_us(figures: Figures) -> float:
    return figures.cpu_s / max(1, figures.messages) * 1e6


class Contender(Protocol):
    """A broker that can be started again on its store."""

    name: str
    folder: Path

    def start(self) -> Server: ...

    def stop(self) -> None: ...


class Ours:
    """This project's broker."""

    name = OURS

    def __init__(self, folder: Path, flush: str) -> None:
        self.folder = folder
        self.flush = flush
        self._running = contextlib.ExitStack()

    def start(self) -> Server:
        return self._running.enter_context(broker(self.folder, self.flush, COMMON_KEYS))

    def stop(self) -> None:
        self._running.close()


class Apache:
    """RocketMQ's broker with its name server."""

    def __init__(self, name: str, folder: Path, flush: str, heap: str) -> None:
        self.name = f"RocketMQ {name}"
        self.folder = folder
        keys = {**COMMON_KEYS, "flushDiskType": flush}
        self._broker = PEERS[name](Children(folder), folder, **keys)
        self._broker.broker_jvm = (*PRODUCTION_JVM, f"-Xms{heap}", f"-Xmx{heap}")

    def start(self) -> Server:
        self._broker.start()
        return Server(self._broker.pid, self._broker.port, self._broker.namesrv)

    def stop(self) -> None:
        self._broker.stop()


def contender(name: str, folder: Path, flush: str, heap: str) -> Contender:
    if name in PEERS:
        return Apache(name, folder, flush, heap)
    return OTHERS[name](folder, flush) if name in OTHERS else Ours(folder, flush)


def lacking(name: str) -> str:
    """Get what a peer needs, and say why it cannot be had, or nothing."""
    return OTHERS[name].why_not() if name in OTHERS else why_not(CLIENT, PEERS[name].project)


class Bench:
    """The brokers of one flush mode, and what works on them."""

    def __init__(
        self, contenders: list[Contender], source: Load, others: Crowd, seconds: float
    ) -> None:
        self.contenders = contenders
        self.source = source
        self.others = others
        self.seconds = seconds
        self.servers: dict[str, Server] = {}
        self._trips = 0

    def start(self) -> None:
        for contender in self.contenders:
            self.servers[contender.name] = contender.start()

    def stop(self) -> None:
        for contender in self.contenders:
            contender.stop()

    def load(self, name: str, job: Job) -> Figures:
        server = self.servers[name]
        job = replace(job, port=server.port, pid=server.pid, protocol=server.protocol)
        return self.source.run(job)

    def runs(self, row: Row) -> list[str]:
        """The brokers that have a row, if they are several."""
        names = [
            name
            for name, server in self.servers.items()
            if server.protocol == "rocketmq" or not row.is_rocketmq_s
        ]
        return names if len(names) > 1 else []

    def warm(self, job: Job) -> None:
        """Work until the CPU time for a message has stopped to fall; Java compiles for long."""
        for name in self.servers:
            best, in_vain = float("inf"), 0
            for _ in range(WARM_RUNS):
                note(f"warming {name}: {best:.1f} us")
                cost = cpu_us(self.load(name, replace(job, seconds=WARM_S)))
                in_vain = 0 if cost < best * STILL_FALLING else in_vain + 1
                best = min(best, cost)
                if in_vain == 2:
                    break

    def run(self, row: Row, name: str, number: int) -> Figures:
        """One round of a row on one broker."""
        if row.kind == "wake":
            return self._wake(self.servers[name])
        if row.kind in TRIPS:
            return self._trip(row.kind, self.servers[name])
        assert row.job is not None
        if row.kind == "cold":
            begin = COLD_BEGIN + number * COLD_PULLS * PULL_COUNT
            end = begin + COLD_PULLS * PULL_COUNT
            job = replace(row.job, begin_offset=begin, end_offset=end, messages=COLD_PULLS)
            figures = self.load(name, job)
            return replace(figures, messages=figures.messages * PULL_COUNT)
        return self.load(name, replace(row.job, seconds=self.seconds))

    def _wake(self, server: Server) -> Figures:
        self.others.run(Work("topics", server.port, 1, "bench-wake"))
        cpu_s, started = cpu_seconds(server.pid), time.perf_counter()
        work = Work("wake", server.port, WAKE_COUNT, "bench-wake")
        times = self.others.run(work)
        spent, took_s = cpu_seconds(server.pid) - cpu_s, time.perf_counter() - started
        self.others.run(Work("close"))
        return Figures(WAKE_COUNT, took_s, spent, p50_s=times["p50"], p99_s=times["p99"])

    def _trip(self, kind: str, server: Server) -> Figures:
        """Run a client of one's own process that sends and consumes; a topic for each trip."""
        self._trips += 1
        topic = f"bench-trip-{self._trips}"
        cpu_s = cpu_seconds(server.pid)
        command = TRIPS[kind](server.namesrv, topic)
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        spent = cpu_seconds(server.pid) - cpu_s
        return Figures(TRIP_COUNT, json.loads(output.splitlines()[-1])["seconds"], spent)


def sdk_trip(namesrv: str, topic: str) -> list[str]:
    return [sys.executable, "-m", "tests.bench.trip", namesrv, topic, str(TRIP_COUNT), "1024"]


def java_trip(namesrv: str, topic: str) -> list[str]:
    main = "skylarkmq.interop.Throughput"
    about = (f"namesrv={namesrv}", f"topic={topic}", f"group={topic}", f"count={TRIP_COUNT}")
    return java(CLIENT, main, *about, "size=1024", "threads=64", jvm=("-Xmx512m",))


TRIPS = {"sdk": sdk_trip, "java": java_trip}


def sends(flush: str) -> list[Row]:
    def one(name: str, size: int, connections: int, window: int, codec: str = "JSON") -> Row:
        job = Job(
            "send", 0, 0, "bench-send", connections=connections, window=window, body_size=size,
            codec=codec,
        )  # fmt: skip
        shown = f"{name}, {size} B" + (f", {codec} header" if codec != "JSON" else "")
        return Row(shown, flush, job)

    rows = [
        one("1 in flight", 1024, 1, 1),
        one("64 in flight", 128, 1, 64),
        one("64 in flight", 1024, 1, 64),
        one("64 in flight", 1024, 1, 64, "ROCKETMQ"),
        one("64 connections", 1024, 64, 1),
        one("512 connections", 1024, 512, 1),
    ]
    for count in (32, 64):
        for size in (128, 1024):
            job = Job("batch", 0, 0, "bench-batch", window=4, body_size=size, batch=count)
            rows.append(Row(f"batches of {count}, 4 in flight, {size} B", flush, job))
    if flush == ASYNC:
        rows.append(Row("a held pull wakes up, 128 B", flush, kind="wake"))
        rows.append(Row("SDK sends and consumes, 1 KiB", flush, kind="sdk"))
        rows.append(Row("Java client sends and consumes, 1 KiB", flush, kind="java"))
    return rows


def pulls() -> list[Row]:
    job = Job("pull", 0, 0, "bench-pull", window=4, body_size=1024)
    return [
        Row("pull of 32, 1 KiB", ASYNC, job),
        Row("pull of 32 by a tag of one in ten", ASYNC, replace(job, expression="t3")),
        Row("pull of 32 not in memory", ASYNC, job, "cold"),
    ]


def drop_from_cache(folder: Path) -> None:
    """Write a stopped store's files to the disk and take them out of the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def fill(bench: Bench, rounds: int) -> None:
    """Store what the pulls read: queue 0 of one topic, its end not read until its round."""
    count = COLD_BEGIN + rounds * COLD_PULLS * PULL_COUNT + PULL_COUNT
    job = Job("fill", 0, 0, "bench-pull", window=256, body_size=1024, messages=count, limit_s=300.0)
    for name, server in bench.servers.items():
        is_ours = server.protocol == "rocketmq"
        bench.load(name, job if is_ours else replace(job, messages=FILL_COUNT))


def measure(options: argparse.Namespace, folder: Path) -> tuple[list[Measured], dict[str, float]]:
    """Run all rows. Return them, and each broker's resident MiB after the sends."""
    done: list[Measured] = []
    resident: dict[str, float] = {}
    for phase, rows in ((ASYNC, sends(ASYNC)), (SYNC, sends(SYNC)), ("pulls", pulls())):
        rows = [row for row in rows if options.only in f"{row.name}, {row.flush}"]
        if not rows:
            continue
        with started(options, folder / phase, SYNC if phase == SYNC else ASYNC) as bench:
            if phase == "pulls":
                fill(bench, options.rounds)
                bench.stop()
                for contender in bench.contenders:
                    drop_from_cache(contender.folder)
                bench.start()
                bench.warm(Job("pull", 0, 0, "bench-pull", window=4, body_size=1024))
            else:
                bench.warm(Job("send", 0, 0, "bench-send", window=64, body_size=1024))
            measured = [Measured(row) for row in rows if bench.runs(row)]
            for number in range(options.rounds):
                for one in measured:
                    for name in bench.runs(one.row):
                        note(f"{phase}, round {number + 1}: {one.row.name}, {name}")
                        one.rounds.setdefault(name, []).append(bench.run(one.row, name, number))
            for name, server in bench.servers.items():
                resident[f"{name}, {phase}"] = resident_mib(server.pid)
        done += measured
    note("")
    return done, resident


@contextlib.contextmanager
def started(options: argparse.Namespace, folder: Path, flush: str) -> Iterator[Bench]:
    contenders: list[Contender] = []
    for name in (OURS, *options.peers):
        place = folder / name
        place.mkdir(parents=True)
        contenders.append(contender(name, place, flush, options.heap))
    with load() as source, crowd() as others:
        bench = Bench(contenders, source, others, options.seconds)
        try:
            bench.start()
            yield bench
        finally:
            bench.stop()
            shutil.rmtree(folder)


def note(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def text_of(rows: list[Measured], resident: dict[str, float]) -> str:
    lines = [machine(), ""]
    for measured in rows:
        lines.append(f"{measured.row.name}, {measured.row.flush}")
        for name in measured.rounds:
            figures = measured.figures(name)
            ratio = ""
            if name != OURS:
                ratios = measured.ratios(name)
                ratio = f"  x {median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
            waits = f"p50 {figures['p50_ms']:8.3f} ms  p99 {figures['p99_ms']:8.3f} ms"
            lines.append(
                f"    {name:<14}{figures['cpu_us']:>10.2f} us CPU a message"
                f"{figures['per_s']:>10,}/s  {waits if figures['p50_ms'] else '':<32}{ratio}"
            )
    lines += ["", *(f"resident, {name}: {mib:,.0f} MiB" for name, mib in resident.items())]
    return "\n".join(lines)


def enter_namespace(peers: list[str]) -> list[str]:
    """Start this program again in a network namespace of its own; bring its loopback up there.

    What the peers need is got before: there is no network inside.
    """
    if INSIDE not in os.environ:
        reasons = {peer: lacking(peer) for peer in peers}
        for peer in filter(reasons.get, peers):
            print(f"skipped: {peer}: {reasons[peer]}", flush=True)
        there = " ".join(peer for peer in peers if not reasons[peer])
        if not there:
            sys.exit()
        command = ["unshare", "--net", *(["--map-root-user"] if os.geteuid() else [])]
        command += [sys.executable, "-m", "tests.bench.rocketmq", *sys.argv[1:]]
        os.execvpe(command[0], command, {**os.environ, INSIDE: there})
    siocsifflags, up_and_running = 0x8914, 0x41
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, siocsifflags, struct.pack("16sH14x", b"lo", up_and_running))
    return os.environ[INSIDE].split()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.rocketmq",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each row in a round")
    parser.add_argument("--only", default="", help="rows whose name or flush mode has this text")
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=[*PEERS, *OTHERS])
    parser.add_argument("--heap", default="4g", help="of each of RocketMQ's brokers")
    parser.add_argument("--store", type=Path, help="folder on the disk to measure; default: ./var")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, min(options.seconds, 0.5)
    if shutil.which("unshare") is None:
        print("skipped: not installed: unshare")
        return
    options.peers = enter_namespace(options.peers)
    parent = options.store or Path(__file__).resolve().parents[2] / "var"
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as folder:
        rows, resident = measure(options, Path(folder))
    print(text_of(rows, resident))
    if options.json:
        figures = {"machine": machine(), "rows": [row.as_json() for row in rows]}
        options.json.write_text(json.dumps({**figures, "resident_mib": resident}, indent=2) + "\n")


if __name__ == "__main__":
    main()
