"""What a slave serves and what it refuses, by request code.

    stores a message                 14   clients try another broker of the topic
    hands messages out by pop        14   what is in hand is known at the master only
    ends a transaction               11   the producer's check at the master asks again
    changes topics, groups, offsets  1    the master's tables come to its slaves by themselves

A slave serves all else: what only reads, what concerns its own disk, files, configuration and
clients, and commits of offsets, which the next copy of the master's replaces. A test names each of
those codes, and fails for one without a decision.

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


def slave_refusals(broker_name: str) -> dict[int, RemoteProtocolError]:
    """Return the answer of a slave to each code that it refuses."""
    why = f"this broker is a slave and changes nothing by itself: ask the master of {broker_name}"
    return {code: RemoteProtocolError(answer, why) for code, answer in REFUSED.items()}
