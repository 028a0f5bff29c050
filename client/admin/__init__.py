"""Administration of a cluster, by kind of thing; `Admin` is all of it.

What its calls answer stands in `results`, `stored_message`, `scan`, `dead_letters` and `traces`.
"""

from skylarkmq.client.admin.admin import Admin
from skylarkmq.client.admin.groups import Edge
from skylarkmq.client.admin.messages import (
    DeadLetterReplay,
    DeliveryTrace,
    EndTrace,
    MessageTrace,
    ReplayOutcome,
    ReplayTarget,
    SendTrace,
)
from skylarkmq.client.admin.reading import MessageScan, ScanProgress, StoredMessage
from skylarkmq.client.admin.results import (
    BrokerRuntime,
    BrokerSummary,
    ClusterSummary,
    Connection,
    ConsumedDirectly,
    GroupDescription,
    GroupMembers,
    GroupProgress,
    GroupSettings,
    JsonValue,
    MemberInfo,
    MemberQueue,
    OffsetReset,
    QueueProgress,
    QueueReset,
    QueueStats,
    SubscriptionSummary,
    TopicDescription,
    TopicSettings,
)

__all__ = [
    "Admin",
    "BrokerRuntime",
    "BrokerSummary",
    "ClusterSummary",
    "Connection",
    "ConsumedDirectly",
    "DeadLetterReplay",
    "DeliveryTrace",
    "Edge",
    "EndTrace",
    "GroupDescription",
    "GroupMembers",
    "GroupProgress",
    "GroupSettings",
    "JsonValue",
    "MemberInfo",
    "MemberQueue",
    "MessageScan",
    "MessageTrace",
    "OffsetReset",
    "QueueProgress",
    "QueueReset",
    "QueueStats",
    "ReplayOutcome",
    "ReplayTarget",
    "ScanProgress",
    "SendTrace",
    "StoredMessage",
    "SubscriptionSummary",
    "TopicDescription",
    "TopicSettings",
]
