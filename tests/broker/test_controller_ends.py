"""How a broker's life ends: without waiting for an interval, or killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.broker.controller import BrokerController
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.headers.send import UNCONFIRMED_FIELD
from skylarkmq.store.message_store import MessageStore, StoreState
from tests.support.live_broker import broker_config
from tests.support.manual_clock import ManualClock, advance_async
from tests.support.patience import LIMIT_S, until
from tests.support.raw_client import RawClient, pull_fields, send_fields

pytestmark = pytest.mark.timing

SEND, PULL = 310, 11
DELAYED = "DELAY\x011\x02"


async def test_a_stop_after_deliveries_waits_for_no_flush_interval(tmp_path: Path) -> None:
    """The clock stands: what only the next interval would bring never comes."""
    clock = ManualClock()
    broker = BrokerController(
        broker_config(tmp_path, flush_interval_commit_log=3_600_000), clock=clock
    )
    await broker.start()
    client = await RawClient.open(broker.listen_address)
    assert (await client.call(SEND, send_fields("T", i=DELAYED), b"later")).code == 0
    await advance_async(clock, 2)
    await until(lambda: broker.parts.store.max_offset("T", 0) == 1)
    log = broker.parts.store.commit_log
    assert log.flushed_offset < log.wrote_offset
    await client.close()
    async with asyncio.timeout(LIMIT_S):
        await broker.stop()
    assert broker.parts.store.state is StoreState.CLOSED
    again = BrokerController(broker_config(tmp_path))
    await again.start()
    assert again.parts.schedule.pending_count(1) == 0
    await again.stop()


async def test_a_killed_broker_leaves_its_folder_as_it_was(
    tmp_path: Path, store_threads: Callable[[], list[str]]
) -> None:
    clock = ManualClock()
    broker = BrokerController(broker_config(tmp_path), with_namesrv=True, clock=clock)
    await broker.start()
    client = await RawClient.open(broker.listen_address)
    assert (await client.call(SEND, send_fields("T"), b"kept")).code == 0
    pulling = asyncio.ensure_future(client.call(PULL, pull_fields("T", 0, 1, sysFlag="6")))
    await until(lambda: broker.parts.holding.count == 1)
    await broker.kill()
    assert await asyncio.wait([pulling], timeout=LIMIT_S) == ({pulling}, set())
    assert pulling.exception() is not None, "cut, not answered"
    await client.close()
    assert (tmp_path / "abort").exists()
    assert store_threads() == []
    again = BrokerController(broker_config(tmp_path))
    await again.start()
    assert again.parts.store.stats.recovery_mode == "abnormal"
    assert again.parts.store.max_offset("T", 0) == 1
    await again.stop()


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("gives_up", [True, False])
async def test_a_stop_answers_what_nobody_confirms_and_the_next_start_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str, gives_up: bool
) -> None:
    clock, start = ManualClock(), MessageStore.start

    def start_gated(store: MessageStore) -> None:
        store.gate()
        start(store)

    broker = BrokerController(broker_config(tmp_path, flush_disk_type=flush), clock=clock)
    with monkeypatch.context() as patch:
        patch.setattr(MessageStore, "start", start_gated)
        await broker.start()
    store = broker.parts.store
    client = await RawClient.open(broker.listen_address)
    sending = client.send(SEND, send_fields("T"), b"parked")
    await until(lambda: store.commit_log.stored_offset > 0 and store.writer.waiting == 1)
    if gives_up:
        store.give_up_waiting()
    stopping = asyncio.ensure_future(broker.stop())
    if not gives_up:
        await until(lambda: store.writer.waiting == 2)  # the stop, too
        assert not stopping.done()
        clock.advance(store.config.slave_timeout / 1000)
    answer = await client.answer(sending)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert UNCONFIRMED_FIELD in answer.ext_fields
    assert "not acknowledged" in (answer.remark or "")
    async with asyncio.timeout(LIMIT_S):
        await stopping
    await client.close()
    again = BrokerController(broker_config(tmp_path, flush_disk_type=flush))
    await again.start()
    assert again.parts.store.stats.recovery_mode == "clean"
    assert again.parts.store.max_offset("T", 0) == 1
    await again.stop()


async def test_peers_may_be_measured_by_a_clock_of_their_own(tmp_path: Path) -> None:
    clock = ManualClock()
    loop = asyncio.get_running_loop()
    broker = BrokerController(
        broker_config(tmp_path), clock=clock, peer_clock=SystemClock(loop), metrics="none"
    )
    await broker.start()
    assert broker.metrics_address is None
    client = await RawClient.open(broker.listen_address)
    assert (await client.call(SEND, send_fields("T"), b"one")).code == 0
    await advance_async(clock, 600)  # idle connections end after 120 s
    assert (await client.call(SEND, send_fields("T"), b"two")).code == 0
    await client.close()
    await broker.stop()
