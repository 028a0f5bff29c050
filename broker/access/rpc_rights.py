"""What each call of the gRPC service needs: one row for every call that the endpoint answers.

A call without a row is refused while access control is on; a test fails when a handler has none.
Every call needs a valid account beside. What only the store can tell, the topic of a record, is
asked for by the handler.

A route is for whoever may send to the topic or read it: clients ask before they say what they are.
A stream of telemetry is opened by any account; each command in it that names topics and groups
needs the rights of one who uses them.

Source: apache/rocketmq@rocketmq-all-5.3.3 auth/.../authorization/builder/
DefaultAuthorizationContextBuilder.java
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from skylarkmq.broker.access.accounts import PUB, SUB, Kind, need_of

if TYPE_CHECKING:
    from skylarkmq.protocol.v5 import schema_pb2

Need = tuple[Kind, str, int]


def _no_topics(_: Any) -> Iterable[str]:
    return ()


class RpcRow(NamedTuple):
    """What one call needs.

    Attributes:
        told: for a table.
        read: returns what a request needs.
        one_is_enough: of what it needs, instead of all.
        topics: returns the topics of which it takes or gives messages.
    """

    name: str
    told: str
    read: Callable[[Any], Iterable[Need]]
    one_is_enough: bool = False
    topics: Callable[[Any], Iterable[str]] = _no_topics


def _published(request: Any) -> Iterable[Need]:
    return (need_of(Kind.TOPIC, request.topic.name, PUB),)


def _routed(request: schema_pb2.QueryRouteRequest) -> Iterable[Need]:
    name = request.topic.name
    return need_of(Kind.TOPIC, name, PUB), need_of(Kind.TOPIC, name, SUB)


def _sent_topics(request: schema_pb2.SendMessageRequest) -> Iterable[str]:
    return {message.topic.name for message in request.messages}


def _sent(request: schema_pb2.SendMessageRequest) -> Iterable[Need]:
    return [need_of(Kind.TOPIC, name, PUB) for name in _sent_topics(request)]


def _read(request: Any) -> Iterable[Need]:
    return (
        (Kind.GROUP, request.group.name, SUB),
        need_of(Kind.TOPIC, request.topic.name, SUB),
    )


def _received(request: schema_pb2.ReceiveMessageRequest) -> Iterable[Need]:
    return (
        (Kind.GROUP, request.group.name, SUB),
        need_of(Kind.TOPIC, request.message_queue.topic.name, SUB),
    )


def _received_topics(request: schema_pb2.ReceiveMessageRequest) -> Iterable[str]:
    return (request.message_queue.topic.name,)


def _of_group(request: Any) -> Iterable[Need]:
    name = request.group.name
    return ((Kind.GROUP, name, SUB),) if name else ()


def _told(command: schema_pb2.TelemetryCommand) -> Iterable[Need]:
    if command.WhichOneof("command") != "settings":
        return
    settings = command.settings
    for topic in settings.publishing.topics:
        yield need_of(Kind.TOPIC, topic.name, PUB)
    subscription = settings.subscription
    if subscription.group.name:
        yield Kind.GROUP, subscription.group.name, SUB
    for entry in subscription.subscriptions:
        yield need_of(Kind.TOPIC, entry.topic.name, SUB)


_READ: Final = "group SUB, topic SUB"

RPCS: Final[Mapping[str, RpcRow]] = MappingProxyType(
    {
        row.name: row
        for row in (
            RpcRow("QueryRoute", "topic PUB or SUB", _routed, one_is_enough=True),
            RpcRow("QueryAssignment", _READ, _read),
            RpcRow("Heartbeat", "group SUB", _of_group),
            RpcRow("SendMessage", "topic PUB", _sent, topics=_sent_topics),
            RpcRow("ReceiveMessage", _READ, _received, topics=_received_topics),
            RpcRow("AckMessage", _READ, _read),
            RpcRow("ForwardMessageToDeadLetterQueue", _READ, _read),
            RpcRow("EndTransaction", "topic PUB", _published),
            RpcRow("Telemetry", "topic PUB; group SUB, topic SUB", _told),
            RpcRow("NotifyClientTermination", "group SUB", _of_group),
            RpcRow("ChangeInvisibleDuration", _READ, _read),
            RpcRow("RecallMessage", "topic PUB", _published),
        )
    }
)
"""By the name of the call."""
