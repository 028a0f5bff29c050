"""Headers of the name server: registration (103, 104, 322), routes (105), KV configuration (100,
101, 102, 219), topics (216, 224), write permission of brokers (205, 327).

The bodies are in `bodies/route.py`.

Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../protocol/header/namesrv/ (the class of each
name), common/.../protocol/header/GetTopicsByClusterRequestHeader.java
"""

import msgspec

from skylarkmq.protocol.headers.fields import Header, JavaInt, JavaLong


class GetRouteInfoRequestHeader(Header, kw_only=True, frozen=True):
    """Where a topic lives; `accept_standard_json_only` asks for quoted numeric keys."""

    topic: str
    accept_standard_json_only: bool | None = None


class RegisterBrokerRequestHeader(Header, kw_only=True, frozen=True):
    """Who registers. Addresses are `ip:port`; id 0 is the master.

    `body_crc32` is CRC-32 of the body as sent, masked with 0x7FFFFFFF; 0 means not checked.
    `term` is ours and stands last: the election that a master won, 1 or more, None for a broker
    whose role is configured. RocketMQ's name server passes over it.
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: JavaLong
    compressed: bool = False
    body_crc32: JavaInt = 0
    term: JavaLong | None = msgspec.field(default=None, name="skylarkmq.term")


class RegisterBrokerResponseHeader(Header, kw_only=True, frozen=True):
    """Where a slave finds its master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnRegisterBrokerRequestHeader(Header, kw_only=True, frozen=True):
    """Names the broker that a name server is to remove."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: JavaLong


class QueryDataVersionRequestHeader(Header, kw_only=True, frozen=True):
    """Whose tables are compared; the version itself is the body."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: JavaLong


class QueryDataVersionResponseHeader(Header, kw_only=True, frozen=True):
    """True when the name server holds another version."""

    changed: bool


class PutKVConfigRequestHeader(Header, kw_only=True, frozen=True):
    """A text to keep."""

    namespace: str
    key: str
    value: str


class GetKVConfigRequestHeader(Header, kw_only=True, frozen=True):
    """Which text is wanted."""

    namespace: str
    key: str


class GetKVConfigResponseHeader(Header, kw_only=True, frozen=True):
    """The text."""

    value: str | None = None


class DeleteKVConfigRequestHeader(Header, kw_only=True, frozen=True):
    """Which text goes."""

    namespace: str
    key: str


class GetKVListByNamespaceRequestHeader(Header, kw_only=True, frozen=True):
    """Whose texts are wanted."""

    namespace: str


class DeleteTopicFromNamesrvRequestHeader(Header, kw_only=True, frozen=True):
    """Which topic is forgotten, of one cluster or of all."""

    topic: str
    cluster_name: str | None = None


class GetTopicsByClusterRequestHeader(Header, kw_only=True, frozen=True):
    """Whose topics are wanted."""

    cluster: str


class WipeWritePermOfBrokerRequestHeader(Header, kw_only=True, frozen=True):
    """Which broker takes no further messages, as clients are told."""

    broker_name: str


class WipeWritePermOfBrokerResponseHeader(Header, kw_only=True, frozen=True):
    """How many topics that changed."""

    wipe_topic_count: JavaInt


class AddWritePermOfBrokerRequestHeader(Header, kw_only=True, frozen=True):
    """Which broker takes messages again, as clients are told."""

    broker_name: str


class AddWritePermOfBrokerResponseHeader(Header, kw_only=True, frozen=True):
    """How many topics that changed."""

    add_topic_count: JavaInt
