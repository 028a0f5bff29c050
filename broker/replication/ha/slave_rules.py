"""What a slave serves and what it refuses, by request code.

    stores a message                 14   clients try another broker of the topic
    hands messages out by pop        14   what is in hand is known at the master only
    ends a transaction               11   the producer's check at the master asks again
    changes topics, groups, offsets  1    the master's tables come to its slaves by themselves

Each code that a broker answers stands here: a test fails for one without a decision. A slave serves
what only reads, what concerns its own disk, files, configuration and clients, and commits of
offsets, which the next copy of the master's replaces.

Unlike RocketMQ, whose slave lets an administrator move the offsets of groups (222, 314) until the
next copy, answers 36 with code 1, and hands replies (324, 325) on without storing them.
Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java (checkStoreStatus),
broker/.../processor/EndTransactionProcessor.java, AdminBrokerProcessor.java (validateSlave)
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError

_C: Final = RequestCode
STORES: Final = (
    _C.SEND_MESSAGE,
    _C.SEND_MESSAGE_V2,
    _C.SEND_BATCH_MESSAGE,
    _C.SEND_REPLY_MESSAGE,
    _C.SEND_REPLY_MESSAGE_V2,
    _C.CONSUMER_SEND_MSG_BACK,
    _C.RECALL_MESSAGE,
)
POPS: Final = (
    _C.POP_MESSAGE,
    _C.ACK_MESSAGE,
    _C.PEEK_MESSAGE,
    _C.CHANGE_MESSAGE_INVISIBLETIME,
    _C.NOTIFICATION,
    _C.POLLING_INFO,
    _C.BATCH_ACK_MESSAGE,
)
_CHANGES: Final = (
    _C.UPDATE_AND_CREATE_TOPIC,
    _C.DELETE_TOPIC_IN_BROKER,
    _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    _C.DELETE_SUBSCRIPTIONGROUP,
    _C.SET_MESSAGE_REQUEST_MODE,
    _C.INVOKE_BROKER_TO_RESET_OFFSET,
    _C.CLONE_GROUP_OFFSET,
    _C.RESUME_CHECK_HALF_MESSAGE,
)

REFUSED: Final[Mapping[int, ResponseCode]] = MappingProxyType(
    {
        **{int(code): ResponseCode.SERVICE_NOT_AVAILABLE for code in STORES},
        int(_C.END_TRANSACTION): ResponseCode.SLAVE_NOT_AVAILABLE,
        **{int(code): ResponseCode.SERVICE_NOT_AVAILABLE for code in POPS},
        **{int(code): ResponseCode.SYSTEM_ERROR for code in _CHANGES},
    }
)
"""By code: with what a slave answers."""

SERVED: Final[frozenset[int]] = frozenset(
    {
        # Consumers
        _C.HEART_BEAT,  # without making topics and groups
        _C.UNREGISTER_CLIENT,
        _C.CHECK_CLIENT_CONFIG,
        _C.PULL_MESSAGE,  # also with slaveReadEnable=false, as RocketMQ's does
        _C.LITE_PULL_MESSAGE,
        _C.QUERY_CONSUMER_OFFSET,
        _C.UPDATE_CONSUMER_OFFSET,
        _C.GET_CONSUMER_LIST_BY_GROUP,
        _C.LOCK_BATCH_MQ,
        _C.UNLOCK_BATCH_MQ,
        _C.QUERY_ASSIGNMENT,
        _C.SEARCH_OFFSET_BY_TIMESTAMP,
        _C.GET_MAX_OFFSET,
        _C.GET_MIN_OFFSET,
        _C.GET_EARLIEST_MSG_STORETIME,
        _C.QUERY_MESSAGE,
        _C.VIEW_MESSAGE_BY_ID,
        # What a topic, a group or the broker is doing
        _C.GET_TOPIC_STATS_INFO,
        _C.GET_TOPIC_CONFIG,
        _C.QUERY_TOPIC_CONSUME_BY_WHO,
        _C.QUERY_CONSUME_QUEUE,
        _C.GET_CONSUMER_CONNECTION_LIST,
        _C.GET_CONSUME_STATS,
        _C.QUERY_CONSUME_TIME_SPAN,
        _C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        _C.GET_SUBSCRIPTIONGROUP_CONFIG,
        _C.GET_ALL_TOPIC_CONFIG,
        _C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        _C.GET_ALL_CONSUMER_OFFSET,
        _C.GET_ALL_DELAY_OFFSET,
        _C.GET_BROKER_RUNTIME_INFO,
        _C.GET_PRODUCER_CONNECTION_LIST,
        _C.GET_ALL_PRODUCER_INFO,
        _C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        _C.VIEW_BROKER_STATS_DATA,
        _C.GET_BROKER_CONSUME_STATS,
        _C.QUERY_CORRECTION_OFFSET,
        _C.GET_BROKER_CONFIG,
        _C.GET_CONSUMER_RUNNING_INFO,
        _C.CONSUME_MESSAGE_DIRECTLY,
        # Its own configuration, accounts and disk
        _C.UPDATE_BROKER_CONFIG,
        _C.UPDATE_AND_CREATE_ACL_CONFIG,
        _C.DELETE_ACL_CONFIG,
        _C.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        _C.GET_BROKER_CLUSTER_ACL_INFO,
        _C.GET_BROKER_CLUSTER_ACL_CONFIG,
        _C.CLEAN_EXPIRED_CONSUMEQUEUE,
        _C.CLEAN_UNUSED_TOPIC,  # names them, and removes none
        _C.DELETE_EXPIRED_COMMITLOG,
        # Of replicas that elect their master; whoever is asked says itself whether it may
        _C.GET_REPLICA_STATUS,
        _C.SWITCH_OVER,
        _C.FORCE_FAILOVER,  # only one that does not lead has a use for it
        _C.DRAIN_BROKER,  # it says that it has nothing to move
    }
)


def slave_refusals(broker_name: str) -> dict[int, RemoteProtocolError]:
    """Return the answer of a slave to each code that it refuses."""
    why = f"this broker is a slave and changes nothing by itself: ask the master of {broker_name}"
    return {code: RemoteProtocolError(answer, why) for code, answer in REFUSED.items()}
