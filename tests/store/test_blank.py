"""Bytes that were never written: told by blocks, and holes are not read at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylarkmq.common.files import DiskFile, DiskFiles, StoreFile
from skylarkmq.store.log.mapped_file import BLOCK_SIZE, first_written, is_blank
from tests.support.crash_disk import CrashDisk

SIZE = 3 * BLOCK_SIZE + 100


@pytest.mark.parametrize("place", [0, 1, BLOCK_SIZE - 1, BLOCK_SIZE, SIZE - 1])
def test_one_byte_is_not_blank(place: int) -> None:
    data = bytearray(SIZE)
    assert is_blank(bytes(data))
    assert is_blank(memoryview(data))
    data[place] = 1
    assert not is_blank(bytes(data))
    assert not is_blank(memoryview(data))
    assert is_blank(memoryview(data)[place + 1 :])


def sparse(path: Path, *places: int) -> StoreFile:
    with path.open("xb") as file:
        for place in places:
            file.seek(place)
            file.write(b"\x01")
        file.truncate(SIZE)
    return DiskFiles().open(path)


@pytest.mark.parametrize("place", [0, 5000, BLOCK_SIZE - 1, 2 * BLOCK_SIZE, SIZE - 1])
def test_the_first_written_byte_is_found_from_any_place(tmp_path: Path, place: int) -> None:
    file = sparse(tmp_path / "file", place)
    for start in {0, place // 2, place}:
        assert first_written(file, start) == place
    assert first_written(file, place + 1) is None
    assert first_written(file, SIZE) is None


def test_zeros_that_were_written_count_as_nothing() -> None:
    disk = CrashDisk()
    file = disk.open(disk.root / "file", create=True)
    file.pwrite(bytes(SIZE), 0)
    assert first_written(file, 0) is None
    file.pwrite(b"\x01", SIZE - 1)
    assert first_written(disk.open(disk.root / "file"), 7) == SIZE - 1


def test_holes_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = sparse(tmp_path / "file", 0, SIZE - 1)
    read: list[int] = []
    pread = DiskFile.pread

    def counted(self: DiskFile, size: int, position: int) -> bytes:
        data = pread(self, size, position)
        read.append(len(data))
        return data

    monkeypatch.setattr(DiskFile, "pread", counted)
    if file.data_start(8192) == 8192:
        pytest.skip("this file system does not tell where holes are")
    assert first_written(file, 1 << 16) == SIZE - 1
    assert sum(read) <= 1 << 16
