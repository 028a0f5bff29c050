"""Producers and clients that start and end at the same time, in whatever order."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from skylarkmq.client import Client, HalfMessage, IllegalState, Message, Producer, TransactionState
from skylarkmq.protocol.codes import RequestCode
from tests.support.fake_cluster import FakeCluster
from tests.support.manual_clock import ManualClock, settle


class Place:
    """A cluster, a clock and a client."""

    def __init__(self) -> None:
        self.cluster, self.clock = FakeCluster(), ManualClock()
        self.broker = self.cluster.broker("broker-a", {"orders": 1})
        self.client = Client(
            self.cluster.namesrv,
            network=self.cluster.network,
            clock=self.clock,
            random=Random(1),
            codec="json",
        )

    async def is_clean(self) -> bool:
        """Whether nothing is left over."""
        await settle()
        return not self.clock.pending_count and not self.cluster.name_server.streams


def never(half: HalfMessage) -> TransactionState:
    return TransactionState.UNKNOWN


async def test_a_producer_that_two_start_joins_its_group_once() -> None:
    it = Place()
    producer = Producer(it.client, group="P")
    await asyncio.gather(producer.start(), producer.start())
    await producer.send(Message("orders", b"x"))
    await it.client.send_heartbeats()
    await producer.stop()
    (farewell,) = it.broker.of_code(RequestCode.UNREGISTER_CLIENT)
    assert farewell.ext_fields["producerGroup"] == "P"
    await it.client.close()
    assert await it.is_clean()


async def test_a_producer_that_is_stopped_while_it_starts_does_not_start() -> None:
    it = Place()
    producer = Producer(it.client, group="P")
    producer._owned = True
    starting = asyncio.create_task(producer.start())
    await asyncio.sleep(0)
    await producer.stop()
    with pytest.raises(IllegalState, match="stopped"):
        await starting
    assert await it.is_clean()


async def test_a_client_that_is_closed_while_it_starts_does_not_start() -> None:
    it = Place()
    starting = asyncio.create_task(it.client.start())
    await asyncio.sleep(0)
    await it.client.close()
    with pytest.raises(IllegalState, match="closed"):
        await starting
    assert await it.is_clean()


async def test_a_producer_can_be_stopped_after_its_client_was_closed() -> None:
    it = Place()
    producer = Producer(it.client, group="P", trace=True, check=never)
    await producer.start()
    await producer.send(Message("orders", b"x"))
    await it.client.close()
    await producer.stop()
    assert await it.is_clean()
