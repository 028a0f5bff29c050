"""Which connections belong to which groups, of consumers and of producers alike.

A client names its groups in every heartbeat. A membership ends when the client says so, when its
connection closes, or after 120 s without a heartbeat. Everything lives in memory, keyed by
connection, and goes with the connection. Loop thread.

Unlike RocketMQ, a membership that runs out costs the client its connection only when it belongs to
nothing else (`housekeeping.py`).
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../client/ConsumerManager.java,
ProducerManager.java
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from skylarkmq.common.clock import Clock
from skylarkmq.protocol.codes import LanguageCode
from skylarkmq.protocol.command import RemotingCommand


class Member(Protocol):
    """A client that can be told and asked: a connection, or a peer of another protocol.

    Hashable by identity. Loop thread.
    """

    def __hash__(self) -> int: ...

    @property
    def remote_address(self) -> str:
        """Where it is, `ip:port`."""
        ...

    @property
    def closed(self) -> bool:
        """Whether it has gone; it is told nothing any more."""
        ...

    @property
    def paused_since_s(self) -> float:
        """Since when it has not taken what it was told, monotonic; 0 when it has."""
        ...

    @property
    def account(self) -> object:
        """Whose heartbeat came last; None: it may be told everything."""
        ...

    def push(self, command: RemotingCommand) -> None:
        """Tell it something."""
        ...

    async def call(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Ask it something, and wait for its answer; see `Connection.call`."""
        ...

    def close(self, reason: str) -> None:
        """Have it gone."""
        ...

    def add_close_listener(self, listener: Callable[[Member], None]) -> None:
        """Call `listener` once when it has gone."""
        ...

    def remove_close_listener(self, listener: Callable[[Member], None]) -> None:
        """Do so no more."""
        ...


@dataclass(slots=True)
class ClientChannelInfo:
    """One client of a group, as its last heartbeat described it."""

    client_id: str
    language: LanguageCode
    version: int
    last_update_ms: int  # of the monotonic clock, so that a clock step ends no membership
    divides: bool = True
    """Whether it reads queues of its own, which it divides with other members by itself."""


class Memberships(ABC):
    """The groups that have a member here, and the members of each."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._members: dict[str, dict[Member, ClientChannelInfo]] = {}  # no group is empty
        # Invariant: holds (connection, group) exactly when the group's members hold connection.
        self._groups_of: dict[Member, set[str]] = {}

    @property
    def groups(self) -> Collection[str]:
        """Names of the groups that have a member."""
        return self._members.keys()

    @property
    def client_count(self) -> int:
        """Connections that belong to a group."""
        return len(self._groups_of)

    def clients(self, group: str) -> Mapping[Member, ClientChannelInfo]:
        """Return the clients of a group by connection; none for an unknown group."""
        return self._members.get(group, {})

    def groups_of(self, connection: Member) -> Collection[str]:
        """Return the groups that a connection belongs to."""
        return self._groups_of.get(connection, frozenset())

    def _join(
        self,
        connection: Member,
        group: str,
        client_id: str,
        language: LanguageCode,
        version: int,
        *,
        divides: bool = True,
    ) -> bool:
        """Take in a member, or that it is still there; return whether it is new."""
        groups = self._groups_of.get(connection)
        if groups is None:
            groups = self._groups_of[connection] = set()
            connection.add_close_listener(self.connection_closed)
        is_new = group not in groups
        groups.add(group)
        now_ms = int(self._clock.monotonic() * 1000)
        client = ClientChannelInfo(client_id, language, version, now_ms, divides)
        self._members.setdefault(group, {})[connection] = client
        return is_new

    def unregister(self, connection: Member, group: str) -> None:
        """Remove a client from a group that it leaves; one that is no member is left alone."""
        self._end(connection, group, "leaves")

    def connection_closed(self, connection: Member) -> None:
        """Take a connection out of all its groups."""
        for group in sorted(self.groups_of(connection)):
            self._end(connection, group, "has gone")

    def expire(self, silent_ms: int) -> set[Member]:
        """End memberships without a heartbeat for `silent_ms`; return whose last ones they were."""
        before_ms = int(self._clock.monotonic() * 1000) - silent_ms
        silent = [
            (connection, group)
            for group, members in self._members.items()
            for connection, client in members.items()
            if client.last_update_ms < before_ms
        ]
        for connection, group in silent:
            self._end(connection, group, "is silent")
        return {connection for connection, _ in silent} - self._groups_of.keys()

    def _end(self, connection: Member, group: str, how: str) -> None:
        groups = self._groups_of.get(connection)
        if groups is None or group not in groups:
            return
        groups.discard(group)
        if not groups:
            del self._groups_of[connection]
            connection.remove_close_listener(self.connection_closed)
        members = self._members[group]
        client = members.pop(connection)
        if not members:
            del self._members[group]
        self._left(connection, group, client, how)

    @abstractmethod
    def _left(self, connection: Member, group: str, client: ClientChannelInfo, how: str) -> None:
        """Follow the end of a membership."""
