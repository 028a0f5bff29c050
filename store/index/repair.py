"""Making the slots of an index file say again what its items say.

After a crash the items below a known number are whole, but each page of the slots may be of any
time since: a slot may name an item that did not get to the disk, and what it named before is lost.
Such slots, whose number is not below the known one, get their number from all items of the file. A
slot whose number is below it did not change since the sync and stays.

No slot is stored to before its last item is known, so that it is either still told apart or right:
the repair may be cut short anywhere, also by a crash, and begun again.

Costs about 0.1 us an item, in slices, and four bytes of memory for each slot while it runs.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from typing import Final

from skylarkmq.store.index.file import (
    FIRST_ITEM,
    HEADER_SIZE,
    ITEM_SIZE,
    SLOT_SIZE,
    IndexFile,
)

SLICE_SLOTS: Final = 16 * 1024
SLICE_ITEMS: Final = 8 * 1024
INTS_OF_ITEM: Final = ITEM_SIZE // 4
_SOUND: Final = -1  # in place of the number of a damaged slot's newest item
assert array("i").itemsize == SLOT_SIZE and ITEM_SIZE % SLOT_SIZE == 0


def repair(file: IndexFile) -> Iterator[None]:
    """Mend the slots of a mapped file whose header is right but for `slots_used`."""
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
