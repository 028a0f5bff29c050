"""A slave's client on a store and a clock of the test, and a master whose every byte it says."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, cast

from skylarkmq.broker.base.ha_protocol import ReportDecoder, encode_head
from skylarkmq.broker.replication.ha.ha_client import HaClient
from skylarkmq.broker.replication.ha.master_connection import MasterConnection
from skylarkmq.common.clock import Clock
from tests.store.support import LOG_SIZE, StoreRig
from tests.support.crash_disk import CrashDisk
from tests.support.manual_clock import advance_async, settle

ADDRESS = "192.0.2.1:10912"


class Link:
    """A master's end of one connection; to the slave it is a transport."""

    def __init__(self, connection: MasterConnection) -> None:
        self.connection = connection
        self.reports: list[int] = []
        self.open = True
        self.reading = True
        self.sent = 0  # end of what was sent
        self._decoder = ReportDecoder()

    # Transport

    def write(self, data: bytes) -> None:
        self.reports += self._decoder.feed(data)

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def abort(self) -> None:
        self.lose(None)

    # The master's hand

    def say(self, data: bytes) -> None:
        """Deliver bytes, whatever they are."""
        if self.open:
            self.connection.data_received(data)

    def part(self, offset: int, data: bytes) -> None:
        self.say(encode_head(offset, len(data)) + data)

    def heartbeat(self) -> None:
        self.part(self.sent, b"")

    def lose(self, error: Exception | None) -> None:
        if self.open:
            self.open = False
            self.connection.connection_lost(error)


class ScriptedMaster:
    """Has a log, as RocketMQ's master; one whose files begin at `begin`."""

    def __init__(self, data: bytes, begin: int = 0, file_size: int = LOG_SIZE) -> None:
        self.data = data  # the whole log, with what has expired
        self.begin = begin
        self.file_size = file_size
        self.links: list[Link] = []
        self.refuses = False
        self.is_ours = False  # it closes where RocketMQ's is silent

    async def connect(self, _: str, clock: Clock) -> MasterConnection:
        await asyncio.sleep(0)
        if self.refuses:
            raise ConnectionRefusedError("connection refused")
        connection = MasterConnection(clock)
        link = Link(connection)
        connection.connection_made(cast(asyncio.BaseTransport, link))
        self.links.append(link)
        return connection

    @property
    def link(self) -> Link:
        return self.links[-1]

    def begin_link(self) -> None:
        """Look where the slave wants to begin."""
        link, end = self.link, len(self.data)
        asked = link.reports[0]
        link.sent = asked or end - end % self.file_size

    def send(self, rng: Random, size: int = 1 << 30, part_max: int = 5000) -> int:
        """Send at most so many bytes of what the slave lacks; return how many."""
        link, first = self.link, self.link.sent
        end = min(len(self.data), first + size)
        if first < self.begin:
            end = first  # expired: nothing is sent
        while link.sent < end:
            file_end = link.sent - link.sent % self.file_size + self.file_size
            stop = min(end, file_end, link.sent + rng.randint(1, part_max))
            link.part(link.sent, self.data[link.sent : stop])
            link.sent = stop
        return link.sent - first

    def answer(self, rng: Random) -> None:
        """Do with a new connection what a master does."""
        self.begin_link()
        if not self.send(rng):
            if self.is_ours and self.link.sent != len(self.data):
                self.link.lose(None)
            self.link.heartbeat()


class SlaveRig(StoreRig):
    """A store with its client."""

    def __init__(
        self, master: ScriptedMaster, files: CrashDisk | None = None, **config: Any
    ) -> None:
        super().__init__(files, broker_role="SLAVE", **config)
        self.address: str | None = ADDRESS
        self.client = HaClient(self.store, self.clock, lambda: self.address, master.connect)

    async def follow(self) -> SlaveRig:
        """Start both; the client has connected, if it can."""
        self.start()
        self.client.start()
        await self.turn()
        return self

    async def turn(self, seconds: float = 0.0) -> None:
        """Let the loop, the workers and the clock go on."""
        await settle()
        self.workers.run_all()
        if seconds:
            await advance_async(self.clock, seconds)
            self.workers.run_all()
        await settle()

    @property
    def end(self) -> int:
        return self.store.commit_log.wrote_offset

    def log_bytes(self) -> bytes:
        """What the log's files hold, up to its end."""
        log = self.store.commit_log
        data = b"".join(bytes(mapped.view) for mapped in log.mapped_files.mapped)
        return data[: log.wrote_offset - log.min_offset]
