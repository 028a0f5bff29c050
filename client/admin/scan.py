"""Going through a topic, queue after queue, without a group: for queries by time and dead letters.

One page of messages is held at a time. What arrives after the start is left out, so a scan ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

from skylarkmq.client.admin.base import AdminBase, TopicPlace
from skylarkmq.client.admin.bounded import each
from skylarkmq.client.admin.reading import QueueReader
from skylarkmq.client.admin.results import Result
from skylarkmq.client.admin.stored_message import StoredMessage, stored_message
from skylarkmq.client.errors import NotFound
from skylarkmq.protocol.message import MessageExt, MessageQueue


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
        admin: AdminBase,
        reader: QueueReader,
        find: Callable[[], Awaitable[TopicPlace | None]],
        start_ms: int | None,
        stop_ms: int | None,
        after: Mapping[MessageQueue, int] | None,
    ) -> None:
        self._admin = admin
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
                    return stored_message(message, current.queue.broker_name, self._admin.names)
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
            unwrap = self._admin.names.unwrap_queue
            positions = {unwrap(each.queue): each.position for each in self._ranges}
        return ScanProgress(self._scanned, self._total, positions)

    def take_back(self, message: StoredMessage) -> None:
        """Give the last one again: it did not come to who asked. For the SDK's own use."""
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
            wanted = {self._admin.names.wrap_queue(queue): at for queue, at in self._after.items()}
            ranges = await each(bounds, [queue for queue in queues if queue in wanted])
            for one in ranges:
                one.position = max(one.position, wanted[one.queue])
        else:
            ranges = await each(bounds, queues)
        return [one for one in ranges if one.position < one.end]

    def _check_there(self, after: Mapping[MessageQueue, int], place: TopicPlace | None) -> None:
        """Refuse to go on without a queue: whoever keeps the positions would lose its rest."""
        known = () if place is None else place.read_queues
        for queue in after:
            if self._admin.names.wrap_queue(queue) not in known:
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
