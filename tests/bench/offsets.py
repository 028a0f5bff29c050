"""What consumers' offsets cost at each interval: `python -m tests.bench.offsets`.

All groups commit an offset of each queue of a topic, as at work. Printed are, for one interval, the
bytes of `consumerOffset.json` and the CPU time that it takes on the loop and on the tables thread,
the time until the disk has it, and the bytes that a set of replicas puts into its log for it; then
what that makes in a day with the intervals in question.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from skylarkmq.common.files import DiskFiles
from tests.broker.replication.metadata_rig import Replica
from tests.support.manual_clock import ManualClock

ROUNDS = 7
INTERVALS_S = (1, 5)
TOPICS = 500
FROM = 12_345_678
DAY_S = 86_400


async def run(groups: int, queues: int, folder: Path) -> None:
    """Commit and write some times; print the medians."""
    sizes: dict[str, Any] = {"mapped_file_size_commit_log": 1 << 26, "max_message_size": 4 << 20}
    replica = await _led(Replica(ManualClock(), **sizes))
    offsets, log = replica.parts.offsets, replica.store.commit_log
    takes: list[float] = []
    texts: list[float] = []
    writes: list[float] = []
    commits: list[float] = []
    logged: list[int] = []
    size = 0
    for number in range(ROUNDS):

        def commit(number: int = number) -> None:
            for group in range(groups):
                for queue_id in range(queues):
                    topic = f"topic-of-orders-{group % TOPICS}"
                    offsets.keep(
                        "bench", f"group-of-service-{group}", topic, queue_id, FROM + number
                    )

        commits.append(_cpu(commit))
        before = log.wrote_offset
        writing = asyncio.ensure_future(offsets.durable())
        while not writing.done():
            await replica.advance(0.25)
            replica.store.confirm(log.wrote_offset)
        logged.append(log.wrote_offset - before)
        text = offsets._taken()
        takes.append(_cpu(offsets._taken))
        found: list[bytes] = []
        texts.append(_cpu(lambda: found.append(text())))  # noqa: B023
        size = len(found[0])
        began = time.perf_counter()
        DiskFiles().replace(folder / "consumerOffset.json", found[0], backup=True)
        writes.append(time.perf_counter() - began)
    print(f"{groups} groups of {queues} queues: file {size / 1e6:.1f} MB")
    print(
        f"CPU of the loop {1000 * median(takes):.1f} ms, of the tables thread "
        f"{1000 * median(texts):.0f} ms; on the disk after {1000 * median(writes):.0f} ms; "
        f"the commits themselves {1000 * median(commits):.0f} ms"
    )
    print(f"log of a set of replicas {median(logged) / 1e6:.1f} MB")
    for interval_s in INTERVALS_S:
        day = DAY_S / interval_s / 1e9
        print(
            f"each {interval_s} s: file {size * day:.0f} GB a day, log of each replica "
            f"{median(logged) * day:.0f} GB a day, "
            f"{100 * (median(takes) + median(texts)) / interval_s:.1f} % of a core"
        )


async def _led(replica: Replica) -> Replica:
    replica.start()
    return await replica.lead()


def _cpu(call: Callable[[], object]) -> float:
    began = time.thread_time()
    call()
    return time.thread_time() - began


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--queues", type=int, default=8)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(arguments.groups, arguments.queues, Path(folder)))


if __name__ == "__main__":
    main()
