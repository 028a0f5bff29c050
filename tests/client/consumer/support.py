"""A cluster, a clock, and consumers that a test starts and moves through time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from random import Random
from typing import Any, TypeVar

from skylarkmq.client import Client, Consumer, Message, Producer, StartFrom
from skylarkmq.client.config import Codec
from tests.support.fake_cluster import FakeBroker, FakeCluster
from tests.support.manual_clock import ManualClock, advance_async

T = TypeVar("T")
GROUP = "billing"


class Group:
    """Consumers of one group, each on a client of its own."""

    def __init__(self, topics: dict[str, int] | None = None, codec: Codec = "json") -> None:
        self._codec: Codec = codec
        self.cluster = FakeCluster()
        self.clock = ManualClock()
        self.broker: FakeBroker = self.cluster.broker("broker-a", topics or {"orders": 4})
        self._seed = 0

    def client(self) -> Client:
        self._seed += 1
        return Client(
            self.cluster.namesrv,
            network=self.cluster.network,
            clock=self.clock,
            random=Random(self._seed),
            client_ip="192.0.2.1",
            instance_name=f"member-{self._seed}",
            codec=self._codec,
        )

    async def consumer(self, *topics: str, **settings: Any) -> Consumer:
        """Start a consumer; its client closes with it."""
        settings.setdefault("start_from", StartFrom.FIRST)
        consumer = Consumer(*(topics or ("orders",)), group=GROUP, **settings)
        consumer._client = self.client()
        await self.wait(consumer.start())
        return consumer

    async def wait(self, work: Awaitable[T], seconds: float = 0.0) -> T:
        """Let `work` go on while the clock moves, until it is done."""
        task = asyncio.ensure_future(work)
        await advance_async(self.clock, seconds)
        for _ in range(200):
            if task.done():
                break
            await advance_async(self.clock, 0.1)
        assert task.done(), "still not done after 20 s of the clock"
        return task.result()

    async def pass_time(self, seconds: float) -> None:
        await advance_async(self.clock, seconds)

    async def stop(self, *consumers: Consumer) -> None:
        for consumer in consumers:
            await self.wait(consumer.stop())
        if not self._live_clients():
            assert self.clock.pending_count == 0, "timers are left over"
        assert (
            not [task for task in asyncio.all_tasks() if task.get_name().startswith("skylarkmq")]
            or self._live_clients()
        ), "tasks are left over"

    def _live_clients(self) -> bool:
        return bool(self.broker.streams)

    def offset(self, queue_id: int, topic: str = "orders") -> int | None:
        """What the group has committed."""
        return self.broker.offsets.get((GROUP, topic, queue_id))

    async def send(self, *bodies: bytes) -> None:
        """Send through a producer, so that properties are as in life."""
        async with Producer(client=self.client()) as producer:
            for body in bodies:
                await producer.send(Message("orders", body))
