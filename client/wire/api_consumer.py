"""Typed calls of readers: heartbeat 34, farewell 35, filter check 46, members 38, offsets 14, 15,
29, 30, 31, places of a key 12, locks of queues 41, 42.

Each raises a RocketMQError when there is no answer or a refusal.
Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/MQClientAPIImpl.java
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

import msgspec

from skylarkmq.client.wire.ask import SUCCESS, ask, read_body, read_header, read_messages
from skylarkmq.protocol.bodies.group import (
    CheckClientRequestBody,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
)
from skylarkmq.protocol.bodies.text import MessageQueueBody, encode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.headers.fields import LONG_MAX
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
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
)
from skylarkmq.protocol.lenient_json import NODE_COUNT_MAX
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.client import RemotingClient

BROKER_NAME_FIELD = "bname"
KEY_RESULTS_MAX: Final = 4096
"""Asked for; brokers give no more than their maxMsgsNumBatch."""
FOUND_OR_NOT = SUCCESS | {int(ResponseCode.QUERY_NOT_FOUND)}


class KeyAnswer(NamedTuple):
    """What a broker knows of a key; without `complete` there may be more."""

    places: list[tuple[int, int]]  # queue id and queue offset
    complete: bool


class ConsumerApi:
    """The calls except those for locks, over one client's connections."""

    def __init__(self, remoting: RemotingClient) -> None:
        self._remoting = remoting

    async def heartbeat(self, address: str, data: HeartbeatData, timeout_s: float) -> None:
        """Tell a broker which groups this client is in."""
        body = encode_body(data)
        await ask(self._remoting, address, RequestCode.HEART_BEAT, timeout_s, body=body)

    async def unregister(
        self, address: str, header: UnregisterClientRequestHeader, timeout_s: float
    ) -> None:
        """Leave a group on a broker."""
        await ask(self._remoting, address, RequestCode.UNREGISTER_CLIENT, timeout_s, header)

    async def consumer_ids(self, address: str, group: str, timeout_s: float) -> list[str]:
        """Return the client ids of the group's members, as this broker knows them."""
        header = GetConsumerListByGroupRequestHeader(consumer_group=group)
        code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
        answer = await ask(self._remoting, address, code, timeout_s, header)
        kind = GetConsumerListByGroupResponseBody
        return read_body(kind, answer, address, NODE_COUNT_MAX).consumer_id_list

    async def check_client(
        self, address: str, question: CheckClientRequestBody, timeout_s: float
    ) -> None:
        """Ask whether the broker can filter by the expression of a subscription."""
        body = encode_body(question)
        await ask(self._remoting, address, RequestCode.CHECK_CLIENT_CONFIG, timeout_s, body=body)

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
        answer = await ask(
            self._remoting, address, RequestCode.QUERY_CONSUMER_OFFSET, timeout_s, header,
            extra={BROKER_NAME_FIELD: queue.broker_name}, accepted=FOUND_OR_NOT,
        )  # fmt: skip
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return read_header(QueryConsumerOffsetResponseHeader, answer, address).offset

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
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        await self._of_queue(address, code, timeout_s, header, queue)

    async def max_offset(self, address: str, queue: MessageQueue, timeout_s: float) -> int:
        """Return the queue offset that the next message will get."""
        header = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        code = RequestCode.GET_MAX_OFFSET
        answer = await self._of_queue(address, code, timeout_s, header, queue)
        return read_header(GetMaxOffsetResponseHeader, answer, address).offset

    async def min_offset(self, address: str, queue: MessageQueue, timeout_s: float) -> int:
        """Return the first queue offset that can still be read."""
        header = GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        code = RequestCode.GET_MIN_OFFSET
        answer = await self._of_queue(address, code, timeout_s, header, queue)
        return read_header(GetMinOffsetResponseHeader, answer, address).offset

    async def search_offset(
        self, address: str, queue: MessageQueue, timestamp_ms: int, timeout_s: float
    ) -> int:
        """Return the queue offset whose message was stored nearest to that time."""
        header = SearchOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms
        )
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        answer = await self._of_queue(address, code, timeout_s, header, queue)
        return read_header(SearchOffsetResponseHeader, answer, address).offset

    async def messages_of_key(
        self, address: str, topic: str, key: str, timeout_s: float
    ) -> KeyAnswer:
        """Return where the messages of a topic with that key are."""
        header = QueryMessageRequestHeader(
            topic=topic,
            key=key,
            max_num=KEY_RESULTS_MAX,
            begin_timestamp=0,
            end_timestamp=LONG_MAX,
        )
        answer = await ask(
            self._remoting,
            address,
            RequestCode.QUERY_MESSAGE,
            timeout_s,
            header,
            accepted=FOUND_OR_NOT,
        )
        said = read_header(QueryMessageResponseHeader, answer, address)
        found = read_messages(answer, address) if answer.body else []
        places = [(message.queue_id, message.queue_offset) for message in found]
        return KeyAnswer(places, said.complete is True)

    async def _of_queue(
        self,
        address: str,
        code: int,
        timeout_s: float,
        header: msgspec.Struct,
        queue: MessageQueue,
    ) -> RemotingCommand:
        extra = {BROKER_NAME_FIELD: queue.broker_name}
        return await ask(self._remoting, address, code, timeout_s, header, extra=extra)


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
        code = RequestCode.LOCK_BATCH_MQ
        answer = await ask(self._remoting, address, code, timeout_s, body=encode_body(body))
        granted = read_body(LockBatchResponseBody, answer, address, NODE_COUNT_MAX).lock_ok_mq_set
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
        code = RequestCode.UNLOCK_BATCH_MQ
        await ask(self._remoting, address, code, timeout_s, body=encode_body(body))


def _bodies(queues: Collection[MessageQueue]) -> list[MessageQueueBody]:
    return [
        MessageQueueBody(broker_name=each.broker_name, queue_id=each.queue_id, topic=each.topic)
        for each in sorted(queues)
    ]
