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
    set_zero_if_not_found: bool | None = None
    """5.x's: false wants no 0 for a group that is new to a young queue."""


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


class InvokeBrokerToResetOffsetRequestHeader(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel"
):
    """Move a group (222): to a time in ms or, as 5.x clients may say, to an `offset`.

    `queue_id` -1 means all queues; `offset` counts when it is 0 or more.
    """

    topic: str
    group: str
    timestamp: JavaLong = -1
    is_force: bool = False
    queue_id: JavaInt = -1
    offset: JavaLong | None = None


class CloneGroupOffsetRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Let a group stand where another does (314); without a topic, in all topics.

    `offline`: topics that the source's members do not subscribe to any more as well.
    """

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueryConsumeTimeSpanRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """From when to when a topic's messages are, and where a group is among them (303)."""

    topic: str
    group: str


class QueryCorrectionOffsetRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """How far all groups of a topic have come (308), but for `filter_groups`, a comma list."""

    topic: str
    compare_group: str
    filter_groups: str | None = None


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
