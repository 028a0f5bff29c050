"""What a connection needs of those around it: its server, the gate, and who handles its frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from skylarkmq.common.clock import Clock
from skylarkmq.protocol.raw_frame import RawFrame

if TYPE_CHECKING:
    from skylarkmq.broker.metrics.stats import BrokerStats
    from skylarkmq.broker.net.buffers import InboundBuffers, OutboundBuffers
    from skylarkmq.broker.net.connection import Connection


class FrameHandler(Protocol):
    """Takes the frames of one read, in order; answers through the connection."""

    def handle(self, connection: Connection, frames: list[RawFrame]) -> list[RawFrame]:
        """Handle frames and return those that must wait, because the connection is congested."""
        ...


class Gate(Protocol):
    """What is asked before frames are handed on while the broker has too much to do."""

    watch_after_s: float

    def sift(self, connection: Connection, frames: list[RawFrame]) -> list[RawFrame]:
        """Answer what is refused and return the rest; for reads after `watch_after_s`."""
        ...


class ConnectionOwner(Protocol):
    """The server that the connection belongs to."""

    stats: BrokerStats
    clock: Clock
    gate: Gate
    inbound: InboundBuffers
    outbound: OutboundBuffers

    def opened(self, connection: Connection) -> bool:
        """Take the connection in; False when there is no room for it."""
        ...

    def closed(self, connection: Connection) -> None: ...


class ConnectionMaker(Protocol):
    """Makes what stands for a peer that has connected; a test's own kind cuts and delays."""

    def __call__(self, handler: FrameHandler, owner: ConnectionOwner, /) -> Connection: ...
