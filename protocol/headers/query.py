"""Headers of looking things up: by key (12), offsets (29, 30, 31), times (32), by place (33), what
a topic holds (202).

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/header/ (the class of each name)
"""

import msgspec

from skylarkmq.protocol.headers.fields import JavaInt, JavaLong


class QueryMessageRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Messages of a topic by key, stored between two times in ms.

    The extra `_UNIQUE_KEY_QUERY` stands outside this header, because it is not signed.
    """

    topic: str
    key: str
    max_num: JavaInt
    begin_timestamp: JavaLong
    end_timestamp: JavaLong


class QueryMessageResponseHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """How far the key index has come: store time in ms and physical offset of its last entry."""

    index_last_update_timestamp: JavaLong
    index_last_update_phyoffset: JavaLong


class SearchOffsetRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The queue offset whose message was stored nearest to `timestamp`, ms."""

    topic: str
    queue_id: JavaInt
    timestamp: JavaLong


class SearchOffsetResponseHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A queue offset."""

    offset: JavaLong


class GetMaxOffsetRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The queue offset that the next message will get."""

    topic: str
    queue_id: JavaInt


class GetMaxOffsetResponseHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A queue offset; 0 for an unknown queue."""

    offset: JavaLong


class GetMinOffsetRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The first queue offset that can still be read."""

    topic: str
    queue_id: JavaInt


class GetMinOffsetResponseHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A queue offset; 0 for an unknown queue."""

    offset: JavaLong


class GetEarliestMsgStoretimeRequestHeader(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel"
):
    """When the first message of a queue was stored."""

    topic: str
    queue_id: JavaInt


class GetEarliestMsgStoretimeResponseHeader(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel"
):
    """A time in ms; -1 when there is no message."""

    timestamp: JavaLong


class ViewMessageRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The record at a physical offset."""

    offset: JavaLong


class GetTopicStatsInfoRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The offsets of a topic's queues."""

    topic: str
