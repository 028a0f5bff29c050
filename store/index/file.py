"""One file of the key index: a hash table from keys to places in the commit log; and its repair.

    index/<yyyyMMddHHmmssSSS>     name: when it was made, local time; files are read in this order

    position       size  field            type
    0              8     begin_timestamp  int64 BE   store time of the first item, ms
    8              8     end_timestamp    int64 BE   of the last item written, ms
    16             8     begin_offset     int64 BE   physical offset of the first item's record
    24             8     end_offset       int64 BE   of the last one's: where that record starts
    32             4     slots_used       int32 BE   slots that hold an item
    36             4     next_item        int32 BE   number of the next item, from 1 on
    40             4*S   slots            int32 BE   newest item of the slot's chain, 0 for none
    40 + 4*S       20*I  items
                   4     key_hash         int32 BE   hash of `topic#key`; slot = key_hash mod S
                   8     physical_offset  int64 BE
                   4     time_difference  int32 BE   s since begin_timestamp, not negative
                   4     previous         int32 BE   item before it in the chain, 0 for none

Item 0 is never used, so a file holds I - 1 items. A file that follows a full one has that one's end
values in all four fields until its first item, whose time difference is still taken against them;
so it reads back too late, as in RocketMQ's own files.

Header and slots change in place, and after a crash each page of them may be of any time since the
last sync. So they are believed only up to what a sync is known to have covered (`loader.py`); items
never change. A slot may then name an item that did not get to the disk, and what it named before is
lost: `repair` finds the numbers of such slots among all items of the file.

Threads: a file belongs to the index thread. Stores go through a mapping of the newest file only,
into blocks that were allocated before; everything is read by `pread`, which lets other threads run
while a page comes from the disk.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../index/IndexFile.java, IndexHeader.java
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from skylarkmq.common.files import Files, StoreFile
from skylarkmq.kernel import twin
from skylarkmq.store.index.keys import ENTRY, ENTRY_SIZE

HEADER: Final = struct.Struct(">qqqqii")
SLOT: Final = struct.Struct(">i")
ITEM: Final = struct.Struct(">iqii")
HEADER_SIZE: Final = 40
SLOT_SIZE: Final = 4
ITEM_SIZE: Final = 20
assert (HEADER.size, SLOT.size, ITEM.size) == (HEADER_SIZE, SLOT_SIZE, ITEM_SIZE)

FIRST_ITEM: Final = 1
INT_MAX: Final = 2**31 - 1
ALLOCATE_AHEAD: Final = 1 << 20
"""Bytes of items that get blocks at a time."""
_WARM_SIZE: Final = 1 << 20


class IndexShape(NamedTuple):
    """How many slots and items every index file of a store has."""

    slot_count: int
    item_count: int  # item 0 included

    @property
    def items_position(self) -> int:
        return HEADER_SIZE + SLOT_SIZE * self.slot_count

    @property
    def file_size(self) -> int:
        return self.items_position + ITEM_SIZE * self.item_count

    def item_position(self, number: int) -> int:
        """Return the byte position of an item."""
        return self.items_position + ITEM_SIZE * number


class IndexHeader(NamedTuple):
    """The header's fields in their order."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slots_used: int = 0
    next_item: int = FIRST_ITEM


class IndexItem(NamedTuple):
    """One item."""

    key_hash: int
    physical_offset: int
    time_difference: int
    previous: int


