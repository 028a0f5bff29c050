"""Bodies about topics: configurations (part of the registration, answer to 21, the file
`topics.json`), what the queues of a topic hold (202), units of a queue (321).

    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:
        {"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0}}}

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../TopicConfig.java, common/.../protocol/body/
(TopicConfigSerializeWrapper, QueryConsumeQueueResponseBody, ConsumeQueueData),
common/.../admin/TopicStatsTable.java, TopicOffset.java
"""

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from skylarkmq.protocol.bodies.group import SubscriptionData
from skylarkmq.protocol.bodies.text import Body, DataVersion, MessageQueueBody
from skylarkmq.protocol.headers.fields import JavaInt, JavaLong


class TopicConfig(Body, kw_only=True, frozen=True):
    """One topic; `perm` is the sum of 4 read, 2 write, 1 inherit.

    `attributes` are RocketMQ 5's. A topic without any is written as RocketMQ 4.9 does.
    """

    attributes: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    order: bool = False
    perm: JavaInt = 6
    read_queue_nums: JavaInt = 16
    topic_filter_type: str = "SINGLE_TAG"
    topic_name: str
    topic_sys_flag: JavaInt = 0
    write_queue_nums: JavaInt = 16

    @property
    def attributes_map(self) -> Mapping[str, str]:
        """The attributes; empty without any."""
        return {} if self.attributes is msgspec.UNSET else self.attributes


class TopicConfigSerializeWrapper(Body, kw_only=True, frozen=True):
    """All topics of a broker by name."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = {}


class TopicOffset(Body, kw_only=True, frozen=True):
    """One queue: its offsets, and when its last message was stored, ms, 0 for never."""

    last_update_timestamp: JavaLong
    max_offset: JavaLong
    min_offset: JavaLong


class TopicStatsTable(Body, kw_only=True, frozen=True):
    """All queues of a topic on one broker."""

    queue_tables: ClassVar[tuple[str, ...]] = ("offsetTable",)

    offset_table: list[tuple[MessageQueueBody, TopicOffset]]


class ConsumeQueueData(Body, kw_only=True, frozen=True, omit_defaults=True):
    """One unit: where its record is, and whether the group that was asked for wants it."""

    bit_map: str | None = None
    eval: bool  # Java writes it always
    extend_data_json: str | None = None
    msg: str | None = None
    physic_offset: JavaLong
    physic_size: JavaInt
    tags_code: JavaLong


class QueryConsumeQueueResponseBody(Body, kw_only=True, frozen=True, omit_defaults=True):
    """Units of a queue, its bounds, and what a group wants of it."""

    filter_data: str | None = None
    max_queue_index: JavaLong
    min_queue_index: JavaLong
    queue_data: list[ConsumeQueueData] | None = None
    subscription_data: SubscriptionData | None = None
