"""Header of creating or changing a topic (17).

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../header/CreateTopicRequestHeader.java
"""

import msgspec

from skylarkmq.protocol.headers.fields import JavaInt


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
