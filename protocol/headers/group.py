"""Headers about groups and clients: farewell (35), members (38, 40), offsets (14, 15), moving a
group, administration (203, 204, 207, 208, 300, 352), and what the broker asks of a member.

The heartbeat (34) has no header. The pushes 220, 221, 307 and 309 start at an administrator; the
broker hands them to the client. The bodies are in `bodies/group.py`.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/header/ (the class of each name)
"""

import msgspec

from skylarkmq.protocol.headers.fields import Header, JavaInt, JavaLong


class QueryConsumerOffsetRequestHeader(Header, kw_only=True, frozen=True):
    """Where a group stands in a queue."""

    consumer_group: str
    topic: str
    queue_id: JavaInt
    set_zero_if_not_found: bool | None = None
    """5.x's: false wants no 0 for a group that is new to a young queue."""


class QueryConsumerOffsetResponseHeader(Header, kw_only=True, frozen=True):
    """The queue offset that the group reads next."""

    offset: JavaLong


class UpdateConsumerOffsetRequestHeader(Header, kw_only=True, frozen=True):
    """The group has done everything below `commit_offset`."""

    consumer_group: str
    topic: str
    queue_id: JavaInt
    commit_offset: JavaLong


class GetConsumerListByGroupRequestHeader(Header, kw_only=True, frozen=True):
    """Who is in the group."""

    consumer_group: str


class NotifyConsumerIdsChangedRequestHeader(Header, kw_only=True, frozen=True):
    """The members of the group changed: rebalance."""

    consumer_group: str


class ResetOffsetRequestHeader(Header, kw_only=True, frozen=True):
    """Move a group in time: to the messages stored at `timestamp`, ms; -1 means the newest."""

    topic: str
    group: str
    timestamp: JavaLong
    is_force: bool


class InvokeBrokerToResetOffsetRequestHeader(Header, kw_only=True, frozen=True):
    """Move a group (222): to a time in ms or, as 5.x clients may say, to an `offset`.

    `queue_id` -1 means all queues; `offset` counts when it is 0 or more.
    """

    topic: str
    group: str
    timestamp: JavaLong = -1
    is_force: bool = False
    queue_id: JavaInt = -1
    offset: JavaLong | None = None


class CloneGroupOffsetRequestHeader(Header, kw_only=True, frozen=True):
    """Let a group stand where another does (314); without a topic, in all topics.

    `offline`: topics that the source's members do not subscribe to any more as well.
    """

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class QueryConsumeTimeSpanRequestHeader(Header, kw_only=True, frozen=True):
    """From when to when a topic's messages are, and where a group is among them (303)."""

    topic: str
    group: str


class QueryCorrectionOffsetRequestHeader(Header, kw_only=True, frozen=True):
    """How far all groups of a topic have come (308), but for `filter_groups`, a comma list."""

    topic: str
    compare_group: str
    filter_groups: str | None = None


class GetConsumerStatusRequestHeader(Header, kw_only=True, frozen=True):
    """The offsets that a member holds; `client_addr` is `ip:port`."""

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfoRequestHeader(Header, kw_only=True, frozen=True):
    """What a member is doing."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectlyResultRequestHeader(Header, kw_only=True, frozen=True):
    """Let one member consume one message now; the broker writes its own name into it."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


class GetConsumerConnectionListRequestHeader(Header, kw_only=True, frozen=True):
    """Who is in a consumer group."""

    consumer_group: str


class GetProducerConnectionListRequestHeader(Header, kw_only=True, frozen=True):
    """Who is in a producer group."""

    producer_group: str


class DeleteSubscriptionGroupRequestHeader(Header, kw_only=True, frozen=True):
    """Remove a group, with `remove_offset` where it stands as well."""

    group_name: str
    remove_offset: bool = False


class GetConsumeStatsRequestHeader(Header, kw_only=True, frozen=True):
    """How far a group is; without a topic, in all that it ever consumed."""

    consumer_group: str
    topic: str | None = None


class QueryTopicConsumeByWhoRequestHeader(Header, kw_only=True, frozen=True):
    """Which groups consume a topic."""

    topic: str


class UnregisterClientRequestHeader(Header, kw_only=True, frozen=True):
    """The client leaves one producer group, one consumer group, or both."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetSubscriptionGroupConfigRequestHeader(Header, kw_only=True, frozen=True):
    """Whose configuration is asked for."""

    group: str
