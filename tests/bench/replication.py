"""What replication costs: CPU time of a master with a slave beside one without, and of the slave.

    python -m tests.bench.replication [--rounds 7] [--messages 100000] [--only TEXT] [--store DIR]

Five masters take the same messages in turns: one alone, one with a slave that it does not wait for
(ASYNC_MASTER), one that waits for its slave (SYNC_MASTER), and the same two with a process for a
slave that reports what it gets and keeps nothing. The other slaves are brokers and keep what they
copy, in the caches and on the disk of this machine, which their masters feel: what a slave on a
machine of its own costs lies near the one that keeps nothing. A run ends when the slave's log is as
long as its master's, so all of its work counts. Figures are CPU us of all threads for each message,
the median of the rounds and the least; the ratios are those of the single rounds, with the lowest
and the highest.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from skylarkmq.broker.config.settings import HA_PORT_DISTANCE
from skylarkmq.protocol.bodies.route import KVTable
from skylarkmq.protocol.bodies.text import decode_body
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.frame import FrameDecoder
from tests.bench.load import Job, cpu_seconds
from tests.bench.peers import POLL_S, Load, Server, broker, load, slave
from tests.bench.report import machine
from tests.bench.scenarios import ASYNC, BATCH_COUNT, SIZES, job

ALONE, FOLLOWED, WAITING = "alone", "ASYNC_MASTER", "SYNC_MASTER"
LIGHT = ", light slave"
COPY_LIMIT_S = 60.0


@dataclass(frozen=True)
class Pair:
    """A master, and the slave that follows it, if any does."""

    master: Server
    slave: Server | None = None

    def run(self, work: Job, source: Load) -> tuple[float, float]:
        """Return what a message costs the master and the slave, in us of CPU."""
        servers = [each for each in (self.master, self.slave) if each is not None]
        before = [cpu_seconds(each.pid) for each in servers]
        source.run(replace(work, port=self.master.port, pid=self.master.pid))
        if self.slave is not None:
            wait_until_copied(self.master, self.slave)
        spent = [cpu_seconds(each.pid) - at for each, at in zip(servers, before, strict=True)]
        costs = [seconds / (work.messages * work.batch) * 1e6 for seconds in spent]
        return costs[0], costs[1] if len(costs) > 1 else 0.0


@dataclass
class Row:
    """What the rounds gave for one load: costs of master and slave by kind of master."""

    name: str
    work: Job
    costs: dict[str, list[tuple[float, float]]] = field(
        default_factory=lambda: {
            kind: [] for kind in (ALONE, FOLLOWED, FOLLOWED + LIGHT, WAITING, WAITING + LIGHT)
        }
    )

    def shown(self) -> str:
        """Return its line."""
        alone = [master for master, _ in self.costs[ALONE]]
        parts = [f"{self.name:36} alone {cost(alone)}"]
        for kind, costs in list(self.costs.items())[1:]:
            masters, slaves = zip(*costs, strict=True)
            more = spread([mine / other for mine, other in zip(masters, alone, strict=True)])
            parts.append(f"{kind} {cost(masters)}, {more} times alone")
            if not kind.endswith(LIGHT):
                less = spread([copy / mine for copy, mine in zip(slaves, masters, strict=True)])
                parts.append(f"its slave {cost(slaves)}, {less} times its master")
        return "\n    ".join(parts)


def cost(rounds: Sequence[float]) -> str:
    """Return the median with the least, which other work on the machine disturbs least."""
    return f"{median(rounds):6.2f} (least {min(rounds):.2f})"


def spread(ratios: Sequence[float]) -> str:
    """Return the median with the lowest and the highest."""
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def log_end(port: int) -> int:
    """Return where a broker's log ends."""
    decoder = FrameDecoder()
    request = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO, {})
    with socket.create_connection(("127.0.0.1", port), COPY_LIMIT_S) as peer:
        peer.sendall(encode_command(request))
        while data := peer.recv(1 << 16):
            for frame in decoder.feed(data):
                table = decode_body(KVTable, decode_command(frame).body).table
                return int(table["commitLogMaxOffset"])
    raise RuntimeError("the connection was closed instead of an answer")


def wait_until_copied(master: Server, slave: Server) -> None:
    """Wait until a slave has all of its master's log."""
    end, limit_s = log_end(master.port), time.monotonic() + COPY_LIMIT_S
    while (here := log_end(slave.port)) != end:
        if time.monotonic() > limit_s:
            raise RuntimeError(f"the slave has {here} of {end} bytes")
        time.sleep(POLL_S * 25)


def works(messages: int) -> list[Row]:
    """Return the loads."""
    rows: list[Row] = []
    for size in SIZES:
        for name, kind, connections, window, batch in (
            ("send, 64 in flight", "send", 1, 64, 1),
            ("send, 4 connections of 256", "send", 4, 256, 1),
            ("send, 64 connections", "send", 64, 1, 1),
            (f"batches of {BATCH_COUNT}, 4 in flight", "batch", 1, 4, BATCH_COUNT),
        ):
            work = job(kind, size, connections, window, "JSON", batch)
            work = replace(work, messages=messages // batch, limit_s=COPY_LIMIT_S)
            rows.append(Row(f"{name}, {size} B", work))
    return rows


def measure(options: argparse.Namespace, folder: Path) -> list[Row]:
    rows = [row for row in works(options.messages) if options.only in row.name]
    with contextlib.ExitStack() as stack:

        def server(name: str, keys: dict[str, object]) -> Server:
            root = folder / name
            root.mkdir()
            return stack.enter_context(broker(root, ASYNC, keys))

        def pair(role: str) -> Pair:
            master = server(role, {"brokerRole": role})
            place = f"127.0.0.1:{master.port + HA_PORT_DISTANCE}"
            keys = {"brokerRole": "SLAVE", "brokerId": 1, "haMasterAddress": place}
            return Pair(master, server(f"slave-of-{role}", keys))

        pairs = {ALONE: Pair(server(ALONE, {}))}
        for role in (FOLLOWED, WAITING):
            pairs[role] = pair(role)
            pairs[role + LIGHT] = Pair(server(role + LIGHT, {"brokerRole": role}))
            stack.enter_context(slave(pairs[role + LIGHT].master))
        source = stack.enter_context(load())
        for number in range(options.rounds + 1):  # the first makes topics and files
            for row in rows:
                print(f"\r\x1b[Kround {number}: {row.name}", end="", file=sys.stderr)
                kinds = list(pairs)
                for kind in kinds if number % 2 else reversed(kinds):
                    costs = pairs[kind].run(row.work, source)
                    if number:
                        row.costs[kind].append(costs)
        print("\r\x1b[K", end="", file=sys.stderr)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.replication",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=100_000, help="of each run")
    parser.add_argument("--only", default="", help="rows whose name has this text")
    parser.add_argument("--store", type=Path, help="folder on the disk to measure; default: ./var")
    options = parser.parse_args()
    parent = options.store or Path(__file__).resolve().parents[2] / "var"
    parent.mkdir(parents=True, exist_ok=True)
    print(f"{machine()}\n")
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as folder:
        for row in measure(options, Path(folder)):
            print(row.shown())


if __name__ == "__main__":
    main()
