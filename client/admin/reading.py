"""Reading queues from outside of any group: stored messages, pages of them, whole topics.

A pull (11) that carries its subscription along needs no heartbeat, and in the name of
TOOLS_CONSUMER, which every broker has, it needs no group either. Nothing is committed.

The place of a time: code 29 answers the message stored nearest to it, which may lie before or, of
several of one millisecond, in their middle. `place_of` corrects that by looking at store times, so
that nothing stored at or after the time lies before the place, and nothing older after it.

A scan holds one page of messages at a time. It leaves out what arrives after its start, so it ends.

Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/PullMessageProcessor.java,
store/.../ConsumeQueue.java (getOffsetInQueueByTime)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

import msgspec

from skylarkmq.client.admin.base import TopicPlace, each
from skylarkmq.client.admin.results import JsonValue, Result, as_json
from skylarkmq.client.errors import NotFound
from skylarkmq.client.message_view import StoredView
from skylarkmq.client.namespace import Namespace
from skylarkmq.client.wire.api_admin import AdminApi, read_header, read_records
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.flags import TOOLS_CONSUMER_GROUP, PullSysFlag
from skylarkmq.protocol.headers.pull import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
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
JSON_NAMES: Final = (
    "topic", "origin_topic", "tags", "keys", "msg_id", "offset_msg_id", "queue", "queue_offset",
    "commit_log_offset", "born_at", "stored_at", "reconsume_times", "flag", "sys_flag", "size",
    "properties",
)  # fmt: skip


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


class StoredMessage(StoredView, Result):
    """One stored copy. Its attributes are named as those of ReceivedMessage."""

    __slots__ = ("origin_topic", "queue")

    def __init__(self, message: MessageExt, origin_topic: str, queue: MessageQueue) -> None:
        # `topic` is where it lies: for a dead letter `%DLQ%<group>`.
        super().__init__(message, queue.topic)
        self.origin_topic = origin_topic
        """The topic it was sent to first, also for retries and dead letters."""
        self.queue = queue
        """The queue that it lies in."""

    def to_json(self) -> dict[str, JsonValue]:
        """Return everything but the body; add `as_json(message.body)` for that, base64."""
        return {name: as_json(getattr(self, name)) for name in JSON_NAMES}


@dataclass(frozen=True, slots=True)
class ScanProgress(Result):
    """How far a scan is: messages passed, of so many at most, and where it would go on."""

    scanned: int
    total: int
    positions: Mapping[MessageQueue, int] | None = field(hash=False)
    """Queue to offset, of the queues that are not done; `after` of a later scan takes it. None
    before the first message of one that begins at the beginning."""


@dataclass(slots=True)
class _Range:
    """What is left of one queue."""

    queue: MessageQueue
    address: str
    position: int
    end: int


class MessageScan:
    """An async iterator of a topic's messages. One task at a time.

    Cancelled or failed, it goes on where it was when asked for the next message again.
    """

    def __init__(
        self,
        namespace: Namespace,
        reader: QueueReader,
        find: Callable[[], Awaitable[TopicPlace | None]],
        start_ms: int | None,
        stop_ms: int | None,
        after: Mapping[MessageQueue, int] | None,
    ) -> None:
        self._namespace = namespace
        self._reader = reader
        self._find = find
        self._start_ms = start_ms
        self._stop_ms = stop_ms
        self._after = after
        self._ranges: list[_Range] | None = None
        self._page: deque[MessageExt] = deque()
        self._scanned = 0
        self._total = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoredMessage:
        if self._ranges is None:
            self._ranges = await self._begin()
            self._total = sum(each.end - each.position for each in self._ranges)
        while self._ranges:
            current = self._ranges[0]
            while self._page:
                message = self._page.popleft()
                self._scanned += message.queue_offset + 1 - current.position
                current.position = message.queue_offset + 1
                if self._stop_ms is not None and message.store_timestamp >= self._stop_ms:
                    self._page.clear()
                    current.position = current.end
                elif self._start_ms is None or message.store_timestamp >= self._start_ms:
                    return stored_message(message, current.queue.broker_name, self._namespace)
            if current.position >= current.end:
                self._ranges.pop(0)
                continue
            await self._read(current)
        raise StopAsyncIteration

    @property
    def progress(self) -> ScanProgress:
        """How far it is."""
        positions = self._after
        if self._ranges is not None:
            unwrap = self._namespace.unwrap_queue
            positions = {unwrap(each.queue): each.position for each in self._ranges}
        return ScanProgress(self._scanned, self._total, positions)

    def _take_back(self, message: StoredMessage) -> None:
        """Give the last one again: an interrupted call of the blocking SDK did not get it."""
        assert self._ranges, "its queue is left with the next step"
        self._scanned -= 1
        self._ranges[0].position = message.queue_offset
        self._page.appendleft(message.stored)

    def skip_queue(self) -> None:
        """Leave out the rest of the queue that the last message was of."""
        self._page.clear()
        if self._ranges:
            current = self._ranges[0]
            self._scanned += current.end - current.position
            current.position = current.end

    async def _begin(self) -> list[_Range]:
        place = await self._find()
        if self._after:
            self._check_there(self._after, place)
        if place is None:
            return []

        async def bounds(queue: MessageQueue) -> _Range:
            address = place.masters[queue.broker_name]
            if self._start_ms is None:
                first = await self._reader.begin(address, queue)
            else:
                first = await self._reader.place_of(address, queue, self._start_ms)
            end = await self._reader.end(address, queue)
            return _Range(queue, address, first, end)

        queues = list(place.read_queues)
        if self._after is not None:
            wanted = {self._namespace.wrap_queue(queue): at for queue, at in self._after.items()}
            ranges = await each(bounds, [queue for queue in queues if queue in wanted])
            for one in ranges:
                one.position = max(one.position, wanted[one.queue])
        else:
            ranges = await each(bounds, queues)
        return [one for one in ranges if one.position < one.end]

    def _check_there(self, after: Mapping[MessageQueue, int], place: TopicPlace | None) -> None:
        """Refuse to go on without a queue: the rest of it would be lost to who keeps positions."""
        known = () if place is None else place.read_queues
        for queue in after:
            if self._namespace.wrap_queue(queue) not in known:
                raise NotFound(
                    f"{queue} of `after` is not there",
                    hint="Its broker is away, or the queue is gone: then leave it out of `after`",
                )

    async def _read(self, current: _Range) -> None:
        page = await self._reader.page(current.address, current.queue, current.position)
        self._page.extend(
            message
            for message in page.messages
            if current.position <= message.queue_offset < current.end
        )
        if not self._page:  # a hole, removed meanwhile, or the end came nearer
            following = page.next_offset if page.next_offset > current.position else current.end
            self._scanned += min(following, current.end) - current.position
            current.position = following


def stored_message(message: MessageExt, broker_name: str, space: Namespace) -> StoredMessage:
    """Return a record that a broker gave, its topic as the application knows it."""
    topic = space.unwrap(message.topic)
    origin = space.unwrap(message.properties.get(names.RETRY_TOPIC, message.topic))
    queue = MessageQueue(topic, broker_name, message.queue_id)
    return StoredMessage(message, origin, queue)
