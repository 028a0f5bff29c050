"""The port of a master to which its slaves connect, and when they get more of the log.

Slaves that have everything wait; what is stored next wakes them (`MessageWriter.on_stored`), once,
whatever number of batches comes before they look. So a master without slaves pays one look a
batch. A SYNC_MASTER sends with the commit, because producers wait for it; an ASYNC_MASTER at most
every TURN_S, which saves it and its slaves most of the system calls.

`port_rules.py` says who may connect.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../ha/HAService.java (AcceptSocketService,
GroupTransferService)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Final

from skylarkmq.broker.base.addresses import AddressList
from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.net.addresses import bind, listen
from skylarkmq.broker.replication.ha.port_rules import COMINGS_TOLD_MAX, why_not_allowed
from skylarkmq.broker.replication.ha.slave_connection import UNKNOWN, SlaveConnection
from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.common.throttled_log import ThrottledLog
from skylarkmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

TURN_S: Final = 0.005
"""From one write of an ASYNC_MASTER to the next, whose price is that of some messages: system calls
here and there. Beside 8,000 sends a second, one at a time, a slave costs 16 % more CPU with this,
31 % with 2 ms."""
SLAVES_MAX: Final = 64
"""Connections at once, whoever makes them."""
BACKLOG: Final = 16
STOP_LIMIT_S: Final = 2.0
"""For which a stop waits until slaves have taken what was written to them."""


def bind_for_slaves(config: BrokerConfig) -> socket.socket:
    """Return a socket bound to the configured port for slaves.

    Raises:
        OSError: it is not available; the text says what to do.
    """
    try:
        return bind(config.bind_address, config.ha_port(config.listen_port))
    except OSError as error:
        raise _with_cure(error, config) from error


def _with_cure(error: OSError, config: BrokerConfig) -> OSError:
    which = "haListenPort" if config.store.ha_listen_port else "listenPort + 1"
    return OSError(
        error.errno,
        f"{error.strerror}; that is the port for slaves ({which}): set haListenPort to a free one."
        " Several brokers on one machine best have their listenPorts 10 apart",
    )


class SendTurns:
    """When slaves get more of the log. Loop thread."""

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._is_prompt = store.config.broker_role == "SYNC_MASTER"
        self._waiting: set[SlaveConnection] = set()  # they have everything
        self._planned: set[SlaveConnection] = set()  # they get more in the next turn
        self._turn: TimerHandle | None = None
        self._turn_s = 0.0  # when the last one was

    def wait(self, connection: SlaveConnection) -> None:
        """Send to a slave when more is stored: it has everything."""
        self._waiting.add(connection)
        self._store.writer.on_stored = self._stored

    def _stored(self, end: int) -> None:
        waiting, self._waiting = self._waiting, set()
        if not self._is_prompt:
            self._planned |= waiting
            self._plan_turn()
            return
        at, data = self._store.commit_log.batch.written
        is_at_hand = bool(data) and at + len(data) == end
        for connection in waiting:
            try:
                if is_at_hand and connection.sent == at:  # it lacks nothing else
                    connection.send_written(data, end)
                else:
                    connection.send_more()
            except Exception:
                log.exception("the log could not be sent to slave %s", connection.peer)
                connection.abort()  # it comes again

    def plan(self, connection: SlaveConnection) -> None:
        """Send to a slave in the next turn: there may be more for it."""
        if not connection.closed:
            self._waiting.discard(connection)
            self._planned.add(connection)
            self._plan_turn()

    def forget(self, connection: SlaveConnection) -> None:
        """Forget a slave that has gone."""
        self._waiting.discard(connection)
        self._planned.discard(connection)

    def stop(self) -> None:
        """Plan no turn any more."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def _plan_turn(self) -> None:
        if self._turn is None and self._planned:
            now_s = self._clock.monotonic()
            due_s = now_s if self._is_prompt else max(now_s, self._turn_s + TURN_S)
            self._turn = self._clock.call_at(due_s, self._send)

    def _send(self) -> None:
        self._turn = None
        self._turn_s = self._clock.monotonic()
        planned, self._planned = self._planned, set()
        for connection in planned:
            connection.send_more()


