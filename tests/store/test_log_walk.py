"""The walk says what `read_record` says, record by record, whatever the slices cut through."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest

from skylarkmq.protocol.record import RecordStatus, encode_blank, encode_record, read_record
from skylarkmq.store.log import log_walk
from skylarkmq.store.log.log_walk import LogWalk, WalkedRecord, bytes_after
from skylarkmq.store.log.mapped_file import MappedFile
from skylarkmq.store.log.mapped_file_queue import MappedFileQueue
from skylarkmq.store.stopped import segments
from skylarkmq.store.upkeep.recovery import next_record
from tests.support.crash_disk import CrashDisk

SIZE = 32768
V4, V6 = bytes(8), bytes(20)


def record(offset: int, number: int, **changes: object) -> bytes:
    values: dict[str, object] = {
        "queue_id": number % 3,
        "flag": 0,
        "queue_offset": number // 3,
        "physical_offset": offset,
        "sys_flag": 0,
        "born_timestamp": 1,
        "born_host": V4,
        "store_timestamp": 1000 + number,
        "store_host": V4,
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "body": random.Random(number).randbytes(number * 37 % 900),
        "topic": b"T%d" % (number % 2),
        "properties": b"TAGS\x01a" if number % 2 else b"",
        **changes,
    }
    return encode_record(**values)  # type: ignore[arg-type]


def filled(count: int, first: int = 0, **changes: object) -> tuple[MappedFileQueue, list[int]]:
    """A log of small files, and where its records begin."""
    disk = CrashDisk()
    queue = MappedFileQueue(disk, disk.root / "commitlog", SIZE)
    places: list[int] = []
    mapped, position = MappedFile.create(disk, queue.folder, first, SIZE), 0
    queue.add(mapped)
    for number in range(count):
        data = record(mapped.start_offset + position, number, **changes)
        if position + len(data) + 8 > SIZE:
            mapped.file.pwrite(encode_blank(SIZE - position), position)
            mapped, position = (
                MappedFile.create(disk, queue.folder, mapped.start_offset + SIZE, SIZE),
                0,
            )
            queue.add(mapped)
            data = record(mapped.start_offset, number, **changes)
        mapped.file.pwrite(data, position)
        places.append(mapped.start_offset + position)
        position += len(data)
    return queue, places


def walked(
    queue: MappedFileQueue, begin: int, **options: bool
) -> tuple[list[WalkedRecord], LogWalk]:
    walk = LogWalk(queue, check_crc=options.get("check_crc", True))
    return list(walk.records(begin)), walk


@pytest.mark.parametrize("slice_size", [512, 1024, 4096, 1 << 20])
@pytest.mark.parametrize("hosts", [0, 16, 32, 48])
def test_every_record_once_with_all_that_it_says(
    slice_size: int, hosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_walk, "SLICE_SIZE", slice_size)
    born, store = V6 if hosts & 16 else V4, V6 if hosts & 32 else V4
    queue, places = filled(200, sys_flag=hosts | 1, born_host=born, store_host=store)
    assert len(queue.mapped) > 2
    found, walk = walked(queue, 0)
    assert [item[0] for item in found] == places
    for number, item in enumerate(found):
        offset, size, queue_id, queue_offset, sys_flag, timestamp, topic, properties = item
        mapped = queue.find(offset)
        assert mapped is not None
        view = read_record(mapped.view, offset - mapped.start_offset)
        assert (size, sys_flag, timestamp) == (view.size, hosts | 1, 1000 + number)
        assert (queue_id, queue_offset) == (number % 3, number // 3)
        assert (topic, properties) == (view.topic, view.properties)
    assert walk.end_offset == walk.reached == places[-1] + found[-1][1]
    assert walk.stop is not None
    assert walk.stop.status is RecordStatus.UNWRITTEN


def test_a_walk_may_begin_anywhere_at_a_record() -> None:
    queue, places = filled(100, first=3 * SIZE)
    for begin in (0, 7, 50, 99):
        found, _ = walked(queue, places[begin])
        assert [item[0] for item in found] == places[begin:]


def _flip(position: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[position] ^= 0x10

    return change


def _number(position: int, layout: str, value: int) -> Callable[[bytearray], None]:
    return lambda data: struct.pack_into(layout, data, position, value)


@pytest.mark.parametrize(
    "change",
    [
        *(_flip(position) for position in range(88)),
        _number(0, ">i", -1),
        _number(0, ">i", 2**31 - 1),
        _number(0, ">i", 0),
        _number(84, ">i", -5),
        _number(84, ">i", 2**31 - 1),
        _flip(100),
        _flip(-1),
        _flip(-8),
    ],
)
@pytest.mark.parametrize("check_crc", [True, False])
def test_what_is_no_sound_record_is_judged_as_by_read_record(
    change: Callable[[bytearray], None], check_crc: bool
) -> None:
    queue, places = filled(30)
    at = places[19]
    mapped = queue.find(at)
    assert mapped is not None
    size = places[20] - at
    data = bytearray(mapped.file.pread(size, at - mapped.start_offset))
    change(data)
    mapped.file.pwrite(data, at - mapped.start_offset)
    expected = read_record(
        mapped.view, at - mapped.start_offset, check_crc=check_crc, physical_offset=at
    )
    found, walk = walked(queue, 0, check_crc=check_crc)
    if expected.status is RecordStatus.MESSAGE:
        assert at in [item[0] for item in found]
    else:
        assert [item[0] for item in found] == places[:19]
        assert walk.stop == expected
        assert walk.end_offset == at


def test_a_record_that_is_larger_than_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_walk, "SLICE_SIZE", 1024)
    queue, places = filled(9, body=bytes(range(256)) * 40)
    found, _ = walked(queue, 0)
    assert [item[0] for item in found] == places


def test_a_log_that_is_full_to_its_last_file() -> None:
    queue, places = filled(100)
    last = queue.mapped.pop()
    found, walk = walked(queue, 0)
    assert found[-1][0] < last.start_offset
    assert walk.reached == last.start_offset
    assert walk.end_offset == found[-1][0] + found[-1][1]
    assert walk.stop is None
    assert places[len(found)] == last.start_offset


def test_progress_tells_the_bytes_from_the_begin_on() -> None:
    queue, places = filled(100)
    told: list[tuple[str, int, int]] = []
    walk = LogWalk(
        queue, check_crc=True, what="x", progress=lambda what, *step: told.append((what, *step))
    )
    for _ in walk.records(places[1]):
        pass
    end = len(queue.mapped) * SIZE
    assert told[-1] == ("x", walk.end_offset - places[1], end - places[1])
    assert told == sorted(told)


def test_what_lies_behind_the_end() -> None:
    queue, places = filled(100)
    end = places[40]
    assert bytes_after(queue, walked(queue, 0)[1].end_offset) == 0
    last = queue.mapped[-1]
    last.file.pwrite(b"x", SIZE - 1)
    assert bytes_after(queue, end) == last.start_offset + SIZE - end
    found = next_record(queue, end)
    assert found is not None
    assert found.physical_offset == places[41]
    assert next_record(queue, places[-1]) is None


def test_a_record_behind_is_found_across_pieces_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "WINDOW_SIZE", 512)
    queue, places = filled(100)
    for number in range(99):
        found = next_record(queue, places[number])
        assert found is not None
        assert found.physical_offset == places[number + 1]


def test_a_record_behind_has_a_body_of_the_right_checksum() -> None:
    queue, places = filled(100)
    mapped = queue.find(places[41])
    assert mapped is not None
    mapped.file.pwrite(b"?", places[42] - mapped.start_offset - 20)
    found = next_record(queue, places[40])
    assert found is not None
    assert found.physical_offset == places[42]
