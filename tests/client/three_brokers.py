"""A topic on three brokers of which one falls silent, or refuses everybody; time is the test's."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from skylarkmq.client import Producer
from tests.client.consumer.support import Group
from tests.support.fake_cluster import FakeBroker

T = TypeVar("T")
QUEUES = 2


class ThreeBrokers(Group):
    """`sick` is one of the three, `well` are the others."""

    def __init__(self) -> None:
        super().__init__({"orders": QUEUES})
        self.sick: FakeBroker = self.broker
        self.well = [self.cluster.broker(name, {"orders": QUEUES}) for name in ("b", "c")]

    async def timed(self, work: Awaitable[T]) -> tuple[T | BaseException, float]:
        """Do `work`; return what came of it, and how long it took by the clock, s."""
        begun_s, ended_s = self.clock.monotonic(), 0.0

        async def noted() -> T | BaseException:
            nonlocal ended_s
            try:
                return await work
            except Exception as error:
                return error
            finally:
                ended_s = self.clock.monotonic()

        result = await self.wait(noted())
        return result, ended_s - begun_s

    def put(self, *bodies: bytes) -> None:
        """Store messages in a queue of each broker that is well."""
        for broker in self.well:
            broker.add("orders", 1, *(broker.name.encode() + b":" + body for body in bodies))

    def expected(self, *bodies: bytes) -> set[bytes]:
        """What `put` stored."""
        return {broker.name.encode() + b":" + body for broker in self.well for body in bodies}

    async def producer(self, **settings: object) -> Producer:
        """Start a producer; its client stops with it."""
        producer = Producer(**settings)  # type: ignore[arg-type]
        producer._client = self.client()
        await self.wait(producer.start())
        return producer
