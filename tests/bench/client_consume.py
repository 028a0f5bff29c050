"""What a consumed message costs its consumer: the SDK's two ways beside bare pulls.

    python -m tests.bench.client_consume [--count 20000] [--size 1024] [--loop uvloop]

`pulls` asks for one batch after the other and decodes it: the least that any consumer does.
`getmany` takes batches from a `Consumer` and acknowledges them; `run` hands each message to a
handler that does nothing. Prints CPU time of this process a message and the ratio to `pulls`, both
medians over rounds in which they take turns; asserts nothing.
"""

from __future__ import annotations

import asyncio

from skylarkmq.client import Client, Consumer, Message, Producer, ReceivedMessage, StartFrom
from skylarkmq.client.instance import services_of
from skylarkmq.client.wire.api_pull import PullRequest, pull
from skylarkmq.protocol.bodies.group import SubscriptionData
from tests.bench.client_send import compare, cost_of

TOPIC = "client-consume"
BATCH = 256
ROUNDS = 7
TIMEOUT_S = 10.0


async def bare(client: Client, count: int) -> None:
    """Pull every queue of the topic to its end and decode."""
    remoting = services_of(client).remoting
    route = await services_of(client).routes.refresh(TOPIC)
    assert route is not None
    address = next(iter(route.brokers.values()))[0]
    everything = SubscriptionData(topic=TOPIC, sub_string="*")
    seen = 0
    for queue in route.subscribe_queues:
        offset = 0
        while True:
            wish = PullRequest("bare", queue, offset, BATCH, 0, 0, 0, 1 << 20, everything)
            result = await pull(remoting, address, wish, TIMEOUT_S)
            seen += len(result.messages)
            offset = result.next_offset
            if offset >= result.max_offset:
                break
    assert seen == count


async def getmany(client: Client, group: str, count: int) -> None:
    """Take all in batches."""
    seen = 0
    start = StartFrom.FIRST
    async with Consumer(
        TOPIC, client=client, group=group, start_from=start, batch_size=BATCH
    ) as consumer:
        while seen < count:
            by_queue = await consumer.getmany(BATCH, timeout=TIMEOUT_S)
            seen += sum(map(len, by_queue.values()))


async def run(client: Client, group: str, count: int) -> None:
    """Have all handled."""
    done = asyncio.Event()
    seen = 0

    async def handle(message: ReceivedMessage) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            done.set()

    start = StartFrom.FIRST
    async with Consumer(
        TOPIC, client=client, group=group, start_from=start, batch_size=BATCH
    ) as consumer:
        task = asyncio.create_task(consumer.run(handle))
        await done.wait()
    await task


async def measure(namesrv: str, count: int, size: int) -> dict[str, list[float]]:
    """Microseconds of CPU a message by consumer, one figure a round."""
    costs: dict[str, list[float]] = {"pulls": [], "getmany": [], "run": []}
    async with Client(namesrv) as client, Producer(client=client) as producer:
        for _ in range(count):
            await producer.room()
            producer.send_nowait(Message(TOPIC, b"x" * size, tags="A"))
        await producer.flush()
        for number in range(ROUNDS):
            costs["pulls"].append(await cost_of(lambda: bare(client, count), count))
            group = f"many-{number}"
            costs["getmany"].append(await cost_of(lambda g=group: getmany(client, g, count), count))
            group = f"run-{number}"
            costs["run"].append(await cost_of(lambda g=group: run(client, g, count), count))
    return costs


if __name__ == "__main__":
    compare(measure, __doc__, 20_000, "pulls", {})
