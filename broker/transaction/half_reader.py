"""Reads half and op messages by their queue offsets; what is old is read off the loop.

`load_table` reads at a start which half messages have ended: first all op messages from the op
topic's offset on; then the half messages that are open after them, for the places that they were
written again from. A crash may have come between a half message that was written again and the op
message of its former place. Then the table ends that place, and the caller stores the op message,
or a later start would find the place open when the new one has ended.

Source: apache/rocketmq@rocketmq-all-4.9.8
broker/.../transaction/queue/TransactionalMessageServiceImpl.java (fillOpRemoveMap)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, NamedTuple

from skylarkmq.broker.base.waiting import records, result_of
from skylarkmq.broker.delay.delayed_message import Parked, ParkedReader, Place
from skylarkmq.broker.transaction.half_keys import HalfKeys
from skylarkmq.broker.transaction.half_table import HalfTable
from skylarkmq.broker.transaction.messages import QUEUE_ID, ended_by, first_offset_of, keyed_by
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.queue.consume_queue import PRE_BLANK_SIZE

log = logging.getLogger(__name__)

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
        """The queue offset after the last visible message."""
        return self._store.max_offset(self._topic, QUEUE_ID)

    @property
    def begin(self) -> int:
        """The queue offset of the first message that is still there."""
        return self._store.min_offset(self._topic, QUEUE_ID)

    def place(self, offset: int) -> Place | None:
        """Return where a visible message is; None when it is not there."""
        if not self.begin <= offset < self.end:
            return None
        places = self._places(offset, 1)
        return places[0] if places else None

    def page(self, offset: int, end: int) -> list[Place]:
        """Return where the messages from a queue offset on are: one if any is, a page at most."""
        return self._bounded(self._places(offset, min(PAGE_COUNT, end - offset)))

    def page_of(self, offsets: Iterable[int]) -> list[Place]:
        """Return where single messages are, in rising order: a page at most."""
        places: list[Place] = []
        for offset in offsets:
            places += self._places(offset, 1)
            if len(places) >= PAGE_COUNT:
                break
        return self._bounded(places)

    async def read(self, places: list[Place]) -> list[Found]:
        """Read messages; at once when they are young enough to be in memory."""
        read: list[bytes | None] | None = None
        if not all(self._store.is_in_memory(place.physical_offset) for place in places):
            offsets = [place.physical_offset for place in places]
            read = await result_of(records(self._store, offsets))
        found: list[Found] = []
        for number, place in enumerate(places):
            try:
                found.append(Found(place, self._reader.read(place, read, number)))
            except ValueError as error:
                found.append(Found(place, None, str(error)))
        return found

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


class Left(NamedTuple):
    """A place that a half message has left."""

    offset: int
    host: bytes  # packed


async def load_table(
    table: HalfTable,
    keys: HalfKeys,
    halves: HalfReader,
    ops: HalfReader,
    *,
    op_offset: int,
    end: int,
) -> list[Left]:
    """Fill both tables, page by page; the loop turns in between.

    Args:
        op_offset: where the op messages to read begin.
        end: the queue offset after the last half message that was there at the start.

    Returns:
        The places that have ended and have no op message.
    """
    unreadable = 0
    op_end = ops.end
    while op_offset < op_end:
        page = ops.page(op_offset, op_end)
        if not page:
            break
        for place, message, _ in await ops.read(page):
            offsets = [] if message is None else [at for at in ended_by(message) if at < end]
            unreadable += message is None
            for offset in offsets:
                table.end(offset)
            table.note_op(place.queue_offset, max(offsets, default=-1))
        op_offset = page[-1].queue_offset + 1
        await asyncio.sleep(0)
    left = await _load_places(table, keys, halves, end)
    if unreadable:
        log.error(
            "%d op messages cannot be read: the transactions that they end will be asked about "
            "again",
            unreadable,
        )
    log.info("%d transactions are open, the first at %d", table.pending_count(end), table.start)
    return left


async def _load_places(
    table: HalfTable, keys: HalfKeys, halves: HalfReader, end: int
) -> list[Left]:
    at, left = table.start, list[Left]()
    while True:
        offsets: list[int] = []
        while len(offsets) < PAGE_COUNT and (at := table.next_pending(at, end)) < end:
            offsets.append(at)
            at += 1
        page = halves.page_of(offsets)
        if not page:
            return left
        for place, half, _ in await halves.read(page):
            if half is None:
                keys.is_whole = False
                continue
            offset = place.queue_offset
            first = first_offset_of(half, offset)
            key = keyed_by(half)
            if key is not None:
                keys.note(*key, first)
            if first != offset:
                former = table.moved.get(first, first)
                if not table.is_ended(former):
                    table.end(former)
                    left.append(Left(former, half.store_host))
                table.move(first, offset)
        at = page[-1].queue_offset + 1
        await asyncio.sleep(0)
