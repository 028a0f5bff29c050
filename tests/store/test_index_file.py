"""Index files byte for byte as RocketMQ's own class wrote them, and what they do when full."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from skylarkmq.protocol.tags_code import index_key_hash
from skylarkmq.store.index.file import (
    ALLOCATE_AHEAD,
    INT_MAX,
    IndexFile,
    IndexHeader,
    IndexItem,
    IndexShape,
    time_difference,
)
from skylarkmq.store.index.keys import ENTRY, ENTRY_SIZE
from tests.protocol.message_vectors import STORE
from tests.support.crash_disk import CrashDisk
from tests.support.index_files import check

ROLLED: dict[str, Any] = STORE["rolledIndexFile"]
SMALL: dict[str, Any] = STORE["smallIndexFile"]
SHAPE = IndexShape(slot_count=10, item_count=5)


def make(
    disk: CrashDisk, shape: IndexShape = SHAPE, before: IndexHeader | None = None
) -> IndexFile:
    return IndexFile.create(disk, disk.root / "index" / "20260101000000000", shape, before)


def data_of(file: IndexFile) -> bytes:
    return file.file.pread(file.shape.file_size, 0)


def entry(key: str, offset: int, timestamp: int) -> bytes:
    return ENTRY.pack(index_key_hash("T", key), offset, timestamp)


def test_the_file_behind_a_full_one_is_the_golden_one() -> None:
    before = IndexHeader(1_600_000_000_000, 1_700_000_000_000, 5, 777, 3, 5)
    file = make(CrashDisk(), IndexShape(ROLLED["hashSlotNum"], ROLLED["indexNum"]), before)
    entries = bytearray()
    entries += entry("a", 1000, 1_700_000_005_500)
    entries += entry("b", 1100, 1_700_000_009_900)
    entries += entry("a", 1200, 1_700_000_009_100)
    entries += entry("c", 1300, 1_700_000_004_000)
    entries += entry("d", 1400, 1_700_000_004_000)
    assert file.put(entries, 0) == 4, "item 0 is never used"
    assert data_of(file).hex() == ROLLED["fileHex"]
    assert file.is_full
    assert file.put(entries, 4) == 4


def test_one_entry_at_a_time_makes_the_same_file_as_all_at_once() -> None:
    entries = bytearray()
    for number in range(4):
        entries += entry(str(number % 3), 100 * number, 10_000 + number)
    at_once, one_by_one = make(CrashDisk()), make(CrashDisk())
    assert at_once.put(entries, 0) == 4
    for number in range(4):
        assert one_by_one.put(entries[: (number + 1) * ENTRY_SIZE], number) == number + 1
    assert data_of(at_once) == data_of(one_by_one)
    assert check(data_of(at_once), *SHAPE) == 4


def test_a_golden_file_is_read_as_it_was_written() -> None:
    disk = CrashDisk()
    shape = IndexShape(SMALL["hashSlotNum"], SMALL["indexNum"])
    path = disk.root / "index" / "20260101000000000"
    disk.make_folder(path.parent)
    made = disk.open(path, create=True)
    made.truncate(SMALL["fileSize"])
    made.pwrite(bytes.fromhex(SMALL["fileHex"]), 0)
    file = IndexFile.open(disk, path, shape)
    golden = SMALL["header"]
    assert file.header == IndexHeader(
        golden["beginTimestamp"],
        golden["endTimestamp"],
        golden["beginPhyOffset"],
        golden["endPhyOffset"],
        golden["hashSlotCount"],
        golden["indexCount"],
    )
    assert shape.file_size == SMALL["fileSize"]
    assert file.is_full
    assert check(data_of(file), *shape) == 19
    items = [file.item(number) for number in range(1, file.count)]
    newest = {item.key_hash % shape.slot_count: number for number, item in enumerate(items, 1)}
    for item in items:
        assert file.newest(item.key_hash) == newest[item.key_hash % shape.slot_count]


def test_the_hash_of_every_golden_text_finds_its_slot() -> None:
    for golden in STORE["javaStringHash"]:
        topic, cut, key = golden["text"].partition("#")
        if cut:
            assert index_key_hash(topic, key) == golden["indexKeyHash"], golden["text"]
            assert index_key_hash(topic, key) % 5_000_000 == golden["slotOf5000000"]


def test_a_slot_with_a_number_beyond_the_items_is_an_empty_one() -> None:
    file = make(CrashDisk())
    file.put(bytearray(entry("a", 100, 1000)), 0)
    key_hash = index_key_hash("T", "a")
    for number in (-1, 0, 2, 4, INT_MAX):
        file.put_slot(key_hash % SHAPE.slot_count, number)
        assert file.newest(key_hash) == 0
    used = file.header.slots_used
    file.put(bytearray(entry("a", 200, 1000)), 0)
    assert file.item(2) == IndexItem(key_hash, 200, 0, 0)
    assert file.header.slots_used == used + 1


@pytest.mark.parametrize(
    ("timestamp", "begin", "seconds"),
    [(5999, 1000, 4), (1000, 1000, 0), (500, 1000, 0), (5000, 0, 0), (5000, -7, 0),
     (1000 * (INT_MAX + 9), 1000, INT_MAX)],
)  # fmt: skip
def test_time_differences_are_whole_seconds_and_never_negative(
    timestamp: int, begin: int, seconds: int
) -> None:
    assert time_difference(timestamp, begin) == seconds


def test_without_room_no_file_is_left_behind() -> None:
    disk = CrashDisk(free=0)
    with pytest.raises(OSError) as caught:
        make(disk)
    assert caught.value.errno == errno.ENOSPC
    assert disk.contents() == {}


def test_entries_without_room_leave_the_file_as_it_was() -> None:
    shape = IndexShape(10, 100_000)
    disk = CrashDisk(free=ALLOCATE_AHEAD + 2 * 4096)
    file = make(disk, shape)
    assert file.put(bytearray(entry("a", 0, 1000)), 0) == 1
    before = data_of(file)
    entries = bytearray().join(entry(str(number), number, 1000) for number in range(60_000))
    with pytest.raises(OSError):
        file.put(entries, 0)
    assert data_of(file) == before
    disk.free = None
    assert file.put(entries, 0) == 60_000
    assert check(data_of(file), *shape) == 60_001


def test_a_full_file_is_read_without_its_mapping() -> None:
    file = make(CrashDisk())
    file.put(bytearray().join(entry(str(number), number, 1000) for number in range(4)), 0)
    file.unmap()
    assert [file.find_offset(offset, file.count) for offset in (0, 1, 3, 4)] == [1, 2, 4, 5]
    file.let_go()
    assert file.item(4).physical_offset == 3, "opened again on need"


def test_a_slot_that_names_the_item_to_come_is_damaged_and_leads_nowhere() -> None:
    """Else the new item would be its own predecessor, and a search would never end."""
    file = make(CrashDisk())
    key_hash = index_key_hash("T", "a")
    file.map()
    file.put_slot(key_hash % SHAPE.slot_count, file.count)
    assert file.put(bytearray(entry("a", 1000, 10_000)), 0) == 1
    assert file.item(1).previous == 0
    assert file.newest(key_hash) == 1
