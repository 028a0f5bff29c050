"""A cluster, a clock, and a producer that a test moves through time."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from skylarkmq.client import (
    Client,
    Producer,
)
from skylarkmq.client.config import Codec
from tests.support.fake_cluster import FakeCluster
from tests.support.manual_clock import ManualClock, advance_async


class Setting:
    """A cluster, a clock, and a started producer."""

    def __init__(self, *, codec: Codec = "json", **settings: Any) -> None:
        self.cluster = FakeCluster()
        self.clock = ManualClock()
        self.client = Client(
            self.cluster.namesrv,
            network=self.cluster.network,
            clock=self.clock,
            random=Random(3),
            codec=codec,
        )
        self.producer = Producer(client=self.client, **settings)

    async def __aenter__(self) -> Setting:
        await self.producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        stopping = asyncio.create_task(self.producer.stop(timeout=1))
        await advance_async(self.clock, 60)
        await stopping
        await self.client.stop()
        assert self.clock.pending_count == 0, "timers are left over"
