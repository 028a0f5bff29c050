"""Bodies of what the broker asks of a client: reset (220), status (221), state (307), one message
(309); and the answers to those who asked it to (222, 223, 303).

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/body/ResetOffsetBody.java,
ResetOffsetBodyForC.java, QueryConsumeTimeSpanBody.java, GetConsumerStatusBody.java,
ConsumerRunningInfo.java, ProcessQueueInfo.java, ConsumeStatus.java,
ConsumeMessageDirectlyResult.java
"""

from typing import ClassVar

import msgspec

from skylarkmq.protocol.bodies.heartbeat import SubscriptionData
from skylarkmq.protocol.bodies.lock import MessageQueueBody
from skylarkmq.protocol.headers.fields import JavaInt, JavaLong


class ResetOffsetBody(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Where a group is to go on, by queue."""

    queue_tables: ClassVar[tuple[str, ...]] = ("offsetTable",)

    offset_table: list[tuple[MessageQueueBody, JavaLong]]


class MessageQueueForC(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A queue with an offset, as C++ clients read it."""

    broker_name: str
    offset: JavaLong
    queue_id: JavaInt
    topic: str


class ResetOffsetBodyForC(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Where a group is to go on, for C++ clients."""

    offset_table: list[MessageQueueForC]


class QueueTimeSpan(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A queue in time, ms: its first and last message, the one that a group consumed last, and how
    long the next one has waited."""

    consume_time_stamp: JavaLong
    delay_time: JavaLong
    max_time_stamp: JavaLong
    message_queue: MessageQueueBody
    min_time_stamp: JavaLong


class QueryConsumeTimeSpanBody(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The queues of a topic in time."""

    consume_time_span_set: list[QueueTimeSpan]


class QueryCorrectionOffsetBody(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Offsets by queue id."""

    correction_offsets: dict[JavaInt, JavaLong]


class GetConsumerStatusBody(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The offsets that a client holds, by queue."""

    queue_tables: ClassVar[tuple[str, ...]] = ("messageQueueTable",)

    message_queue_table: list[tuple[MessageQueueBody, JavaLong]]


class ProcessQueueInfo(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """What a client holds of one queue; offsets of the queue, times in ms."""

    cached_msg_count: JavaInt = 0
    cached_msg_max_offset: JavaLong = 0
    cached_msg_min_offset: JavaLong = 0
    cached_msg_size_in_mib: JavaInt = msgspec.field(default=0, name="cachedMsgSizeInMiB")
    commit_offset: JavaLong = 0
    dropped: bool = msgspec.field(default=False, name="droped")  # Java's spelling
    last_consume_timestamp: JavaLong = 0
    last_lock_timestamp: JavaLong = 0
    last_pull_timestamp: JavaLong = 0
    locked: bool = False
    transaction_msg_count: JavaInt = 0
    transaction_msg_max_offset: JavaLong = 0
    transaction_msg_min_offset: JavaLong = 0
    try_unlock_times: JavaLong = 0


class ConsumeStatus(msgspec.Struct, kw_only=True, frozen=True):
    """How a client gets on with one topic: times in ms, rates per second."""

    consume_failed_msgs: JavaLong = msgspec.field(default=0, name="consumeFailedMsgs")
    consume_failed_tps: float = msgspec.field(default=0.0, name="consumeFailedTPS")
    consume_ok_tps: float = msgspec.field(default=0.0, name="consumeOKTPS")
    consume_rt: float = msgspec.field(default=0.0, name="consumeRT")
    pull_rt: float = msgspec.field(default=0.0, name="pullRT")
    pull_tps: float = msgspec.field(default=0.0, name="pullTPS")


class ConsumerRunningInfo(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel", omit_defaults=True
):
    """The state of one client of a group; `properties` holds the settings that tools show."""

    queue_tables: ClassVar[tuple[str, ...]] = ("mqTable",)

    jstack: str | None = None
    mq_table: list[tuple[MessageQueueBody, ProcessQueueInfo]]
    properties: dict[str, str]
    status_table: dict[str, ConsumeStatus]
    subscription_set: list[SubscriptionData]


class ConsumeMessageDirectlyResult(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel", omit_defaults=True
):
    """What came of consuming one message.

    `consume_result` is CR_SUCCESS, CR_LATER, CR_ROLLBACK, CR_COMMIT, CR_THROW_EXCEPTION or
    CR_RETURN_NULL.
    """

    auto_commit: bool
    consume_result: str | None = None
    order: bool
    remark: str | None = None
    spent_time_mills: JavaLong
