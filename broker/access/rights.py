"""What each request code needs: one row for every code that a broker or a name server answers.

    ACCOUNT   a valid account, and the rights in `needs`
    READER    an account that may read everything: SUB is its default for topics and for groups;
              for what tells of the whole cluster
    ADMIN     an account with `admin: true`

A code without a row is refused while access control is on; a test fails when a handler has none.
What only the store can tell, the topic of a record, is asked for by the handler (`STORED`).

Unlike RocketMQ, which knows the resources of 10, 11, 12, 15, 34, 35, 36, 38 and 310, asks for an
admin for 17, 25, 200, 207 and 215, and lets any account do everything else; its name server asks
nobody for anything.
Source: apache/rocketmq@rocketmq-all-4.9.8 acl/.../plain/PlainAccessValidator.java,
acl/.../common/Permission.java; who sends a code is in docs/reference/request-codes.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from skylarkmq.broker.access.accounts import PUB, SUB, Kind, need_of
from skylarkmq.protocol.bodies.group import (
    CheckClientRequestBody,
    HeartbeatData,
    LockBatchRequestBody,
    UnlockBatchRequestBody,
)
from skylarkmq.protocol.bodies.pop import (
    BatchAckMessageRequestBody,
    QueryAssignmentRequestBody,
)
from skylarkmq.protocol.bodies.text import decode_body
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.pop import asked_topic

Need = tuple[Kind, str, int]
RIGHT_NAMES: Final = {PUB: "PUB", SUB: "SUB"}


class Level(StrEnum):
    """Which account may send a code at all."""

    ACCOUNT = "any account"
    READER = "reads everything"
    ADMIN = "admin"


class Resource(NamedTuple):
    """What a request names, with the right that it needs of that."""

    told: str
    read: Callable[[RemotingCommand], Iterable[Need]]
    """Returns what one request needs; raises RemoteProtocolError for a body that cannot be read."""
    field: str = ""
    """Of the header; empty for what a body or a stored record names."""


class Row(NamedTuple):
    """What one code needs."""

    code: int
    level: Level
    resources: tuple[Resource, ...]
    is_change: bool = False
    """An administrator's change, which the audit log tells."""

    @property
    def told(self) -> str:
        """What it needs, for a table."""
        if self.level is Level.ACCOUNT and self.resources:
            return ", ".join(resource.told for resource in self.resources)
        return str(self.level)


def _named(kind: Kind, right: int, field: str, *, optional: bool = False) -> Resource:
    def read(request: RemotingCommand) -> Iterable[Need]:
        name = request.ext_fields.get(field)
        if not name and optional:
            return ()
        return (need_of(kind, name or "", right),)

    return Resource(f"{kind} {RIGHT_NAMES[right]}", read, field)


def _topic(right: int, field: str = "topic", *, optional: bool = False) -> Resource:
    return _named(Kind.TOPIC, right, field, optional=optional)


def _group(field: str = "consumerGroup", *, optional: bool = False) -> Resource:
    return _named(Kind.GROUP, SUB, field, optional=optional)


def _nothing(_: RemotingCommand) -> Iterable[Need]:
    return ()


def _stored(right: int) -> Resource:
    return Resource(f"topic {RIGHT_NAMES[right]}, as stored", _nothing)


def _of_heartbeat(request: RemotingCommand) -> Iterable[Need]:
    for consumer in decode_body(HeartbeatData, request.body).consumer_data_set:
        yield Kind.GROUP, consumer.group_name, SUB
        for subscription in consumer.subscription_data_set:
            yield need_of(Kind.TOPIC, subscription.topic, SUB)


def _of_check(request: RemotingCommand) -> Iterable[Need]:
    body = decode_body(CheckClientRequestBody, request.body)
    yield Kind.GROUP, body.group, SUB
    yield need_of(Kind.TOPIC, body.subscription_data.topic, SUB)


def _of_assignment(request: RemotingCommand) -> Iterable[Need]:
    body = decode_body(QueryAssignmentRequestBody, request.body)
    yield Kind.GROUP, body.consumer_group, SUB
    yield need_of(Kind.TOPIC, body.topic, SUB)


def _of_delivery(request: RemotingCommand) -> Iterable[Need]:
    get = request.ext_fields.get
    topic = asked_topic(get("topic") or "", get("consumerGroup") or "")
    return (need_of(Kind.TOPIC, topic, SUB),)


