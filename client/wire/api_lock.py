"""Typed calls for locking queues: 41 takes and renews, 42 gives up.

A lock belongs to a client id for a group; a broker forgets it 60 s after it was last asked for.
Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/MQClientAPIImpl.java (lockBatchMQ,
unlockBatchMQ)
"""

from __future__ import annotations

from collections.abc import Collection

from skylarkmq.client.errors import ProtocolError, broker_error
from skylarkmq.client.wire.remoting import Remoting
from skylarkmq.protocol.bodies.group import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from skylarkmq.protocol.bodies.text import MessageQueueBody, decode_body, encode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.remoting_command import RemotingCommand


class LockApi:
    """The calls of one member: a client in a group."""

    def __init__(self, remoting: Remoting, client_id: str, group: str) -> None:
        self._remoting = remoting
        self._client_id = client_id
        self._group = group

    async def lock(
        self, address: str, queues: Collection[MessageQueue], timeout_s: float
    ) -> set[MessageQueue]:
        """Return those of the broker's queues that this member owns now.

        Raises:
            RocketMQError: refused, no answer, or one that cannot be read.
        """
        body = LockBatchRequestBody(
            client_id=self._client_id, consumer_group=self._group, mq_set=_bodies(queues)
        )
        answer = await self._call(address, RequestCode.LOCK_BATCH_MQ, encode_body(body), timeout_s)
        try:
            granted = decode_body(LockBatchResponseBody, answer.body).lock_ok_mq_set
        except RemoteProtocolError as error:
            raise ProtocolError(f"{address} sent a body that cannot be read: {error}") from error
        return {MessageQueue(each.topic, each.broker_name, each.queue_id) for each in granted}

    async def unlock(
        self, address: str, queues: Collection[MessageQueue], timeout_s: float
    ) -> None:
        """Give the locks of these queues up.

        Raises:
            RocketMQError: refused, or no answer.
        """
        body = UnlockBatchRequestBody(
            client_id=self._client_id, consumer_group=self._group, mq_set=_bodies(queues)
        )
        await self._call(address, RequestCode.UNLOCK_BATCH_MQ, encode_body(body), timeout_s)

    async def _call(
        self, address: str, code: int, body: bytes, timeout_s: float
    ) -> RemotingCommand:
        request = RemotingCommand.request(code, {}, body)
        answer = await self._remoting.call(address, request, timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise broker_error(answer.code, answer.remark, address)
        return answer


def _bodies(queues: Collection[MessageQueue]) -> list[MessageQueueBody]:
    return [
        MessageQueueBody(broker_name=each.broker_name, queue_id=each.queue_id, topic=each.topic)
        for each in sorted(queues)
    ]
