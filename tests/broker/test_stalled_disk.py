"""A disk that stalls under a broker with real threads: what needs no disk goes on.

The disk stands still on an event of the test's, the clock is the test's too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skylarkmq.broker.controller import BrokerController
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.record import decode_messages
from tests.support.failing_files import FailingFiles
from tests.support.live_broker import live_broker
from tests.support.manual_clock import ManualClock
from tests.support.patience import LIMIT_S
from tests.support.raw_client import RawClient, pull_fields, send_fields

pytestmark = pytest.mark.timing

SEND, PULL, ROUTE = (
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.PULL_MESSAGE,
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
)
LOG_SIZE, BODY = 1 << 20, bytes(30_000)
HEARTBEAT = b'{"clientID":"c","producerDataSet":[{"groupName":"pg"}],"consumerDataSet":[]}'
WRITE_MODES: dict[str, dict[str, object]] = {
    "plain": {},
    "mapped": {"commit_log_write_mode": "mapped"},
    "sync": {"flush_disk_type": "SYNC_FLUSH"},
    "pool": {"transient_store_pool_enable": True, "transient_store_pool_size": 3},
}


class StallingFiles(FailingFiles):
    """A disk whose calls for the log wait while it stalls.

    Attributes:
        allocating: cleared, log files that are being made wait.
        write_s: what a write takes, on the clock.
        writers: names of the threads that wrote to the log.
    """

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock
        self.allocating = threading.Event()
        self.allocating.set()
        self.write_s = 0.0
        self.writers: list[str] = []

    def check(self, op: str, path: Path) -> None:
        super().check(op, path)
        if "commitlog" not in str(path):
            return
        if op == "pwrite":
            self.writers.append(threading.current_thread().name)
            self._clock.pass_time(self.write_s)
        elif op == "allocate":
            assert self.allocating.wait(LIMIT_S)


class Site:
    """A broker on such a disk, and a client."""

    def __init__(
        self, broker: BrokerController, files: StallingFiles, clock: ManualClock, client: RawClient
    ) -> None:
        self.broker = broker
        self.files = files
        self.clock = clock
        self.client = client

    async def send(self, body: bytes) -> RemotingCommand:
        return await self.client.call(SEND, send_fields("T"), body)

    async def bodies(self) -> list[bytes]:
        found: list[bytes] = []
        while True:
            answer = await self.client.call(PULL, pull_fields("T", 0, len(found), sysFlag="4"))
            if answer.code != ResponseCode.SUCCESS:
                return found
            found += [message.body for message in decode_messages(answer.body)]

    async def check_others_go_on(self) -> None:
        """Cached pulls, routes, heartbeats and the probes are answered."""
        assert await self.bodies()
        heartbeat = await self.client.call(RequestCode.HEART_BEAT, {}, HEARTBEAT)
        assert heartbeat.code == ResponseCode.SUCCESS
        assert self.broker.namesrv_address is not None
        names = await RawClient.open(self.broker.namesrv_address)
        assert (await names.call(ROUTE, {"topic": "T"})).code == ResponseCode.SUCCESS
        await names.close()
        for page in ("/livez", "/readyz"):
            assert await self.status(page) == 200

    async def status(self, path: str) -> int:
        assert self.broker.metrics_address is not None
        reader, writer = await asyncio.open_connection(*self.broker.metrics_address)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        status = int((await reader.readline()).split()[1])
        writer.close()
        return status


@asynccontextmanager
async def site_on(root: Path, write_mode: str) -> AsyncIterator[Site]:
    clock = ManualClock()
    files = StallingFiles(clock)
    async with live_broker(
        root,
        files=files,
        clock=clock,
        mapped_file_size_commit_log=LOG_SIZE,
        max_message_size=64 * 1024,
        **WRITE_MODES[write_mode],
    ) as broker:
        client = await RawClient.open(broker.listen_address)
        try:
            yield Site(broker, files, clock, client)
        finally:
            files.writing.set()
            files.allocating.set()
            await client.close()


@pytest.mark.parametrize("write_mode", ["plain", "mapped", "sync"])
async def test_a_write_that_stalls_holds_up_the_sends_alone(
    tmp_path: Path, write_mode: str
) -> None:
    async with site_on(tmp_path, write_mode) as site:
        log, writer = site.broker.parts.store.commit_log, site.broker.parts.store.writer
        assert (await site.send(b"0")).code == 0
        if write_mode == "mapped":  # a store that was slow, which no disk of a test can be
            writer._slow = True
        else:
            site.files.write_s = 0.1
            assert (await site.send(b"1")).code == 0
        site.files.write_s = 0.0
        site.files.writers.clear()
        site.files.writing.clear()
        waiting = [site.client.send(SEND, send_fields("T"), b"later") for _ in range(3)]
        await site.check_others_go_on()
        assert log.writer.later
        site.clock.advance(1.1)
        refused = await site.send(b"refused")
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert "[REJECTREQUEST]" in (refused.remark or "")
        assert "an append has been under way for" in (refused.remark or "")
        await site.check_others_go_on()
        before = await site.bodies()
        site.files.writing.set()
        answers = [await site.client.answer(opaque) for opaque in waiting]
        assert [answer.code for answer in answers] == [0, 0, 0]
        assert await site.bodies() == before + [b"later"] * 3
        assert set(site.files.writers) <= {"skylarkmq-commit", "MainThread"}
        assert "skylarkmq-commit" in site.files.writers
        while not writer._flush.idle:  # a sync that is under way, and late by the test's clock
            await site.client.call(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"})
        assert (await site.send(b"quick")).code == 0
        site.files.writers.clear()
        assert (await site.send(b"last")).code == 0
        assert "skylarkmq-commit" not in site.files.writers, "back on the loop"


@pytest.mark.parametrize("write_mode", WRITE_MODES)
async def test_a_file_that_is_made_slowly_holds_up_the_sends_alone(
    tmp_path: Path, write_mode: str
) -> None:
    async with site_on(tmp_path, write_mode) as site:
        prepared = site.broker._workers.prepare
        assert (await site.send(BODY)).code == 0
        made = threading.Event()
        prepared.submit(made.set, lambda *_: None)  # what was asked for at the start is there
        assert await asyncio.to_thread(made.wait, LIMIT_S)
        site.files.allocating.clear()
        stored, answer = 1, await site.send(BODY)
        while answer.code == 0:
            stored += 1
            site.clock.advance(0.1)  # a file lasts for some seconds
            answer = await site.send(BODY)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "the next log file is not ready" in (answer.remark or "")
        await site.check_others_go_on()
        site.files.allocating.set()
        made.clear()
        prepared.submit(made.set, lambda *_: None)
        assert await asyncio.to_thread(made.wait, LIMIT_S)
        answer = await site.send(BODY)
        assert (answer.code, answer.ext_fields["queueOffset"]) == (0, str(stored))