class HaServer:
    """Accepts slaves and gives each of them the log. Loop thread.

    Attributes:
        on_acknowledged: told the place up to which a slave has the log, when that grows.
        connections: every peer, also those that have not said where to begin.
        turns: when they get more.
        bytes_sent: of the log, to all slaves.
    """

    def __init__(self, config: BrokerConfig, store: MessageStore, clock: Clock) -> None:
        settings = config.store
        self._config = config
        self.store = store
        self.log = store.commit_log
        self.clock = clock
        self.part_size = settings.ha_transfer_batch_size
        self.heartbeat_s = settings.ha_send_heartbeat_interval / 1000
        self.silence_s = settings.ha_housekeeping_interval / 1000
        self.on_acknowledged: Callable[[int], None] = lambda _: None
        self.connections: set[SlaveConnection] = set()
        self.bytes_sent = 0
        self.turns = SendTurns(store, clock)
        self._allowed: AddressList | None = None
        if config.ha_allowed_addresses is not None:
            self._allowed = AddressList([config.ha_allowed_addresses])
        self._server: asyncio.Server | None = None
        self._throttled = ThrottledLog(clock, log)
        self._empty = asyncio.Event()

    # Life cycle

    async def serve(self, bound: socket.socket) -> None:
        """Accept slaves on a bound socket, which is then this server's.

        Raises:
            OSError: another program listens there.
        """
        try:
            listen(bound, BACKLOG)
        except OSError as error:
            raise _with_cure(error, self._config) from error
        self._server = await asyncio.get_running_loop().create_server(
            lambda: SlaveConnection(self), sock=bound, backlog=BACKLOG
        )

    async def stop(self) -> None:
        """Take no peer any more; those that have nearly everything get the rest."""
        self._end()
        for connection in self.slaves:
            connection.send_more()
        for connection in self.connections:
            connection.close()
        if self.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), STOP_LIMIT_S)
        self.abort()

    def abort(self) -> None:
        """Take no peer any more, and cut those that are there."""
        self._end()
        for connection in list(self.connections):
            connection.abort()

    def _end(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self.turns.stop()

    # Peers

    def opened(self, connection: SlaveConnection) -> bool:
        """Take a peer in, or close it; False when it was closed."""
        self.connections.add(connection)
        self._empty.clear()
        host, config = connection.peer.rpartition(":")[0], self._config
        only_local = config.acl_enable or config.tls.tls_server_mode == "enforcing"
        if why := why_not_allowed(host, self._allowed, only_local):
            connection.refuse("address", why)
        elif len(self.connections) > SLAVES_MAX:
            connection.refuse("limit", f"{SLAVES_MAX} connections are open")
        return not connection.closed

    def begun(self, connection: SlaveConnection) -> None:
        """Let a slave follow that has said where it begins."""
        self.tell(
            "begun",
            connection.peer,
            f"slave {connection.peer} follows from offset {connection.sent} of the log, "
            f"{max(0, self.log.wrote_offset - connection.sent)} bytes behind",
            COMINGS_TOLD_MAX,
        )
        connection.begun()
        self.turns.plan(connection)

    def closed(self, connection: SlaveConnection, reason: str) -> None:
        """Forget a peer that has gone."""
        self.connections.discard(connection)
        self.turns.forget(connection)
        if connection.sent != UNKNOWN and not connection.refused:
            self.tell(
                "gone",
                connection.peer,
                f"slave {connection.peer} is gone, it had the log up to offset "
                f"{connection.acknowledged}: {reason}",
                COMINGS_TOLD_MAX,
            )
        if not self.connections:
            self._empty.set()

    def tell(self, kind: str, peer: str, text: str, limit: int = 1) -> None:
        """Log a line, unless the address has had `limit` of its kind lately."""
        level = logging.INFO if kind == "begun" else logging.WARNING
        self._throttled.tell((kind, peer.rpartition(":")[0]), text, limit, level)

    # Figures

    @property
    def slaves(self) -> list[SlaveConnection]:
        """The peers that follow."""
        return [each for each in self.connections if each.sent != UNKNOWN and not each.closed]

    @property
    def acknowledged(self) -> int:
        """The place up to which some slave has the log; UNKNOWN without a slave."""
        best = UNKNOWN
        for each in self.connections:
            if each.acknowledged > best and not each.closed:
                best = each.acknowledged
        return best
