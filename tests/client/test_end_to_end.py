"""The SDK against a real broker in the same loop: what a user sees, over real sockets.

Waits end with what they wait for; LIMIT_S only bounds a run that would never end.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from skylarkmq.client import (
    Client,
    Consumer,
    Message,
    MessageQueue,
    Producer,
    StartFrom,
    Tag,
)
from tests.behaviour.support import collect
from tests.support.live_broker import live_broker, namesrv_of
from tests.support.patience import LIMIT_S

pytestmark = pytest.mark.timing

TOPIC = "orders"
GROUP = "billing"


@asynccontextmanager
async def connected(root: Path) -> AsyncIterator[tuple[Client, Producer]]:
    async with (
        live_broker(root) as broker,
        Client(namesrv_of(broker)) as client,
        Producer(client=client, send_timeout=LIMIT_S) as producer,
    ):
        yield client, producer


def first_of(client: Client, **settings: Any) -> Consumer:
    return Consumer(TOPIC, client=client, group=GROUP, start_from=StartFrom.FIRST, **settings)


async def test_pipelined_sends_are_all_there_in_order_per_queue(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, producer):
        await producer.send(Message(TOPIC, b"make the topic"))
        queues = await producer.queues(TOPIC)
        futures = []
        for number in range(3000):
            await producer.room()
            message = Message(TOPIC, b"%d" % number, tags="N")
            futures.append(producer.send_nowait(message, queue=queues[number % len(queues)]))
        results = await asyncio.gather(*futures)
        assert producer.stats.retry_count == 0
        async with first_of(client, selector=Tag("N"), prefetch=500) as consumer:
            got = await collect(consumer, 3000)
        by_queue: dict[MessageQueue, list[int]] = defaultdict(list)
        for message in got:
            by_queue[message.queue].append(int(message.body))
        assert len(by_queue) == len(queues)
        for numbers in by_queue.values():
            assert numbers == sorted(numbers)
        assert Counter(m.msg_id for m in got) == Counter(r.msg_id for r in results)


async def test_sends_and_pulls_survive_a_restart_of_the_broker(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        ports = {
            "listen_port": broker.listen_address[1],
            "namesrv_listen_port": broker.namesrv_address[1],  # type: ignore[index]
        }
        client = Client(namesrv_of(broker))
        producer = Producer(client=client, send_timeout=LIMIT_S, retries=100)
        await producer.start()
        consumer = first_of(client)
        await consumer.start()
        await producer.send(Message(TOPIC, b"before"))
        async with asyncio.timeout(LIMIT_S):
            assert (await consumer.getone()).body == b"before"
    futures = [asyncio.create_task(producer.send(Message(TOPIC, b"%d" % n))) for n in range(50)]
    await asyncio.sleep(0)
    async with live_broker(tmp_path, **ports):
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*futures)
            bodies = {message.body for message in await collect(consumer, 50)}
        assert bodies == {b"%d" % n for n in range(50)}
        await consumer.stop()
        await producer.stop()
        await client.stop()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_both_loops(tmp_path: Path, loop: str) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (client, producer):
            await asyncio.gather(*(producer.send(Message(TOPIC, b"%d" % n)) for n in range(200)))
            async with first_of(client) as consumer:
                got = await collect(consumer, 200)
            assert {message.body for message in got} == {b"%d" % n for n in range(200)}

    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "asyncio": asyncio.new_event_loop,
        "uvloop": uvloop.new_event_loop,
    }
    work: Coroutine[Any, Any, None] = main()
    with asyncio.Runner(loop_factory=factories[loop]) as runner:
        runner.run(work)
