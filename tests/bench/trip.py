"""Sends messages with the SDK and consumes them at the same time; prints one JSON line.

python -m tests.bench.trip NAMESRV TOPIC COUNT SIZE
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import uvloop

from skylarkmq.client import Client, Consumer, Message, Producer, StartFrom

BATCH = 256
LIMIT_S = 60.0


async def produce(client: Client, topic: str, count: int, body: bytes) -> None:
    async with Producer(client=client) as producer:
        for _ in range(count):
            await producer.room()
            producer.send_nowait(Message(topic, body))
        await producer.flush()


async def consume(client: Client, topic: str, count: int) -> None:
    seen = 0
    async with Consumer(
        topic, client=client, group=f"{topic}-group", start_from=StartFrom.FIRST, batch_size=BATCH
    ) as consumer:
        while seen < count:
            by_queue = await consumer.getmany(BATCH, timeout=LIMIT_S)
            if not by_queue:
                raise TimeoutError(f"{seen} of {count} messages came")
            seen += sum(map(len, by_queue.values()))


async def trip(namesrv: str, topic: str, count: int, size: int) -> dict[str, float]:
    async with Client(namesrv) as client:
        async with Producer(client=client) as first:  # the topic is there before its consumer
            await first.send(Message(topic, b"x"))
        started, cpu_s = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(consume(client, topic, count + 1))
            tasks.create_task(produce(client, topic, count, b"x" * size))
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "client_cpu_s": time.process_time() - cpu_s}


if __name__ == "__main__":
    _, namesrv, topic, count, size = sys.argv
    print(json.dumps(uvloop.run(trip(namesrv, topic, int(count), int(size)))))
