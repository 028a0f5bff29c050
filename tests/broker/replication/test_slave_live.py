"""A slave follows a master over sockets: one of the test that cuts, and a broker of ours."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from skylarkmq.broker.base.ha_protocol import encode_head
from skylarkmq.broker.broker_pages import health_checks
from skylarkmq.broker.controller import BrokerController
from skylarkmq.broker.replication.ha import ha_client
from tests.broker.replication.support import FILE_SIZE, KEYS, log_of, put
from tests.store.support import StoreRig
from tests.support.live_broker import live_broker
from tests.support.patience import until

pytestmark = pytest.mark.timing


@pytest.fixture(autouse=True)
def _quick_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ha_client, "RETRY_FIRST_S", 0.01)
    monkeypatch.setattr(ha_client, "RETRY_MAX_S", 0.02)


class RawMaster:
    """Sends a log from where it is asked to, and cuts each connection but the last somewhere."""

    def __init__(self, data: bytes, cuts: int, random: Random) -> None:
        self.data = data
        self.acknowledged = 0
        self.connections = 0
        self._cuts = cuts
        self._random = random
        self._server: asyncio.Server

    async def __aenter__(self) -> RawMaster:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        is_cut = self.connections <= self._cuts
        try:
            place = int.from_bytes(await reader.readexactly(8), "big")
            place = place or len(self.data) - len(self.data) % FILE_SIZE
            size = self._random.randrange(400_000) if is_cut else 1 << 40
            while place < len(self.data) and size > 0:
                file_end = place - place % FILE_SIZE + FILE_SIZE
                end = min(len(self.data), file_end, place + self._random.randrange(1, 60_000))
                piece = encode_head(place, end - place) + self.data[place:end]
                writer.write(piece[:size])
                size -= len(piece)
                place = end
                await writer.drain()
            if is_cut:
                writer.transport.abort()
                return
            while report := await reader.readexactly(8):
                self.acknowledged = int.from_bytes(report, "big")
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def end_of(broker: BrokerController) -> int:
    return broker.parts.store.commit_log.stored_offset


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_log_arrives_whole_through_cuts(tmp_path: Path, flush: str) -> None:
    random = Random(3)
    source = StoreRig(mapped_file_size_commit_log=FILE_SIZE).start()
    for number in range(2000):
        source.put("T", number % 4, random.randbytes(random.randrange(3000)))
        source.workers.run_all()
    files = source.store.commit_log.mapped_files.mapped
    data = b"".join(bytes(each.view) for each in files)[: source.store.commit_log.wrote_offset]
    async with RawMaster(data, 12, random) as master:
        slave_keys = {
            "broker_role": "SLAVE",
            "broker_id": 1,
            "ha_master_address": master.address,
            "ha_copy_from": "start",
            "flush_disk_type": flush,
        }
        async with live_broker(tmp_path, **KEYS, **slave_keys) as slave:
            await until(lambda: end_of(slave) == len(data), "the log")
            assert log_of(slave) == data
            await until(lambda: master.acknowledged == len(data), "the report")
            assert master.connections > 12
            for queue_id in range(4):
                wanted = source.store.max_offset("T", queue_id)
                assert slave.parts.store.max_offset("T", queue_id) == wanted


@pytest.mark.parametrize("keys", [{}, {"transient_store_pool_enable": True}])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_ours_follows_ours_byte_for_byte(
    tmp_path: Path, flush: str, keys: dict[str, Any]
) -> None:
    random = Random(4)
    common = {**KEYS, **keys, "flush_disk_type": flush}
    async with live_broker(tmp_path / "master", **common) as master:
        slave_keys = {
            "broker_role": "SLAVE",
            "broker_id": 1,
            "ha_master_address": f"127.0.0.1:{master.ha_port}",
            "ha_copy_from": "start",
        }
        server = master.parts.ha_server
        assert server is not None
        for turn in range(3):
            put(master, 300, random)  # while no slave is there
            async with live_broker(tmp_path / "slave", **common, **slave_keys) as slave:
                put(master, 300, random)
                await until(
                    lambda slave=slave: end_of(slave) == master.parts.store.commit_log.wrote_offset,
                    "the slave",
                )
                assert log_of(slave) == log_of(master), turn
                await until(lambda: server.acknowledged == end_of(master), "the report")
                for queue_id in range(4):
                    wanted = master.parts.store.max_offset("T", queue_id)
                    assert slave.parts.store.max_offset("T", queue_id) == wanted
                client = slave.parts.ha_client
                assert client is not None
                assert client.connected
                assert client.connects == 1
            await until(lambda: not server.slaves, "the slave's end")
        assert end_of(master) > 2 * FILE_SIZE


async def test_a_slave_of_ours_refuses_another_master_and_is_not_ready(tmp_path: Path) -> None:
    random = Random(5)
    slave_keys = {"broker_role": "SLAVE", "broker_id": 1, "ha_copy_from": "start"}
    async with live_broker(tmp_path / "one", **KEYS) as one:
        put(one, 50, random)
        address = f"127.0.0.1:{one.ha_port}"
        async with live_broker(
            tmp_path / "slave", ha_master_address=address, **KEYS, **slave_keys
        ) as slave:
            await until(lambda: end_of(slave) == end_of(one), "the slave")
            before = log_of(slave)
    async with live_broker(tmp_path / "two", **KEYS) as two:
        put(two, 100, random)
        address = f"127.0.0.1:{two.ha_port}"
        async with live_broker(
            tmp_path / "slave", ha_master_address=address, **KEYS, **slave_keys
        ) as slave:
            client = slave.parts.ha_client
            assert client is not None
            await until(lambda: client.refusal, "the refusal")
            assert "differs from this one" in client.refusal
            assert client.refusal == health_checks(slave, slave._lag).ready["master"]()
            assert log_of(slave) == before
