"""Who consumes: the members of each consumer group on this broker and what the group subscribes to.

The group's subscription is what the last heartbeat says: a topic that is missing there leaves, a
newer version of an expression replaces the older one. Each change of the members or of the set of
topics is told to the listener with all remaining members; those of a broadcasting group have
nothing to divide and are not told (as from RocketMQ 5 on). A connection may belong to
GROUPS_PER_CLIENT_MAX groups. Loop thread.

Unlike RocketMQ, a membership that runs out is told to the other members.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../client/ConsumerManager.java,
ConsumerGroupInfo.java
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from skylarkmq.broker.groups.group_notifier import GroupNotifier, Notify
from skylarkmq.broker.groups.memberships import ClientChannelInfo, Memberships
from skylarkmq.broker.groups.subscription_watch import SubscriptionWatch
from skylarkmq.broker.net.connection import Connection
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.bodies.group import ConsumerData, SubscriptionData
from skylarkmq.protocol.codes import LanguageCode

log = logging.getLogger(__name__)

BROADCASTING: Final = "BROADCASTING"
"""The message model of a group each of whose members gets every message."""
GROUPS_PER_CLIENT_MAX: Final = 1024

Subscribed = Callable[[str, Collection[SubscriptionData]], None]  # (group, one heartbeat's word)
GroupGone = Callable[[str], None]


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

    def __init__(self, group: str, channels: Mapping[Connection, ClientChannelInfo]) -> None:
        self.group = group
        self.consume_type = ""
        self.message_model = ""
        self.consume_from_where = ""
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.channels = channels

    def update(self, data: ConsumerData) -> bool:
        """Take one heartbeat in; return whether a topic came or went."""
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where
        wanted = data.subscription_data_set
        changed = False
        for subscription in wanted:
            known = self.subscriptions.get(subscription.topic)
            if known is None:
                self.subscriptions[subscription.topic] = subscription
                changed = True
            elif subscription.sub_version > known.sub_version:
                self.subscriptions[subscription.topic] = subscription
        if len(self.subscriptions) > len(wanted):
            topics = {subscription.topic for subscription in wanted}
            for topic in self.subscriptions.keys() - topics:
                del self.subscriptions[topic]
                changed = True
        return changed

    @property
    def client_ids(self) -> list[str]:
        """Each client once, though it may have an old connection beside the new one."""
        return list(dict.fromkeys(info.client_id for info in self.channels.values()))


class ConsumerManager(Memberships):
    """The consumer groups that have a member here.

    Attributes:
        on_subscribed: told of the subscriptions of each heartbeat.
        on_group_gone: told when a group's last member has gone.
        watch: knows the groups whose members do not subscribe to the same.
        changes: counts changes of what groups subscribe to, and of their message models.
    """

    def __init__(self, clock: Clock, notify: Notify) -> None:
        """Start empty.

        Args:
            notify: tells members of a change of their group.
        """
        super().__init__(clock)
        self.watch = SubscriptionWatch(clock)
        self._notifier = GroupNotifier(clock, notify, self.members)
        self.on_subscribed: Subscribed = lambda group, subscriptions: None
        self.on_group_gone: GroupGone = lambda group: None
        self._table: dict[str, ConsumerGroupInfo] = {}  # of the groups that have a member
        self.changes = 0

    def group(self, group: str) -> ConsumerGroupInfo | None:
        """Return a group, None when it has no member here."""
        return self._table.get(group)

    def find_subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return what a group wants of a topic, None when it does not subscribe to it."""
        info = self._table.get(group)
        return None if info is None else info.subscriptions.get(topic)

    def subscribed_to(self, topic: str) -> list[str]:
        """Return the groups that subscribe to a topic."""
        return [group for group, info in self._table.items() if topic in info.subscriptions]

    def members(self, group: str) -> list[Connection]:
        """Return the connections of a group's members; none for an unknown group."""
        return list(self.clients(group))

    def find_client(
        self, group: str, client_id: str
    ) -> tuple[Connection, ClientChannelInfo] | None:
        """Return the newest connection of one client of a group, and what it said of itself."""
        for connection, client in reversed(list(self.clients(group).items())):
            if client.client_id == client_id:
                return connection, client
        return None

    def client_ids(self, group: str) -> list[str]:
        """Return the ids of a group's members, each once, in the order in which they joined."""
        info = self._table.get(group)
        return [] if info is None else info.client_ids

    def register(
        self,
        connection: Connection,
        client_id: str,
        language: LanguageCode,
        version: int,
        data: ConsumerData,
    ) -> bool:
        """Take in what one heartbeat says of one group; return whether members or topics changed.

        The caller has checked names and amounts, and calls `tell` after the heartbeat's answer: a
        member that is told earlier pulls from brokers that its heartbeat has not reached. A
        connection that is closed is not taken in: its end was told already.
        """
        if connection.closed:
            return False
        group = data.group_name
        joined = self._join(connection, group, client_id, language, version)
        if joined:
            log.info("group %s: %s joins from %s", group, client_id, connection.remote_address)
        info = self._table.get(group)
        if info is None:
            info = self._table[group] = ConsumerGroupInfo(group, self.clients(group))
        before = info.message_model, *info.subscriptions.values()
        changed = info.update(data)
        if before != (info.message_model, *info.subscriptions.values()):
            self.changes += 1
        self.watch.note(group, connection, client_id, data.subscription_data_set)
        self.on_subscribed(group, data.subscription_data_set)
        return changed or joined

    def tell(self, group: str) -> None:
        """Have the members of a group that has changed told."""
        info = self._table.get(group)
        if info is not None and info.message_model != BROADCASTING:
            self._notifier.changed(group)

    def _left(
        self, connection: Connection, group: str, client: ClientChannelInfo, how: str
    ) -> None:
        self.watch.gone(group, connection)
        log.info("group %s: %s at %s %s", group, client.client_id, connection.remote_address, how)
        if not self.clients(group):
            del self._table[group]
            self.changes += 1
            self.on_group_gone(group)
        else:
            self.tell(group)
