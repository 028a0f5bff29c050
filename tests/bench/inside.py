"""What a message costs inside the broker, without sockets: with the compiled kernel and without.

    python -m tests.bench.inside [--rounds 5] [--flush SYNC_FLUSH] [--only TEXT]

Requests are handed to the broker's connections as a socket would, and what it answers is dropped.
CPU time is that of all threads for a message, or for a pull. The two roads take turns, each in a
process of its own. Shown are medians, and the ratios of the rounds as median, lowest and highest.
Where no kernel is installed there is one road, and no ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import cast

import uvloop

from skylarkmq import kernel
from skylarkmq.broker.base.process import collect_rarely, keep_freed_memory
from skylarkmq.broker.config.config_file import Sources, load_broker_config
from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.net.connection import Connection
from skylarkmq.protocol.frame import SerializeType
from tests.bench import frames
from tests.support.fake_transport import Transport
from tests.support.ports import free_ports

CONNECTIONS = 64
REPEATS = 7
BODY_SIZE = 1024
SETTLE_S = 0.15
"""So long other threads may work after a run; their time counts."""
CODECS = (SerializeType.JSON, SerializeType.MSGPACK, SerializeType.ROCKETMQ)


class Sink(Transport):
    """A peer that drops what it gets."""

    def write(self, data: bytes) -> None:
        """Drop it."""


def connect(broker: BrokerController) -> Connection:
    """A connection of the broker, with a peer that drops what it gets."""
    server = broker.server
    assert server is not None
    made = cast(Connection, server._make())
    transport = Sink(("127.0.0.1", 4711))
    transport.protocol = made
    made.connection_made(cast(asyncio.BaseTransport, transport))
    return made


async def answered(connections: list[Connection]) -> None:
    """Let the loop turn until nothing waits for the disk."""
    await asyncio.sleep(0)
    # An event would cost what is measured.
    while any(each.parked for each in connections):  # noqa: ASYNC110
        await asyncio.sleep(0.0002)


Work = Callable[[], Awaitable[None]]


def works(connections: list[Connection]) -> Iterator[tuple[str, int, Work]]:
    """Yield what is measured: its name, for how many messages or pulls, and what does it once."""
    alone = connections[:1]

    async def feed(ring: frames.Ring, count: int, each: int, peers: list[Connection]) -> None:
        for start in range(0, count, each * len(peers)):
            for place, peer in enumerate(peers):
                peer.data_received(bytes(ring.slice(start + place * each, each)))
            await answered(peers)

    for codec in CODECS:
        ring = frames.send_ring("bench-send", BODY_SIZE, codec)
        name = f"{codec.name}, 1 KiB"
        yield f"send, 64 in flight, {name}", 2048, lambda r=ring: feed(r, 2048, 64, alone)
        yield f"send, 64 connections, {name}", 2048, lambda r=ring: feed(r, 2048, 1, connections)
        yield f"send, 1 in flight, {name}", 512, lambda r=ring: feed(r, 512, 1, alone)
    for size in (128, BODY_SIZE):
        ring = frames.batch_ring("bench-batch", size, SerializeType.JSON, 64)
        yield f"batch of 64, {size} B", 64 * 32, lambda r=ring: feed(r, 32, 1, alone)
    fill = frames.fill_ring("bench-pull", BODY_SIZE, SerializeType.JSON)
    yield "", 0, lambda: feed(fill, 10_240, 64, alone)
    for codec in CODECS:
        for what, expression in (("", "*"), (", one tag in ten", "t3")):
            ring = frames.pull_ring("bench-pull", codec, expression)
            name = f"pull of 32{what}, {codec.name}"
            yield name, 240, lambda r=ring: feed(r, 240, 4, alone)


async def measure(root: Path, flush: str, only: str) -> dict[str, float]:
    """CPU microseconds by name, the least of some runs."""
    port = free_ports(-2, 1)[0]  # and the fast port, and the one for slaves
    settings = [f"storePathRootDir={root}", f"flushDiskType={flush}", f"listenPort={port}"]
    settings += ["bindAddress=127.0.0.1", "brokerIP1=127.0.0.1", "metricsPromExporterPort=0"]
    broker = BrokerController(load_broker_config(Sources(settings=settings)).config)
    await broker.start()
    costs: dict[str, float] = {}
    try:
        connections = [connect(broker) for _ in range(CONNECTIONS)]
        for each in connections:  # the first request of each settles its codec
            each.data_received(bytes(frames.send_ring("bench-send", 1, CODECS[0]).slice(0, 1)))
        await answered(connections)
        for name, count, work in works(connections):
            if name and only not in name:
                continue
            await work()
            for _ in range(REPEATS if name else 0):
                started = time.process_time()
                await work()
                await asyncio.sleep(SETTLE_S)
                cost = (time.process_time() - started) / count * 1e6
                costs[name] = min(cost, costs.get(name, cost))
        for each in connections:
            each.connection_lost(None)
    finally:
        await broker.stop()
    return costs


def run_once(options: argparse.Namespace) -> None:
    """Measure in this process, and print the figures as JSON."""
    keep_freed_memory()
    collect_rarely()
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        costs = runner.run(measure(Path(folder), options.flush, options.only))
    print(json.dumps(costs))


def main() -> None:
    """Read the command line, measure both roads in turns, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--flush", default="ASYNC_FLUSH", choices=("ASYNC_FLUSH", "SYNC_FLUSH"))
    parser.add_argument("--only", default="", help="rows whose name has this text")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        run_once(options)
        return
    roads = {"Python": "1"} if kernel.compiled is None else {"kernel": "", "Python": "1"}
    rounds: list[dict[str, dict[str, float]]] = []
    for _ in range(options.rounds):
        figures: dict[str, dict[str, float]] = {}
        for road, pure in roads.items():
            command = [sys.executable, "-m", "tests.bench.inside", "--once"]
            command += ["--flush", options.flush, "--only", options.only]
            environment = {**os.environ, kernel.PURE_VARIABLE: pure}
            done = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            figures[road] = json.loads(done.stdout.splitlines()[-1])
        rounds.append(figures)
    for name in rounds[0]["Python"]:
        python = [figures["Python"][name] for figures in rounds]
        line = f"{name:40} Python {statistics.median(python):7.2f} us"
        if len(roads) > 1:
            compiled = [figures["kernel"][name] for figures in rounds]
            ratios = [a / b for a, b in zip(compiled, python, strict=True)]
            line += f", kernel {statistics.median(compiled):7.2f} us, "
            line += f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(line)


if __name__ == "__main__":
    main()
