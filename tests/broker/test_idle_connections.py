"""Peers that connect to any port and say nothing, under a small limit of open files.

Each case has a process of its own, because descriptors are a process's. Peers come from several
loopback addresses, so that no share of one address takes the place of the budget.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skylarkmq.protocol.codes import RequestCode
from tests.support.broker_process import BrokerProcess
from tests.support.patience import until
from tests.support.ports import free_ports
from tests.support.raw_client import RawClient, send_fields

pytestmark = [pytest.mark.timing, pytest.mark.slow]

FILE_LIMIT = 256
FOR_CONNECTIONS = FILE_LIMIT // 2
"""The store keeps the other half."""
WAVES, CROWD = 3, 40
"""How many peers connect to each port at a time, and how often."""
TURNS = 40
BURST = 100
"""Peers that are all there when the broker looks: the backlog of the pages' listener."""
TOPICS = 20
SOURCES = [f"127.0.0.{number}" for number in range(2, 10)]
GROUP = "billing"


class Crowded:
    """A broker with all its ports, and a client that was there before the crowd."""

    def __init__(self, process: BrokerProcess, client: RawClient, root: Path, ha_port: int) -> None:
        self.process = process
        self.client = client
        self._offsets = root / "config" / "consumerOffset.json"
        listen = process.address
        self.ports = {
            "remoting": listen[1],
            "fast": listen[1] - 2,
            "name server": _port(process.fields["namesrvAddr"]),
            "replication": ha_port,
            "gRPC": _port(process.fields["grpcAddr"]),
            "metrics": process.metrics_address[1],
        }
        self.crowd: list[socket.socket] = []
        self._sources = itertools.cycle(SOURCES)

    def crowd_in(self, port: str, count: int) -> None:
        """Let peers connect, some of them later; they say nothing."""
        for _ in range(count):
            peer = socket.socket()
            self.crowd.append(peer)
            peer.bind((next(self._sources), 0))
            peer.setblocking(False)
            peer.connect_ex(("127.0.0.1", self.ports[port]))

    @property
    def connections(self) -> int:
        """How many sockets the process has open; its files are the store's business."""
        folder, count = f"/proc/{self.process.process.pid}/fd", 0
        for descriptor in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                count += os.readlink(f"{folder}/{descriptor}").startswith("socket:")
        return count

    async def takes_in(self) -> None:
        """Let the broker accept whom it can, some in each turn."""
        for _ in range(TURNS):
            await self.client.call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)

    def burst_in(self, port: str, count: int) -> None:
        """Let peers connect while the broker does not look: it meets all of them at once."""
        os.kill(self.process.process.pid, signal.SIGSTOP)
        try:
            self.crowd_in(port, count)
        finally:
            os.kill(self.process.process.pid, signal.SIGCONT)

    async def works(self) -> None:
        """Take messages for topics that are new, and write the tables, which all open files."""
        for number in range(TOPICS):
            fields = send_fields(f"opens-files-{number}")
            answer = await self.client.call(RequestCode.SEND_MESSAGE_V2, fields, b"x")
            assert answer.code == 0, answer.remark
        place = {"consumerGroup": GROUP, "topic": "opens-files-0", "queueId": "0"}
        assert (await self.client.call(RequestCode.GET_MAX_OFFSET, place)).code == 0
        fields = {**place, "commitOffset": "1"}
        assert (await self.client.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0
        ended = self.process.process
        await until(lambda: ended.returncode is not None or self._is_written(), "the offsets")
        assert ended.returncode is None, self.process.tail()

    def _is_written(self) -> bool:
        text = self._offsets.read_text() if self._offsets.exists() else "{}"
        return GROUP in json.dumps(json.loads(text))


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


@asynccontextmanager
async def crowded(root: Path) -> AsyncIterator[Crowded]:
    """Run a broker as a process; it must live on, and end well."""
    (ha_port,) = free_ports()
    settings = {
        "namesrvListenPort": 0,
        "grpcListenPort": 0,
        "brokerRole": "ASYNC_MASTER",
        "haListenPort": ha_port,
        "flushConsumerOffsetInterval": 200,
        "defaultTopicQueueNums": 1,
    }
    process = await BrokerProcess.spawn(root, settings, command="serve", file_limit=FILE_LIMIT)
    crowd: list[socket.socket] = []
    try:
        await process.ready()
        made = Crowded(process, await RawClient.open(process.address), root, ha_port)
        crowd = made.crowd
        yield made
        await made.client.close()
        process.terminate()
        assert await process.ended() == 0, process.tail()
    finally:
        for peer in crowd:
            peer.close()
        await process.kill()


@pytest.mark.parametrize(
    "ports",
    [
        ("fast",),
        ("name server",),
        ("replication",),
        ("gRPC",),
        ("remoting", "fast", "name server"),
        ("remoting", "name server", "gRPC"),
    ],
    ids=" and ".join,
)
async def test_a_silent_crowd_leaves_the_store_its_files(
    tmp_path: Path, ports: tuple[str, ...]
) -> None:
    async with crowded(tmp_path) as it:
        before = it.connections
        for _ in range(WAVES):
            for port in ports:
                it.crowd_in(port, CROWD)
            await it.takes_in()
        assert it.connections - before <= FOR_CONNECTIONS
        await it.works()


@pytest.mark.fault
async def test_a_burst_on_the_pages_leaves_the_store_its_files(tmp_path: Path) -> None:
    """By chance, since the pages have a thread of their own."""
    async with crowded(tmp_path) as it:
        for _ in range(WAVES):
            it.burst_in("metrics", BURST)
            await it.takes_in()
        await it.works()
