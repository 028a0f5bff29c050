"""Producers and clients that start and end at the same time, in whatever order."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from skylarkmq.client import Client, HalfMessage, IllegalState, Message, Producer, TransactionState
from skylarkmq.client.clock import SystemClock
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.codes import RequestCode
from tests.client.support import Setting
from tests.support.fake_cluster import FakeCluster
from tests.support.manual_clock import ManualClock, advance_async, settle


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
    producer = Producer(client=it.client, group="P")
    await asyncio.gather(producer.start(), producer.start())
    await producer.send(Message("orders", b"x"))
    await services_of(it.client).send_heartbeats()
    await producer.stop()
    (farewell,) = it.broker.of_code(RequestCode.UNREGISTER_CLIENT)
    assert farewell.ext_fields["producerGroup"] == "P"
    await it.client.stop()
    assert await it.is_clean()


async def test_a_producer_that_is_stopped_while_it_starts_does_not_start() -> None:
    it = Place()
    producer = Producer(client=it.client, group="P")
    producer._owns_client = True
    starting = asyncio.create_task(producer.start())
    await asyncio.sleep(0)
    await producer.stop()
    with pytest.raises(IllegalState, match="stopped"):
        await starting
    assert await it.is_clean()


async def test_a_client_that_is_stopped_while_it_starts_does_not_start() -> None:
    it = Place()
    starting = asyncio.create_task(it.client.start())
    await asyncio.sleep(0)
    await it.client.stop()
    with pytest.raises(IllegalState, match="has stopped"):
        await starting
    assert await it.is_clean()


async def test_a_producer_can_be_stopped_after_its_client_was_closed() -> None:
    it = Place()
    producer = Producer(client=it.client, group="P", trace=True, check=never)
    await producer.start()
    await producer.send(Message("orders", b"x"))
    await it.client.stop()
    await producer.stop()
    assert await it.is_clean()


async def test_what_waits_for_room_while_the_producer_stops_starts_nothing_any_more() -> None:
    it = Place()
    producer = Producer(client=it.client, group="P", check=never, max_in_flight=1, send_timeout=5)
    await producer.start()
    await producer.send(Message("orders", b"x"))
    it.broker.silent = True
    sends = [asyncio.create_task(producer.send(Message("orders", b"x")))]
    await settle()
    transaction = producer.transaction(Message("orders", b"x"))
    sends.append(asyncio.create_task(transaction.__aenter__()))
    sends.append(asyncio.create_task(producer.request(Message("orders", b"x"), 10)))
    await settle()
    stopping = asyncio.create_task(producer.stop(timeout=1))
    await advance_async(it.clock, 20)
    await stopping
    outcomes = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes[1:]] == [IllegalState] * 2
    closing = asyncio.create_task(it.client.stop())
    await advance_async(it.clock, 5)
    await closing
    assert await it.is_clean()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_producer_of_a_loop_that_is_closed_says_so() -> None:
    kept: list[Setting] = []

    async def begin() -> None:
        it = Setting()
        it.cluster.broker(topics={"orders": 1})
        await it.producer.start()
        await it.producer.send(Message("orders", b"x"))
        kept.append(it)

    async def use() -> None:
        with pytest.raises(IllegalState, match="in one event loop"):
            await kept[0].producer.send(Message("orders", b"x"))
        with pytest.raises(IllegalState, match=r"each asyncio.run\(\) has a loop"):
            kept[0].producer.send_nowait(Message("orders", b"x"))

    asyncio.run(begin())
    asyncio.run(use())


def test_a_timer_of_a_loop_that_is_closed_says_so() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(IllegalState, match="in one event loop"):
        SystemClock(loop).call_at(0, print)
