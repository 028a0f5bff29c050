"""What tests of live masters and slaves share."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from skylarkmq.broker.controller import BrokerController
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.store.errors import StoreFullError
from tests.store.support import inner
from tests.support.patience import until

FILE_SIZE = 1 << 20
KEYS: Final[dict[str, Any]] = {
    "mapped_file_size_commit_log": FILE_SIZE,
    "max_message_size": 100_000,
}
_C: Final = RequestCode
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
"""Codes that a slave handles as any broker; all others are refused."""


async def hand_over(master: BrokerController, slave: BrokerController) -> None:
    """Give a slave the rest of its master's log, as a connection between the two would."""
    source, target = master.parts.store.commit_log, slave.parts.store

    def all_taken() -> bool:
        while part := source.part(target.received.next_offset, 1 << 20):
            try:
                target.take_records(target.received.next_offset, bytes(part))
            except StoreFullError:
                return False  # the next file is being made
        return True

    await until(all_taken, "the slave's log")
    assert target.commit_log.stored_offset == source.stored_offset


def put(broker: BrokerController, count: int, random: Random) -> None:
    for number in range(count):
        body = random.randbytes(random.randrange(3000))
        broker.parts.store.put_message(inner("T", number % 4, body), lambda _: None)


def log_of(broker: BrokerController) -> bytes:
    log = broker.parts.store.commit_log
    data = b"".join(bytes(mapped.view) for mapped in log.mapped_files.mapped)
    return data[: log.stored_offset - log.min_offset]
