"""A search for messages, from the newest to older ones, page by page and bounded in memory.

A search goes on where its `cursor` says: the offset in each queue below which nothing was given
yet, so messages that come or expire meanwhile move no page. By key there is one page: the brokers'
index finds 64 at a time, and knows times to the second.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from skylarkmq.client.admin import Admin
from skylarkmq.client.message_view import StoredMessage
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.tools.console.text import BadInput

CHUNK: Final = 32
"""Messages of a queue that are read at a time."""
KEY_MAX: Final = 64
"""What brokers find by a key at a time."""
WAYS: Final = {
    "latest": "the latest",
    "key": "key",
    "id": "message id",
    "time": "time",
}


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for."""

    topic: str
    way: str = "latest"
    value: str = ""
    start: datetime | None = None
    stop: datetime | None = None

    @property
    def is_asked(self) -> bool:
        """Whether there is enough to look for something."""
        return bool(self.topic) or (self.way == "id" and bool(self.value))


class Found:
    """Messages that are read as they are asked for; without a cursor there are no more."""

    def __init__(self, messages: list[StoredMessage]) -> None:
        self._messages = messages

    @property
    def cursor(self) -> str:
        """Where the same search goes on."""
        return ""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoredMessage:
        if not self._messages:
            raise StopAsyncIteration
        return self._messages.pop()

    async def page(self, size: int) -> list[StoredMessage]:
        """Return the next messages."""
        found: list[StoredMessage] = []
        while len(found) < size:
            try:
                found.append(await anext(self))
            except StopAsyncIteration:
                break
        return found


class NewestFirst(Found):
    """Those of a topic's queues, merged by the time at which they were stored."""

    def __init__(
        self,
        admin: Admin,
        topic: str,
        ranges: Mapping[MessageQueue, tuple[int, int]],
        unanswered: Collection[str] = (),
    ) -> None:
        """Take where to look.

        Args:
            ranges: the first offset of each queue, and the one after the last.
            unanswered: brokers that are done without; the administrator adds some.
        """
        self._admin = admin
        self._topic = topic
        self._begins = {queue: begin for queue, (begin, _) in ranges.items()}
        self._ends = {queue: end for queue, (_, end) in ranges.items()}
        self._unanswered = unanswered
        self._held: dict[MessageQueue, list[StoredMessage]] = {queue: [] for queue in ranges}

    @property
    def cursor(self) -> str:
        """The offsets, `broker/queue/offset` with `~` between."""
        return "~".join(
            f"{queue.broker_name}/{queue.queue_id}/{end}"
            for queue, end in self._ends.items()
            if end > self._begins[queue]
        )

    async def __anext__(self) -> StoredMessage:
        await self._read()
        held = [queue for queue, messages in self._held.items() if messages]
        if not held:
            raise StopAsyncIteration
        queue = max(held, key=lambda each: (self._held[each][-1].stored_at, each))
        message = self._held[queue].pop()
        self._ends[queue] = message.queue_offset
        return message

    async def _read(self) -> None:
        """Have a message in hand of each queue that has one left."""
        while True:
            after = {
                queue: max(self._begins[queue], self._ends[queue] - CHUNK)
                for queue, messages in self._held.items()
                if not messages and self._ends[queue] > self._begins[queue]
            }
            if not after:
                return
            scan = self._admin.scan(self._topic, after=after)
            async for message in scan:
                queue, last = message.queue, self._ends[message.queue] - 1
                if message.queue_offset <= last:
                    self._held[queue].append(message)
                if message.queue_offset >= last:
                    scan.skip_queue()
            for queue, begin in after.items():
                if queue.broker_name in self._unanswered:
                    begin = self._begins[queue]
                if not self._held[queue]:  # they have expired, or nobody answers
                    self._ends[queue] = begin


async def find(
    admin: Admin, search: Search, cursor: str = "", unanswered: Collection[str] = ()
) -> Found:
    """Return what a search finds.

    Args:
        cursor: of an earlier one.
        unanswered: see `NewestFirst`.

    Raises:
        BadInput: a part of the search is missing.
    """
    if search.way not in WAYS:
        raise BadInput(f"A search goes by {', '.join(WAYS)}, not by {search.way[:20]!r}")
    if search.way == "time" and search.start is None and search.stop is None:
        raise BadInput("A search by time wants a beginning, an end, or both.")
    if search.way in ("key", "id") and not search.value:
        raise BadInput(f"A search by {WAYS[search.way]} wants one.")
    if search.way == "key":
        found = await admin.query(
            search.topic, key=search.value, start=search.start, stop=search.stop, limit=KEY_MAX
        )
        return Found(found)
    if search.way == "id":
        return Found(await _by_id(admin, search))
    start, stop = (search.start, search.stop) if search.way == "time" else (None, None)
    ranges = await admin.ranges(search.topic, start=start, stop=stop)
    if cursor:
        ends = _ends_of(cursor)
        ranges = {
            queue: (begin, min(end, ends.get((queue.broker_name, queue.queue_id), begin)))
            for queue, (begin, end) in ranges.items()
        }
    return NewestFirst(admin, search.topic, ranges, unanswered)


async def at(admin: Admin, offset_msg_id: str) -> StoredMessage | None:
    """Return the message that an offset id names; None: it is no such id, or it is gone."""
    try:
        return await admin.message(offset_msg_id)
    except ValueError:
        return None


async def _by_id(admin: Admin, search: Search) -> list[StoredMessage]:
    found = await admin.query(search.topic, msg_id=search.value) if search.topic else []
    if not found and (at_place := await at(admin, search.value)) is not None:
        found = [at_place]
    return found


def _ends_of(cursor: str) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for text in cursor.split("~"):
        broker, _, rest = text.partition("/")
        queue_id, _, end = rest.partition("/")
        if not (queue_id.isdecimal() and end.isdecimal()):
            raise BadInput(f"{text[:80]!r} is no place in a topic. Search again.")
        found[broker, int(queue_id)] = int(end)
    return found
