"""Slots that name items which never got to the disk."""

from __future__ import annotations

from random import Random

import pytest

from skylarkmq.store.index import file as index_repair
from skylarkmq.store.index.file import INT_MAX, IndexFile, IndexShape, repair
from skylarkmq.store.index.keys import ENTRY
from tests.support.crash_disk import CrashDisk
from tests.support.index_files import check

SHAPE = IndexShape(slot_count=50, item_count=40)


def filled(count: int) -> IndexFile:
    disk = CrashDisk()
    file = IndexFile.create(disk, disk.root / "index" / "20260101000000000", SHAPE, None)
    rng = Random(3)
    entries = [ENTRY.pack(rng.randrange(1000), 100 * number, 5000) for number in range(count)]
    file.put(bytearray().join(entries), 0)
    return file


def data_of(file: IndexFile) -> bytes:
    return file.file.pread(SHAPE.file_size, 0)


@pytest.mark.parametrize("seed", range(20))
def test_slots_are_again_what_the_items_say(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_repair, "SLICE_SLOTS", 7)
    monkeypatch.setattr(index_repair, "SLICE_ITEMS", 5)
    file, rng = filled(25), Random(seed)
    sound = data_of(file)
    for slot in rng.sample(range(SHAPE.slot_count), seed * 2):
        file.put_slot(slot, rng.choice((-1, -INT_MAX, 26, 30, 39, 40, INT_MAX)))
    file.write_header(file.header._replace(slots_used=rng.randrange(99)))
    for steps, _ in enumerate(repair(file)):
        if steps == seed:  # cut short, and begun again
            break
    for _ in repair(file):
        pass
    assert data_of(file) == sound
    assert check(data_of(file), *SHAPE) == 25
