"""The files of the log in a row: found by arithmetic, loaded strictly, cut from the end."""

from __future__ import annotations

import pytest

from skylarkmq.store.errors import StoreProfileError
from skylarkmq.store.log.mapped_file import MappedFile, file_name
from skylarkmq.store.log.mapped_file_queue import MappedFileQueue
from tests.support.crash_disk import CrashDisk

SIZE = 8192


def filled(count: int, first: int = 0) -> tuple[CrashDisk, MappedFileQueue]:
    """A disk with `count` full files from offset `first` on, not loaded."""
    disk = CrashDisk()
    queue = MappedFileQueue(disk, disk.root / "commitlog", SIZE)
    for number in range(count):
        mapped = MappedFile.create(disk, queue.folder, first + number * SIZE, SIZE)
        mapped.file.pwrite(bytes([number + 1]) * SIZE, 0)
        mapped.close()
    return disk, queue


def end_of(queue: MappedFileQueue) -> int:
    """Where the bytes of the last file end that readers may see."""
    return queue.last.start_offset + queue.last.committed_position if queue.last else 0


def test_an_empty_queue() -> None:
    _, queue = filled(0)
    queue.load()
    assert (queue.min_offset, end_of(queue), queue.last) == (0, 0, None)
    assert queue.find(0) is None
    queue.truncate(0)


def test_files_are_found_by_offset() -> None:
    _, queue = filled(3, first=5 * SIZE)
    queue.load()
    assert (queue.min_offset, end_of(queue)) == (5 * SIZE, 8 * SIZE)
    starts = [file.start_offset for file in queue.mapped]
    for offset in (5 * SIZE, 6 * SIZE - 1, 6 * SIZE, 8 * SIZE - 1):
        mapped = queue.find(offset)
        assert mapped is not None
        assert mapped.start_offset == starts[(offset - 5 * SIZE) // SIZE]
    for offset in (-1, 0, 5 * SIZE - 1, 8 * SIZE, 1 << 60):
        assert queue.find(offset) is None


@pytest.mark.parametrize("name", ["notes.txt", "0" * 19, "0" * 21, "\u0660" * 20, "-" + "0" * 19])
def test_what_is_no_log_file_is_refused_by_name(name: str) -> None:
    disk, queue = filled(1)
    disk.open(queue.folder / name, create=True).close()
    with pytest.raises(StoreProfileError, match="not a log file; move it"):
        queue.load()


def test_a_missing_file_in_between_is_refused() -> None:
    disk, queue = filled(3)
    disk.unlink(queue.folder / file_name(SIZE))
    with pytest.raises(StoreProfileError, match="a log file between them is missing"):
        queue.load()


@pytest.mark.parametrize("size", [SIZE // 2, SIZE * 2])
def test_another_size_in_between_is_refused(size: int) -> None:
    disk, queue = filled(3)
    disk.open(queue.folder / file_name(SIZE)).truncate(size)
    with pytest.raises(StoreProfileError, match=f"has {size} bytes, mappedFileSizeCommitLog"):
        queue.load()


@pytest.mark.parametrize("size", [0, 4096])
def test_a_last_file_whose_allocation_was_cut_short_is_removed(size: int) -> None:
    disk, queue = filled(2)
    disk.open(queue.folder / file_name(2 * SIZE), create=True).truncate(size)
    queue.load()
    assert (len(queue.mapped), end_of(queue)) == (2, 2 * SIZE)
    assert len(disk.list(queue.folder)) == 3, "only once the rest turned out to be sound"
    queue.truncate(2 * SIZE)
    assert (len(queue.mapped), end_of(queue)) == (2, 2 * SIZE)
    assert disk.list(queue.folder) == [file_name(0), file_name(SIZE)]


def test_a_short_last_file_with_content_is_kept_and_refused() -> None:
    disk, queue = filled(2)
    disk.open(queue.folder / file_name(SIZE)).truncate(4096)
    with pytest.raises(StoreProfileError, match="was cut or is foreign: put a good copy"):
        queue.load()
    assert len(disk.list(queue.folder)) == 2


def test_files_that_all_have_another_size_ask_for_another_configuration() -> None:
    disk, _ = filled(2)
    queue = MappedFileQueue(disk, disk.root / "commitlog", 2 * SIZE)
    with pytest.raises(StoreProfileError, match="start with the size"):
        queue.load()


def test_a_cut_goes_through_the_middle_of_a_file() -> None:
    disk, queue = filled(4)
    queue.load()
    queue.truncate(SIZE + 100, clear_size=50)
    assert (len(queue.mapped), end_of(queue)) == (2, SIZE + 100)
    assert disk.list(queue.folder) == [file_name(0), file_name(SIZE)]
    last = queue.last
    assert last is not None
    assert (last.wrote_position, last.flushed_position) == (100, 100)
    assert bytes(last.view[99:151]) == b"\x02" + bytes(50) + b"\x02"


def test_a_cut_at_a_file_boundary_keeps_the_file_that_follows() -> None:
    _, queue = filled(3)
    queue.load()
    queue.truncate(2 * SIZE)
    assert (len(queue.mapped), end_of(queue)) == (3, 2 * SIZE)


def test_removed_files_do_not_come_back_after_a_power_cut() -> None:
    disk, queue = filled(3)
    queue.load()
    syncs = disk.calls["sync_folder"]
    queue.truncate(10)
    assert disk.calls["sync_folder"] == syncs + 1


def test_close_lets_every_file_go() -> None:
    _, queue = filled(3)
    queue.load()
    queue.close()
    assert queue.mapped == []
