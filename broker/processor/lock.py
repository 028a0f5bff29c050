"""Queue locks of ordered consumption (41, 42).

Unlike RocketMQ, a queue that does not exist, or that an unknown group asks for, is not locked: it
is missing from the answer, and nothing is remembered of it.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(lockBatchMQ, unlockBatchMQ)
"""

from __future__ import annotations

from skylarkmq.broker.groups.rebalance_lock import RebalanceLockManager
from skylarkmq.broker.groups.subscription_group import SubscriptionGroupManager
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.router import Handler
from skylarkmq.broker.processor.name_checks import CLIENT_ID_SIZE_MAX, check_group
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.protocol.bodies.group import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from skylarkmq.protocol.bodies.text import MessageQueueBody, decode_body, encode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand


class LockProcessor:
    """Locks and frees queues for clients. Loop thread."""

    def __init__(
        self,
        locks: RebalanceLockManager,
        groups: SubscriptionGroupManager,
        topics: TopicConfigManager,
    ) -> None:
        self._locks = locks
        self._groups = groups
        self._topics = topics

    def handlers(self) -> dict[int, Handler]:
        """The codes that this processor answers."""
        return {
            RequestCode.LOCK_BATCH_MQ: self.lock_batch_mq,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock_batch_mq,
        }

    def lock_batch_mq(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer those of the queues that the client owns now."""
        wanted = decode_body(LockBatchRequestBody, request.body)
        group, client_id = wanted.consumer_group, wanted.client_id
        check_group(group)
        locked: list[MessageQueueBody] = []
        if group in self._groups.table and 0 < len(client_id) <= CLIENT_ID_SIZE_MAX:
            locked = [
                queue
                for queue in dict.fromkeys(wanted.mq_set)
                if self._exists(queue)
                and self._locks.try_lock(group, queue.topic, queue.queue_id, client_id)
            ]
        body = encode_body(LockBatchResponseBody(lock_ok_mq_set=locked))
        return request.reply(ResponseCode.SUCCESS, body=body)

    def unlock_batch_mq(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Free those of the queues that the client owns."""
        given_up = decode_body(UnlockBatchRequestBody, request.body)
        group, client_id = given_up.consumer_group, given_up.client_id
        check_group(group)
        for queue in given_up.mq_set:
            self._locks.unlock(group, queue.topic, queue.queue_id, client_id)
        return request.reply(ResponseCode.SUCCESS)

    def _exists(self, queue: MessageQueueBody) -> bool:
        config = self._topics.get(queue.topic)
        if config is None:
            return False
        return 0 <= queue.queue_id < max(config.read_queue_nums, config.write_queue_nums)
