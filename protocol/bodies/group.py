"""Bodies about groups and clients, in this order:

    heartbeat (34), filter check (46), members (38)
    for administrators: connections (203, 204, 328), progress (208, 300)
    configurations of groups (200, 201) and the file `subscriptionGroup.json`
    offsets (43, 45), the files `consumerOffset.json` and `delayOffset.json`, a group that was moved
    locks of queues for ordered consumption (41, 42)
    what the broker asks of a client: reset (220), status (221), state (307), one message (309);
        answers to those who asked it to (222, 223, 303)

    {"offsetTable":{"<topic>@<group>":{"<queue id>":<next queue offset>}}}
    {"offsetTable":{"<delay level>":<next queue offset>}}

Java writes numeric keys without quotes; both forms are read, quoted ones are written.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/heartbeat/,
common/.../protocol/body/, common/.../subscription/, common/.../admin/,
broker/.../filter/ (the class of each name),
common/.../consumer/ConsumeFromWhere.java, store/.../schedule/DelayOffsetSerializeWrapper.java,
common/.../protocol/topic/OffsetMovedEvent.java
"""

from typing import Any, ClassVar, Final

import msgspec

from skylarkmq.protocol.bodies.text import Body, DataVersion, MessageQueueBody
from skylarkmq.protocol.headers.fields import JavaInt, JavaLong, java_int, java_long

MODE_PULL: Final = "PULL"
MODE_POP: Final = "POP"
CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM_WHERE: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)
# Members of ConsumerData that some clients write as the ordinal instead of the name.
_ORDINALS: Final = {
    "consumeType": CONSUME_TYPES,
    "messageModel": MESSAGE_MODELS,
    "consumeFromWhere": CONSUME_FROM_WHERE,
}


class SubscriptionData(Body, kw_only=True, frozen=True):
    """What a group wants of a topic.

    `sub_string` is the expression as written, `*` for all; `code_set` holds the Java hashes of the
    tags; `sub_version` is the time of the last change, ms.
    """

    class_filter_mode: bool = False
    code_set: list[JavaInt] = []
    expression_type: str = "TAG"
    sub_string: str
    sub_version: JavaLong = 0
    tags_set: list[str] = []
    topic: str


class ConsumerData(Body, kw_only=True, frozen=True):
    """A consumer group as one client sees it; names of the Java enums as text."""

    consume_from_where: str
    consume_type: str
    group_name: str
    message_model: str
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class ProducerData(Body, kw_only=True, frozen=True):
    """A producer group."""

    group_name: str


class HeartbeatData(Body, kw_only=True, frozen=True):
    """All groups of one client."""

    client_id: str = msgspec.field(name="clientID")
    consumer_data_set: list[ConsumerData] = []
    producer_data_set: list[ProducerData] = []

    @staticmethod
    def accept(value: Any) -> Any:
        """Read what the C++ client writes otherwise: ordinals of enums, numbers in quotes."""
        for consumer in value.get("consumerDataSet", []):
            for name, names in _ORDINALS.items():
                ordinal = consumer.get(name)
                if isinstance(ordinal, int) and 0 <= ordinal < len(names):
                    consumer[name] = names[ordinal]
            for subscription in consumer.get("subscriptionDataSet", []):
                version = subscription.get("subVersion")
                if isinstance(version, str):
                    subscription["subVersion"] = java_long(version, "subVersion")
                codes = subscription.get("codeSet", [])
                subscription["codeSet"] = [
                    java_int(code, "codeSet") if isinstance(code, str) else code for code in codes
                ]
        return value


class CheckClientRequestBody(Body, kw_only=True, frozen=True):
    """A subscription with an expression, to be checked before the consumer starts."""

    client_id: str
    group: str
    subscription_data: SubscriptionData


class GetConsumerListByGroupResponseBody(Body, kw_only=True, frozen=True):
    """The client ids of the group, each once."""

    consumer_id_list: list[str] = []


class ConnectionBody(Body, kw_only=True, frozen=True):
    """One client; `client_addr` is `ip:port`, `language` the name of the Java enum."""

    client_addr: str
    client_id: str
    language: str | None = None
    version: JavaInt = 0


class DifferingMember(Body, kw_only=True, frozen=True):
    """A member that does not subscribe to what others do: topic -> expression, where it differs."""

    client_id: str
    subscriptions: dict[str, str]


class ConsumerConnection(Body, kw_only=True, frozen=True):
    """The members of a group, and what the last heartbeat said of it.

    Unlike RocketMQ, members that differ are named, one for each set of subscriptions, and it is
    said of a group that its members pop; absent elsewhere, and passed over by RocketMQ's tools.
    """

    connection_set: list[ConnectionBody]
    consume_from_where: str
    consume_type: str
    differing_members: list[DifferingMember] | msgspec.UnsetType = msgspec.UNSET
    message_model: str
    pops: bool | msgspec.UnsetType = msgspec.UNSET
    subscription_table: dict[str, SubscriptionData]


