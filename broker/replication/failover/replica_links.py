"""The connections between replicas under a controller, over the HA port.

Each replica listens, and connects to the master that it follows; `replica_events.py` has what the
two say. What is said is the state machine's to judge: here messages are carried, the log is fed,
and strangers are turned away. `replica_connection.py` has the connections, `replica_feed.py` the
streams of the log.

    message                             goes over
    Hello                               a new connection to its address; the earlier one ends
    Confirm, Promise                    the connection to that master
    Welcome, Refused, Beat, TakeOver    the newest connection of that follower

A message without a connection is dropped. The links outlive the lives of the store, and a
connection does so too: a follower that cuts its log between two lives keeps its session.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from skylarkmq.broker.base.addresses import AddressList
from skylarkmq.broker.net.addresses import listen
from skylarkmq.broker.replication.failover.replica_connection import (
    FollowerConnection,
    MasterConnection,
    ReplicaConnection,
)
from skylarkmq.broker.replication.failover.replica_events import (
    Confirm,
    GoodBye,
    Hello,
    Message,
    OpenStream,
    Part,
    Promise,
)
from skylarkmq.broker.replication.failover.replica_feed import ROUND_SIZE, FeedTurns, LogFeed
from skylarkmq.broker.replication.failover.replica_protocol import Identity
from skylarkmq.broker.replication.failover.terms import Lineage
from skylarkmq.broker.replication.ha.port_rules import COMINGS_TOLD_MAX, why_not_allowed
from skylarkmq.common.clock import Clock
from skylarkmq.common.throttled_log import ThrottledLog
from skylarkmq.protocol.errors import shown
from skylarkmq.remoting.waiting import wait_event
from skylarkmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 64
"""Connections to the HA port at once, whoever makes them."""
BACKLOG: Final = 16
STOP_LIMIT_S: Final = 2.0
"""For which a stop waits until others have taken what was written to them."""


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """How the HA port of a replica behaves.

    Attributes:
        allowed: the addresses that may connect; None: see `port_rules.py`.
        only_local: without such a list, this machine alone may connect.
        silence_s: for which another replica may say nothing, where it has to.
        part_size: bytes of the log that go out as one part, at most ROUND_SIZE.
    """

    allowed: AddressList | None
    only_local: bool
    silence_s: float
    part_size: int


class ReplicaLinks:
    """Carries what replicas say to each other, and feeds followers. Loop thread.

    Its size is one idea: which connections there are, both ways, and what each tells of its end.

    Attributes:
        confirmed: what followers may show, bytes of the log; the driver keeps it current.
        followers: the newest connection of each follower, by its replica id.
        master: the connection to the master of the newest Hello, until it is lost.
        turns: those of the streams.
    """

    def __init__(
        self,
        identity: Identity,
        clock: Clock,
        options: LinkOptions,
        hear: Callable[[str, Message], None],
        lost: Callable[[str, bool], None],
    ) -> None:
        """Prepare; `serve` and the first Hello begin.

        Args:
            hear: told each message, and the id of the replica that sent it.
            lost: told the id of the other end, and whether that was the master, when a connection
                has ended, also one that could not be made: once for each Hello sent, and for each
                one heard. One that was replaced by a newer one of the same replica is not told. It
                is called from the loop.
        """
        self.identity = identity
        self.clock = clock
        self.options = options
        self.part_size = max(1, min(options.part_size, ROUND_SIZE))
        self.hear = hear
        self.confirmed = 0
        self.followers: dict[str, FollowerConnection] = {}
        self.master: MasterConnection | None = None
        self.turns = FeedTurns(clock)
        self._lost = lost
        self._store: MessageStore | None = None
        self._server: asyncio.Server | None = None
        self._is_over = False
        self._incoming: set[FollowerConnection] = set()  # also those that have not greeted
        self._outgoing: set[MasterConnection] = set()  # also those that end
        self._empty = asyncio.Event()
        self._empty.set()
        self._throttled = ThrottledLog(clock, log)

    # Life cycle

    async def serve(self, bound: socket.socket) -> None:
        """Accept replicas on a bound socket, which then belongs to the links.

        Raises:
            OSError: another program listens there.
        """
        listen(bound, BACKLOG)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: FollowerConnection(self), sock=bound, backlog=BACKLOG
        )

    async def stop(self) -> None:
        """End all connections; what is written goes out before, if it is taken soon."""
        self._end()
        for connection in (*self._incoming, *self._outgoing):
            connection.close("this replica stops")
        await wait_event(self.clock, self._empty, STOP_LIMIT_S)
        self.abort()
        await self._empty.wait()

    def abort(self) -> None:
        """Cut all connections; `lost` is told of them in the next turn of the loop."""
        self._end()
        for connection in (*self._incoming, *self._outgoing):
            connection.abort("this replica stops")

    def _end(self) -> None:
        self._is_over = True
        self.close_streams()
        if self._server is not None:
            self._server.close()
            self._server = None

    # What the driver asks

    def attach(self, store: MessageStore | None) -> None:
        """Feed the log of this store from now on; None between two lives.

        All streams of the store before end, and its files may be cut or closed in a later turn of
        the loop: a follower that has not taken everything that was written loses its connection.
        """
        if store is not self._store:
            for connection in list(self._incoming):
                connection.let_go()
            self._store = store

    def send(self, to: str, message: Message, address: str = "") -> None:
        """Send a message to a replica; drop it when there is no connection.

        Args:
            address: `host:port` of its HA port, for a Hello.
        """
        match message:
            case Hello():
                self._connect(to, message, address)
            case Confirm() | Promise() | GoodBye():
                if self.master is not None and self.master.replica == to:
                    self.master.say(message)
            case Part():
                raise TypeError("the log goes out by streams")
            case _:
                follower = self.followers.get(to)
                if follower is not None:
                    follower.say(message)

    def _connect(self, master: str, hello: Hello, address: str) -> None:
        if self._is_over:
            return
        earlier = self.master
        connection = self.master = MasterConnection(self, master, address, hello)
        self._outgoing.add(connection)
        self._empty.clear()
        if earlier is not None:
            earlier.is_replaced = earlier.replica == master
            earlier.abort("a newer session takes its place")
        connection.start()

    def open_stream(self, to: str, term: int, session: int, offset: int, lineage: Lineage) -> None:
        """Feed a follower from `offset` on, by parts of this term and session, and by no others.

        Args:
            lineage: of the log here; no part goes across the start of a term.
        """
        connection, store = self.followers.get(to), self._store
        if connection is not None and store is not None and not self._is_over:
            stream = OpenStream(to, term, session, offset)
            connection.begin(LogFeed(connection, store, stream, lineage))

    def close_streams(self) -> None:
        """Feed nobody any more."""
        for connection in self._incoming:
            connection.end_feed()

    def hold(self, is_held: bool) -> None:
        """Read nothing from the master, because the disk here is slow; False: read again.

        The master's silence does not count meanwhile. A new Hello reads again.
        """
        if self.master is not None:
            self.master.hold(is_held)

    # What connections tell

    def opened(self, connection: FollowerConnection) -> None:
        """Take a peer of the port in, or end it."""
        self._incoming.add(connection)
        self._empty.clear()
        if connection.closed:  # it left before it was accepted
            return
        host = connection.peer.rpartition(":")[0]
        if self._is_over:
            connection.abort("this replica stops")
        elif why := why_not_allowed(host, self.options.allowed, self.options.only_local):
            connection.refuse("address", why)
        elif len(self._incoming) > CONNECTIONS_MAX:
            connection.refuse("limit", f"{CONNECTIONS_MAX} connections are open")

    def greeted(self, connection: FollowerConnection, hello: Hello) -> None:
        """Let a follower speak that is one of this log's."""
        replica = connection.replica
        earlier = self.followers.get(replica)
        self.followers[replica] = connection
        if earlier is not None:
            earlier.abort("a newer connection takes its place")
        self._tell("begun", connection, f"replica {shown(replica)} at {connection.peer} connects")
        self.hear(replica, hello)

    def welcomed(self, connection: MasterConnection) -> None:
        """Note that a master feeds this replica."""
        text = f"following {shown(connection.replica)} at {shown(connection.peer)}"
        self._tell("begun", connection, text)

    def unreachable(self, connection: MasterConnection, why: str) -> None:
        """Note that a master could not be connected to."""
        connection.is_told = True
        at = f"{shown(connection.replica)} at {shown(connection.peer)}"
        key = "unreachable", connection.peer.rpartition(":")[0]
        self._throttled.tell(key, f"{at} cannot be followed: {why}")

    def follower_gone(self, connection: FollowerConnection, why: str) -> None:
        """Forget a peer of the port that has gone."""
        self._incoming.discard(connection)
        replica = connection.replica
        self._look_whether_empty()
        if replica and self.followers.get(replica) is connection:
            del self.followers[replica]
            self._tell("gone", connection, f"replica {shown(replica)} is gone: {why}")
            self._lost(replica, False)

    def master_gone(self, connection: MasterConnection, why: str) -> None:
        """Forget a connection to a master that has ended, or could not be made."""
        self._outgoing.discard(connection)
        self._look_whether_empty()
        replica, current = connection.replica, self.master
        if current is connection:
            self.master = None
        elif connection.is_replaced or (current is not None and current.replica == replica):
            return
        at = f"{shown(replica)} at {shown(connection.peer)}"
        self._tell("gone", connection, f"the connection to {at} has ended: {why}")
        self._lost(replica, True)

    def refused(
        self, connection: ReplicaConnection, kind: str, why: str, replica: str = ""
    ) -> None:
        """Tell why a connection ends that its operator wants to have, once in a while.

        Args:
            kind: `foreign`: this replica feeds no such log; `refused`: the master said so of this
                one; `slave`, `address`, `limit`, `protocol`, `silent`, `deaf`, `expired`, `disk`.
            replica: id that the other end gives, if it is not the connection's.
        """
        replica, peer = replica or connection.replica, connection.peer
        who = f"replica {shown(replica)} at {shown(peer)}" if replica else shown(peer)
        said = f"{who} refuses this replica" if kind == "refused" else f"closing {who}"
        connection.is_told = True
        self._throttled.tell((kind, peer.rpartition(":")[0]), f"{said}: {why}")

    def _tell(self, kind: str, connection: ReplicaConnection, text: str) -> None:
        """Log that a connection comes or goes, not too often, and not what was told already."""
        if not (connection.is_told and kind == "gone"):
            key = kind, connection.peer.rpartition(":")[0]
            self._throttled.tell(key, text, COMINGS_TOLD_MAX, logging.INFO)

    def _look_whether_empty(self) -> None:
        if not self._incoming and not self._outgoing:
            self._empty.set()
