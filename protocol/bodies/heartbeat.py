"""Bodies that tell about clients: the heartbeat (34) and the filter check (46).

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/heartbeat/HeartbeatData.java,
ConsumerData.java, ProducerData.java, SubscriptionData.java, ConsumeType.java, MessageModel.java,
common/.../consumer/ConsumeFromWhere.java, common/.../protocol/body/CheckClientRequestBody.java
"""

from typing import Any, Final

import msgspec

from skylarkmq.protocol.headers.fields import JavaInt, JavaLong, java_int, java_long

CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY")
MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM_WHERE: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)
# Members of ConsumerData that some clients write as the ordinal instead of the name.
_ORDINALS: Final = {
    "consumeType": CONSUME_TYPES,
    "messageModel": MESSAGE_MODELS,
    "consumeFromWhere": CONSUME_FROM_WHERE,
}


class SubscriptionData(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """What a group wants of a topic.

    `sub_string` is the expression as written, `*` for all; `code_set` holds the Java hashes of the
    tags; `sub_version` is the time of the last change, ms.
    """

    class_filter_mode: bool = False
    code_set: list[JavaInt] = []
    expression_type: str = "TAG"
    sub_string: str
    sub_version: JavaLong = 0
    tags_set: list[str] = []
    topic: str


class ConsumerData(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A consumer group as one client sees it; names of the Java enums as text."""

    consume_from_where: str
    consume_type: str
    group_name: str
    message_model: str
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class ProducerData(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A producer group."""

    group_name: str


class HeartbeatData(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """All groups of one client."""

    client_id: str = msgspec.field(name="clientID")
    consumer_data_set: list[ConsumerData] = []
    producer_data_set: list[ProducerData] = []

    @staticmethod
    def accept(value: Any) -> Any:
        """Read what the C++ client writes otherwise: ordinals of enums, numbers in quotes."""
        for consumer in value.get("consumerDataSet", []):
            for name, names in _ORDINALS.items():
                ordinal = consumer.get(name)
                if isinstance(ordinal, int) and 0 <= ordinal < len(names):
                    consumer[name] = names[ordinal]
            for subscription in consumer.get("subscriptionDataSet", []):
                version = subscription.get("subVersion")
                if isinstance(version, str):
                    subscription["subVersion"] = java_long(version, "subVersion")
                codes = subscription.get("codeSet", [])
                subscription["codeSet"] = [
                    java_int(code, "codeSet") if isinstance(code, str) else code for code in codes
                ]
        return value


class CheckClientRequestBody(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A subscription with an expression, to be checked before the consumer starts."""

    client_id: str
    group: str
    subscription_data: SubscriptionData
