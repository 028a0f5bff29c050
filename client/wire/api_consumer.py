"""Typed calls of group members: heartbeat 34, farewell 35, filter check 46, members 38, offsets 14,
15, 29, 30, 31, locks of queues 41, 42.

Each raises a RocketMQError when there is no answer or a refusal.
Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/MQClientAPIImpl.java
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

import msgspec

from skylarkmq.client.errors import ProtocolError, broker_error
from skylarkmq.protocol.bodies.group import (
    CheckClientRequestBody,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from skylarkmq.protocol.bodies.text import MessageQueueBody, decode_body, encode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields
from skylarkmq.protocol.headers.group import (
    GetConsumerListByGroupRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from skylarkmq.protocol.headers.pull import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
)
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.client import RemotingClient

T = TypeVar("T", bound=msgspec.Struct)

BROKER_NAME_FIELD = "bname"


class ConsumerApi:
    """The calls but those for locks, over one client's connections."""

    def __init__(self, remoting: RemotingClient) -> None:
        self._remoting = remoting

    async def heartbeat(self, address: str, data: HeartbeatData, timeout_s: float) -> None:
        """Tell a broker which groups this client is in."""
        await self._call(address, RequestCode.HEART_BEAT, {}, timeout_s, encode_body(data))

    async def unregister(
        self, address: str, header: UnregisterClientRequestHeader, timeout_s: float
    ) -> None:
        """Leave a group on a broker."""
        fields = encode_fields(header)
        await self._call(address, RequestCode.UNREGISTER_CLIENT, fields, timeout_s)

    async def consumer_ids(self, address: str, group: str, timeout_s: float) -> list[str]:
        """Return the client ids of the group's members, as this broker knows them."""
        fields = encode_fields(GetConsumerListByGroupRequestHeader(consumer_group=group))
        code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        answer = await self._call(address, code, fields, timeout_s)
        try:
            body = decode_body(GetConsumerListByGroupResponseBody, answer.body)
        except RemoteProtocolError as error:
            raise ProtocolError(f"{address} sent a body that cannot be read: {error}") from error
        return body.consumer_id_list

    async def check_client(
        self, address: str, question: CheckClientRequestBody, timeout_s: float
    ) -> None:
        """Ask whether the broker can filter by the expression of a subscription."""
        code = RequestCode.CHECK_CLIENT_CONFIG
        await self._call(address, code, {}, timeout_s, encode_body(question))

    async def query_offset(
        self,
        address: str,
        group: str,
        queue: MessageQueue,
        timeout_s: float,
        *,
        zero_if_young: bool = True,
    ) -> int | None:
        """Return the queue offset that the group has committed; None when it has none yet.

        Args:
            zero_if_young: take a 0 for a group that is new to a young queue, as RocketMQ's brokers
                say; those before 5.0 always say so.
        """
        header = QueryConsumerOffsetRequestHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=None if zero_if_young else False,
        )
        fields = _with_broker(encode_fields(header), queue)
        request = RemotingCommand.request(RequestCode.QUERY_CONSUMER_OFFSET, fields)
        answer = await self._remoting.call(address, request, timeout_s)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        _check(answer, address)
        return _header(QueryConsumerOffsetResponseHeader, answer, address).offset

    async def update_offset(
        self, address: str, group: str, queue: MessageQueue, offset: int, timeout_s: float
    ) -> None:
        """Commit: the group has done everything below the queue offset."""
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
        )
        fields = _with_broker(encode_fields(header), queue)
        await self._call(address, RequestCode.UPDATE_CONSUMER_OFFSET, fields, timeout_s)

    async def max_offset(self, address: str, queue: MessageQueue, timeout_s: float) -> int:
        """Return the queue offset that the next message will get."""
        header = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        fields = _with_broker(encode_fields(header), queue)
        answer = await self._call(address, RequestCode.GET_MAX_OFFSET, fields, timeout_s)
        return _header(GetMaxOffsetResponseHeader, answer, address).offset

    async def min_offset(self, address: str, queue: MessageQueue, timeout_s: float) -> int:
        """Return the first queue offset that can still be read."""
        header = GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        fields = _with_broker(encode_fields(header), queue)
        answer = await self._call(address, RequestCode.GET_MIN_OFFSET, fields, timeout_s)
        return _header(GetMinOffsetResponseHeader, answer, address).offset

    async def search_offset(
        self, address: str, queue: MessageQueue, timestamp_ms: int, timeout_s: float
    ) -> int:
        """Return the queue offset whose message was stored nearest to that time."""
        header = SearchOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms
        )
        fields = _with_broker(encode_fields(header), queue)
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        answer = await self._call(address, code, fields, timeout_s)
        return _header(SearchOffsetResponseHeader, answer, address).offset

    async def _call(
        self,
        address: str,
        code: int,
        fields: dict[str, str],
        timeout_s: float,
        body: bytes = b"",
    ) -> RemotingCommand:
        request = RemotingCommand.request(code, fields, body)
        answer = await self._remoting.call(address, request, timeout_s)
        _check(answer, address)
        return answer


def _with_broker(fields: dict[str, str], queue: MessageQueue) -> dict[str, str]:
    fields[BROKER_NAME_FIELD] = queue.broker_name
    return fields


def _check(answer: RemotingCommand, address: str) -> None:
    if answer.code != ResponseCode.SUCCESS:
        raise broker_error(answer.code, answer.remark, address)


def _header(kind: type[T], answer: RemotingCommand, address: str) -> T:
    try:
        return decode_fields(kind, answer.ext_fields)
    except RemoteProtocolError as error:
        raise ProtocolError(f"{address} sent an answer that cannot be read: {error}") from error


class LockApi:
    """Locks and unlocks queues for one member: a client in a group.

    A broker forgets a lock 60 s after it was last asked for.
    """

    def __init__(self, remoting: RemotingClient, client_id: str, group: str) -> None:
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
