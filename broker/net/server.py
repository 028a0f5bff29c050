"""Listens, and keeps the connections: their number, their idleness, their end.

Source: apache/rocketmq@rocketmq-all-4.9.8 remoting/.../netty/NettyRemotingServer.java (idle after
120 s without a read or a write)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.net.addresses import accept_from
from skylarkmq.broker.net.buffers import (
    INBOUND_MAX,
    OUTBOUND_MAX,
    InboundBuffers,
    OutboundBuffers,
)
from skylarkmq.broker.net.connection import Connection, FrameHandler, Gate
from skylarkmq.broker.net.peer_connection import DeferredWrites, PeerConnection
from skylarkmq.broker.net.tls import TlsGate
from skylarkmq.common.clock import Clock
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.protocol.host_address import network_of

if TYPE_CHECKING:
    from skylarkmq.broker.access.revoking import Revoked

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 10_000
SCAN_INTERVAL_S = 5.0
SHARES_TOLD_MAX = 3  # addresses that a scan names because they have too many connections
SLOW_READER_LIMIT_S = 60.0  # how long a peer may leave our answers unread
FRAME_LIMIT_S = 30.0  # how long a frame may take from its first byte to its last


ConnectionMaker = Callable[[FrameHandler, "RemotingServer"], Connection]
"""Makes what stands for a peer that has connected; a test's own kind cuts and delays."""


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """How many peers a server lets in, for how long a silent one stays, and what they may hold.

    Attributes:
        inbound: bytes that came and were not handled, of all peers.
        outbound: bytes that they leave unread.
    """

    idle_s: float = 120.0
    connections: int = MAX_CONNECTIONS
    address_share: int = MAX_CONNECTIONS
    """Connections that one address may have; of IPv6, one network of 64 bits."""
    inbound: int = INBOUND_MAX
    outbound: int = OUTBOUND_MAX

    @classmethod
    def of(cls, config: BrokerConfig) -> PeerLimits:
        """Return those of a broker."""
        return cls(
            config.server_channel_max_idle_time_seconds,
            config.max_connections,
            config.connections_per_address,
            config.max_inbound_buffered,
            config.max_outbound_buffered,
        )


