"""Administration of a cluster, by kind of thing; `Admin` is all of it.

What its calls answer stands in `results`, `stored_message`, `scan`, `dead_letters` and `traces`.
"""

from skylarkmq.client.admin.admin import Admin
from skylarkmq.client.admin.dead_letters import DeadLetterReplay, ReplayOutcome
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
from skylarkmq.client.admin.scan import MessageScan, ScanProgress
from skylarkmq.client.admin.stored_message import StoredMessage
from skylarkmq.client.admin.traces import DeliveryTrace, EndTrace, MessageTrace, SendTrace

__all__ = [
    "Admin",
    "BrokerRuntime",
    "BrokerSummary",
    "ClusterSummary",
    "Connection",
    "ConsumedDirectly",
    "DeadLetterReplay",
    "DeliveryTrace",
    "EndTrace",
    "GroupDescription",
    "GroupMembers",
    "GroupProgress",
    "GroupSettings",
    "MemberInfo",
    "MemberQueue",
    "MessageScan",
    "MessageTrace",
    "OffsetReset",
    "QueueProgress",
    "QueueReset",
    "QueueStats",
    "ReplayOutcome",
    "ScanProgress",
    "SendTrace",
    "StoredMessage",
    "SubscriptionSummary",
    "TopicDescription",
    "TopicSettings",
]
