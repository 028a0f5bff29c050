"""One connection over a transport and an owner that the test holds."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, cast

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.net.buffers import InboundBuffers, OutboundBuffers
from skylarkmq.broker.net.connection import Connection, Gate
from skylarkmq.broker.net.peer_connection import DeferredWrites
from skylarkmq.protocol.frame import RawFrame
from tests.support.manual_clock import ManualClock


class Transport:
    """A socket whose peer reads when the test says so: `taken` bytes leave the buffer."""

    def __init__(self, peer: tuple[str, int] | None = ("192.0.2.9", 4711)) -> None:
        self.peer = peer
        self.writes: list[bytes] = []
        self.buffered = 0
        self.keeps = False  # whether what is written stays in the buffer
        self.high = 0
        self.silence_ms = 0  # for how long the peer has sent nothing
        self.tcp_state = 1  # TCP_ESTABLISHED
        self.reading = True
        self.ended = ""
        self.protocol: Connection

    def get_extra_info(self, name: str) -> object:
        if name == "socket":
            return self
        return self.peer if name == "peername" else None

    def setsockopt(self, *_: object) -> None:
        """A socket's, for the connection."""

    def getsockopt(self, *_: object) -> bytes:
        return struct.pack("=B51xI", self.tcp_state, self.silence_ms)

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        assert low == high
        self.high = high

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        if self.keeps:
            before, self.buffered = self.buffered, self.buffered + len(data)
            if before <= self.high < self.buffered:
                self.protocol.pause_writing()

    def take(self, size: int) -> None:
        """The peer reads some bytes."""
        before, self.buffered = self.buffered, self.buffered - size
        if before > self.high >= self.buffered:
            self.protocol.resume_writing()

    def take_all(self) -> None:
        """The peer reads everything."""
        self.take(self.buffered)

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.ended = self.ended or "close"

    def abort(self) -> None:
        self.ended = "abort"


class Owner:
    """The server and the router: keeps what was opened, handled, closed."""

    def __init__(self) -> None:
        self.stats = BrokerStats()
        self.clock = ManualClock()
        self.gate = Gate()
        self.inbound = InboundBuffers()
        self.outbound = OutboundBuffers()
        self.deferred_writes = DeferredWrites()
        self.takes_in = True
        self.gone: list[Connection] = []
        self.handled: list[list[RawFrame]] = []
        self.on_frames: Callable[[Connection, list[RawFrame]], list[RawFrame]] = lambda *_: []

    def opened(self, connection: Connection) -> bool:
        return self.takes_in

    def closed(self, connection: Connection) -> None:
        self.gone.append(connection)

    def handle(self, connection: Connection, frames: list[RawFrame]) -> list[RawFrame]:
        self.handled.append(frames)
        return self.on_frames(connection, frames)


def connect(owner: Owner, transport: Transport | None = None) -> tuple[Connection, Transport]:
    transport = transport or Transport()
    made = Connection(owner, cast(Any, owner))
    transport.protocol = made
    made.connection_made(cast(asyncio.BaseTransport, transport))
    return made, transport