class ProducerConnection(Body, kw_only=True, frozen=True):
    """The clients of a producer group."""

    connection_set: list[ConnectionBody]


class ProducerInfo(Body, kw_only=True, frozen=True):
    """One producer; `remote_ip` is `/ip:port`, the time that of its last heartbeat, ms."""

    client_id: str
    language: str | None = None
    last_update_timestamp: JavaLong
    remote_ip: str = msgspec.field(name="remoteIP")
    version: JavaInt = 0


class ProducerTableInfo(Body, kw_only=True, frozen=True):
    """All producers by group."""

    data: dict[str, list[ProducerInfo]]


class OffsetWrapper(Body, kw_only=True, frozen=True):
    """A group in one queue: where the queue ends, where the group goes on, when the message that it
    consumed last was stored, ms, 0 for unknown, and up to where it was handed messages (5.x)."""

    broker_offset: JavaLong
    consumer_offset: JavaLong
    last_timestamp: JavaLong
    pull_offset: JavaLong = 0


class ConsumeStats(Body, kw_only=True, frozen=True):
    """A group in all queues of its topics, and how many messages a second it takes."""

    queue_tables: ClassVar[tuple[str, ...]] = ("offsetTable",)

    consume_tps: float
    offset_table: list[tuple[MessageQueueBody, OffsetWrapper]]


class GroupList(Body, kw_only=True, frozen=True):
    """Names of groups."""

    group_list: list[str]


EXPONENT_MAX: Final = 32


class ExponentialRetryPolicy(Body, kw_only=True, frozen=True):
    """Waits that grow from one attempt to the next, ms."""

    initial: JavaLong = 5000
    max: JavaLong = 7_200_000
    multiplier: JavaLong = 2

    def wait_ms(self, attempt: int) -> int:
        """Return the wait after an attempt; the first one is 1."""
        factor: int = self.multiplier ** min(max(attempt - 1, 0), EXPONENT_MAX)
        return max(0, min(self.initial * factor, self.max))


class CustomizedRetryPolicy(Body, kw_only=True, frozen=True):
    """The wait before each further attempt, ms; the last one is for all that follow."""

    next: tuple[JavaLong, ...] = (
        *(1000, 5000, 10_000, 30_000),
        *(60_000 * minutes for minutes in (*range(1, 11), 20, 30)),
        *(3_600_000, 7_200_000),
    )

    def wait_ms(self, attempt: int) -> int:
        """Return the wait after an attempt; the first one is 1."""
        return max(0, self.next[min(max(attempt, 1), len(self.next)) - 1]) if self.next else 0


class GroupRetryPolicy(Body, kw_only=True, frozen=True):
    """How long clients of RocketMQ 5 wait before they try a message again."""

    customized_retry_policy: CustomizedRetryPolicy | None = None
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    type: str = "CUSTOMIZED"

    @property
    def waits(self) -> CustomizedRetryPolicy | ExponentialRetryPolicy:
        """The policy that counts: that of `type`, RocketMQ's first default where it is absent."""
        policy = (
            self.exponential_retry_policy
            if self.type == "EXPONENTIAL"
            else self.customized_retry_policy
        )
        return policy or CustomizedRetryPolicy()


class SubscriptionGroupConfig(Body, kw_only=True, frozen=True):
    """One group.

    What is unset unless somebody sets it is RocketMQ 5's. A group without it is written as 4.9
    does.
    """

    broker_id: JavaLong = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool | msgspec.UnsetType = msgspec.UNSET
    group_name: str
    group_retry_policy: GroupRetryPolicy | msgspec.UnsetType | None = msgspec.UNSET
    message_request_mode: str | msgspec.UnsetType = msgspec.UNSET
    """Ours: POP or PULL, what 401 said; RocketMQ has a table of topics and groups for it."""
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: JavaInt = 16
    retry_queue_nums: JavaInt = 1
    which_broker_when_consume_slowly: JavaLong = 1

    @property
    def is_orderly(self) -> bool:
        """Whether those who pop get each queue's messages one batch after the other."""
        return self.consume_message_orderly is True

    @property
    def pops(self) -> bool:
        """Whether clients of the remoting protocol that ask (400) are to pop its messages."""
        return self.message_request_mode == MODE_POP

    @property
    def retry_policy(self) -> GroupRetryPolicy:
        """How long clients of RocketMQ 5 wait between attempts."""
        return self.group_retry_policy or GroupRetryPolicy()


class SubscriptionGroupWrapper(Body, kw_only=True, frozen=True):
    """All groups of a broker by name."""

    data_version: DataVersion = DataVersion()
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}


class ConsumerOffsetSerializeWrapper(Body, kw_only=True, frozen=True):
    """Where each group stands: by `topic@group`, then by queue id, the offset read next."""

    offset_table: dict[str, dict[JavaInt, JavaLong]] = {}


