"""Bodies about consumer groups and clients for administrators: 203, 204, 208, 300, 328.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/body/ConsumerConnection.java,
Connection.java, ProducerConnection.java, ProducerTableInfo.java, ProducerInfo.java, GroupList.java,
common/.../admin/ConsumeStats.java, OffsetWrapper.java
"""

from typing import ClassVar

import msgspec

from skylarkmq.protocol.bodies.heartbeat import SubscriptionData
from skylarkmq.protocol.bodies.lock import MessageQueueBody
from skylarkmq.protocol.headers.fields import JavaInt, JavaLong


class ConnectionBody(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One client; `client_addr` is `ip:port`, `language` the name of the Java enum."""

    client_addr: str
    client_id: str
    language: str | None = None
    version: JavaInt = 0


class DifferingMember(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A member that does not subscribe to what others do: topic -> expression, where it differs."""

    client_id: str
    subscriptions: dict[str, str]


class ConsumerConnection(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The members of a group, and what the last heartbeat said of it.

    Unlike RocketMQ, members that differ are named, one for each set of subscriptions; absent, and
    passed over by RocketMQ's tools, when all want the same.
    """

    connection_set: list[ConnectionBody]
    consume_from_where: str
    consume_type: str
    differing_members: list[DifferingMember] | msgspec.UnsetType = msgspec.UNSET
    message_model: str
    subscription_table: dict[str, SubscriptionData]


class ProducerConnection(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The clients of a producer group."""

    connection_set: list[ConnectionBody]


class ProducerInfo(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One producer; `remote_ip` is `/ip:port`, the time that of its last heartbeat, ms."""

    client_id: str
    language: str | None = None
    last_update_timestamp: JavaLong
    remote_ip: str = msgspec.field(name="remoteIP")
    version: JavaInt = 0


class ProducerTableInfo(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """All producers by group."""

    data: dict[str, list[ProducerInfo]]


class OffsetWrapper(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A group in one queue: where the queue ends, where the group goes on, and when the message
    that it consumed last was stored, ms, 0 for unknown."""

    broker_offset: JavaLong
    consumer_offset: JavaLong
    last_timestamp: JavaLong


class ConsumeStats(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A group in all queues of its topics, and how many messages a second it takes."""

    queue_tables: ClassVar[tuple[str, ...]] = ("offsetTable",)

    consume_tps: float
    offset_table: list[tuple[MessageQueueBody, OffsetWrapper]]


class GroupList(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Names of groups."""

    group_list: list[str]
