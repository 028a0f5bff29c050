"""Measures a broker inside the application beside the daemon.

    python -m tests.bench.embedded [--rounds 5] [--messages 5000]

One process sends messages of 1 KiB with the SDK, to a broker that it embeds, then to a daemon. CPU
time is that of the application and the daemon together, for each message; latency is what the
application waits for one send. Rounds are interleaved; medians.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import uvloop

from skylarkmq.client import Client, Message, Producer
from skylarkmq.embedded import Broker
from tests.bench.load import cpu_seconds
from tests.bench.peers import broker as daemon

BODY = bytes(1024)
WARM_UP = 500
PLACES = ("embedded", "daemon")
IN_FLIGHT = (1, 64)


class Sent(NamedTuple):
    """What a round found."""

    cpu_us: float
    p50_ms: float
    p99_ms: float


@asynccontextmanager
async def at(place: str) -> AsyncIterator[tuple[str, int | None]]:
    """Run a broker; its name server's address, and the daemon's process."""
    with tempfile.TemporaryDirectory() as folder:
        if place == "embedded":
            async with Broker(folder) as broker:
                yield broker.namesrv_addr, None
        else:
            with daemon(Path(folder), "ASYNC_FLUSH") as server:
                yield server.namesrv, server.pid


async def one_round(place: str, in_flight: int, count: int) -> Sent:
    """Send `count` messages, so many at a time."""
    waits: list[float] = []

    async def send(producer: Producer, messages: int) -> None:
        for _ in range(messages):
            began = time.perf_counter()
            await producer.send(Message("orders", BODY))
            waits.append(time.perf_counter() - began)

    async def all_of(messages: int) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(in_flight):
                tasks.create_task(send(producer, messages // in_flight))

    async with (
        at(place) as (address, pid),
        Client(address) as client,
        Producer(client=client) as producer,
    ):
        await all_of(WARM_UP)
        waits.clear()
        began = time.process_time() + (cpu_seconds(pid) if pid else 0)
        await all_of(count)
        took = time.process_time() + (cpu_seconds(pid) if pid else 0) - began
    waits.sort()
    return Sent(took / len(waits) * 1e6, median(waits) * 1000, waits[int(len(waits) * 0.99)] * 1000)


def main() -> None:
    """Run the rounds and print medians, and the embedded broker's ratio to the daemon."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=5000)
    options = parser.parse_args()
    print("a broker in the application, medians; ratio: embedded / daemon")
    for in_flight in IN_FLIGHT:
        found: dict[str, list[Sent]] = {place: [] for place in PLACES}
        for _ in range(options.rounds):
            for place in PLACES:
                found[place].append(uvloop.run(one_round(place, in_flight, options.messages)))
        for column, name in enumerate(("CPU, us a message", "p50, ms", "p99, ms")):
            embedded, other = (median(row[column] for row in found[place]) for place in PLACES)
            print(
                f"  {in_flight:>2} in flight  {name:<18}{embedded:>8.2f}{other:>8.2f}"
                f"  {embedded / other:.2f}"
            )


if __name__ == "__main__":
    main()
