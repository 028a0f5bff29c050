"""RocketMQ's own slave follows our master: its log is ours, byte for byte, after kills, too."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from skylarkmq.broker.controller import BrokerController
from skylarkmq.protocol.codes import ResponseCode
from tests.interop.apache_server import ApacheBroker
from tests.interop.children import Children
from tests.interop.servers import FILE_SIZES
from tests.support.live_broker import live_broker, namesrv_of
from tests.support.patience import until
from tests.support.raw_client import RawClient, send_fields

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("maven")]

SEND = 310
FILE_SIZE = FILE_SIZES["mappedFileSizeCommitLog"]
TIMEOUT_MS = 500


class Names:
    """The name server of a broker in this process."""

    def __init__(self, broker: BrokerController) -> None:
        self.namesrv = namesrv_of(broker)


class Pair:
    """Our master, RocketMQ's slave, and a client of the master."""

    def __init__(self, master: BrokerController, slave: ApacheBroker, client: RawClient) -> None:
        self.master = master
        self.slave = slave
        self.client = client
        self._random = Random(11)

    @property
    def end(self) -> int:
        """Of the master's log."""
        return self.master.parts.store.commit_log.wrote_offset

    async def send(self, count: int) -> list[int]:
        """Send messages of many sizes; the codes of the answers."""
        opaques = [
            self.client.send(
                SEND,
                send_fields("T", number % 4, f"KEYS\x01k{number}\x02"),
                self._random.randbytes(self._random.randrange(20_000)),
            )
            for number in range(count)
        ]
        return [(await self.client.answer(opaque)).code for opaque in opaques]

    async def followed(self) -> None:
        """Return when the slave has confirmed everything."""
        server = self.master.parts.ha_server
        assert server is not None
        await until(lambda: server.acknowledged == self.end, "the slave")

    async def gone(self) -> None:
        server = self.master.parts.ha_server
        assert server is not None
        await until(lambda: not server.slaves, "the end of the slave")

    async def cut_in_mid_record(self) -> None:
        """Cut the connection while the slave's log ends within a record; it comes back."""
        server, store = self.master.parts.ha_server, self.master.parts.store
        assert server is not None

        def cut() -> bool:
            for slave in server.slaves:
                place = slave.acknowledged
                if place < self.end and store.look_message(place) is None:
                    slave.abort()
                    return True
            return False

        await until(cut, "a part that ends within a record")
        await self.gone()

    def ours(self) -> bytes:
        log = self.master.parts.store.commit_log
        return b"".join(bytes(mapped.view) for mapped in log.mapped_files.mapped)[: self.end]

    def theirs(self) -> bytes:
        """The slave's log, from offset 0 on."""
        files = sorted((self.slave.folder / "store" / "commitlog").iterdir())
        assert [int(path.name) for path in files] == [
            FILE_SIZE * number for number in range(len(files))
        ]
        return b"".join(path.read_bytes() for path in files)[: self.end]


@asynccontextmanager
async def pair_of(root: Path, role: str, **keys: object) -> AsyncIterator[Pair]:
    """Both running, the slave on an empty store that begins where the master's log begins."""
    children = Children(root)
    async with live_broker(
        root / "master",
        broker_role=role,
        mapped_file_size_commit_log=FILE_SIZE,
        **{"max_message_size": 1 << 20, **keys},
    ) as master:
        folder = root / "slave"
        folder.mkdir()
        slave = ApacheBroker(
            children,
            folder,
            Names(master),
            brokerName="broker-a",
            brokerRole="SLAVE",
            brokerId=1,
            haMasterAddress=f"127.0.0.1:{master.ha_port}",
        )
        client = await RawClient.open(master.listen_address)
        pair = Pair(master, slave, client)
        try:
            await asyncio.to_thread(slave.start)
            server = master.parts.ha_server
            assert server is not None
            await until(lambda: server.slaves, "the slave")
            yield pair
        finally:
            await client.close()
            await asyncio.to_thread(slave.end)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_the_slave_has_our_log_byte_for_byte_also_after_kills(
    tmp_path: Path, flush: str
) -> None:
    async with pair_of(tmp_path, "ASYNC_MASTER", flush_disk_type=flush) as pair:
        assert set(await pair.send(200)) == {0}
        await pair.followed()
        for _ in range(2):
            sending = asyncio.ensure_future(pair.send(2000))
            begin = pair.end
            await until(lambda begin=begin: pair.end > begin + (1 << 20), "messages")
            pair.slave.kill()  # with parts under way, which end within records
            assert set(await sending) == {0}
            await pair.gone()
            await asyncio.to_thread(pair.slave.start)
            await pair.followed()
        sending = asyncio.ensure_future(pair.send(2000))
        await pair.cut_in_mid_record()
        assert set(await sending) == {0}
        await pair.followed()
        assert pair.end > 2 * FILE_SIZE
        assert set(await pair.send(200)) == {0}
        await pair.followed()
        assert pair.theirs() == pair.ours()


def stands_still(pid: int) -> bool:
    """Return whether a process was stopped, with all its threads: on a busy machine that takes."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


async def test_what_a_sync_master_tells_of_the_slave(tmp_path: Path) -> None:
    async with pair_of(tmp_path, "SYNC_MASTER", slave_timeout=TIMEOUT_MS) as pair:
        await pair.send(1)
        await pair.followed()
        codes = await pair.send(300)
        assert codes.count(0) > 250, codes  # a busy machine may be late once
        await pair.followed()
        os.kill(pair.slave.pid, signal.SIGSTOP)
        await until(lambda: stands_still(pair.slave.pid), "all of its threads stand still")
        try:
            assert set(await pair.send(3)) == {ResponseCode.FLUSH_SLAVE_TIMEOUT}
        finally:
            os.kill(pair.slave.pid, signal.SIGCONT)
        await pair.followed()
        pair.slave.kill()
        await pair.gone()
        assert set(await pair.send(3)) == {ResponseCode.SLAVE_NOT_AVAILABLE}
        await asyncio.to_thread(pair.slave.start)
        await pair.followed()
        assert pair.theirs() == pair.ours()
