"""The file `consumerFilter.json`: what each group filters a topic by.

    {"filterDataByTopic":{"<topic>":{"groupFilterData":{"<group>":{...}},"topic":"<topic>"}}}

`dead` follows from the two times; Java writes it and does not read it.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../filter/ConsumerFilterManager.java,
ConsumerFilterData.java, filter/.../util/BloomFilterData.java
"""

import msgspec

from skylarkmq.protocol.headers.fields import JavaInt, JavaLong


class BloomFilterData(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Bits of a group in the bitmaps of a topic, and how many bits those have."""

    bit_num: JavaInt = 0
    bit_pos: list[JavaInt] = []


class ConsumerFilterData(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """One group's filter of one topic. Times are ms; `dead_time` is 0 while the group is there."""

    bloom_filter_data: BloomFilterData | None = None
    born_time: JavaLong = 0
    client_version: JavaLong = 0
    consumer_group: str = ""
    dead: bool = False
    dead_time: JavaLong = 0
    expression: str = ""
    expression_type: str = ""
    topic: str = ""


class FilterDataMapByTopic(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The filters of a topic by group."""

    group_filter_data: dict[str, ConsumerFilterData] = {}
    topic: str = ""


class ConsumerFilterWrapper(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """All filters by topic."""

    filter_data_by_topic: dict[str, FilterDataMapByTopic] = {}
