"""A scan: the messages of a topic, queue after queue, read from outside of any group.

It holds one page of messages at a time. It leaves out what arrives after its start, so it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

from skylarkmq.client.admin.base import TopicPlace, ask_brokers, each, note_unanswered
from skylarkmq.client.admin.results import Result, Unanswered
from skylarkmq.client.consumer.offset_search import first_since
from skylarkmq.client.consumer.subscription import Subscription
from skylarkmq.client.errors import NotFound, RocketMQError
from skylarkmq.client.message_view import StoredMessage, stored_message
from skylarkmq.client.services import Services
from skylarkmq.client.wire.api_pull import QueuePages
from skylarkmq.protocol.flags import TOOLS_CONSUMER_GROUP
from skylarkmq.protocol.message import MessageExt, MessageQueue


@dataclass(frozen=True, slots=True)
class ScanProgress(Result):
    """How far a scan is: messages passed, of so many at most, and where it would go on."""

    scanned: int
    total: int
    positions: Mapping[MessageQueue, int] | None = field(hash=False)
    """Queue to offset, of the queues that are not done; `after` of a later scan takes it. None
    before the first message of one that begins at the beginning."""


@dataclass(eq=False)
class _Range(QueuePages):
    """What is left to give of one queue; `position` is before what is in hand."""

    address: str


class MessageScan:
    """An async iterator of a topic's messages. One task at a time.

    Cancelled or failed, it goes on where it was when asked for the next message again.
    """

    def __init__(
        self,
        services: Services,
        timeout_s: float,
        find: Callable[[], Awaitable[TopicPlace | None]],
        start_ms: int | None,
        stop_ms: int | None,
        after: Mapping[MessageQueue, int] | None,
        unanswered: dict[str, Unanswered] | None = None,
    ) -> None:
        self._services = services
        self._namespace = services.namespace
        self._timeout_s = timeout_s
        self._find = find
        self._start_ms = start_ms
        self._stop_ms = stop_ms
        self._after = after
        self._unanswered = unanswered
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
            try:
                await self._read(current)
            except RocketMQError as error:
                broker = current.queue.broker_name
                note_unanswered(self._unanswered, broker, current.address, error)
                self._ranges = [one for one in self._ranges if one.queue.broker_name != broker]
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
            address, start_ms = place.masters[queue.broker_name], self._start_ms or 0
            first = await first_since(
                self._services, address, TOOLS_CONSUMER_GROUP, queue, start_ms, self._timeout_s
            )
            end = await self._services.consumer_api.max_offset(address, queue, self._timeout_s)
            return _Range(queue, first, end, address)

        after = self._after
        wanted = {self._namespace.wrap_queue(queue): at for queue, at in (after or {}).items()}
        queues = [queue for queue in place.read_queues if after is None or queue in wanted]

        async def bounds_on(broker: str, _: str) -> list[_Range]:
            return await each(bounds, [queue for queue in queues if queue.broker_name == broker])

        brokers = {queue.broker_name: place.masters[queue.broker_name] for queue in queues}
        found = await ask_brokers(bounds_on, brokers, self._unanswered)
        ranges = [one for ranges in found.values() for one in ranges]
        for one in ranges:
            one.position = max(one.position, wanted.get(one.queue, 0))
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
        position, everything = current.position, Subscription(current.queue.topic, None, 0).data
        remoting, address = self._services.remoting, current.address
        page = await current.read(remoting, address, self._timeout_s, everything)
        self._page.extend(current.take(page))
        if self._page:
            current.position = position
        else:  # a hole, removed meanwhile, or the end came nearer
            if current.position <= position:
                current.position = current.end
            self._scanned += min(current.position, current.end) - position