def _of_batch(request: RemotingCommand) -> Iterable[Need]:
    for ack in decode_body(BatchAckMessageRequestBody, request.body).acks:
        yield Kind.GROUP, ack.consumer_group, SUB
        yield need_of(Kind.TOPIC, ack.topic, SUB)


def _of_lock(request: RemotingCommand) -> Iterable[Need]:
    wanted = decode_body(LockBatchRequestBody, request.body)
    yield Kind.GROUP, wanted.consumer_group, SUB
    yield from (need_of(Kind.TOPIC, queue.topic, SUB) for queue in wanted.mq_set)


def _of_unlock(request: RemotingCommand) -> Iterable[Need]:
    yield Kind.GROUP, decode_body(UnlockBatchRequestBody, request.body).consumer_group, SUB


_TOPIC: Final = _topic(SUB)
_GROUP: Final = _group()
_DELIVERY: Final = Resource("topic SUB", _of_delivery, "topic")
_SUBSCRIBED: Final = "group SUB, topic SUB"


def _account(code: int, *resources: Resource) -> Row:
    return Row(code, Level.ACCOUNT, resources)


def _reader(code: int) -> Row:
    return Row(code, Level.READER, ())


def _admin(code: int, *, is_change: bool = True) -> Row:
    return Row(code, Level.ADMIN, (), is_change)


def _table(*rows: Row) -> Mapping[int, Row]:
    table = {int(row.code): row for row in rows}
    assert len(table) == len(rows)
    return MappingProxyType(table)


_C: Final = RequestCode

