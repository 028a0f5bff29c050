"""Members join, leave and die at random while messages come and handlers fail: nothing is lost.

SKYLARKMQ_SEED replays one run; a failing run prints its seed.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from random import Random

import pytest

from skylarkmq.client import Consumer, ReceivedMessage
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.flags import retry_topic
from skylarkmq.remoting.waiting import sleep
from tests.client.consumer.support import GROUP, Group

SEEDS = [int(os.environ["SKYLARKMQ_SEED"])] if "SKYLARKMQ_SEED" in os.environ else range(12)
STEPS = 40
QUEUES = 6


class Run:
    """One seeded run."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.it = Group({"orders": QUEUES})
        self.sent = 0
        self.processed: Counter[bytes] = Counter()
        self.members: list[tuple[Consumer, asyncio.Task[None]]] = []
        self.killed = 0

    async def handle(self, message: ReceivedMessage) -> None:
        if self.random.random() < 0.1:
            raise RuntimeError("on purpose")
        if self.random.random() < 0.3:
            await sleep(self.it.clock, self.random.random() * 5)
        self.processed[message.body] += 1

    def send(self) -> None:
        for _ in range(self.random.randrange(30)):
            self.it.broker.add("orders", self.random.randrange(QUEUES), b"%d" % self.sent)
            self.sent += 1

    async def join(self) -> None:
        consumer = await self.it.consumer(prefetch=50, batch_size=7)
        self.members.append(
            (consumer, asyncio.create_task(consumer.run(self.handle, concurrency=3)))
        )

    async def leave(self) -> None:
        consumer, running = self.take_one()
        await self.it.wait(consumer.stop())
        await running

    async def die(self) -> None:
        """The connections go first, so that nothing is committed and nobody is told."""
        consumer, running = self.take_one()
        await services_of(consumer._client).remoting.stop()
        running.cancel()
        await self.it.wait(consumer.stop(drain=False))
        await asyncio.gather(running, return_exceptions=True)
        self.killed += 1

    def take_one(self) -> tuple[Consumer, asyncio.Task[None]]:
        return self.members.pop(self.random.randrange(len(self.members)))

    async def step(self) -> None:
        choice = self.random.random()
        if choice < 0.35:
            self.send()
        elif choice < 0.55 and len(self.members) < 5:
            await self.join()
        elif choice < 0.65 and len(self.members) > 1:
            await self.leave()
        elif choice < 0.8 and len(self.members) > 1:
            await self.die()
        elif choice < 0.85:
            self.it.broker.lose_all()
        await self.it.pass_time(self.random.random() * 4)


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_message_is_processed_whatever_happens_to_the_members(seed: int) -> None:
    run = Run(seed)
    await run.join()
    for _ in range(STEPS):
        await run.step()
    run.send()
    await run.it.pass_time(120)
    wanted = {b"%d" % number for number in range(run.sent)}
    assert set(run.processed) == wanted, f"seed {seed}: lost {sorted(wanted - set(run.processed))}"
    while run.members:
        await run.leave()
    broker = run.it.broker
    for topic, queue_count in (("orders", QUEUES), (retry_topic(GROUP), 1)):
        for queue_id in range(queue_count):
            end = len(broker.topics[topic].queues[queue_id])
            if end:
                assert broker.offsets[GROUP, topic, queue_id] == end, f"seed {seed}: {topic}"
    # The run must have had the power to find something.
    assert run.sent > 50
    assert broker.bodies(retry_topic(GROUP)), "handlers failed"
