"""Headers of a name server's administration: KV configuration (100, 101, 102, 219), topics (216,
224), write permission of brokers (205, 327).

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/header/namesrv/ (the class of each
name), common/.../protocol/header/GetTopicsByClusterRequestHeader.java
"""

import msgspec

from skylarkmq.protocol.headers.fields import JavaInt


class PutKVConfigRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A text to keep."""

    namespace: str
    key: str
    value: str


class GetKVConfigRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Which text is wanted."""

    namespace: str
    key: str


class GetKVConfigResponseHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The text."""

    value: str | None = None


class DeleteKVConfigRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Which text goes."""

    namespace: str
    key: str


class GetKVListByNamespaceRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Whose texts are wanted."""

    namespace: str


class DeleteTopicFromNamesrvRequestHeader(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel"
):
    """Which topic is forgotten, of one cluster or of all."""

    topic: str
    cluster_name: str | None = None


class GetTopicsByClusterRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Whose topics are wanted."""

    cluster: str


class WipeWritePermOfBrokerRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Which broker takes no further messages, as clients are told."""

    broker_name: str


class WipeWritePermOfBrokerResponseHeader(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel"
):
    """How many topics that changed."""

    wipe_topic_count: JavaInt


class AddWritePermOfBrokerRequestHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Which broker takes messages again, as clients are told."""

    broker_name: str


class AddWritePermOfBrokerResponseHeader(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """How many topics that changed."""

    add_topic_count: JavaInt
