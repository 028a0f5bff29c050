"""Calls that the broker makes to its clients, over the connections that their heartbeats came by.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../client/net/Broker2Client.java,
broker/.../client/DefaultConsumerIdsChangeListener.java
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from skylarkmq.broker.connection import Connection
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.headers.consumer import NotifyConsumerIdsChangedRequestHeader
from skylarkmq.protocol.headers.fields import encode_fields


class Outbound:
    """Tells clients what they should know. Loop thread."""

    def __init__(self, may_notify: Callable[[str], bool]) -> None:
        """Push to clients.

        Args:
            may_notify: whether the members of a group want to hear of each other: both switches
                `notifyConsumerIdsChangedEnable`, the broker's and the group's, are on.
        """
        self._may_notify = may_notify

    def notify_consumer_ids_changed(self, connections: Collection[Connection], group: str) -> None:
        """Make the members of a group divide its queues anew (40, one-way)."""
        if not connections or not self._may_notify(group):
            return
        fields = encode_fields(NotifyConsumerIdsChangedRequestHeader(consumer_group=group))
        for connection in connections:
            connection.push(
                RemotingCommand.request(
                    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields, oneway=True
                )
            )
