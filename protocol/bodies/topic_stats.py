"""The answer to 202: what the queues of a topic hold.

    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:
        {"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0}}}

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../admin/TopicStatsTable.java, TopicOffset.java
"""

from typing import ClassVar

import msgspec

from skylarkmq.protocol.bodies.lock import MessageQueueBody
from skylarkmq.protocol.headers.fields import JavaLong


class TopicOffset(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One queue: its offsets, and when its last message was stored, ms, 0 for never."""

    last_update_timestamp: JavaLong
    max_offset: JavaLong
    min_offset: JavaLong


class TopicStatsTable(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """All queues of a topic on one broker."""

    queue_tables: ClassVar[tuple[str, ...]] = ("offsetTable",)

    offset_table: list[tuple[MessageQueueBody, TopicOffset]]
