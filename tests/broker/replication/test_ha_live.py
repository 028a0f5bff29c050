"""A slave of the test follows a real broker over a socket, through cuts and stops."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from skylarkmq.broker.base.ha_protocol import LogPart, PartDecoder, encode_report
from skylarkmq.broker.controller import BrokerController
from tests.broker.replication.support import FILE_SIZE, KEYS, log_of, put
from tests.support.live_broker import live_broker
from tests.support.patience import until

pytestmark = pytest.mark.timing


class RawSlave(asyncio.Protocol):
    """Follows a master and keeps what it sends; stops reading in the middle of a part, if told."""

    def __init__(self, offset: int, stop_at: int | None = None) -> None:
        self.end = offset
        self.data = bytearray()
        self.gone = False
        self._decoder = PartDecoder()
        self._stop_at = stop_at

    @classmethod
    async def follow(
        cls, broker: BrokerController, offset: int, stop_at: int | None = None
    ) -> RawSlave:
        assert broker.ha_port is not None
        _, slave = await asyncio.get_running_loop().create_connection(
            lambda: cls(offset, stop_at), broker.listen_address[0], broker.ha_port
        )
        return slave

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(encode_report(self.end))

    def data_received(self, data: bytes) -> None:
        for part in self._decoder.feed(data):
            self._take(part)

    def _take(self, part: LogPart) -> None:
        assert part.offset == self.end
        data = part.data if self._stop_at is None else part.data[: max(0, self._stop_at - self.end)]
        self.data += data
        self.end += len(data)
        if len(data) < len(part.data):
            self.transport.abort()
        else:
            self.transport.write(encode_report(self.end))

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True


@pytest.mark.parametrize("keys", [{}, {"transient_store_pool_enable": True}])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_slaves_follow_byte_for_byte_through_cuts(
    tmp_path: Path, flush: str, keys: dict[str, Any]
) -> None:
    random = Random(7)
    async with live_broker(tmp_path, flush_disk_type=flush, **KEYS, **keys) as broker:
        steady = await RawSlave.follow(broker, 0)
        cut_data = b"\0"  # the first byte of every log
        for _ in range(10):
            put(broker, 200, random)
            log = broker.parts.store.commit_log
            await until(lambda log=log: log.stored_offset == log.wrote_offset, "the log")
            place = random.randrange(len(cut_data), log.stored_offset)  # in the middle of a record
            cut = await RawSlave.follow(broker, len(cut_data), place)
            await until(lambda cut=cut: cut.gone, "the cut")
            cut_data += cut.data
            assert len(cut_data) == place
        whole = await RawSlave.follow(broker, len(cut_data))
        end = log.stored_offset
        assert end > 2 * FILE_SIZE
        await until(lambda: whole.end == steady.end == end, "slaves")
        assert cut_data + whole.data == log_of(broker)
        assert steady.data == log_of(broker)
        server = broker.parts.ha_server
        assert server is not None
        await until(lambda: server.acknowledged == end, "reports")
        assert len(server.slaves) == 2
    await until(lambda: whole.gone and steady.gone, "the end")


async def test_a_stop_sends_what_is_stored(tmp_path: Path) -> None:
    random = Random(8)
    async with live_broker(tmp_path, **KEYS) as broker:
        slave = await RawSlave.follow(broker, 0)
        server = broker.parts.ha_server
        assert server is not None
        await until(lambda: server.slaves, "the slave")
        put(broker, 50, random)
        data = log_of(broker)
    await until(lambda: slave.gone, "the end")
    assert slave.data == data


async def test_name_servers_are_told_the_port_for_slaves(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        assert broker.namesrv is not None
        [known] = broker.namesrv.routes._live.values()
        assert known.ha_server_addr == f"127.0.0.1:{broker.ha_port}"
