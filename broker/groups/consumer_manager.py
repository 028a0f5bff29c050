"""Who consumes: the members of each consumer group on this broker and what the group subscribes to.

A client says it in every heartbeat. The group's subscription is the last heartbeat's word: a topic
that is missing there leaves, a newer version of an expression replaces the older one. A membership
ends when the client says so, when its connection closes, or after 120 s without a heartbeat. Each
change of the members or of the set of topics is told to the listener with all remaining members;
those of a broadcasting group have nothing to divide and are not told (as from RocketMQ 5 on).

Everything lives in memory, keyed by connection, and goes with it; a connection may belong to
GROUPS_PER_CLIENT_MAX groups. Loop thread.

Unlike RocketMQ, a membership that runs out is told to the other members, and costs the client its
connection only when it belongs to nothing else (`housekeeping.py`).
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../client/ConsumerManager.java,
ConsumerGroupInfo.java
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from skylarkmq.broker.groups.subscription_watch import SubscriptionWatch
from skylarkmq.broker.net.connection import Connection
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.bodies.group import ConsumerData, SubscriptionData
from skylarkmq.protocol.codes import LanguageCode

log = logging.getLogger(__name__)

BROADCASTING: Final = "BROADCASTING"
"""The message model of a group each of whose members gets every message."""
GROUPS_PER_CLIENT_MAX: Final = 1024

IdsChanged = Callable[[Collection[Connection], str], None]  # (members left, group)
Subscribed = Callable[[str, Collection[SubscriptionData]], None]  # (group, one heartbeat's word)
GroupGone = Callable[[str], None]


@dataclass(slots=True)
class ClientChannelInfo:
    """One client of a group, as its last heartbeat described it."""

    client_id: str
    language: LanguageCode
    version: int
    last_update_ms: int  # of the monotonic clock, so that a clock step silences nobody


class ConsumerGroupInfo:
    """The members of one group and what they subscribe to."""

    __slots__ = (
        "channels",
        "consume_from_where",
        "consume_type",
        "group",
        "message_model",
        "subscriptions",
    )

    def __init__(self, group: str) -> None:
        self.group = group
        self.consume_type = ""
        self.message_model = ""
        self.consume_from_where = ""
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.channels: dict[Connection, ClientChannelInfo] = {}

    def update(self, connection: Connection, info: ClientChannelInfo, data: ConsumerData) -> bool:
        """Take one heartbeat in; True when a member or a topic came or went."""
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where
        joined = connection not in self.channels
        if joined:
            log.info(
                "group %s: %s joins from %s", self.group, info.client_id, connection.remote_address
            )
        self.channels[connection] = info
        return self._subscribe(data.subscription_data_set) or joined

    def _subscribe(self, wanted: Collection[SubscriptionData]) -> bool:
        changed = False
        for data in wanted:
            known = self.subscriptions.get(data.topic)
            if known is None:
                self.subscriptions[data.topic] = data
                changed = True
            elif data.sub_version > known.sub_version:
                self.subscriptions[data.topic] = data
        if len(self.subscriptions) > len(wanted):
            topics = {data.topic for data in wanted}
            for topic in self.subscriptions.keys() - topics:
                del self.subscriptions[topic]
                changed = True
        return changed

    @property
    def client_ids(self) -> list[str]:
        """Each client once, though it may have an old connection beside the new one."""
        return list(dict.fromkeys(info.client_id for info in self.channels.values()))


class ConsumerManager:
    """The consumer groups that have a member here.

    Attributes:
        on_subscribed: told of the subscriptions of each heartbeat.
        on_group_gone: told when a group's last member has gone.
        watch: knows the groups whose members do not subscribe to the same.
    """

    def __init__(self, clock: Clock, ids_changed: IdsChanged) -> None:
        """Start empty.

        Args:
            ids_changed: told of every change that members have to hear of.
        """
        self.watch = SubscriptionWatch(clock)
        self._clock = clock
        self._ids_changed = ids_changed
        self.on_subscribed: Subscribed = lambda group, subscriptions: None
        self.on_group_gone: GroupGone = lambda group: None
        self._table: dict[str, ConsumerGroupInfo] = {}
        # Invariant: holds (connection, group) exactly when the group's channels hold connection.
        self._groups_of: dict[Connection, set[str]] = {}

    @property
    def groups(self) -> Collection[str]:
        """Names of the groups that have a member."""
        return self._table.keys()

    @property
    def client_count(self) -> int:
        """Connections that belong to a group."""
        return len(self._groups_of)

    def group(self, group: str) -> ConsumerGroupInfo | None:
        """The group, None when it has no member here."""
        return self._table.get(group)

    def find_subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """What the group wants of a topic, None when it does not subscribe to it."""
        info = self._table.get(group)
        return None if info is None else info.subscriptions.get(topic)

    def subscribed_to(self, topic: str) -> list[str]:
        """Groups that subscribe to a topic."""
        return [group for group, info in self._table.items() if topic in info.subscriptions]

    def members(self, group: str) -> list[Connection]:
        """The connections of the group's members; empty for an unknown group."""
        info = self._table.get(group)
        return [] if info is None else list(info.channels)

    def find_client(
        self, group: str, client_id: str
    ) -> tuple[Connection, ClientChannelInfo] | None:
        """The newest connection of one client of a group, and what it said of itself."""
        info = self._table.get(group)
        if info is not None:
            for connection, client in reversed(info.channels.items()):
                if client.client_id == client_id:
                    return connection, client
        return None

    def client_ids(self, group: str) -> list[str]:
        """Ids of the group's members, each once, in the order in which they joined."""
        info = self._table.get(group)
        return [] if info is None else info.client_ids

    def groups_of(self, connection: Connection) -> Collection[str]:
        """Groups that the connection belongs to."""
        return self._groups_of.get(connection, frozenset())

    def register(
        self,
        connection: Connection,
        client_id: str,
        language: LanguageCode,
        version: int,
        data: ConsumerData,
    ) -> bool:
        """Take in what one heartbeat says of one group; True when members or topics changed.

        The caller has checked names and amounts, and calls `tell` after the heartbeat's answer: a
        member that is told earlier pulls from brokers that its heartbeat has not reached. A
        connection that is closed is not taken in: its end was told already.
        """
        if connection.closed:
            return False
        group = data.group_name
        info = self._table.get(group)
        if info is None:
            info = self._table[group] = ConsumerGroupInfo(group)
        now_ms = int(self._clock.monotonic() * 1000)
        client = ClientChannelInfo(client_id, language, version, now_ms)
        changed = info.update(connection, client, data)
        self.watch.note(group, connection, client_id, data.subscription_data_set)
        self.on_subscribed(group, data.subscription_data_set)
        groups = self._groups_of.get(connection)
        if groups is None:
            groups = self._groups_of[connection] = set()
            connection.add_close_listener(self.connection_closed)
        groups.add(group)
        return changed

    def tell(self, group: str) -> None:
        """Have the members of a group that has changed told."""
        info = self._table.get(group)
        if info is not None and info.message_model != BROADCASTING:
            self._ids_changed(list(info.channels), group)

    def unregister(self, connection: Connection, group: str) -> None:
        """The client leaves the group; nothing happens when it is no member."""
        groups = self._groups_of.get(connection)
        if groups is None or group not in groups:
            return
        groups.discard(group)
        if not groups:
            self._forget(connection)
        self._leave(connection, group, "leaves")

    def connection_closed(self, connection: Connection) -> None:
        """Take a connection out of all its groups."""
        for group in sorted(self._groups_of.pop(connection, ())):
            self._leave(connection, group, "has gone")

    def expire(self, silent_ms: int) -> set[Connection]:
        """End memberships without a heartbeat for `silent_ms`; return who has none left."""
        before_ms = int(self._clock.monotonic() * 1000) - silent_ms
        silent = [
            (connection, group)
            for group, info in self._table.items()
            for connection, client in info.channels.items()
            if client.last_update_ms < before_ms
        ]
        for connection, group in silent:
            groups = self._groups_of[connection]
            groups.discard(group)
            if not groups:
                self._forget(connection)
            self._leave(connection, group, "is silent")
        return {connection for connection, _ in silent} - self._groups_of.keys()

    def _forget(self, connection: Connection) -> None:
        del self._groups_of[connection]
        connection.remove_close_listener(self.connection_closed)

    def _leave(self, connection: Connection, group: str, how: str) -> None:
        info = self._table[group]
        client = info.channels.pop(connection)
        self.watch.gone(group, connection)
        log.info("group %s: %s at %s %s", group, client.client_id, connection.remote_address, how)
        if not info.channels:
            del self._table[group]
            self.on_group_gone(group)
        else:
            self.tell(group)