BROKER: Final[Mapping[int, Row]] = _table(
    # Producers and consumers
    _account(_C.SEND_MESSAGE, _topic(PUB)),
    _account(_C.SEND_MESSAGE_V2, _topic(PUB, "b")),
    _account(_C.SEND_BATCH_MESSAGE, _topic(PUB, "b")),
    _account(_C.SEND_REPLY_MESSAGE, _topic(PUB)),
    _account(_C.SEND_REPLY_MESSAGE_V2, _topic(PUB, "b")),
    _account(_C.RECALL_MESSAGE, _topic(PUB)),
    _account(_C.END_TRANSACTION, _stored(PUB)),
    _account(_C.HEART_BEAT, Resource(_SUBSCRIBED, _of_heartbeat)),
    _account(_C.UNREGISTER_CLIENT, _group(optional=True)),
    _account(_C.CHECK_CLIENT_CONFIG, Resource(_SUBSCRIBED, _of_check)),
    _account(_C.PULL_MESSAGE, _TOPIC, _GROUP),
    _account(_C.LITE_PULL_MESSAGE, _TOPIC, _GROUP),
    _account(_C.CONSUMER_SEND_MSG_BACK, _group("group"), _stored(SUB)),
    _account(_C.QUERY_CONSUMER_OFFSET, _TOPIC, _GROUP),
    _account(_C.UPDATE_CONSUMER_OFFSET, _TOPIC, _GROUP),
    _account(_C.GET_CONSUMER_LIST_BY_GROUP, _GROUP),
    _account(_C.LOCK_BATCH_MQ, Resource(_SUBSCRIBED, _of_lock)),
    _account(_C.UNLOCK_BATCH_MQ, Resource("group SUB", _of_unlock)),
    _account(_C.QUERY_ASSIGNMENT, Resource(_SUBSCRIBED, _of_assignment)),
    _account(_C.POP_MESSAGE, _TOPIC, _GROUP),
    _account(_C.PEEK_MESSAGE, _TOPIC, _GROUP),
    _account(_C.NOTIFICATION, _TOPIC, _GROUP),
    _account(_C.POLLING_INFO, _TOPIC, _GROUP),
    _account(_C.ACK_MESSAGE, _DELIVERY, _GROUP),
    _account(_C.CHANGE_MESSAGE_INVISIBLETIME, _DELIVERY, _GROUP),
    _account(_C.BATCH_ACK_MESSAGE, Resource(_SUBSCRIBED, _of_batch)),
    _account(_C.SEARCH_OFFSET_BY_TIMESTAMP, _TOPIC),
    _account(_C.GET_MAX_OFFSET, _TOPIC),
    _account(_C.GET_MIN_OFFSET, _TOPIC),
    _account(_C.GET_EARLIEST_MSG_STORETIME, _TOPIC),
    _account(_C.QUERY_MESSAGE, _TOPIC),
    _account(_C.VIEW_MESSAGE_BY_ID, _stored(SUB)),
    # What a topic or a group is doing
    _account(_C.GET_TOPIC_STATS_INFO, _TOPIC),
    _account(_C.GET_TOPIC_CONFIG, _TOPIC),
    _account(_C.QUERY_TOPIC_CONSUME_BY_WHO, _TOPIC),
    _account(_C.QUERY_CONSUME_QUEUE, _TOPIC, _group(optional=True)),
    _account(_C.GET_CONSUMER_CONNECTION_LIST, _GROUP),
    _account(_C.GET_CONSUME_STATS, _GROUP, _topic(SUB, optional=True)),
    _account(_C.QUERY_CONSUME_TIME_SPAN, _TOPIC, _group("group")),
    _account(_C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, _TOPIC, _group("group")),
    _account(_C.GET_SUBSCRIPTIONGROUP_CONFIG, _group("group")),
    # What the whole broker is doing
    _reader(_C.GET_ALL_TOPIC_CONFIG),
    _reader(_C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
    _reader(_C.GET_ALL_CONSUMER_OFFSET),
    _reader(_C.GET_ALL_DELAY_OFFSET),
    _reader(_C.GET_BROKER_RUNTIME_INFO),
    _reader(_C.GET_PRODUCER_CONNECTION_LIST),
    _reader(_C.GET_ALL_PRODUCER_INFO),
    _reader(_C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER),
    _reader(_C.VIEW_BROKER_STATS_DATA),
    _reader(_C.GET_BROKER_CONSUME_STATS),
    _reader(_C.QUERY_CORRECTION_OFFSET),
    _reader(_C.GET_REPLICA_STATUS),
    # Administration
    _admin(_C.UPDATE_AND_CREATE_TOPIC),
    _admin(_C.DELETE_TOPIC_IN_BROKER),
    _admin(_C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP),
    _admin(_C.DELETE_SUBSCRIPTIONGROUP),
    _admin(_C.SET_MESSAGE_REQUEST_MODE),
    _admin(_C.UPDATE_BROKER_CONFIG),
    _admin(_C.GET_BROKER_CONFIG, is_change=False),
    _admin(_C.INVOKE_BROKER_TO_RESET_OFFSET),
    _admin(_C.CLONE_GROUP_OFFSET),
    _admin(_C.GET_CONSUMER_RUNNING_INFO, is_change=False),
    _admin(_C.CONSUME_MESSAGE_DIRECTLY),
    _admin(_C.RESUME_CHECK_HALF_MESSAGE),
    _admin(_C.CLEAN_EXPIRED_CONSUMEQUEUE),
    _admin(_C.CLEAN_UNUSED_TOPIC),
    _admin(_C.DELETE_EXPIRED_COMMITLOG),
    _admin(_C.UPDATE_AND_CREATE_ACL_CONFIG),
    _admin(_C.DELETE_ACL_CONFIG),
    _admin(_C.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG),
    _admin(_C.GET_BROKER_CLUSTER_ACL_INFO, is_change=False),
    _admin(_C.GET_BROKER_CLUSTER_ACL_CONFIG, is_change=False),
    _admin(_C.SWITCH_OVER),
    _admin(_C.FORCE_FAILOVER),
    _admin(_C.DRAIN_BROKER),
)
"""By code: what a broker answers."""

NAME_SERVER: Final[Mapping[int, Row]] = _table(
    _account(_C.GET_ROUTEINFO_BY_TOPIC),
    _account(_C.GET_BROKER_CLUSTER_INFO),
    _account(_C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
    _account(_C.GET_TOPICS_BY_CLUSTER),
    _account(_C.GET_SYSTEM_TOPIC_LIST_FROM_NS),
    _account(_C.GET_UNIT_TOPIC_LIST),
    _account(_C.GET_HAS_UNIT_SUB_TOPIC_LIST),
    _account(_C.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST),
    _account(_C.GET_KV_CONFIG),
    _account(_C.GET_KVLIST_BY_NAMESPACE),
    _admin(_C.REGISTER_BROKER, is_change=False),
    _admin(_C.UNREGISTER_BROKER, is_change=False),
    _admin(_C.QUERY_DATA_VERSION, is_change=False),
    _admin(_C.PUT_KV_CONFIG),
    _admin(_C.DELETE_KV_CONFIG),
    _admin(_C.DELETE_TOPIC_IN_NAMESRV),
    _admin(_C.WIPE_WRITE_PERM_OF_BROKER),
    _admin(_C.ADD_WRITE_PERM_OF_BROKER),
    _admin(_C.UPDATE_NAMESRV_CONFIG),
    _admin(_C.GET_NAMESRV_CONFIG, is_change=False),
)
"""By code: what a name server answers."""
