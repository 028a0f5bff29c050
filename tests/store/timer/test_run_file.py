"""Runs on the disk: layout, damage, merging."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from skylarkmq.common.crc import crc32c
from skylarkmq.common.errors import CorruptFileError
from skylarkmq.store.timer.run_file import (
    ENTRY,
    PAGE_ENTRIES,
    Merge,
    RunPart,
    check_run,
    read_entries,
    run_path,
    split,
    write_run,
)
from tests.support.crash_disk import CrashDisk


def _entries(*dues: int) -> list[bytes]:
    return [ENTRY.pack(due, number, due * 7, 99) for number, due in enumerate(dues)]


def _disk() -> tuple[CrashDisk, Path]:
    disk = CrashDisk()
    disk.make_folder(disk.root / "timer")
    return disk, disk.root / "timer"


def test_bytes_of_a_run() -> None:
    disk, folder = _disk()
    path = run_path(folder, 7)
    assert path.name == "00000000000000000007"
    assert write_run(disk, path, b"".join(_entries(3, 1 << 40))) == 2
    data = disk.read_all(path)
    head = b"SKTR" + struct.pack(">HHqq", 1, 0, 7, 2)
    assert data[:64] == head + struct.pack(">I", crc32c(head)) + bytes(36)
    page = (
        bytes.fromhex("0000000000000003 0000000000000000 0000000000000015 00000063")
        + bytes.fromhex("0000010000000000 0000000000000001 0000070000000000 00000063")
    ).ljust(8188, b"\0")
    assert data[64:] == page + struct.pack(">I", crc32c(page))


@pytest.mark.parametrize("count", [1, PAGE_ENTRIES, PAGE_ENTRIES + 1, 5 * PAGE_ENTRIES - 1])
def test_a_run_is_read_from_anywhere(count: int) -> None:
    disk, folder = _disk()
    path, entries = run_path(folder, 1), _entries(*range(count))
    assert write_run(disk, path, b"".join(entries)) == count
    check_run(disk, path, count)
    for start in {0, 1, count // 2, PAGE_ENTRIES - 1, PAGE_ENTRIES, count - 1}:
        if start < count:
            found = split(read_entries(disk, RunPart(path, count, start), max_pages=2))
            end = min(count, (start // PAGE_ENTRIES + 2) * PAGE_ENTRIES)
            assert found == entries[start:end]


def test_a_run_is_on_the_disk_when_it_is_written() -> None:
    disk, folder = _disk()
    path, entries = run_path(folder, 1), _entries(*range(700))
    write_run(disk, path, b"".join(entries))
    rng = random.Random(3)
    for state in disk.crash_states(rng, 8):
        after = disk.crash(state, rng)
        part = RunPart(run_path(after.root / "timer", 1), 700, 0)
        check_run(after, part.path, 700)
        assert split(read_entries(after, part)) == entries


def test_damage_is_found() -> None:
    disk, folder = _disk()
    path = run_path(folder, 1)
    write_run(disk, path, b"".join(_entries(*range(600))))
    part = RunPart(path, 600, 0)
    for position in (64 + 8192 + 17, 64 + 3 * 8192 - 1):
        file = disk.open(path)
        before = file.pread(1, position)
        file.pwrite(bytes([before[0] ^ 1]), position)
        with pytest.raises(CorruptFileError, match="CRC-32C of a page"):
            read_entries(disk, part)
        file.pwrite(before, position)
    with pytest.raises(CorruptFileError, match="another run"):
        check_run(disk, path, 599)
    file.pwrite(b"\xff", 20)
    with pytest.raises(CorruptFileError, match="CRC-32C"):
        check_run(disk, path, 600)
    file.truncate(64 + 8192)
    with pytest.raises(CorruptFileError, match="too short"):
        check_run(disk, path, 600)
    with pytest.raises(CorruptFileError, match="too short"):
        read_entries(disk, part)
    with pytest.raises(OSError):
        check_run(disk, run_path(folder, 2), 1)


@pytest.mark.parametrize("seed", range(5))
def test_merging_keeps_the_order_and_every_entry(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skylarkmq.store.timer.run_file.MERGE_STEP", 500)
    rng = random.Random(seed)
    disk, folder = _disk()
    parts: list[RunPart] = []
    expected: list[bytes] = []
    offset = 0
    for number in range(1, 6):
        entries: list[bytes] = []
        for _ in range(rng.choice([1, 50, 2000])):
            entries.append(ENTRY.pack(rng.randrange(300), offset, 0, 1))
            offset += 1
        entries.sort()
        path = run_path(folder, number)
        write_run(disk, path, b"".join(entries))
        start = rng.randrange(len(entries))
        parts.append(RunPart(path, len(entries), start))
        expected += entries[start:]
    merge = Merge(disk, run_path(folder, 9), parts)
    count = merge.step()
    while count is None:
        count = merge.step()
    assert count == len(expected)
    found: list[bytes] = []
    while len(found) < count:
        found += split(read_entries(disk, RunPart(run_path(folder, 9), count, len(found))))
    assert found == sorted(expected)
