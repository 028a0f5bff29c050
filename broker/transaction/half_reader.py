"""Reads half and op messages by their queue offsets; what is old is read off the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, NamedTuple

from skylarkmq.broker.delay.delayed_message import Parked, ParkedReader, Place
from skylarkmq.broker.transaction.messages import QUEUE_ID
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.queue.consume_queue import PRE_BLANK_SIZE

PAGE_COUNT: Final = 64
PAGE_SIZE: Final = 1 << 20  # bytes of records


class Found(NamedTuple):
    """A message that was read; `message` is None where no sound one is to be had now."""

    place: Place
    message: Parked | None
    why: str = ""


class HalfReader:
    """Reads queue 0 of one topic. Loop thread."""

    def __init__(self, store: MessageStore, topic: str) -> None:
        self._store = store
        self._topic = topic
        self._reader = ParkedReader(store.commit_log, topic, QUEUE_ID)

    @property
    def end(self) -> int:
        """The queue offset behind the last visible message."""
        return self._store.max_offset(self._topic, QUEUE_ID)

    @property
    def begin(self) -> int:
        """The queue offset of the first message that is still there."""
        return self._store.min_offset(self._topic, QUEUE_ID)

    def place(self, offset: int) -> Place | None:
        """Where a visible message is; None when it is not there."""
        if not self.begin <= offset < self.end:
            return None
        places = self._places(offset, 1)
        return places[0] if places else None

    def page(self, offset: int, end: int) -> list[Place]:
        """Where the messages from a queue offset on are: a page at most, at least one if any is."""
        return self._bounded(self._places(offset, min(PAGE_COUNT, end - offset)))

    def page_of(self, offsets: Iterable[int]) -> list[Place]:
        """As `page`, of single messages in rising order."""
        places: list[Place] = []
        for offset in offsets:
            places += self._places(offset, 1)
            if len(places) >= PAGE_COUNT:
                break
        return self._bounded(places)

    async def read(self, places: list[Place]) -> list[Found]:
        """Read messages; at once when they are young enough to be in memory."""
        store = self._store
        if all(store.is_in_memory(place.physical_offset) for place in places):
            return [self._parsed(place) for place in places]
        read: asyncio.Future[list[bytes | None]] = asyncio.get_running_loop().create_future()

        def done(records: list[bytes | None]) -> None:
            if not read.done():
                read.set_result(records)

        store.read_records([place.physical_offset for place in places], done)
        records = await read
        return [self._parsed(place, record) for place, record in zip(places, records, strict=True)]

    def _parsed(self, place: Place, *record: bytes | None) -> Found:
        try:
            if record:
                return Found(place, self._reader.parse(record[0], place))
            return Found(place, self._reader.read(place))
        except ValueError as error:
            return Found(place, None, str(error))

    def _places(self, offset: int, count: int) -> list[Place]:
        units = self._store.queue_units(self._topic, QUEUE_ID, offset, count)
        return [
            Place(unit.commit_offset, unit.record_size, offset + index)
            for index, unit in enumerate(units)
        ]

    @staticmethod
    def _bounded(places: list[Place]) -> list[Place]:
        size = 0
        for index, place in enumerate(places):
            if place.record_size != PRE_BLANK_SIZE:
                size += place.record_size
            if size > PAGE_SIZE and index:
                return places[:index]
        return places
