"""A master's HA port over a store, a clock and transports that the test owns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from skylarkmq.broker.base.ha_protocol import LogPart, PartDecoder, encode_report
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.replication.ha.ha_server import HaServer
from skylarkmq.broker.replication.ha.replica_acks import wait_for_slaves
from skylarkmq.broker.replication.ha.slave_connection import SlaveConnection
from tests.store.support import StoreRig


class SlaveTransport:
    """A socket to a slave that reads when the test says so."""

    def __init__(self, peer: tuple[str, int] | None) -> None:
        self.peer = peer
        self.writes: list[bytes] = []
        self.ended = ""
        self.high = 0
        self.buffered = 0
        self.keeps = False  # whether what is written stays in the buffer
        self.protocol: SlaveConnection

    def get_extra_info(self, name: str) -> object:
        return self.peer if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def writelines(self, pieces: Sequence[bytes | memoryview]) -> None:
        self.write(b"".join(pieces))

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        if self.keeps:
            before, self.buffered = self.buffered, self.buffered + len(data)
            if before <= self.high < self.buffered:
                self.protocol.pause_writing()

    def take_all(self) -> None:
        """The peer reads everything."""
        before, self.buffered = self.buffered, 0
        if before > self.high:
            self.protocol.resume_writing()

    def close(self) -> None:
        self.ended = self.ended or "close"

    def abort(self) -> None:
        self.ended = self.ended or "abort"


class Slave:
    """The other end of a connection, as far as the master sees it."""

    def __init__(self, server: HaServer, peer: tuple[str, int] | None) -> None:
        self.transport = SlaveTransport(peer)
        self.connection = SlaveConnection(server)
        self.transport.protocol = self.connection
        self.parts: list[LogPart] = []
        self._decoder = PartDecoder()
        self._taken = 0
        self.connection.connection_made(cast(asyncio.BaseTransport, self.transport))

    @property
    def ended(self) -> str:
        return self.transport.ended

    def report(self, offset: int) -> None:
        self.connection.data_received(encode_report(offset))

    def read(self) -> list[LogPart]:
        """The parts and heartbeats that came since the last call."""
        writes = self.transport.writes[self._taken :]
        self._taken = len(self.transport.writes)
        parts = self._decoder.feed(b"".join(writes))
        self.parts += parts
        return parts

    @property
    def data(self) -> bytes:
        """The log as it has come; its parts must follow each other."""
        self.read()
        place = self.parts[0].offset if self.parts else 0
        for part in self.parts:
            assert part.offset == place
            place += len(part.data)
        return b"".join(part.data for part in self.parts)

    def leave(self, error: Exception | None = None) -> None:
        self.connection.connection_lost(error)


class MasterRig(StoreRig):
    """A master's store with its port for slaves."""

    def __init__(self, *, broker: dict[str, Any] | None = None, **config: Any) -> None:
        super().__init__(**config)
        self.server = HaServer(
            BrokerConfig(store=self.store.config, **(broker or {})), self.store, self.clock
        )
        if self.store.config.broker_role == "SYNC_MASTER":
            self.acks = wait_for_slaves(self.store, self.server, self.clock)
        self._ports = 40_000

    def connect(self, host: str = "192.0.2.9") -> Slave:
        self._ports += 1
        return Slave(self.server, (host, self._ports))

    def follow(self, offset: int, host: str = "192.0.2.9") -> Slave:
        """A slave whose log ends at an offset, or that asks for it, and has read what there is."""
        slave = self.connect(host)
        slave.report(offset)
        self.turn()
        return slave

    def turn(self) -> None:
        """The loop turns until nothing is planned for now, and workers have done their jobs."""
        for _ in range(100):
            self.clock.advance(0.005)
            self.workers.run_all()

    @property
    def log_bytes(self) -> bytes:
        """The whole log, from its oldest file on, as the disk has it."""
        log = self.store.commit_log
        data = b"".join(bytes(mapped.view) for mapped in log.mapped_files.mapped)
        return data[: log.stored_offset - log.min_offset]
