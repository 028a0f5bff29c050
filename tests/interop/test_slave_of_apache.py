"""Our slave follows RocketMQ's own master: the logs agree byte for byte, after kills, too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from skylarkmq.broker.controller import BrokerController
from skylarkmq.protocol.codes import ResponseCode
from tests.interop.apache_server import ApacheBroker
from tests.interop.children import Children
from tests.interop.servers import FILE_SIZES
from tests.interop.tools import JavaTools
from tests.support.live_broker import PATIENT, broker_config
from tests.support.patience import until
from tests.support.raw_client import RawClient, send_fields

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("maven")]

SEND = 310
QUEUES = 4
FILE_SIZE = FILE_SIZES["mappedFileSizeCommitLog"]
FLUSHES = ["ASYNC_FLUSH", "SYNC_FLUSH"]


class Master:
    """RocketMQ's master with a client."""

    def __init__(self, broker: ApacheBroker) -> None:
        self.broker = broker
        self.sent = 0  # messages of all queues
        self._random = Random(12)

    async def send(self, count: int) -> list[int]:
        """Send messages of many sizes; the codes of the answers."""
        client = await RawClient.open(("127.0.0.1", self.broker.port))
        try:
            opaques = [
                client.send(
                    SEND,
                    send_fields("T", number % QUEUES, f"KEYS\x01k{number}\x02"),
                    self._random.randbytes(self._random.randrange(20_000)),
                )
                for number in range(count)
            ]
            codes = [(await client.answer(opaque)).code for opaque in opaques]
        finally:
            await client.close()
        self.sent += count
        return codes

    def log_bytes(self) -> bytes:
        """What its files hold, zeros after the end among it."""
        files = sorted((self.broker.folder / "store" / "commitlog").iterdir())
        assert [int(path.name) for path in files] == [
            FILE_SIZE * number for number in range(len(files))
        ]
        return b"".join(path.read_bytes() for path in files)


class Slave:
    """Ours, in this process; it may be killed and started again."""

    def __init__(self, root: Path, master: ApacheBroker, **keys: Any) -> None:
        self.config = broker_config(
            root,
            broker_role="SLAVE",
            broker_id=1,
            ha_master_address=f"127.0.0.1:{master.port + 1}",
            mapped_file_size_commit_log=FILE_SIZE,
            namesrv_addr=master.namesrv,
            **{"ha_copy_from": "start", **PATIENT, **keys},
        )
        self.broker: BrokerController

    async def start(self) -> None:
        self.broker = BrokerController(self.config, with_namesrv=True)
        await self.broker.start()

    @property
    def count(self) -> int:
        """Messages that consumers find."""
        store = self.broker.parts.store
        return sum(store.max_offset("T", queue_id) for queue_id in range(QUEUES))

    async def has(self, master: Master) -> None:
        """Wait until all of the master's log is here, and compare."""
        await until(lambda: self.count >= master.sent, "the slave")
        log = self.broker.parts.store.commit_log
        await until(lambda: log.stored_offset == log.wrote_offset, "the slave's disk")
        theirs = master.log_bytes()
        ours = b"".join(bytes(mapped.view) for mapped in log.mapped_files.mapped)
        end = log.stored_offset
        assert ours[:end] == theirs[:end]
        assert not theirs[end:].strip(b"\0")


@asynccontextmanager
async def pair_of(root: Path, role: str, **keys: Any) -> AsyncGenerator[tuple[Master, Slave]]:
    """RocketMQ's master, which runs, and our slave, which does not yet."""
    children = Children(root)
    # On a busy machine it would refuse sends (code 2), which is not what these tests look at.
    patient = {"brokerFastFailureEnable": "false", "osPageCacheBusyTimeOutMills": 60_000}
    broker = ApacheBroker(children, root, brokerRole=role, **patient)
    slave = Slave(root / "slave", broker, **keys)
    try:
        await asyncio.to_thread(broker.start)
        yield Master(broker), slave
    finally:
        await asyncio.to_thread(broker.end)


