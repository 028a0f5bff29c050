"""One measurement of the store in a process of its own: a JSON job in, a JSON line of figures out.

    python -m tests.bench.store_jobs '{"kind": "fill", "root": "...", "messages": 100000, ...}'

The store runs as it does in a broker, with its threads and a loop, but without a socket. CPU time
is that of all threads.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import shutil
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.broker.base.process import memory_size
from skylarkmq.common.files import DiskFiles
from skylarkmq.common.worker import StoreWorkers
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.store.config import StoreConfig
from skylarkmq.store.index.service import IndexAnswer
from skylarkmq.store.log.flushed_offset import FlushedOffset
from skylarkmq.store.message_store import MessageStore
from tests.bench.peers import resident_mib

HOST = HostAddress("127.0.0.1", 10911).pack()
COMMIT_COUNT = 64  # messages of one write, as one read of a socket brings them
PULL_COUNT = 32
FILE_SIZE = 256 << 20
CLEAN, KILLED = "clean", "killed"


@dataclass(frozen=True)
class StoreJob:
    """What to do; sizes in bytes."""

    kind: str  # fill, sync, recover, read, index, rebuild
    root: str
    messages: int = 0
    body_size: int = 128
    topics: int = 1
    keys: bool = False  # each message carries a unique key
    end: str = CLEAN
    seed: int = 1


@dataclass
class Measured:
    """Time that some part of a job took."""

    seconds: float
    cpu_s: float


class Stopwatch:
    """Wall time, and CPU time of the whole process."""

    def __init__(self) -> None:
        self._started, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> Measured:
        return Measured(time.perf_counter() - self._started, time.process_time() - self._cpu)


class Bench:
    """A store on a real disk, driven from a loop."""

    def __init__(self, job: StoreJob) -> None:
        loop = asyncio.get_running_loop()
        self.job = job
        self.workers = StoreWorkers.threads(loop.call_soon_threadsafe)
        config = StoreConfig(
            store_path_root_dir=Path(job.root),
            mapped_file_size_commit_log=FILE_SIZE,
            message_index_enable=job.keys,
        )
        self.store = MessageStore(
            config, DiskFiles(), SystemClock(loop), self.workers, memory_size=memory_size()
        )

    def topic(self, number: int) -> str:
        return f"bench-{number}"

    def key(self, number: int) -> str:
        return f"{self.job.seed:08X}{number:024X}"

    async def open(self) -> Measured:
        watch = Stopwatch()
        self.store.load()
        loaded = watch.read()
        self.store.start()
        return loaded

    async def close(self, how: str) -> None:
        if how == KILLED:
            return  # the process ends without a word
        self.store.stop_writing()
        await asyncio.get_running_loop().run_in_executor(None, self.workers.stop)
        await asyncio.sleep(0)
        self.store.close()

    async def fill(self, first: int, count: int) -> Measured:
        """Store messages `first` and following, evenly over the topics."""
        store, job = self.store, self.job
        queues = [store.queues.open(self.topic(number), 0) for number in range(job.topics)]
        body = random.Random(job.seed).randbytes(job.body_size)
        now_ms = 1_700_000_000_000
        watch = Stopwatch()
        for start in range(first, first + count, COMMIT_COUNT):
            batch = store.begin()
            for number in range(start, min(start + COMMIT_COUNT, first + count)):
                text = f"UNIQ_KEY\x01{self.key(number)}\x02" if job.keys else "TAGS\x01a\x02"
                queue = queues[number % job.topics]
                batch.add(queue, body, text.encode(), now_ms, HOST, HOST, 97)
            if not store.commit(None):
                raise RuntimeError(f"the store does not take messages: {store.refusal()}")
            await asyncio.sleep(0)
        return watch.read()


async def fill(bench: Bench) -> dict[str, Any]:
    """Store messages; the cost of the first and of the last tenth apart."""
    await bench.open()
    count = bench.job.messages
    tenth = max(COMMIT_COUNT, count // 10)
    first = await bench.fill(0, tenth)
    middle = await bench.fill(tenth, count - 2 * tenth)
    last = await bench.fill(count - tenth, tenth)
    await bench.close(bench.job.end)
    return {
        "messages_per_s": count / (first.seconds + middle.seconds + last.seconds),
        "cpu_us": (first.cpu_s + middle.cpu_s + last.cpu_s) / count * 1e6,
        "first_cpu_us": first.cpu_s / tenth * 1e6,
        "last_cpu_us": last.cpu_s / tenth * 1e6,
        "resident_mib": resident_mib(os.getpid()),
        "anonymous_mib": anonymous_mib(),
    }


async def sync(bench: Bench) -> dict[str, Any]:
    """Sync the log after each message, every other time without saying how far it is synced."""
    await bench.open()
    log, queue = bench.store.commit_log, bench.store.queues.open(bench.topic(0), 0)
    silent = FlushedOffset(DiskFiles(), bench.store.paths.root / "silent")
    spent, saying_s = [0.0, 0.0], 0.0
    for number in range(bench.job.messages):
        batch = log.begin()
        batch.add(queue, bytes(bench.job.body_size), b"", 1_700_000_000_000, HOST, HOST, 0)
        batch.write()
        request = log.flush_request()
        assert request is not None
        if number % 2:
            request = request._replace(flushed=silent)
        started = time.perf_counter()
        request.run()
        spent[number % 2] += time.perf_counter() - started
        started = time.perf_counter()
        request.flushed.write(request.end_offset)
        saying_s += 0 if number % 2 else time.perf_counter() - started
        log.mark_flushed(request)
    half_us = bench.job.messages / 2 / 1e6
    await bench.close(KILLED)
    return {
        "sync_us": spent[0] / half_us,
        "silent_us": spent[1] / half_us,
        "saying_us": saying_s / half_us,
    }


async def recover(bench: Bench) -> dict[str, Any]:
    """Start on what is there."""
    loaded = await bench.open()
    report = bench.store.recovery
    assert report is not None
    figures = {
        "seconds": loaded.seconds,
        "cpu_s": loaded.cpu_s,
        "records": report.records,
        "clean": report.clean,
        "resident_mib": resident_mib(os.getpid()),
        "anonymous_mib": anonymous_mib(),
    }
    await bench.close(CLEAN)
    return figures


async def read(bench: Bench) -> dict[str, Any]:
    """Pull a queue from front to back, then single messages at random places."""
    await bench.open()
    store, topic = bench.store, bench.topic(0)
    end = store.max_offset(topic, 0)
    watch = Stopwatch()
    offset = 0
    while offset < end:
        offset = store.get_message(topic, 0, offset, PULL_COUNT).next_begin_offset
    in_order = watch.read()
    rng = random.Random(bench.job.seed)
    places = [rng.randrange(end) for _ in range(min(end, 20_000))]
    watch = Stopwatch()
    for place in places:
        bytes(store.get_message(topic, 0, place, 1).views[0])
    at_random = watch.read()
    await bench.close(CLEAN)
    return {
        "sequential_us": in_order.cpu_s / end * 1e6,
        "sequential_per_s": end / in_order.seconds,
        "random_us": at_random.cpu_s / len(places) * 1e6,
        "random_per_s": len(places) / at_random.seconds,
    }


async def index(bench: Bench) -> dict[str, Any]:
    """Store messages with keys, then look single ones up.

    The cost of handing units over is that of the loop thread, the cost of building that of the
    index thread.
    """
    await bench.open()
    store, count = bench.store, bench.job.messages
    taken_s = 0.0
    take = store.writer.on_published

    def timed(entries: bytearray | None, end_offset: int) -> None:
        nonlocal taken_s
        started = time.thread_time()
        take(entries, end_offset)
        taken_s += time.thread_time() - started

    store.writer.on_published = timed
    before_s = await index_thread_s(bench)
    watch = Stopwatch()
    await bench.fill(0, count)
    await caught_up(bench)
    lasted = watch.read()
    build_s = await index_thread_s(bench) - before_s
    rng = random.Random(bench.job.seed)
    latencies: list[float] = []
    for _ in range(min(count, 2000)):
        number = rng.randrange(count)
        watch = Stopwatch()
        answer = await look_up(bench, number)
        latencies.append(watch.read().seconds * 1e6)
        if len(answer.offsets) != 1:
            raise RuntimeError(f"{bench.key(number)} was found {len(answer.offsets)} times")
    await bench.close(CLEAN)
    latencies.sort()
    return {
        "messages_per_s": count / lasted.seconds,
        "read_again": store.stats.index_records_read,
        "take_us": taken_s / count * 1e6,
        "build_us": build_s / count * 1e6,
        "query_us": latencies[len(latencies) // 2],
        "query_p99_us": latencies[len(latencies) * 99 // 100],
    }


async def rebuild(bench: Bench) -> dict[str, Any]:
    """Start on a store whose index was removed."""
    shutil.rmtree(bench.store.paths.index)
    await bench.open()
    watch = Stopwatch()
    await caught_up(bench)
    lasted = watch.read()
    count = bench.store.stats.index_records_read
    await bench.close(CLEAN)
    return {"messages_per_s": count / lasted.seconds, "cpu_us": lasted.cpu_s / count * 1e6}


async def caught_up(bench: Bench) -> None:
    while bench.store.index.behind_bytes:  # noqa: ASYNC110  # nobody tells
        await asyncio.sleep(0.005)


async def index_thread_s(bench: Bench) -> float:
    """CPU time of the index thread."""
    told: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    bench.workers.index.submit(time.thread_time, lambda seconds, _: told.set_result(seconds or 0.0))
    return await told


async def look_up(bench: Bench, number: int) -> IndexAnswer:
    """What the index knows of a message's unique key."""
    told: asyncio.Future[IndexAnswer] = asyncio.get_running_loop().create_future()

    def done(answer: IndexAnswer | None, error: BaseException | None) -> None:
        if answer is None:
            told.set_exception(error or RuntimeError("no answer"))
        else:
            told.set_result(answer)

    topic = bench.topic(number % bench.job.topics)
    bench.store.index.query(topic, bench.key(number), 64, 0, 2**62, done)
    return await told


def anonymous_mib() -> float:
    """Memory that is the process's own, not pages of files."""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024


JOBS: dict[str, Callable[[Bench], Awaitable[dict[str, Any]]]] = {
    "fill": fill,
    "sync": sync,
    "recover": recover,
    "read": read,
    "index": index,
    "rebuild": rebuild,
}


async def run(job: StoreJob) -> dict[str, Any]:
    return await JOBS[job.kind](Bench(job))


def main() -> None:
    job = StoreJob(**json.loads(sys.argv[1]))
    figures = asyncio.run(run(job))
    figures["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(figures), flush=True)
    os._exit(0)  # a killed store must not be closed by anything that runs at exit


if __name__ == "__main__":
    main()
