"""Headers of consumer groups: offsets (14, 15), members (38, 40), pushes to a member.

The pushes 220, 221, 307 and 309 start at an administrator; the broker hands them to the client.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/header/ (the class of each name)
"""

import msgspec

from skylarkmq.protocol.headers.fields import JavaInt, JavaLong


class QueryConsumerOffsetRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Where a group stands in a queue."""

    consumer_group: str
    topic: str
    queue_id: JavaInt


class QueryConsumerOffsetResponseHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The queue offset that the group reads next."""

    offset: JavaLong


class UpdateConsumerOffsetRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The group has done everything below `commit_offset`."""

    consumer_group: str
    topic: str
    queue_id: JavaInt
    commit_offset: JavaLong


class GetConsumerListByGroupRequestHeader(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel"
):
    """Who is in the group."""

    consumer_group: str


class NotifyConsumerIdsChangedRequestHeader(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel"
):
    """The members of the group changed: rebalance."""

    consumer_group: str


class ResetOffsetRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Move a group in time: to the messages stored at `timestamp`, ms; -1 means the newest."""

    topic: str
    group: str
    timestamp: JavaLong
    is_force: bool


class GetConsumerStatusRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The offsets that a member holds; `client_addr` is `ip:port`."""

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfoRequestHeader(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel"
):
    """What a member is doing."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectlyResultRequestHeader(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel"
):
    """Let one member consume one message now; the broker writes its own name into it."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
