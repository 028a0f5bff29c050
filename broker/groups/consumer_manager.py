"""Who consumes: the members of each consumer group on this broker and what the group subscribes to.

The group's subscription is what the last heartbeat says: a topic that is missing there leaves, a
newer version of an expression replaces the older one. Each change of the members or of the set of
topics is told to the listener with all remaining members; those of a broadcasting group have
nothing to divide and are not told (as from RocketMQ 5 on). A connection may belong to
GROUPS_PER_CLIENT_MAX groups. Loop thread.

A group is consumed in one way at a time: either its members divide the queues and pull, or they pop
messages of all queues, as clients of RocketMQ 5 do. Its first member decides, until the last one
has gone; whoever comes to consume it in the other way is refused meanwhile. Unlike RocketMQ, where
a member that pulls leaves some queues to a client that does not read them, and both move the
group's offsets.

Where a setting says that clients of our protocol are to pop (401), what a member does tells whether
it can: one that asks who the members are, or for locks of queues, divides these by itself, as
RocketMQ's clients do that listen in order. Such a group is pulled as long as it has such a member,
unless another one has popped before.

Unlike RocketMQ, a membership that runs out is told to the other members.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../client/ConsumerManager.java,
ConsumerGroupInfo.java
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from skylarkmq.broker.groups.group_notifier import GroupNotifier, Notify
from skylarkmq.broker.groups.memberships import ClientChannelInfo, Member, Memberships
from skylarkmq.broker.groups.subscription_watch import SubscriptionWatch
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.bodies.group import ConsumerData, SubscriptionData
from skylarkmq.protocol.codes import LanguageCode, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError, shown

log = logging.getLogger(__name__)

BROADCASTING: Final = "BROADCASTING"
"""The message model of a group each of whose members gets every message."""
CONSUME_ACTIVELY: Final = "CONSUME_ACTIVELY"
"""The consume type of a client of our protocol that pulls when its program asks for messages."""
CONSUME_POP: Final = "CONSUME_POP"
"""The consume type, of RocketMQ 5, of a client of our protocol that pops."""
GROUPS_PER_CLIENT_MAX: Final = 1024

Subscribed = Callable[[str, Collection[SubscriptionData]], None]  # (group, one heartbeat's word)
GroupGone = Callable[[str], None]


class ConsumerGroupInfo:
    """The members of one group and what they subscribe to.

    Attributes:
        pops: its members pop messages; else they divide the queues and pull.
        bound_to_pop: members that can do nothing else.
        popped: other members that have popped, as the setting says.
        dividing: members that have shown that they divide the queues by themselves.
    """

    __slots__ = (
        "bound_to_pop",
        "channels",
        "consume_from_where",
        "consume_type",
        "dividing",
        "group",
        "message_model",
        "popped",
        "pops",
        "subscriptions",
    )

    def __init__(
        self, group: str, channels: Mapping[Member, ClientChannelInfo], *, pops: bool
    ) -> None:
        self.group = group
        self.pops = pops
        self.consume_type = ""
        self.message_model = ""
        self.consume_from_where = ""
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.channels = channels
        self.bound_to_pop: set[Member] = set()
        self.popped: set[Member] = set()
        self.dividing: set[Member] = set()

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
        """Each client that divides the queues, once: it may have an old connection, too."""
        return list(
            dict.fromkeys(info.client_id for info in self.channels.values() if info.divides)
        )


class ConsumerManager(Memberships):
    """The consumer groups that have a member here.

    Attributes:
        on_subscribed: told of the subscriptions of each heartbeat.
        on_group_gone: told when a group's last member has gone.
        watch: knows the groups whose members do not subscribe to the same.
        changes: counts changes of what groups subscribe to, and of how they consume it.
        pops_by_setting: tells whether clients of our protocol are to pop a group; see
            `setting_changed`.
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
        self.pops_by_setting: Callable[[str], bool] = lambda group: False
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

    def members(self, group: str) -> list[Member]:
        """Return the connections of a group's members; none for an unknown group."""
        return list(self.clients(group))

    def find_client(self, group: str, client_id: str) -> tuple[Member, ClientChannelInfo] | None:
        """Return the newest connection of one client of a group, and what it said of itself."""
        for connection, client in reversed(list(self.clients(group).items())):
            if client.client_id == client_id:
                return connection, client
        return None

    def client_ids(self, group: str) -> list[str]:
        """Return the ids of those who divide a group's queues, in the order of their joining."""
        info = self._table.get(group)
        return [] if info is None else info.client_ids

    def register(
        self,
        connection: Member,
        client_id: str,
        language: LanguageCode,
        version: int,
        data: ConsumerData,
        *,
        divides: bool = True,
    ) -> bool:
        """Take in what one heartbeat says of one group; return whether members or topics changed.

        The caller has checked names and amounts, and calls `tell` after the heartbeat's answer: a
        member that is told earlier pulls from brokers that its heartbeat has not reached. A
        connection that is closed is not taken in: its end was told already.

        Args:
            divides: it may read queues of its own; else it is no client of our protocol, and pops.

        Raises:
            RemoteProtocolError: NO_PERMISSION; the group is consumed in the other way.
        """
        if connection.closed:
            return False
        group = data.group_name
        self.check_heartbeat(data, divides=divides)
        joined = self._join(connection, group, client_id, language, version, divides=divides)
        if joined:
            log.info("group %s: %s joins from %s", group, client_id, connection.remote_address)
        info = self._table.get(group)
        if info is None:
            pops = not _may_divide(data, divides=divides) or self.pops_by_setting(group)
            info = self._table[group] = ConsumerGroupInfo(group, self.clients(group), pops=pops)
        if not _may_divide(data, divides=divides):
            info.bound_to_pop.add(connection)
        elif data.consume_type == CONSUME_ACTIVELY or data.message_model == BROADCASTING:
            self.divides(connection, group)
        before = info.message_model, *info.subscriptions.values()
        changed = info.update(data)
        if before != (info.message_model, *info.subscriptions.values()):
            self.changes += 1
        self.watch.note(group, connection, client_id, data.subscription_data_set)
        self.on_subscribed(group, data.subscription_data_set)
        return changed or joined

    def pops(self, group: str) -> bool:
        """Return whether a group has members, and they pop."""
        info = self._table.get(group)
        return info is not None and info.pops

    def check_mode(self, group: str, *, pops: bool) -> None:
        """Refuse to consume a group in one way while its members consume it in the other.

        Raises:
            RemoteProtocolError: NO_PERMISSION, with who they are and what to do.
        """
        info = self._table.get(group)
        if info is not None and info.pops != pops:
            raise RemoteProtocolError(ResponseCode.NO_PERMISSION, _other_mode(info))

    def check_heartbeat(self, data: ConsumerData, *, divides: bool = True) -> None:
        """Do as `check_mode` with what a heartbeat says, which may leave the way open.

        Args:
            divides: as `register`.
        """
        if not _may_divide(data, divides=divides):
            self.check_mode(data.group_name, pops=True)
        elif not self.pops_by_setting(data.group_name):
            self.check_mode(data.group_name, pops=False)

    def divides(self, connection: Member, group: str) -> None:
        """Note that a member divides a group's queues by itself; nothing happens to others."""
        info = self._table.get(group)
        if info is not None and connection in info.channels and connection not in info.dividing:
            info.dividing.add(connection)
            self._decide(info)

    def popped(self, connection: Member, group: str) -> None:
        """Note that a member pops, if its group may be popped now."""
        info = self._table.get(group)
        if info is not None and info.pops and connection in info.channels:
            info.popped.add(connection)

    def setting_changed(self, group: str) -> None:
        """Follow `pops_by_setting`: members that could do both change their way of consuming."""
        info = self._table.get(group)
        if info is not None:
            info.popped.clear()
            self._decide(info)

    def _decide(self, info: ConsumerGroupInfo) -> None:
        """Have a group popped by those who must or do already, else as its setting says."""
        by_setting = not info.dividing and self.pops_by_setting(info.group)
        pops = bool(info.bound_to_pop or info.popped or by_setting)
        if pops != info.pops:
            info.pops = pops
            self.changes += 1
            log.info("group %s is %s from now on", info.group, "popped" if pops else "pulled")

    def tell(self, group: str) -> None:
        """Have the members of a group that has changed told."""
        info = self._table.get(group)
        if info is not None and info.message_model != BROADCASTING:
            self._notifier.changed(group)

    def _left(self, connection: Member, group: str, client: ClientChannelInfo, how: str) -> None:
        self.watch.gone(group, connection)
        log.info("group %s: %s at %s %s", group, client.client_id, connection.remote_address, how)
        if not self.clients(group):
            del self._table[group]
            self.changes += 1
            self.on_group_gone(group)
        else:
            info = self._table[group]
            for members in (info.bound_to_pop, info.popped, info.dividing):
                members.discard(connection)
            self._decide(info)
            self.tell(group)


def _may_divide(data: ConsumerData, *, divides: bool) -> bool:
    """Return whether a client can divide the queues of a group; else it can only pop."""
    return divides and data.consume_type != CONSUME_POP


def _other_mode(info: ConsumerGroupInfo) -> str:
    decided = info.bound_to_pop | info.popped if info.pops else info.dividing
    if info.pops and not decided:
        return (
            f"group {info.group} is set to have its members pop its messages (setConsumeMode), and "
            "this one pulls: ask for an assignment first, or set the group's mode to PULL"
        )
    members = [info.channels[each] for each in info.channels if each in decided]
    member = (members or list(info.channels.values()))[0]
    how = "pop its messages, as clients of RocketMQ 5 do" if info.pops else "pull from its queues"
    return (
        f"group {info.group} has members that {how}, such as {shown(member.client_id)}: a group is "
        "consumed in one way at a time; stop them first, or give this consumer a group of its own"
    )