class IndexFile:
    """An index file. Index thread, or the loading or stopping thread; `header` may be looked at.

    The descriptor is opened on need. It stays open while the file is `unsynced`, because a failed
    write-back is told to the descriptors that were open then.
    """

    __slots__ = ("_allocated", "_file", "_files", "_view", "header", "is_removed", "path", "shape",
                 "unsynced")  # fmt: skip

    def __init__(self, files: Files, path: Path, shape: IndexShape, header: IndexHeader) -> None:
        self.path = path
        self.shape = shape
        self.header = header  # set after the bytes that it speaks of were stored
        self.is_removed = False
        self.unsynced = False  # holds, or may get, bytes that no sync has covered
        self._files = files
        self._file: StoreFile | None = None
        self._view: memoryview | None = None
        self._allocated = 0  # bytes from the start on that surely have blocks, once mapped

    @classmethod
    def create(
        cls, files: Files, path: Path, shape: IndexShape, before: IndexHeader | None
    ) -> IndexFile:
        """Make the file that follows `before`, with blocks for header, slots and the first items.

        Blocks. Its name is durable on return; a file without room is removed again.

        Raises:
            OSError: with ENOSPC or EDQUOT when the disk has no room.
        """
        header = IndexHeader()
        if before is not None:
            timestamp, offset = before.end_timestamp, before.end_offset
            header = IndexHeader(timestamp, timestamp, offset, offset)
        files.make_folder(path.parent)
        made = cls(files, path, shape, header)
        file = made._file = files.open(path, create=True)
        try:
            file.truncate(shape.file_size)
            made.map()
            made._allocate(shape.item_position(FIRST_ITEM))
            made.write_header(header)
            file.datasync()
            files.sync_folder(path.parent)
        except BaseException:
            made.let_go()
            files.unlink(path)
            raise
        return made

    @classmethod
    def open(cls, files: Files, path: Path, shape: IndexShape) -> IndexFile:
        """Open a file of the right size and take its header as it is. Blocks."""
        made = cls(files, path, shape, IndexHeader())
        made.header = IndexHeader(*HEADER.unpack(made.file.pread(HEADER_SIZE, 0)))
        return made

    @property
    def file(self) -> StoreFile:
        """The open file. Opening one blocks."""
        if self._file is None:
            self._file = self._files.open(self.path)
        return self._file

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def count(self) -> int:
        """Number of the next item."""
        return self.header.next_item

    @property
    def is_full(self) -> bool:
        return self.header.next_item >= self.shape.item_count

    @property
    def is_empty(self) -> bool:
        return self.header.next_item <= FIRST_ITEM

    def map(self) -> None:
        """Get ready for stores: blocks for header and slots, and the slots in memory. Blocks.

        Raises:
            OSError: no room; nothing was changed.
        """
        if self._view is not None:
            return
        items_position = self.shape.items_position
        self.file.allocate(0, items_position)
        for position in range(0, items_position, _WARM_SIZE):
            self.file.pread(_WARM_SIZE, position)  # a store must not wait for the disk
        self._view = self.file.writable_view()
        self.unsynced = True
        self._allocated = items_position
        if not self.is_empty:  # up to the last item there are blocks already
            self._allocated = self.shape.item_position(self.count)

    def put(self, entries: bytearray, start: int) -> int:
        """Add the entries from `start` on, as many as fit; return the place of the next one.

        Raises:
            OSError: no room for them on the disk; none was added.
        """
        if self._view is None:
            self.map()
        view = self._view
        assert view is not None
        begin_timestamp, end_timestamp, begin_offset, end_offset, slots_used, count = self.header
        stop = min(len(entries) // ENTRY_SIZE, start + self.shape.item_count - count)
        if stop <= start:
            return start
        self._allocate(self.shape.item_position(count + stop - start))
        begin_timestamp, begin_offset, slots_used = put_entries(
            view, entries, start, stop, self.shape.slot_count, begin_timestamp, begin_offset,
            slots_used, count,
        )  # fmt: skip
        count += stop - start
        _, end_offset, end_timestamp = ENTRY.unpack_from(entries, (stop - 1) * ENTRY_SIZE)
        self.write_header(
            IndexHeader(begin_timestamp, end_timestamp, begin_offset, end_offset, slots_used, count)
        )
        return stop

    def write_header(self, header: IndexHeader) -> None:
        """Take a header and store it; the file is mapped."""
        assert self._view is not None
        HEADER.pack_into(self._view, 0, *header)
        self.header = header

    def put_slot(self, slot: int, number: int) -> None:
        """Store the newest item of a slot; the file is mapped."""
        assert self._view is not None
        SLOT.pack_into(self._view, HEADER_SIZE + SLOT_SIZE * slot, number)

    def _allocate(self, end: int) -> None:
        if end > self._allocated:
            target = min(max(end, self._allocated + ALLOCATE_AHEAD), self.shape.file_size)
            self.file.allocate(self._allocated, target - self._allocated)
            self._allocated = target

    def item(self, number: int) -> IndexItem:
        """Read one item; `number` is from 1 up to below `count`."""
        return IndexItem(*ITEM.unpack(self.file.pread(ITEM_SIZE, self.shape.item_position(number))))

    def newest(self, key_hash: int) -> int:
        """Return the number of the newest item in the slot of a hash, 0 when there is none."""
        slot = key_hash % self.shape.slot_count
        data = self.file.pread(SLOT_SIZE, HEADER_SIZE + slot * SLOT_SIZE)
        number: int = SLOT.unpack(data)[0]
        return number if FIRST_ITEM <= number < self.count else 0

    def find_offset(self, physical_offset: int, count: int) -> int:
        """Return the first item below `count` of a record at or after an offset, or `count`."""
        low, high = FIRST_ITEM, count
        while low < high:
            middle = (low + high) // 2
            if self.item(middle).physical_offset < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def unmap(self) -> None:
        """Take no more stores."""
        self._view = None

    def rest(self) -> None:
        """Close the descriptor unless it is needed; a later read opens the file again."""
        if not self.unsynced:
            self.let_go()

    def let_go(self) -> None:
        """Close descriptor and mapping."""
        self._view = None
        if self._file is not None:
            self._file.close()
            self._file = None


@twin
def put_entries(
    view: memoryview,
    entries: bytes | bytearray,
    start: int,
    stop: int,
    slot_count: int,
    begin_timestamp: int,
    begin_offset: int,
    slots_used: int,
    count: int,
) -> tuple[int, int, int]:
    """Store items and slots of the entries from `start` to `stop` in a file, from item `count` on.

    Returns:
        The header's begin timestamp, begin offset and number of used slots after that.
    """
    position = HEADER_SIZE + SLOT_SIZE * slot_count + ITEM_SIZE * count
    put_item, put_slot, get_slot = ITEM.pack_into, SLOT.pack_into, SLOT.unpack_from
    timed, difference = None, 0
    wanted = memoryview(entries)[start * ENTRY_SIZE : stop * ENTRY_SIZE]
    for key_hash, offset, timestamp in ENTRY.iter_unpack(wanted):
        if timestamp != timed:
            timed, difference = timestamp, time_difference(timestamp, begin_timestamp)
        slot = HEADER_SIZE + key_hash % slot_count * SLOT_SIZE
        previous: int = get_slot(view, slot)[0]
        if not 0 < previous < count:
            previous = 0
            slots_used += 1
        put_item(view, position, key_hash, offset, difference, previous)
        put_slot(view, slot, count)
        if count <= FIRST_ITEM:
            begin_timestamp, begin_offset, timed = timestamp, offset, None
        position += ITEM_SIZE
        count += 1
    return begin_timestamp, begin_offset, slots_used


def time_difference(timestamp: int, begin_timestamp: int) -> int:
    """Return the seconds since the file's begin as an item stores them."""
    if begin_timestamp <= 0 or timestamp <= begin_timestamp:
        return 0
    return min((timestamp - begin_timestamp) // 1000, INT_MAX)


SLICE_SLOTS: Final = 16 * 1024
SLICE_ITEMS: Final = 8 * 1024
INTS_OF_ITEM: Final = ITEM_SIZE // 4
_SOUND: Final = -1  # in place of the number of a damaged slot's newest item
assert array("i").itemsize == SLOT_SIZE and ITEM_SIZE % SLOT_SIZE == 0


def repair(file: IndexFile) -> Iterator[None]:
    """Repair the slots of a mapped file whose header is right, except `slots_used`.

    A slot is damaged when its number is not below the header's `next_item`; the others did not
    change since the sync and stay. No slot is stored to before its last item is known, so that at
    any time it is either recognizably damaged or right: the repair may be cut short anywhere, also
    by a crash, and begun again.

    Costs about 0.1 us an item, in slices, and four bytes of memory for each slot while it runs.
    """
    slot_count = file.shape.slot_count
    newest = array("i", [_SOUND]) * slot_count
    used = damaged_count = 0
    for start in range(0, slot_count, SLICE_SLOTS):
        slots = _numbers(file, HEADER_SIZE + start * SLOT_SIZE, _slots_in(file, start) * SLOT_SIZE)
        used += len(slots) - slots.count(0)
        if max(slots) >= file.count or min(slots) < 0:
            for slot, number in enumerate(slots, start):
                if not 0 <= number < file.count:
                    newest[slot] = 0
                    damaged_count += 1
        yield
    used -= damaged_count
    if damaged_count:
        for start in range(FIRST_ITEM, file.count, SLICE_ITEMS):
            _gather(file, start, newest)
            yield
        for start in range(0, slot_count, SLICE_SLOTS):
            found = newest[start : start + SLICE_SLOTS]
            if found.count(_SOUND) != len(found):
                for slot, number in enumerate(found, start):
                    if number != _SOUND:
                        file.put_slot(slot, number)
                        used += number != 0
            yield
    file.write_header(file.header._replace(slots_used=used))


def _gather(file: IndexFile, start: int, newest: array[int]) -> None:
    """Note the last item of each damaged slot among the items of a slice."""
    count = min(SLICE_ITEMS, file.count - start)
    items = _numbers(file, file.shape.item_position(start), count * ITEM_SIZE)
    slot_count = file.shape.slot_count
    for number, key_hash in enumerate(items[::INTS_OF_ITEM], start):
        slot = key_hash % slot_count
        if newest[slot] != _SOUND:
            newest[slot] = number


def _slots_in(file: IndexFile, start: int) -> int:
    return min(SLICE_SLOTS, file.shape.slot_count - start)


def _numbers(file: IndexFile, position: int, size: int) -> array[int]:
    numbers = array("i", file.file.pread(size, position))
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
