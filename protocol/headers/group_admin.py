"""Headers of group administration: 203, 204, 207, 208, 300.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/header/ (the class of each name)
"""

import msgspec


class GetConsumerConnectionListRequestHeader(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel"
):
    """Who is in a consumer group."""

    consumer_group: str


class GetProducerConnectionListRequestHeader(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel"
):
    """Who is in a producer group."""

    producer_group: str


class DeleteSubscriptionGroupRequestHeader(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel"
):
    """Remove a group, with `remove_offset` where it stands as well."""

    group_name: str
    remove_offset: bool = False


class GetConsumeStatsRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """How far a group is; without a topic, in all that it ever consumed."""

    consumer_group: str
    topic: str | None = None


class QueryTopicConsumeByWhoRequestHeader(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel"
):
    """Which groups consume a topic."""

    topic: str
