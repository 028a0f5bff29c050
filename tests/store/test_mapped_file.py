"""One log file: made whole or not at all, written, cleared, let go."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from skylarkmq.common.files import DiskFiles
from skylarkmq.store.log.mapped_file import MappedFile, file_name
from tests.support.crash_disk import CrashDisk

SIZE = 64 * 1024


def create(disk: CrashDisk, start_offset: int = 0) -> MappedFile:
    return MappedFile.create(disk, disk.root / "commitlog", start_offset, SIZE)


@pytest.mark.parametrize("offset", [0, 1, 1 << 30, 1 << 62])
def test_names_have_twenty_digits(offset: int) -> None:
    assert len(file_name(offset)) == 20
    assert int(file_name(offset)) == offset


def test_a_new_file_is_allocated_whole_and_durable() -> None:
    disk = CrashDisk(free=10 * SIZE)
    mapped = create(disk, SIZE)
    assert disk.free == 9 * SIZE
    assert (mapped.start_offset, mapped.size, len(mapped.view)) == (SIZE, SIZE, SIZE)
    assert (mapped.wrote_position, mapped.flushed_position) == (0, 0)
    assert disk.calls["datasync"] == disk.calls["sync_folder"] == 1
    assert disk.list(disk.root / "commitlog") == [file_name(SIZE)]


def test_real_blocks_stand_behind_a_real_file(tmp_path: Path) -> None:
    mapped = MappedFile.create(DiskFiles(), tmp_path / "log", 0, 1 << 20)
    assert mapped.file.path.stat().st_blocks * 512 >= 1 << 20
    mapped.file.pwrite(b"seen through the mapping", 5)
    assert bytes(mapped.view[5:29]) == b"seen through the mapping"
    mapped.close()


@pytest.mark.parametrize("op", ["allocate", "datasync", "sync_folder"])
def test_a_file_that_could_not_be_made_is_gone(op: str) -> None:
    disk = CrashDisk()
    disk.fail(op, error=errno.ENOSPC)
    with pytest.raises(OSError) as caught:
        create(disk)
    assert caught.value.errno == errno.ENOSPC
    assert disk.list(disk.root / "commitlog") == []


def test_a_view_outlives_its_file() -> None:
    mapped = create(CrashDisk())
    mapped.file.pwrite(b"kept", 0)
    part = mapped.view[:4]
    mapped.close()
    assert bytes(part) == b"kept"
    assert len(mapped.view) == 0


def test_a_real_view_outlives_its_descriptor_and_its_name(tmp_path: Path) -> None:
    mapped = MappedFile.create(DiskFiles(), tmp_path, 0, SIZE)
    mapped.file.pwrite(b"kept", 0)
    part = mapped.view[:4]
    mapped.close()
    mapped.file.path.unlink()
    assert bytes(part) == b"kept"


def test_clear_writes_zeros_over_the_rest_alone() -> None:
    disk = CrashDisk()
    mapped = create(disk)
    mapped.file.pwrite(b"x" * SIZE, 0)
    mapped.clear(100, 50)
    assert bytes(mapped.view[99:151]) == b"x" + bytes(50) + b"x"
    mapped.clear(SIZE - 10, 1000)
    assert mapped.file.size == SIZE, "never beyond the end"
    assert not any(bytes(mapped.view[-10:]))


def test_rewind_sets_both_positions() -> None:
    mapped = create(CrashDisk())
    mapped.rewind(77)
    assert (mapped.wrote_position, mapped.flushed_position) == (77, 77)


def test_a_held_file_is_readable_after_its_close_until_the_last_release() -> None:
    disk = CrashDisk()
    mapped = create(disk)
    mapped.file.pwrite(b"abc", 0)
    mapped.hold()
    mapped.hold()
    mapped.close()
    mapped.release()
    assert mapped.file.pread(3, 0) == b"abc"
    assert bytes(mapped.view[:3]) == b"abc"
    mapped.release()
    assert len(mapped.view) == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        mapped.file.pread(3, 0)


def test_a_file_that_was_held_is_closed_at_once() -> None:
    disk = CrashDisk()
    mapped = create(disk)
    mapped.hold()
    mapped.release()
    mapped.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        mapped.file.pread(3, 0)
