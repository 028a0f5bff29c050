"""Body of the answer to a question for units of a queue (321).

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/body/
(QueryConsumeQueueResponseBody.java, ConsumeQueueData.java)
"""

import msgspec

from skylarkmq.protocol.bodies.heartbeat import SubscriptionData
from skylarkmq.protocol.headers.fields import JavaInt, JavaLong


class ConsumeQueueData(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel", omit_defaults=True
):
    """One unit: where its record is, and whether the group that was asked for wants it."""

    bit_map: str | None = None
    eval: bool  # Java writes it always
    extend_data_json: str | None = None
    msg: str | None = None
    physic_offset: JavaLong
    physic_size: JavaInt
    tags_code: JavaLong


class QueryConsumeQueueResponseBody(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel", omit_defaults=True
):
    """Units of a queue, its bounds, and what a group wants of it."""

    filter_data: str | None = None
    max_queue_index: JavaLong
    min_queue_index: JavaLong
    queue_data: list[ConsumeQueueData] | None = None
    subscription_data: SubscriptionData | None = None