@pytest.mark.parametrize("flush", FLUSHES)
async def test_our_slave_has_the_masters_log_also_after_kills(tmp_path: Path, flush: str) -> None:
    async with pair_of(tmp_path, "ASYNC_MASTER", flush_disk_type=flush) as (master, slave):
        assert set(await master.send(1000)) == {0}  # no slave yet
        await slave.start()
        await slave.has(master)
        for _ in range(3):
            wanted = slave.count + 100
            sending = asyncio.create_task(master.send(1000))
            await until(lambda wanted=wanted: slave.count > wanted, "some messages")
            await slave.broker.kill()
            assert set(await sending) == {0}
            await slave.start()
            await slave.has(master)
        client = slave.broker.parts.ha_client
        assert client is not None
        # It may have had everything before it was killed.
        await until(lambda: client.connected, "the slave's connection")
        await asyncio.to_thread(master.broker.kill)
        # A connection that is made as the master dies may look like a refusal, until the next one.
        await until(lambda: not client.connected, "the master's end")
        await asyncio.to_thread(master.broker.start)
        assert set(await master.send(200)) == {0}
        await slave.has(master)
        assert not client.refusal
        assert client.connects == 2
        await slave.broker.stop()


@pytest.mark.parametrize("flush", FLUSHES)
async def test_sends_to_a_sync_master_wait_for_our_confirmation(tmp_path: Path, flush: str) -> None:
    async with pair_of(tmp_path, "SYNC_MASTER", flush_disk_type=flush) as (master, slave):
        assert set(await master.send(50)) == {ResponseCode.SLAVE_NOT_AVAILABLE}
        await slave.start()
        await slave.has(master)
        for _ in range(3):
            assert set(await master.send(300)) == {0}
            assert slave.count == master.sent  # it has what was acknowledged, without a wait
        await slave.has(master)
        await slave.broker.stop()
        await until_refused(master)
        await slave.start()
        await slave.has(master)
        assert set(await master.send(20)) == {0}
        await slave.broker.stop()


async def until_refused(master: Master) -> None:
    """Send until the master has noticed that its slave is gone."""
    codes: set[int] = set()
    while ResponseCode.SLAVE_NOT_AVAILABLE not in codes:
        codes = set(await master.send(1))


async def test_consumers_read_from_our_slave_when_the_master_is_gone(tmp_path: Path) -> None:
    async with pair_of(tmp_path, "ASYNC_MASTER") as (master, slave):
        tools = JavaTools(master.broker.children, master.broker)
        await slave.start()
        await master.send(40)
        early = await asyncio.to_thread(tools.received, "T", "readers", 40)
        await master.send(60)
        await slave.has(master)
        offsets = slave.broker.parts.offsets

        def has_offsets() -> bool:
            return sum(offsets.of("readers", "T").values()) >= 40

        await until(has_offsets, "the group's offsets")
        await asyncio.to_thread(master.broker.kill_broker)
        late = await asyncio.to_thread(tools.received, "T", "readers", 60)
        assert not {event["msg_id"] for event in early} & {event["msg_id"] for event in late}
        await slave.broker.stop()


async def test_an_empty_slave_begins_at_the_masters_last_file(tmp_path: Path) -> None:
    async with pair_of(tmp_path, "ASYNC_MASTER", ha_copy_from="lastFile") as (master, slave):
        await master.send(2500)
        await slave.start()
        store = slave.broker.parts.store
        theirs = master.log_bytes()
        end = len(theirs.rstrip(b"\0"))
        begin = end - end % FILE_SIZE
        assert begin > 0
        await until(lambda: store.commit_log.stored_offset >= end, "the last file")
        assert store.commit_log.min_offset == begin
        await slave.broker.stop()


async def test_a_slave_whose_next_bytes_have_expired_says_so(tmp_path: Path) -> None:
    """RocketMQ's master sends heartbeats alone then, for which its own slave waits forever."""
    async with pair_of(tmp_path, "ASYNC_MASTER") as (master, slave):
        await master.send(100)
        await slave.start()
        await slave.has(master)
        await slave.broker.stop()
        await master.send(2500)
        await asyncio.to_thread(master.broker.kill)
        first, second, *_ = sorted((master.broker.folder / "store" / "commitlog").iterdir())
        assert int(second.name) == FILE_SIZE
        first.unlink()
        await asyncio.to_thread(master.broker.start)
        await slave.start()
        client = slave.broker.parts.ha_client
        assert client is not None
        log = slave.broker.parts.store.commit_log
        end = log.wrote_offset
        await until(lambda: client.refusal or client.connects, "an outcome")
        assert "expired" in client.refusal
        assert log.wrote_offset == end
        await slave.broker.stop()
