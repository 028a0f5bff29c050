"""Names that a call brings: of topics, of consumer groups, of transactions.

The part of a `Resource` that names a namespace is not looked at, as in RocketMQ 5.3.3, and given
back: topics and groups of all namespaces are the same ones, and so are the rights to them. Whoever
would refuse it refused clients that work there; what it means is told once in the log.

    transaction id = <message id>@<broker name>

What ends a transaction names no broker, and an endpoint may have several. Unlike RocketMQ, where it
is the message's id alone.
Source: apache/rocketmq@rocketmq-all-5.3.3 proxy/.../grpc/v2/common/GrpcValidator.java
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from skylarkmq.broker.grpc.calls import RpcRefused
from skylarkmq.protocol.flags import (
    CID_RMQ_SYS_PREFIX,
    is_system_topic,
    validate_group,
    validate_topic,
)
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code

NAMES_CACHED: Final = 1024
"""Names that were found good and need no other look; others are not kept."""


def topic_of(resource: schema_pb2.Resource) -> str:
    """Return the name of a topic that clients may use; whether there is one is not looked at.

    Raises:
        RpcRefused: ILLEGAL_TOPIC.
    """
    return _topic(resource.name)


@lru_cache(NAMES_CACHED)
def _topic(name: str) -> str:
    why = validate_topic(name)
    if why is None and is_system_topic(name):
        why = f"the topic {name} is the broker's own"
    if why is not None:
        raise RpcRefused(Code.ILLEGAL_TOPIC, why)
    return name


def group_of(resource: schema_pb2.Resource) -> str:
    """Return the name of a consumer group that clients may use.

    Raises:
        RpcRefused: ILLEGAL_CONSUMER_GROUP.
    """
    return _group(resource.name)


@lru_cache(NAMES_CACHED)
def _group(name: str) -> str:
    why = validate_group(name)
    if why is None and name.startswith(CID_RMQ_SYS_PREFIX):
        why = f"the group {name} is the broker's own"
    if why is not None:
        raise RpcRefused(Code.ILLEGAL_CONSUMER_GROUP, why)
    return name


def transaction_id(message_id: str, broker_name: str) -> str:
    """Return how a producer knows a transaction."""
    return f"{message_id}@{broker_name}"


def split_transaction_id(text: str) -> tuple[str, str]:
    """Return the message id of a transaction and its broker's name; empty: it names none.

    A message id may have an @ of its own, a broker's name should not.
    """
    message_id, mark, broker_name = text.rpartition("@")
    return (message_id, broker_name) if mark else (text, "")