class PeerServer:
    """Accepts peers of one kind on one or more addresses. Loop thread."""

    def __init__(
        self,
        clock: Clock,
        stats: BrokerStats,
        make: Callable[[], PeerConnection],
        *,
        limits: PeerLimits = PeerLimits(),
    ) -> None:
        """Make a server; `serve` opens it.

        Args:
            make: makes what stands for a peer that has connected.
        """
        self.stats = stats
        self.clock = clock
        self.inbound = InboundBuffers(limits.inbound)
        self.outbound = OutboundBuffers(limits.outbound)
        self.deferred_writes = DeferredWrites()
        self.connections: set[PeerConnection] = set()
        self._make = make
        self._limits = limits
        self._by_address: Counter[bytes] = Counter()  # connections, as `connections` has them
        self._servers: list[asyncio.Server] = []
        self._scan = IntervalTimer(clock, SCAN_INTERVAL_S, self._scan_peers)
        self._empty = asyncio.Event()
        self._refused_count = 0  # connections since the last scan
        self._refused_share: Counter[str] = Counter()  # those of addresses with their share

    async def serve(self, *sockets: socket.socket, tls: TlsGate | None = None) -> None:
        """Accept connections on bound sockets, which are then this server's.

        Args:
            tls: decides about TLS; None: plain text alone.

        Raises:
            OSError: another program listens there. The address could be bound all the same while
                neither listened.
        """

        def make_protocol() -> asyncio.Protocol:
            connection = self._make()
            return connection if tls is None else tls.before(connection, connection)

        for bound in sockets:
            self._servers.append(await accept_from(bound, make_protocol))
        self._scan.start()

    def stop_reading(self) -> None:
        """Accept no peer and no request any more; answers still go out."""
        self._scan.stop()
        for server in self._servers:
            server.close()
        self._servers.clear()
        for connection in self.connections:
            connection.stop_reading()

    async def stop(self) -> None:
        """Stop accepting, then end every connection once its answers are sent."""
        self.stop_reading()
        for connection in list(self.connections):
            connection.close("shutdown")
        if self.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), 2.0)
        for connection in list(self.connections):
            connection.abort("shutdown")

    def abort(self, reason: str) -> None:
        """Stop accepting and cut every connection now; unsent answers are lost."""
        self.stop_reading()
        for connection in list(self.connections):
            connection.abort(reason)

    def opened(self, connection: PeerConnection) -> bool:
        """Take a connection in; False when there is no room for it."""
        self.connections.add(connection)
        self._empty.clear()
        self.stats.connections_opened += 1
        address = network_of(connection.host_bytes)
        self._by_address[address] += 1
        if len(self.connections) > self._limits.connections:
            self._refused_count += 1
            return False
        if self._by_address[address] > self._limits.address_share:
            self._refused_share[connection.remote_address.rpartition(":")[0]] += 1
            return False
        return True

    def closed(self, connection: PeerConnection) -> None:
        """Forget a connection that has ended."""
        if connection in self.connections:
            self.connections.discard(connection)
            address = network_of(connection.host_bytes)
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]
        self.stats.connection_closed(connection.close_reason)
        if not self.connections:
            self._empty.set()

    def _scan_peers(self) -> None:
        if self._refused_count:
            log.warning(
                "%d connections were refused: maxConnections=%d are open",
                self._refused_count,
                self._limits.connections,
            )
            self._refused_count = 0
        for address, count in self._refused_share.most_common(SHARES_TOLD_MAX):
            log.warning(
                "%d connections from %s were refused: it has maxConnectionsPerAddress=%d open",
                count,
                address,
                self._limits.address_share,
            )
        self._refused_share.clear()
        self._drop_idle()
        for buffers in (self.inbound, self.outbound):
            buffers.look()

    def _drop_idle(self) -> None:
        now = self.clock.monotonic()
        for connection in list(self.connections):
            if connection.paused_since_s:
                connection.note_progress()
            if _is_older(connection.paused_since_s, now - SLOW_READER_LIMIT_S):
                connection.abort("slow_reader")
            elif _is_older(connection.unfinished_since_s, now - FRAME_LIMIT_S):
                log.warning("dropping %s: it does not finish its frame", connection.remote_address)
                connection.abort("slow_sender")
            elif now - connection.last_active_s <= self._limits.idle_s:
                continue
            elif connection.close_reason:  # it was to end, and does not take its last answers
                connection.abort(connection.close_reason)
            else:
                self.stats.protocol_errors["idle_timeout"] += 1
                connection.close("idle_timeout")


class RemotingServer(PeerServer):
    """Accepts peers that send frames of remoting, for one handler. Loop thread."""

    def __init__(
        self,
        handler: FrameHandler,
        clock: Clock,
        stats: BrokerStats,
        *,
        limits: PeerLimits = PeerLimits(),
        gate: Gate | None = None,
        connect: ConnectionMaker = Connection,
    ) -> None:
        """Make a server; `serve` opens it.

        Args:
            connect: makes what stands for a peer that has connected.
            gate: refuses requests while there is too much to do; None: nothing is refused.
        """
        super().__init__(clock, stats, lambda: connect(handler, self), limits=limits)
        self.gate: Gate = gate or Gate()

    def revoke(self, revoked: Revoked) -> None:
        """End the connections of those who may less now, with all that waits for them."""
        count = 0
        for each in list(self.connections):
            connection = cast("Connection", each)
            if revoked.takes_from(connection.access_keys, connection.remote_address):
                connection.end("revoked")
                count += 1
        if count:
            log.warning("%d connections end: their accounts or addresses may less now", count)


def _is_older(since_s: float, limit_s: float) -> bool:
    return 0.0 < since_s < limit_s
