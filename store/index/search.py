"""Looking a key up in the index files, newest file first, newest item first.

Only hashes and seconds are compared, so an answer may name a record of another key: whoever reads
the records compares their keys.

A chain may have millions of items, and another one may be walked because it shares the slot. So a
search runs in slices, between which the index thread does its other work, and gives up after
`WALK_MAX` items.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../index/IndexService.java (queryOffset),
IndexFile.java (isTimeMatched, selectPhyOffset)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from skylarkmq.store.index.file import FIRST_ITEM, IndexFile

SLICE_ITEMS: Final = 1000
WALK_MAX: Final = 1_000_000


class IndexSearch:
    """One search. `run` belongs to the index thread; the results may be read once it has ended."""

    def __init__(self, key_hash: int, max_count: int, begin_ms: int, end_ms: int) -> None:
        self._key_hash = key_hash
        self._max_count = max_count
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        self._walked = 0
        self.offsets: list[int] = []  # physical offsets, newest first
        self.last_entry = (0, 0)  # of the whole index: store time in ms, physical offset
        self.gave_up = False

    def run(self, files: Sequence[IndexFile]) -> Iterator[None]:
        """Search the files, which are in their order; stops after each slice."""
        if files:
            self.last_entry = files[-1].header.end_timestamp, files[-1].header.end_offset
        for file in reversed(files):
            if file.is_removed:  # it expired since the search began, and so did all before it
                return
            begin_timestamp = file.header.begin_timestamp
            if self._overlaps(begin_timestamp, file.header.end_timestamp):
                yield from self._walk(file)
                file.rest()
            if begin_timestamp < self._begin_ms or self._is_done():
                return

    def _overlaps(self, begin: int, end: int) -> bool:
        asked_begin, asked_end = self._begin_ms, self._end_ms
        return (
            (asked_begin < begin and asked_end > end)
            or begin <= asked_begin <= end
            or begin <= asked_end <= end
        )

    def _is_done(self) -> bool:
        return self.gave_up or len(self.offsets) >= self._max_count

    def _walk(self, file: IndexFile) -> Iterator[None]:
        begin_timestamp = file.header.begin_timestamp
        number = file.newest(self._key_hash)
        while number >= FIRST_ITEM and not self._is_done():
            key_hash, offset, difference, previous = file.item(number)
            if difference < 0:
                return
            timestamp = begin_timestamp + difference * 1000
            if key_hash == self._key_hash and self._begin_ms <= timestamp <= self._end_ms:
                self.offsets.append(offset)
            # Unlike RocketMQ, where a damaged chain may lead in a circle.
            if timestamp < self._begin_ms or previous >= number:
                return
            number = previous
            self._walked += 1
            self.gave_up = self._walked >= WALK_MAX
            if self._walked % SLICE_ITEMS == 0:
                yield
                if file.is_removed:
                    return
