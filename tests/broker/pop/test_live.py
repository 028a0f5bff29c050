"""Pop consumption in a whole broker on a disk: it is started, stopped and started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylarkmq.broker.base.waiting import put, result_of
from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.pop.requests import Popped, PopRequest
from skylarkmq.protocol.bodies.topic import TopicConfig
from tests.broker.pop.pop_rig import GROUP, TOPIC, message_of
from tests.store.support import inner
from tests.support.live_broker import live_broker


async def _receive(broker: BrokerController, count: int = 32) -> list[Popped]:
    parts = broker.parts
    until_s = parts.peer_clock.monotonic() + 0.5
    return await parts.pop.receiver.receive(
        PopRequest(GROUP, TOPIC, count=count, until_s=until_s, invisible_ms=600_000), "127.0.0.1:1"
    )


@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_restart_keeps_what_is_in_hand_and_what_is_done(tmp_path: Path, mode: str) -> None:
    async with live_broker(tmp_path, flush_disk_type=mode) as broker:
        parts = broker.parts
        parts.topics.update(TopicConfig(topic_name=TOPIC, read_queue_nums=1, write_queue_nums=1))
        messages = [inner(TOPIC, 0, b"%d" % number) for number in range(4)]
        await result_of(put(parts.store, messages))
        popped = await _receive(broker, 3)
        assert await parts.pop.settlement.ack(GROUP, TOPIC, popped[1].receipt)
        assert parts.offsets.query(GROUP, TOPIC, 0) == 0
    async with live_broker(tmp_path, flush_disk_type=mode) as broker:
        pop = broker.parts.pop
        assert [message_of(one).body for one in await _receive(broker)] == [b"3"]
        assert await pop.settlement.ack(GROUP, TOPIC, popped[0].receipt)
        assert broker.parts.offsets.query(GROUP, TOPIC, 0) == 2
        assert not await pop.settlement.ack(GROUP, TOPIC, popped[0].receipt._replace(offset=1))
        assert await pop.settlement.ack(GROUP, TOPIC, popped[2].receipt)
    async with live_broker(tmp_path, flush_disk_type=mode) as broker:
        assert await _receive(broker) == []


async def test_a_broker_without_pop_has_no_journal(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        assert not (broker.parts.store.paths.own / "pop").exists()
