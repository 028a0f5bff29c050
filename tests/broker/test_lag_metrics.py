"""How far groups are behind: live ones, dead ones, and what is left out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.metrics import lag as lag_module
from skylarkmq.broker.metrics.lag import ConsumerLag, Lag
from skylarkmq.protocol.bodies.group import ConsumerData
from skylarkmq.protocol.codes import LanguageCode
from tests.broker.group_rig import FakeConnection, GroupRig
from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient, pull_fields, send_fields


class Rig(GroupRig):
    def __init__(self) -> None:
        super().__init__()
        self.stats = BrokerStats()
        self.lag = ConsumerLag(
            self.store, self.topics, self.offsets, self.consumers, self.stats, self.clock
        )

    async def rows(self) -> list[Lag]:
        await self.lag.measure()
        return sorted(self.lag.rows)


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    rig.start()
    rig.topic("T", queues=2)
    return rig


async def test_a_group_is_behind_by_messages_and_by_time(rig: Rig) -> None:
    for _ in range(3):
        rig.put("T", 0, b"x")
        rig.clock.advance(10.0)
    rig.put("T", 1, b"x")
    rig.offsets.keep("x", "dead", "T", 0, 1)
    rig.offsets.keep("x", "done", "T", 0, 3)
    (dead, done) = await rig.rows()
    assert (dead.topic, dead.group, dead.messages) == ("T", "dead", 2)
    assert dead.latency_ms == pytest.approx(20_000, abs=100)
    assert done == Lag("T", "done", offset=3)
    rig.offsets.keep("x", "dead", "T", 1, 0)
    (dead, _) = await rig.rows()
    assert dead.messages == 3


async def test_what_is_left_out(rig: Rig) -> None:
    rig.put("T", 0, b"x")
    data = ConsumerData(
        consume_from_where="CONSUME_FROM_LAST_OFFSET", consume_type="CONSUME_PASSIVELY",
        group_name="all", message_model="BROADCASTING",
    )  # fmt: skip
    peer: Any = FakeConnection()
    rig.consumers.register(peer, "client", LanguageCode.JAVA, 409, data)
    for group, topic in (("all", "T"), ("CID_RMQ_SYS_TRANS", "T"), ("g", "deleted")):
        rig.offsets.keep("x", group, topic, 0, 0)
    rig.offsets.keep("x", "g", "RMQ_SYS_TRACE_TOPIC", 0, 0)
    assert await rig.rows() == []
    rig.offsets.keep("x", "g", "T", 0, 0)
    assert [row.group for row in await rig.rows()] == ["g"]
    rig.offsets.remove_group("g")
    assert await rig.rows() == []


async def test_there_are_no_more_rows_than_series(rig: Rig) -> None:
    rig.stats.series_limit = 2
    for group in "abc":
        rig.offsets.keep("x", group, "T", 0, 0)
    assert len(await rig.rows()) == 2
    assert rig.stats.series_dropped["consumer_lag"] == 1


async def test_old_messages_are_read_off_the_loop_and_not_twice(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def message_time_cold(topic: str, queue_id: int, offset: int, done: Any) -> None:
        read.append(offset)
        asyncio.get_running_loop().call_soon(done, rig.clock.now_ms() - 5000, None)

    for _ in range(3):
        rig.put("T", 0, b"x")
    monkeypatch.setattr(lag_module, "COLD_READS_MAX", 1)
    store: Any = SimpleNamespace(
        is_cold=lambda topic, queue_id, offset: True,
        message_time_cold=message_time_cold,
        max_offset=rig.store.max_offset,
        min_offset=rig.store.min_offset,
    )
    rig.lag = ConsumerLag(store, rig.topics, rig.offsets, rig.consumers, rig.stats, rig.clock)
    rig.offsets.keep("x", "a", "T", 0, 1)
    rig.offsets.keep("x", "b", "T", 0, 2)
    first, second = await rig.rows()
    assert (first.latency_ms, second.latency_ms) == (5000, None), "the limit of one sweep"
    first, second = await rig.rows()
    assert (first.latency_ms, second.latency_ms) == (5000, 5000)
    await rig.rows()
    assert read == [1, 2]


async def test_a_scrape_shows_it_and_forgets_what_is_deleted(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        client = await RawClient.open(broker.listen_address)
        for _ in range(3):
            assert (await client.call(310, send_fields("orders"), b"x")).code == 0
        assert (await client.call(11, pull_fields("orders"))).code == 0
        broker.parts.offsets.keep("x", "billing", "orders", 0, 1)
        await broker.parts.lag.measure()
        (row,) = broker.parts.lag.rows
        end = broker.parts.store.max_offset("orders", 0)
        assert (row.group, row.messages) == ("billing", end - 1)
        assert (await client.call(215, {"topic": "orders"})).code == 0
        await broker.parts.lag.measure()
        assert broker.parts.lag.rows == []
        await client.close()
