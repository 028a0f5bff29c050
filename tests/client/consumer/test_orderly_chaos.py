"""Ordered members join, leave and die at random, handlers fail, connections go: nothing is lost,
nothing overtakes, and no two handlers are at work with one queue.

SKYLARKMQ_SEED replays one run; a failing run prints its seed.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, defaultdict
from random import Random

import pytest

from skylarkmq.client import Consumer, ReceivedMessage
from skylarkmq.client.instance import services_of
from skylarkmq.remoting.waiting import sleep
from tests.client.consumer.test_orderly import Ordered

SEEDS = [int(os.environ["SKYLARKMQ_SEED"])] if "SKYLARKMQ_SEED" in os.environ else range(6)
STEPS = 25
QUEUES = 4


class Run:
    """One seeded run."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.it = Ordered({"orders": QUEUES})
        self.sent: Counter[int] = Counter()
        self.done: defaultdict[int, list[int]] = defaultdict(list)
        """By queue, the numbers whose handlers returned, in that order."""
        self.at_work: Counter[int] = Counter()
        self.failures = 0
        self.overlaps = 0
        self.members: list[tuple[Consumer, asyncio.Task[None]]] = []

    async def handle(self, message: ReceivedMessage) -> None:
        queue_id = message.queue.queue_id
        self.at_work[queue_id] += 1
        self.overlaps += self.at_work[queue_id] > 1
        try:
            if self.random.random() < 0.3:
                await sleep(self.it.clock, self.random.random() * 3)
            if self.random.random() < 0.1:
                self.failures += 1
                raise RuntimeError("on purpose")
            self.done[queue_id].append(int(message.body))
        finally:
            self.at_work[queue_id] -= 1

    def send(self) -> None:
        for _ in range(self.random.randrange(20)):
            queue_id = self.random.randrange(QUEUES)
            self.it.broker.add("orders", queue_id, b"%d" % self.sent[queue_id])
            self.sent[queue_id] += 1

    async def join(self) -> None:
        consumer = await self.it.consumer(prefetch=50, batch_size=7)
        running = asyncio.create_task(consumer.run(self.handle, concurrency=3))
        self.members.append((consumer, running))

    async def leave(self) -> None:
        consumer, running = self.members.pop(self.random.randrange(len(self.members)))
        await self.it.wait(consumer.stop())
        await running

    async def die(self) -> None:
        """Nothing is committed, nobody is told, and the locks stay where they are."""
        consumer, running = self.members.pop(self.random.randrange(len(self.members)))
        await services_of(consumer._client).remoting.stop()
        running.cancel()
        await self.it.wait(consumer.stop(drain=False))
        await asyncio.gather(running, return_exceptions=True)

    async def restart(self) -> None:
        """The broker forgets the locks. A member that starts in that very moment would get them
        before their owners are back, so none does."""
        self.it.broker.owners.clear()
        self.it.broker.lose_all()
        await self.it.pass_time(4)

    async def step(self) -> None:
        choice = self.random.random()
        if choice < 0.4:
            self.send()
        elif choice < 0.6 and len(self.members) < 4:
            await self.join()
        elif choice < 0.7 and len(self.members) > 1:
            await self.leave()
        elif choice < 0.8 and len(self.members) > 1:
            await self.die()
        elif choice < 0.87:
            self.it.broker.lose_all()
        elif choice < 0.92:
            await self.restart()
        await self.it.pass_time(self.random.random() * 5)


@pytest.mark.parametrize("seed", SEEDS)
async def test_order_holds_whatever_happens_to_the_members(seed: int) -> None:
    run = Run(seed)
    await run.join()
    for _ in range(STEPS):
        await run.step()
    await run.it.pass_time(150)
    for queue_id in range(QUEUES):
        numbers = run.done[queue_id]
        assert sorted(set(numbers)) == list(range(run.sent[queue_id])), f"seed {seed}: lost"
        for before, after in zip([-1, *numbers], numbers, strict=False):
            # What came again after a death comes again in order.
            assert after <= before + 1, f"seed {seed}: {after} overtook {before + 1}"
    assert run.overlaps == 0, f"seed {seed}: two handlers of one queue"
    while run.members:
        await run.leave()
    assert run.it.broker.owners == {} or run.it.clock.pending_count == 0
    assert run.failures, "handlers failed"
