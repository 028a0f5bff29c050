"""Sizes of a store's files: from our profile, else from the files themselves.

RocketMQ remembers no sizes. Those of log and queue files are their lengths. How an index file's
length divides into slots and items only its content tells: the right number of slots is the one
under which the header's last item stands where it must, and under which slots lead to items.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from skylarkmq.common.files import StoreFile
from skylarkmq.store.index.file import (
    FIRST_ITEM,
    HEADER,
    HEADER_SIZE,
    ITEM,
    ITEM_SIZE,
    SLOT,
    SLOT_SIZE,
    IndexHeader,
    IndexShape,
)
from skylarkmq.store.queue.consume_queue import UNIT_SIZE

LOG_SIZE: Final = 1 << 30
QUEUE_SIZE: Final = 300_000 * UNIT_SIZE
EXT_SIZE: Final = 48 << 20
INDEX_SHAPE: Final = IndexShape(5_000_000, 20_000_000)
"""RocketMQ's defaults."""

_OFFSET_POSITION: Final = 4  # of an item
_TRIES_MAX: Final = 100_000
_ITEMS_TRIED: Final = 256
_SEARCH_SIZE: Final = 1 << 22


@dataclass(slots=True)
class Sizes:
    """The sizes that the files of a store should have; `origin` says how each is known."""

    log: int
    queue: int
    ext: int
    index: IndexShape | None  # None: there are index files, and nothing tells their shape
    origin: dict[str, str]  # field -> profile, files, default or option

    def as_dict(self) -> dict[str, int | None]:
        """Return RocketMQ's keys and their values."""
        return {
            "mappedFileSizeCommitLog": self.log,
            "mappedFileSizeConsumeQueue": self.queue,
            "mappedFileSizeConsumeQueueExt": self.ext,
            "maxHashSlotNum": None if self.index is None else self.index.slot_count,
            "maxIndexNum": None if self.index is None else self.index.item_count,
        }


def usual(sizes: Iterable[int]) -> int | None:
    """Return the size that most files have, None without files."""
    counts = Counter(size for size in sizes if size > 0)
    return counts.most_common(1)[0][0] if counts else None


def shape_of(file: StoreFile) -> IndexShape | None:
    """Find out how an index file divides into slots and items; None when its content cannot tell.

    A file without items tells nothing but that RocketMQ's default fits.
    """
    if file.size < HEADER_SIZE:
        return None
    if file.size == INDEX_SHAPE.file_size and _fits(file, INDEX_SHAPE):
        return INDEX_SHAPE
    for shape in _candidates(file):
        if _fits(file, shape):
            return shape
    return None


def _candidates(file: StoreFile) -> Iterator[IndexShape]:
    """Yield shapes under which the last item has the offset that the header says."""
    header = IndexHeader(*HEADER.unpack(file.pread(HEADER_SIZE, 0)))
    if header.next_item <= FIRST_ITEM:
        return
    wanted = header.end_offset.to_bytes(8, "big", signed=True)
    last = header.next_item - 1
    for at in islice(_places(file, wanted), _TRIES_MAX):
        items_position = at - _OFFSET_POSITION - last * ITEM_SIZE
        slots_size, items_size = items_position - HEADER_SIZE, file.size - items_position
        if slots_size > 0 and not slots_size % SLOT_SIZE and not items_size % ITEM_SIZE:
            yield IndexShape(slots_size // SLOT_SIZE, items_size // ITEM_SIZE)


def _places(file: StoreFile, wanted: bytes) -> Iterator[int]:
    """Yield where some bytes stand after the header."""
    for start in range(HEADER_SIZE, file.size, _SEARCH_SIZE):
        chunk = file.pread(_SEARCH_SIZE + len(wanted) - 1, start)
        at = chunk.find(wanted)
        while at >= 0:
            yield start + at
            at = chunk.find(wanted, at + 1)


def _fits(file: StoreFile, shape: IndexShape) -> bool:
    header = IndexHeader(*HEADER.unpack(file.pread(HEADER_SIZE, 0)))
    if not FIRST_ITEM <= max(header.next_item, FIRST_ITEM) <= shape.item_count:
        return False
    first, end = FIRST_ITEM, header.next_item
    tried = [*range(first, min(end, _ITEMS_TRIED)), *range(max(first, end - _ITEMS_TRIED), end)]
    newest: dict[int, int] = {}
    for number in tried:
        item = file.pread(ITEM_SIZE, shape.item_position(number))
        key_hash, offset, seconds, previous = ITEM.unpack(item)
        if key_hash < 0 or offset < 0 or seconds < 0 or not 0 <= previous < number:
            return False
        newest[key_hash % shape.slot_count] = number
    for slot, number in newest.items():
        found: int = SLOT.unpack(file.pread(SLOT_SIZE, HEADER_SIZE + SLOT_SIZE * slot))[0]
        if not number <= found < end:
            return False
    return True
