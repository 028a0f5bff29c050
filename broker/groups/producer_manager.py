"""Who produces: the clients of each producer group, for the questions a broker asks of them.

Registered by heartbeats; ended as consumers are (`consumer_manager.py`). Nobody is told. In memory,
keyed by connection. Loop thread.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../client/ProducerManager.java
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from skylarkmq.broker.groups.consumer_manager import ClientChannelInfo
from skylarkmq.broker.net.connection import Connection
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.codes import LanguageCode
from skylarkmq.protocol.flags import CLIENT_INNER_PRODUCER_GROUP

log = logging.getLogger(__name__)

_NOBODY: Mapping[Connection, ClientChannelInfo] = {}


class ProducerManager:
    """The producer groups that have a client here."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._table: dict[str, dict[Connection, ClientChannelInfo]] = {}
        # Invariant: holds (connection, group) exactly when the group's table holds connection.
        self._groups_of: dict[Connection, set[str]] = {}
        # The last connection that a client sent a heartbeat over, by its id.
        self._by_client_id: dict[str, Connection] = {}
        self._client_ids: dict[Connection, str] = {}

    @property
    def groups(self) -> Collection[str]:
        """Names of the groups that have a client."""
        return self._table.keys()

    @property
    def client_count(self) -> int:
        """Connections that belong to a group."""
        return len(self._groups_of)

    def group(self, group: str) -> Mapping[Connection, ClientChannelInfo]:
        """The group's clients by connection; empty for an unknown group."""
        return self._table.get(group, _NOBODY)

    def find_client(self, client_id: str) -> Connection | None:
        """The newest connection of a client of any group, None when it is not here."""
        return self._by_client_id.get(client_id)

    def groups_of(self, connection: Connection) -> Collection[str]:
        """Groups that the connection belongs to."""
        return self._groups_of.get(connection, frozenset())

    def register(
        self,
        connection: Connection,
        client_id: str,
        language: LanguageCode,
        version: int,
        group: str,
    ) -> None:
        """Take in what one heartbeat says of one group; a closed connection is not taken in."""
        if connection.closed:
            return
        groups = self._groups_of.get(connection)
        if groups is None:
            groups = self._groups_of[connection] = set()
            connection.add_close_listener(self.connection_closed)
        if group not in groups:
            _log(group, "%s joins from %s", client_id, connection.remote_address)
            groups.add(group)
        now_ms = int(self._clock.monotonic() * 1000)
        if self._client_ids.get(connection) != client_id:
            self._forget_id(connection)
            self._client_ids[connection] = client_id
        self._by_client_id[client_id] = connection
        clients = self._table.setdefault(group, {})
        clients[connection] = ClientChannelInfo(client_id, language, version, now_ms)

    def unregister(self, connection: Connection, group: str) -> None:
        """The client leaves the group; nothing happens when it is not in it."""
        groups = self._groups_of.get(connection)
        if groups is None or group not in groups:
            return
        groups.discard(group)
        if not groups:
            self._forget(connection)
        self._leave(connection, group)

    def connection_closed(self, connection: Connection) -> None:
        """Take a connection out of all its groups."""
        for group in self._groups_of.pop(connection, ()):
            self._leave(connection, group)
        self._forget_id(connection)

    def expire(self, silent_ms: int) -> set[Connection]:
        """Drop clients without a heartbeat for `silent_ms`; return those in no group any more."""
        before_ms = int(self._clock.monotonic() * 1000) - silent_ms
        silent = [
            (connection, group)
            for group, clients in self._table.items()
            for connection, client in clients.items()
            if client.last_update_ms < before_ms
        ]
        for connection, group in silent:
            self.unregister(connection, group)
        return {connection for connection, _ in silent} - self._groups_of.keys()

    def _forget(self, connection: Connection) -> None:
        del self._groups_of[connection]
        connection.remove_close_listener(self.connection_closed)
        self._forget_id(connection)

    def _forget_id(self, connection: Connection) -> None:
        client_id = self._client_ids.pop(connection, None)
        if client_id is not None and self._by_client_id.get(client_id) is connection:
            del self._by_client_id[client_id]

    def _leave(self, connection: Connection, group: str) -> None:
        clients = self._table[group]
        client = clients.pop(connection)
        _log(group, "%s has left", client.client_id)
        if not clients:
            del self._table[group]


def _log(group: str, text: str, *values: str) -> None:
    """Say it; but of the group that every Java client is in only to who looks closer."""
    level = logging.DEBUG if group == CLIENT_INNER_PRODUCER_GROUP else logging.INFO
    log.log(level, f"producer group %s: {text}", group, *values)
