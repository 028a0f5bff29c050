"""Reading queues from outside of any group: pages of messages, and the place of a time.

A pull (11) that carries its subscription along needs no heartbeat, and in the name of
TOOLS_CONSUMER, which every broker has, it needs no group either. Nothing is committed.

The place of a time: code 29 answers the message stored nearest to it, which may lie before or, of
several of one millisecond, in their middle. `place_of` corrects that by looking at store times, so
that nothing stored at or after the time lies before the place, and nothing older behind it.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/PullMessageProcessor.java,
store/.../ConsumeQueue.java (getOffsetInQueueByTime)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from skylarkmq.client.wire.api_admin import AdminApi, read_header, read_records
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.flags import TOOLS_CONSUMER_GROUP, PullSysFlag
from skylarkmq.protocol.headers.pull import PullMessageRequestHeader, PullMessageResponseHeader
from skylarkmq.protocol.headers.query import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
)
from skylarkmq.protocol.message import MessageExt, MessageQueue
from skylarkmq.protocol.remoting_command import RemotingCommand

PULLED: Final = frozenset(
    {
        int(ResponseCode.SUCCESS),
        int(ResponseCode.PULL_NOT_FOUND),
        int(ResponseCode.PULL_RETRY_IMMEDIATELY),
        int(ResponseCode.PULL_OFFSET_MOVED),
    }
)
BROKER_NAME_FIELD: Final = "bname"
PAGE_MESSAGES: Final = 32


@dataclass(frozen=True, slots=True)
class Page:
    """What a read gave: messages from the offset asked for on, and where to go on."""

    messages: list[MessageExt]
    next_offset: int


class QueueReader:
    """Reads the queues of any broker; `queue` is named as the brokers know it. Loop thread."""

    def __init__(self, api: AdminApi) -> None:
        self._api = api

    async def begin(self, address: str, queue: MessageQueue) -> int:
        """Return the first offset that can still be read."""
        header = GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        answer = await self._ask(address, RequestCode.GET_MIN_OFFSET, header, queue)
        return read_header(GetMinOffsetResponseHeader, answer, address).offset

    async def end(self, address: str, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        header = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
        answer = await self._ask(address, RequestCode.GET_MAX_OFFSET, header, queue)
        return read_header(GetMaxOffsetResponseHeader, answer, address).offset

    async def page(
        self, address: str, queue: MessageQueue, offset: int, count: int = PAGE_MESSAGES
    ) -> Page:
        """Return messages from `offset` on, none at the end; their number is the broker's choice.

        Raises:
            RocketMQError: no answer, or a refusal.
        """
        header = PullMessageRequestHeader(
            consumer_group=TOOLS_CONSUMER_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=PullSysFlag.FLAG_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
            sub_version=0,
            broker_name=queue.broker_name,
        )
        answer = await self._api.call(address, RequestCode.PULL_MESSAGE, header, accepted=PULLED)
        where = read_header(PullMessageResponseHeader, answer, address)
        found = answer.code == ResponseCode.SUCCESS
        return Page(read_records(answer, address) if found else [], where.next_begin_offset)

    async def nearest(self, address: str, queue: MessageQueue, instant_ms: int) -> int:
        """Return the offset of the message stored nearest to `instant_ms`."""
        header = SearchOffsetRequestHeader(
            topic=queue.topic, queue_id=queue.queue_id, timestamp=instant_ms
        )
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        answer = await self._ask(address, code, header, queue)
        return read_header(SearchOffsetResponseHeader, answer, address).offset

    async def place_of(self, address: str, queue: MessageQueue, instant_ms: int) -> int:
        """Return the offset of the first message stored at `instant_ms` or later, else the end."""
        begin, end = await self.begin(address, queue), await self.end(address, queue)
        if begin >= end:
            return end
        # One ms earlier: the answer is then before all messages of that ms, or the first of them.
        place = max(begin, await self.nearest(address, queue, max(0, instant_ms - 1)))
        while place < end:
            page = await self.page(address, queue, place)
            for message in page.messages:
                if message.store_timestamp >= instant_ms:
                    return message.queue_offset
            if page.next_offset <= place:
                return place
            place = page.next_offset
        return end

    async def _ask(
        self, address: str, code: int, header: msgspec.Struct, queue: MessageQueue
    ) -> RemotingCommand:
        extra = {BROKER_NAME_FIELD: queue.broker_name}
        return await self._api.call(address, code, header, extra=extra)
