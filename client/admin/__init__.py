"""Admin: topics, groups, offsets, messages, brokers and accounts of a cluster.

    async with Admin(namesrv_addr="127.0.0.1:9876") as admin:
        await admin.create_topic("orders", queues=4)
        print((await admin.progress("billing")).lag)

It works on SkylarkMQ and on Apache RocketMQ. Every call asks the name server which brokers have the
topic now, and speaks to masters. It caches nothing and joins no group. Its parts are `topics`,
`groups`, `offsets`, `messages`, `dead_letters`, `traces`, `waiting`, `access`, `cluster` and
`failover`. What they return stands with them; of groups and offsets in `results`, of the cluster in
`status`.
"""

from skylarkmq.client.admin.access import (
    AccessAdmin,
    AccessFile,
    AccessRules,
    AccountSummary,
    Right,
)
from skylarkmq.client.admin.dead_letters import (
    CopyPlace,
    DeadLetterAdmin,
    RedriveOutcome,
    RedriveTarget,
)
from skylarkmq.client.admin.failover import (
    Drained,
    DrainProgress,
    FailoverAdmin,
    ForcedFailover,
    Mastership,
)
from skylarkmq.client.admin.offsets import Edge, OffsetAdmin
from skylarkmq.client.admin.reading import MessageScan, ScanProgress
from skylarkmq.client.admin.results import (
    Connection,
    ConsumedDirectly,
    GroupDescription,
    GroupMembers,
    GroupProgress,
    GroupSettings,
    JsonValue,
    MemberInfo,
    MemberQueue,
    MessageTrack,
    OffsetReset,
    QueueProgress,
    QueueReset,
    SubscriptionSummary,
    Unanswered,
)
from skylarkmq.client.admin.status import (
    BrokerRuntime,
    BrokerStatus,
    BrokerSummary,
    ClusterStatus,
    ClusterSummary,
    FailoverStatus,
    NameServerStatus,
    OtherReplica,
    Problem,
    ProblemKind,
    ReplicaStatus,
    Span,
    Statistic,
)
from skylarkmq.client.admin.topics import QueueStats, TopicDescription, TopicRoute, TopicSettings
from skylarkmq.client.admin.traces import (
    DeliveryTrace,
    EndTrace,
    MessageTrace,
    SendTrace,
    TraceAdmin,
)
from skylarkmq.client.admin.waiting import DelayedMessage, OpenTransaction, WaitingAdmin


class Admin(OffsetAdmin, DeadLetterAdmin, TraceAdmin, WaitingAdmin, AccessAdmin, FailoverAdmin):
    """Administers a cluster. One loop; any number of tasks may use it at the same time.

    Calls over several brokers end with the first error once those under way have ended; questions
    with `unanswered` go on without that broker. Cancelled, a call that changes something may have
    changed it on some of the brokers.
    """


__all__ = [
    "AccessFile",
    "AccessRules",
    "AccountSummary",
    "Admin",
    "BrokerRuntime",
    "BrokerStatus",
    "BrokerSummary",
    "ClusterStatus",
    "ClusterSummary",
    "Connection",
    "ConsumedDirectly",
    "CopyPlace",
    "DelayedMessage",
    "DeliveryTrace",
    "DrainProgress",
    "Drained",
    "Edge",
    "EndTrace",
    "FailoverStatus",
    "ForcedFailover",
    "GroupDescription",
    "GroupMembers",
    "GroupProgress",
    "GroupSettings",
    "JsonValue",
    "Mastership",
    "MemberInfo",
    "MemberQueue",
    "MessageScan",
    "MessageTrace",
    "MessageTrack",
    "NameServerStatus",
    "OffsetReset",
    "OpenTransaction",
    "OtherReplica",
    "Problem",
    "ProblemKind",
    "QueueProgress",
    "QueueReset",
    "QueueStats",
    "RedriveOutcome",
    "RedriveTarget",
    "ReplicaStatus",
    "Right",
    "ScanProgress",
    "SendTrace",
    "Span",
    "Statistic",
    "SubscriptionSummary",
    "TopicDescription",
    "TopicRoute",
    "TopicSettings",
    "Unanswered",
]
