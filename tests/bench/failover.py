"""What failover costs a send: a master with 0, 1 and 2 followers under etcd, beside SYNC_MASTER.

    python -m tests.bench.failover [--rounds 5] [--messages 20000] [--only TEXT] [--store DIR]

Five masters take the same messages in turns, for each flush mode: one alone; a SYNC_MASTER with its
slave; and replicas that elect their master, with 0, 1 and 2 followers in sync, all of which have a
message before it is acknowledged. etcd is a process of its own and never asked for a message.
Figures are medians of the rounds: CPU us of all threads of the master for each message, that of its
slave or followers together, and how long a send takes. The ratio is that of the single rounds to
the master alone.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import pytest

from skylarkmq.broker.config.settings import HA_PORT_DISTANCE
from skylarkmq.broker.replication.failover.etcd import prefix_of
from tests.bench.load import Figures, Job, cpu_seconds
from tests.bench.peers import POLL_S, Load, Server, broker, load
from tests.bench.replication import COPY_LIMIT_S, spread, wait_until_copied
from tests.bench.report import machine
from tests.bench.scenarios import ASYNC, SYNC, job
from tests.support.etcd_process import start_etcd

ALONE, WAITING = "alone", "SYNC_MASTER, 1 slave"
FOLLOWERS = (0, 1, 2)
WHOLE_LIMIT_S = 60.0
LEASE_S = 60  # a busy machine is no reason for another master
BODY_SIZE = 1024


@dataclass(frozen=True)
class Subject:
    """A master, and those who have its messages before they are acknowledged."""

    master: Server
    others: tuple[Server, ...] = ()

    def run(self, work: Job, source: Load) -> Costs:
        """Return what a run cost all of them, until the others have the whole log, too."""
        servers = (self.master, *self.others)
        before = [cpu_seconds(each.pid) for each in servers]
        figures = source.run(replace(work, port=self.master.port, pid=self.master.pid))
        for other in self.others:
            wait_until_copied(self.master, other)
        spent = [cpu_seconds(each.pid) - at for each, at in zip(servers, before, strict=True)]
        each_us = [seconds / work.messages * 1e6 for seconds in spent]
        return Costs(each_us[0], sum(each_us[1:]), figures)


@dataclass(frozen=True)
class Costs:
    """What one run gave; CPU in us a message."""

    master_us: float
    others_us: float
    figures: Figures


@dataclass
class Row:
    """What the rounds gave for one load and flush mode, by kind of master."""

    name: str
    work: Job
    costs: dict[str, list[Costs]] = field(default_factory=dict)

    def shown(self) -> str:
        """Return its lines."""
        alone = [each.master_us for each in self.costs[ALONE]]
        lines = [self.name]
        for kind, costs in self.costs.items():
            master = [each.master_us for each in costs]
            ratios = spread([mine / other for mine, other in zip(master, alone, strict=True)])
            others = median(each.others_us for each in costs)
            p50, p99 = (
                median(times) * 1e3
                for times in (
                    [each.figures.p50_s for each in costs],
                    [each.figures.p99_s for each in costs],
                )
            )
            lines.append(
                f"    {kind:24} {median(master):7.2f} us, {ratios} times alone; "
                f"the others {others:7.2f} us; p50 {p50:6.2f} ms, p99 {p99:6.2f} ms"
            )
        return "\n".join(lines)


def works(messages: int, flush: str) -> list[Row]:
    """Return the loads."""
    rows: list[Row] = []
    for name, connections, window, share in (
        ("send, 1 in flight", 1, 1, 10),
        ("send, 64 in flight", 1, 64, 1),
        ("send, 4 connections of 256", 4, 256, 1),
        ("send, 64 connections", 64, 1, 2),
    ):
        work = job("send", BODY_SIZE, connections, window, "JSON")
        work = replace(work, messages=max(1, messages // share), limit_s=COPY_LIMIT_S)
        rows.append(Row(f"{name}, {BODY_SIZE} B, {flush}", work))
    return rows


Start = Callable[[str, dict[str, object]], Server]


def replicas(start: Start, etcd: str, name: str, followers: int) -> Subject:
    """Start a master under etcd with so many followers, and wait until they are in sync."""
    servers: list[Server] = []
    for number in range(1 + followers):
        keys: dict[str, object] = {
            "controllerEndpoints": etcd,
            "controllerLeaseTtl": LEASE_S,
            "haMaxTimeSlaveNotCatchup": LEASE_S * 1000,
            "brokerName": name,
            "brokerId": number + 1,
            "minInSyncReplicas": 1 + followers,
            "namesrvAddr": "",
        }
        servers.append(start(f"{name}-{number}", keys))
        wait_until_in_sync(etcd, name, number + 1)  # so the first one leads
    return Subject(servers[0], tuple(servers[1:]))


def wait_until_in_sync(etcd: str, name: str, count: int) -> None:
    """Wait until so many replicas are recorded as in sync."""
    limit_s = time.monotonic() + WHOLE_LIMIT_S
    key = base64.b64encode(prefix_of("DefaultCluster", name) + b"state").decode()
    while time.monotonic() < limit_s:
        with urllib.request.urlopen(f"{etcd}/v3/kv/range", json.dumps({"key": key}).encode()) as it:
            rows = json.loads(it.read()).get("kvs", [])
        if rows and len(json.loads(base64.b64decode(rows[0]["value"]))["inSync"]) == count:
            return
        time.sleep(POLL_S * 10)
    raise RuntimeError(f"{count} replicas of {name} are not in sync after {WHOLE_LIMIT_S:.0f} s")


def subjects(start: Start, etcd: str) -> dict[str, Subject]:
    """Start all masters, with those who follow them."""
    found = {ALONE: Subject(start("alone", {}))}
    master = start("sync-master", {"brokerRole": "SYNC_MASTER"})
    place = f"127.0.0.1:{master.port + HA_PORT_DISTANCE}"
    keys: dict[str, object] = {"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": place}
    found[WAITING] = Subject(master, (start("slave", keys),))
    for count in FOLLOWERS:
        text = f"failover, {count} follower{'s' * (count != 1)}"
        found[text] = replicas(start, etcd, f"set-of-{count + 1}", count)
    return found


def measure(options: argparse.Namespace, flush: str, folder: Path) -> list[Row]:
    """Run all loads under one flush mode."""
    rows = [row for row in works(options.messages, flush) if options.only in row.name]
    with contextlib.ExitStack() as stack:
        try:
            (etcd,) = start_etcd(folder / "etcd")
        except pytest.skip.Exception as skipped:
            raise SystemExit(str(skipped)) from None
        stack.callback(etcd.kill)

        def start(name: str, keys: dict[str, object]) -> Server:
            root = folder / name
            root.mkdir()
            command = "broker" if "controllerEndpoints" in keys else "serve"
            return stack.enter_context(broker(root, flush, keys, command=command))

        found = subjects(start, etcd.url)
        source = stack.enter_context(load())
        for number in range(options.rounds + 1):  # the first makes topics and files
            for row in rows:
                print(f"\r\x1b[Kround {number}: {row.name}", end="", file=sys.stderr)
                for kind in list(found)[:: 1 if number % 2 else -1]:
                    costs = found[kind].run(row.work, source)
                    if number:
                        row.costs.setdefault(kind, []).append(costs)
        print("\r\x1b[K", end="", file=sys.stderr)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.failover",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=20_000, help="of each run, at most")
    parser.add_argument("--only", default="", help="rows whose name has this text")
    parser.add_argument("--store", type=Path, help="folder on the disk to measure; default: ./var")
    options = parser.parse_args(arguments)
    parent = options.store or Path(__file__).resolve().parents[2] / "var"
    parent.mkdir(parents=True, exist_ok=True)
    print(f"{machine()}\n")
    for flush in (ASYNC, SYNC):
        with tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as folder:
            for row in measure(options, flush, Path(folder)):
                print(row.shown(), flush=True)


if __name__ == "__main__":
    main()
