"""What a replica refuses, by what it is just now; clients look for the master then.

    follows           what a slave refuses (`ha/slave_rules.py`), and what only the master can know:
                      offsets of groups, locks of queues; reads, until its log is known to be that
                      of a master up to where it shows it
    takes over        everything that depends on messages, until all in sync have the messages that
                      earlier masters may have shown
    leads, too few    sends: fewer replicas are in sync than minInSyncReplicas
    hands over        as one that follows, but for reads
    leads             nothing

Clients of RocketMQ try again after 14: a producer at another broker or route, a consumer later.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Final

from skylarkmq.broker.replication.ha.slave_rules import REFUSED, STORES
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError

Refusals = MappingProxyType[int, RemoteProtocolError]

_C: Final = RequestCode
_READS: Final = (
    _C.PULL_MESSAGE,
    _C.LITE_PULL_MESSAGE,
    _C.SEARCH_OFFSET_BY_TIMESTAMP,
    _C.GET_MAX_OFFSET,
    _C.GET_MIN_OFFSET,
    _C.GET_EARLIEST_MSG_STORETIME,
    _C.QUERY_MESSAGE,
    _C.VIEW_MESSAGE_BY_ID,
    _C.QUERY_CONSUME_QUEUE,
)
_MASTERS: Final = (
    _C.QUERY_CONSUMER_OFFSET,
    _C.UPDATE_CONSUMER_OFFSET,
    _C.LOCK_BATCH_MQ,
    _C.UNLOCK_BATCH_MQ,
)
NONE: Final = Refusals({})


def while_following(broker_name: str, *, reads: bool) -> Refusals:
    """Return what a replica refuses that follows, or hands over.

    Args:
        reads: whether it answers reads.
    """
    why = f"this replica does not lead {broker_name}: ask its master"
    codes = (*REFUSED, *_MASTERS, *(() if reads else _READS))
    return _refusals(codes, why)


def while_taking_over(broker_name: str) -> Refusals:
    """Return what a master refuses whose first messages not all in sync have yet."""
    why = f"this replica begins to lead {broker_name}: try again soon"
    return _refusals((*REFUSED, *_MASTERS, *_READS), why)


def while_too_few(in_sync: int, wanted: int) -> Refusals:
    """Return what a master refuses that has too few others."""
    why = (
        f"{in_sync} replicas are in sync, and minInSyncReplicas={wanted}: start the others, or see "
        "why they do not follow"
    )
    return _refusals(STORES, why)


def _refusals(codes: Iterable[int], why: str) -> Refusals:
    # 11 would say that a message is stored here: clients look for its place in the answer.
    code = ResponseCode.SERVICE_NOT_AVAILABLE
    return Refusals({int(each): RemoteProtocolError(code, why) for each in codes})
