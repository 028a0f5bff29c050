"""The key index held against the log: each entry leads to a message with that key, none is missing.

Entries stand in the order of the log, so both are gone through side by side. On the way each file
is held against itself: its header, the chains of its items, and the slots they hang on.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from skylarkmq.common.errors import CorruptFileError
from skylarkmq.protocol.record import RecordView
from skylarkmq.store.index.file import (
    FIRST_ITEM,
    HEADER_SIZE,
    ITEM,
    ITEM_SIZE,
    SLOT_SIZE,
    IndexFile,
    IndexItem,
    time_difference,
)
from skylarkmq.store.index.keys import record_entries
from skylarkmq.store.stopped.reader import StoppedStore
from skylarkmq.tools.store.findings import Findings

REBUILD: Final = "build the index from the log again: store rebuild --only index --write"
_CHUNK_ITEMS: Final = 4096
_COUNT_POSITION: Final = 36
_USED_POSITION: Final = 32
_END_OFFSET_POSITION: Final = 24


class _Entry(NamedTuple):
    file: IndexFile
    number: int
    item: IndexItem

    @property
    def position(self) -> int:
        return self.file.shape.item_position(self.number)


class IndexCheck:
    """Takes the messages in log order."""

    def __init__(self, store: StoppedStore, findings: Findings) -> None:
        self.entries = 0
        self._store = store
        self._findings = findings
        self._items = self._all_items()
        self._next = next(self._items, None)
        self._is_there = bool(store.index_names)
        # Keys without entries, of neighbouring messages: [first offset, last offset, count]
        self._missing: list[int] | None = None
        self._last_path: Path = store.paths.index
        self._last_position = 0

    def take(self, record: RecordView) -> None:
        """Look at the entries of a message."""
        if not self._is_there:
            return
        offset = record.physical_offset
        while self._next is not None and self._next.item.physical_offset < offset:
            self._tell_dangling(self._next)
            self._step()
        wanted = [key_hash for key_hash, _, _ in record_entries(record)]
        while self._next is not None and self._next.item.physical_offset == offset:
            entry = self._next
            if entry.item.key_hash in wanted:
                wanted.remove(entry.item.key_hash)
                self.entries += 1
                self._check_time(entry, record)
            else:
                self._tell(
                    "index.wrong-key",
                    entry,
                    f"item {entry.number} leads to offset {offset}, whose message has no key of "
                    f"hash {entry.item.key_hash}",
                )
            self._step()
        if wanted:
            self._note_missing(offset, len(wanted))
        elif self._missing is not None and record_entries(record):
            self._tell_missing("between others")

    def finish(self, end_offset: int) -> None:
        """Tell what is left over and what is missing at the end."""
        while self._next is not None:
            self._tell_dangling(self._next, end_offset)
            self._step()
        if self._missing is not None:
            self._tell_missing("at the end", at_end=True)
        if not self._is_there:
            self._findings.info(
                "index.none",
                self._store.paths.index,
                0,
                "there is no key index",
                "none is needed with messageIndexEnable=false; else our broker builds it",
            )

    def _step(self) -> None:
        if self._next is not None:
            self._last_path, self._last_position = self._next.file.path, self._next.position
        self._next = next(self._items, None)

    def _note_missing(self, offset: int, count: int) -> None:
        if self._missing is None:
            self._missing = [offset, offset, 0]
        self._missing[1] = offset
        self._missing[2] += count

    def _tell_missing(self, where: str, *, at_end: bool = False) -> None:
        assert self._missing is not None
        first, last, count = self._missing
        self._missing = None
        self._findings.warning(
            "index.missing-keys",
            self._last_path,
            self._last_position,
            f"{count} keys of messages at offsets {first} to {last} are missing {where}",
            f"our broker adds them when it starts, or {REBUILD}" if at_end else REBUILD,
        )

    def _check_time(self, entry: _Entry, record: RecordView) -> None:
        header = entry.file.header
        expected = time_difference(record.store_timestamp, header.begin_timestamp)
        # The first item of a rolled file is counted from the end of the file before: RocketMQ's.
        if entry.number != FIRST_ITEM and entry.item.time_difference != expected:
            self._tell(
                "index.time",
                entry,
                f"item {entry.number} says {entry.item.time_difference} s, its message "
                f"{expected} s",
            )

    def _tell_dangling(self, entry: _Entry, end_offset: int | None = None) -> None:
        offset = entry.item.physical_offset
        if offset < self._store.min_offset:
            return  # expired with its log file
        why = "where no sound message starts"
        if end_offset is not None and offset >= end_offset:
            why = f"and the log ends at {end_offset}"
        self._tell("index.dangling", entry, f"item {entry.number} leads to offset {offset}, {why}")

    def _tell(self, kind: str, entry: _Entry, cause: str) -> None:
        self._findings.warning(kind, entry.file.path, entry.position, cause, REBUILD)

    # Files by themselves

    def _all_items(self) -> Iterator[_Entry]:
        last_offset = -1
        for name in self._store.index_names:
            try:
                file = self._store.index_file(name)
            except CorruptFileError:
                continue  # told by its size
            for entry in self._items_of(file):
                if entry.item.physical_offset < last_offset:
                    self._tell("index.order", entry, f"item {entry.number} goes back in the log")
                    continue
                last_offset = entry.item.physical_offset
                yield entry
            file.let_go()

    def _items_of(self, file: IndexFile) -> Iterator[_Entry]:
        shape, header = file.shape, file.header
        if not 0 <= header.next_item <= shape.item_count:
            self._bad(file, _COUNT_POSITION, f"the header says {header.next_item} as next item")
            return
        view = self._store.view(file.path)
        newest = array("i", bytes(SLOT_SIZE * shape.slot_count))
        for start in range(FIRST_ITEM, header.next_item, _CHUNK_ITEMS):
            stop = min(start + _CHUNK_ITEMS, header.next_item)
            begin = shape.item_position(start)
            part = view[begin : begin + (stop - start) * ITEM_SIZE]
            for number, fields in enumerate(ITEM.iter_unpack(part), start):
                item = IndexItem(*fields)
                entry = _Entry(file, number, item)
                slot = item.key_hash % shape.slot_count
                if item.key_hash < 0 or item.previous != newest[slot]:
                    self._tell(
                        "index.chain",
                        entry,
                        f"item {number} names {item.previous} as the one before it in its slot, "
                        f"which is {newest[slot]}",
                    )
                newest[slot] = number
                yield entry
        self._check_slots(file, view, newest)

    def _check_slots(self, file: IndexFile, view: memoryview, newest: array[int]) -> None:
        header, used = file.header, 0
        found = memoryview(view[HEADER_SIZE : file.shape.items_position])
        for slot, number in enumerate(newest):
            used += number > 0
            position = slot * SLOT_SIZE
            raw = int.from_bytes(found[position : position + SLOT_SIZE], "big", signed=True)
            if (raw if 0 < raw < header.next_item else 0) != number:
                why = f"slot {slot} names item {raw}, its newest is {number}"
                self._bad(file, HEADER_SIZE + position, why)
        if header.slots_used != used:
            self._bad(
                file, _USED_POSITION, f"the header says {header.slots_used} slots in use of {used}"
            )
        if header.next_item > FIRST_ITEM:
            last = file.item(header.next_item - 1).physical_offset
            if last != header.end_offset:
                why = f"the header ends at offset {header.end_offset}, the last item at {last}"
                self._bad(file, _END_OFFSET_POSITION, why)

    def _bad(self, file: IndexFile, position: int, why: str) -> None:
        self._findings.warning("index.structure", file.path, position, why, REBUILD)
