"""Headers of administrators: topics (17, 215), configuration (26), units of a queue (321).

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/header/ (CreateTopicRequestHeader,
DeleteTopicRequestHeader, GetBrokerConfigResponseHeader, QueryConsumeQueueRequestHeader)
"""

import msgspec

from skylarkmq.protocol.headers.fields import JavaInt, JavaLong


class CreateTopicRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The whole configuration of a topic; `perm` is the sum of 4 read, 2 write, 1 inherit."""

    topic: str
    default_topic: str
    read_queue_nums: JavaInt
    write_queue_nums: JavaInt
    perm: JavaInt
    topic_filter_type: str
    topic_sys_flag: JavaInt | None = None
    order: bool = False


class DeleteTopicRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Which topic goes from a broker."""

    topic: str


class GetTopicConfigRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Whose configuration is asked for; 5.x also says `lo`, about mapped queues."""

    topic: str


class GetSubscriptionGroupConfigRequestHeader(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel"
):
    """Whose configuration is asked for."""

    group: str


class GetBrokerConfigResponseHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """`version` is a data version as JSON; the configuration itself is the body."""

    version: str


class QueryConsumeQueueRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Units of a queue from `index` on; a negative one counts back from the end."""

    topic: str
    queue_id: JavaInt
    index: JavaLong
    count: JavaInt
    consumer_group: str | None = None
