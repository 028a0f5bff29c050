"""Topic configurations: part of the registration, answer to 21, and the file `topics.json`.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../TopicConfig.java,
common/.../protocol/body/TopicConfigSerializeWrapper.java
"""

import msgspec

from skylarkmq.protocol.bodies.data_version import DataVersion
from skylarkmq.protocol.headers.fields import JavaInt


class TopicConfig(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One topic; `perm` is the sum of 4 read, 2 write, 1 inherit."""

    order: bool = False
    perm: JavaInt = 6
    read_queue_nums: JavaInt = 16
    topic_filter_type: str = "SINGLE_TAG"
    topic_name: str
    topic_sys_flag: JavaInt = 0
    write_queue_nums: JavaInt = 16


class TopicConfigSerializeWrapper(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """All topics of a broker by name."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = {}