class TimerProgressBody(Body, kw_only=True, frozen=True):
    """How far messages with a time of their own are delivered. Ours; RocketMQ 4.9 has none.

    A position is a due time, ms, and a queue offset: of what was read, all that sorts before it is
    done with.
    """

    cancels: tuple[JavaLong, JavaLong]
    messages: tuple[JavaLong, JavaLong]
    queue_offset: JavaLong
    """Below it the timer topic's queue was read."""
    void_below: JavaLong
    """What lies below this place of the log was stored again."""


class DelayOffsetSerializeWrapper(Body, kw_only=True, frozen=True):
    """Where delivery stands: by delay level, the offset in that level's queue read next."""

    offset_table: dict[JavaInt, JavaLong] = {}
    timer_progress: TimerProgressBody | msgspec.UnsetType = msgspec.UNSET


class OffsetMovedEvent(Body, kw_only=True, frozen=True):
    """A pull from `offset_request` was told to go on from `offset_new`."""

    consumer_group: str
    message_queue: MessageQueueBody
    offset_new: JavaLong
    offset_request: JavaLong


class LockBatchRequestBody(Body, kw_only=True, frozen=True):
    """The client wants to own these queues for its group."""

    client_id: str
    consumer_group: str
    mq_set: list[MessageQueueBody] = []


class LockBatchResponseBody(Body, kw_only=True, frozen=True):
    """The queues that the client owns now."""

    lock_ok_mq_set: list[MessageQueueBody] = msgspec.field(
        name="lockOKMQSet", default_factory=list[MessageQueueBody]
    )


class UnlockBatchRequestBody(Body, kw_only=True, frozen=True):
    """The client gives these queues up."""

    client_id: str
    consumer_group: str
    mq_set: list[MessageQueueBody] = []


class ResetOffsetBody(Body, kw_only=True, frozen=True):
    """Where a group is to go on, by queue."""

    queue_tables: ClassVar[tuple[str, ...]] = ("offsetTable",)

    offset_table: list[tuple[MessageQueueBody, JavaLong]]


class MessageQueueForC(Body, kw_only=True, frozen=True):
    """A queue with an offset, as C++ clients read it."""

    broker_name: str
    offset: JavaLong
    queue_id: JavaInt
    topic: str


class ResetOffsetBodyForC(Body, kw_only=True, frozen=True):
    """Where a group is to go on, for C++ clients."""

    offset_table: list[MessageQueueForC]


class QueueTimeSpan(Body, kw_only=True, frozen=True):
    """A queue in time, ms: its first and last message, the one that a group consumed last, and how
    long the next one has waited."""

    consume_time_stamp: JavaLong
    delay_time: JavaLong
    max_time_stamp: JavaLong
    message_queue: MessageQueueBody
    min_time_stamp: JavaLong


class QueryConsumeTimeSpanBody(Body, kw_only=True, frozen=True):
    """The queues of a topic in time."""

    consume_time_span_set: list[QueueTimeSpan]


class QueryCorrectionOffsetBody(Body, kw_only=True, frozen=True):
    """Offsets by queue id."""

    correction_offsets: dict[JavaInt, JavaLong]


class GetConsumerStatusBody(Body, kw_only=True, frozen=True):
    """The offsets that a client holds, by queue."""

    queue_tables: ClassVar[tuple[str, ...]] = ("messageQueueTable",)

    message_queue_table: list[tuple[MessageQueueBody, JavaLong]]


class ProcessQueueInfo(Body, kw_only=True, frozen=True):
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


class ConsumerRunningInfo(Body, kw_only=True, frozen=True, omit_defaults=True):
    """The state of one client of a group; `properties` holds the settings that tools show."""

    queue_tables: ClassVar[tuple[str, ...]] = ("mqTable",)

    jstack: str | None = None
    mq_table: list[tuple[MessageQueueBody, ProcessQueueInfo]]
    properties: dict[str, str]
    status_table: dict[str, ConsumeStatus]
    subscription_set: list[SubscriptionData]


class ConsumeMessageDirectlyResult(Body, kw_only=True, frozen=True, omit_defaults=True):
    """What came of consuming one message.

    `consume_result` is CR_SUCCESS, CR_LATER, CR_ROLLBACK, CR_COMMIT, CR_THROW_EXCEPTION or
    CR_RETURN_NULL.
    """

    auto_commit: bool
    consume_result: str | None = None
    order: bool
    remark: str | None = None
    spent_time_mills: JavaLong


class ConsumerFilterData(Body, kw_only=True, frozen=True):
    """One group's filter of one topic, as tools show it (321). Times are ms."""

    born_time: JavaLong = 0
    client_version: JavaLong = 0
    consumer_group: str = ""
    dead: bool = False
    dead_time: JavaLong = 0
    expression: str = ""
    expression_type: str = ""
    topic: str = ""
