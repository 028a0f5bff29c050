"""What a scrape costs with many topics and groups: `python -m tests.bench.scrape`.

Every group has offsets of every topic, with messages of which it confirmed one and was handed two,
and a member. Printed are the CPU time of a scrape, its
size, and the longest turn of the loop, as CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from prometheus_client import generate_latest

from skylarkmq.broker.base.health import HealthChecks
from skylarkmq.broker.broker_metrics import registry_of
from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.pages.http import exposition
from skylarkmq.protocol.bodies.group import ConsumerData
from skylarkmq.protocol.codes import LanguageCode
from tests.broker.group_rig import FakeConnection
from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient, send_fields

ROUNDS = 5


async def fill(broker: BrokerController, topics: int, groups: int) -> None:
    """Make topics with three messages each, and groups that took two of them."""
    parts = broker.parts
    client = await RawClient.open(broker.listen_address)
    for number in range(groups):
        data = ConsumerData(
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            consume_type="CONSUME_PASSIVELY",
            group_name=f"group-{number}",
            message_model="CLUSTERING",
        )
        peer: Any = FakeConnection(f"192.0.2.1:{number}")
        parts.consumers.register(peer, f"client-{number}", LanguageCode.JAVA, 409, data)
    for number in range(topics):
        topic = f"topic-{number}"
        for _ in range(3):
            answer = await client.call(310, send_fields(topic), b"x" * 100)
            assert answer.code == 0, answer.remark
        for group in range(groups):
            name = f"group-{group}"
            parts.offsets.keep("bench", name, topic, 0, 1)
            parts.stats.pulled_by(topic, name)[0] = 2
            parts.stats.topic_out(topic, name).count += 2
    await client.close()


async def longest_turn(stop: asyncio.Event) -> float:
    """Return the most CPU time between two turns of the loop, s."""
    longest, last = 0.0, time.thread_time()
    while not stop.is_set():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    return longest


async def measure(topics: int, groups: int, folder: Path) -> str:
    """Return a line of figures."""
    async with live_broker(folder, new_names_per_second=0) as broker:
        await fill(broker, topics, groups)
        checks = HealthChecks(ready={}, live={})
        registry = registry_of(broker.parts, checks, "asyncio", dict, lambda: 1)
        costs, turns, text = list[float](), list[float](), b""
        for _ in range(ROUNDS):
            stop = asyncio.Event()
            watch = asyncio.create_task(longest_turn(stop))
            started = time.process_time()
            await broker.parts.measure()
            text = await exposition(registry, generate_latest, zipped=False)
            costs.append(time.process_time() - started)
            stop.set()
            turns.append(await watch)
    series = sum(not line.startswith(b"#") for line in text.splitlines())
    return (
        f"{topics} topics x {groups} groups: {series:,} series, "
        f"{len(text) / 2**20:.1f} MiB, {median(costs):.2f} s of CPU, "
        f"longest turn {median(turns) * 1000:.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=10)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        print(asyncio.run(measure(args.topics, args.groups, Path(name))), flush=True)


if __name__ == "__main__":
    main()
