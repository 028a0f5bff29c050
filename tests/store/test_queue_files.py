"""Queue files on a disk: padding, blocks ahead, rolls, the order of syncs, the end of a queue."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from skylarkmq.common.files import DiskFiles
from skylarkmq.common.refusal import refusal
from skylarkmq.store.errors import StoreProfileError
from skylarkmq.store.log.mapped_file import file_name
from skylarkmq.store.queue.consume_queue import PRE_BLANK, UNIT, UNIT_SIZE
from skylarkmq.store.queue.queue_files import (
    ALLOCATE_AHEAD,
    HandleCache,
    QueueReader,
    QueueWrite,
    QueueWriter,
    allocation_end,
)
from skylarkmq.store.queue.queue_scanner import QueueScanner
from tests.protocol.message_vectors import STORE
from tests.support.crash_disk import CrashDisk

SIZE = 2000  # bytes of a file, 100 units
PER_FILE = SIZE // UNIT_SIZE


def units(first: int, count: int) -> bytes:
    return b"".join(UNIT.pack(1000 + 100 * n, 100, n) for n in range(first, first + count))


def ends(scanner: QueueScanner, folder: Path, *, unclean: bool) -> tuple[int, int]:
    """The first unit that a scan finds, and the one that comes next."""
    extent = scanner.scan(folder, unclean=unclean)
    assert extent is not None
    assert extent.last_units == b"" or extent.end_offset > extent.first_offset
    return extent[:2]


class Rig:
    """One queue's folder on a disk in memory."""

    def __init__(self) -> None:
        self.disk = CrashDisk()
        self.folder = self.disk.root / "consumequeue" / "T" / "0"
        self.writer = QueueWriter(self.disk, SIZE)
        self.reader = QueueReader(self.disk, SIZE)
        self.scanner = QueueScanner(self.disk, SIZE)

    def write(self, first: int, count: int, *, starts: bool = False) -> None:
        self.writer.write([QueueWrite(self.folder, first * UNIT_SIZE, units(first, count), starts)])

    def read_all(self, count: int) -> bytes:
        found = b""
        while len(found) < count * UNIT_SIZE:
            found += self.reader.units(self.folder, len(found) // UNIT_SIZE, count)
        return found[: count * UNIT_SIZE]

    def names(self) -> list[str]:
        return self.disk.list(self.folder)

    def overwrite(self, unit: int, data: bytes) -> None:
        position = unit * UNIT_SIZE
        path = self.folder / file_name(position - position % SIZE)
        self.disk.open(path).pwrite(data, position % SIZE)


def test_units_lie_where_their_number_says_over_several_files() -> None:
    rig = Rig()
    rig.write(0, 30, starts=True)
    rig.write(30, 220)
    assert rig.names() == [file_name(0), file_name(SIZE), file_name(2 * SIZE)]
    assert rig.read_all(250) == units(0, 250)
    assert all(rig.disk.size(rig.folder / name) == SIZE for name in rig.names())


def test_a_read_never_passes_the_end_of_its_file() -> None:
    rig = Rig()
    rig.write(0, 150, starts=True)
    assert rig.reader.units(rig.folder, 95, 32) == units(95, 5)
    assert rig.reader.units(rig.folder, 100, 32) == units(100, 32)
    with pytest.raises(FileNotFoundError):
        rig.reader.units(rig.folder, 300, 1)


def test_a_queue_that_begins_in_the_middle_is_padded_as_by_rocketmq() -> None:
    assert PRE_BLANK.hex() == STORE["consumeQueue"]["preBlankUnitHex"]
    rig = Rig()
    rig.write(130, 5, starts=True)
    assert rig.names() == [file_name(SIZE)]
    assert rig.reader.units(rig.folder, 100, 40) == PRE_BLANK * 30 + units(130, 5) + bytes(100)
    assert ends(rig.scanner, rig.folder, unclean=False) == (100, 135)


def test_a_queue_that_goes_on_is_not_padded() -> None:
    rig = Rig()
    rig.write(100, 5, starts=True)
    rig.write(250, 5)
    assert rig.reader.units(rig.folder, 200, 50) == bytes(50 * UNIT_SIZE)


@pytest.mark.parametrize(
    ("end", "blocks"),
    [
        (1, 4096), (4096, 4096), (4097, 8192), (20_000, 32_768), (65_536, 65_536),
        (65_537, 131_072), (131_071, 131_072), (131_072, 196_608),
    ],
)  # fmt: skip
def test_blocks_go_ahead_of_the_write_position(end: int, blocks: int) -> None:
    assert allocation_end(end) == blocks


def test_a_real_file_has_its_length_and_few_blocks(tmp_path: Path) -> None:
    size = 6_000_000
    writer = QueueWriter(DiskFiles(), size)
    writer.write([QueueWrite(tmp_path, 0, units(0, 3), True)])
    stat = (tmp_path / file_name(0)).stat()
    assert stat.st_size == size
    assert stat.st_blocks * 512 <= 2 * 4096
    writer.write([QueueWrite(tmp_path, 3 * UNIT_SIZE, units(3, 10_000), False)])
    blocks = (tmp_path / file_name(0)).stat().st_blocks * 512
    assert 10_003 * UNIT_SIZE <= blocks <= 10_003 * UNIT_SIZE + 2 * ALLOCATE_AHEAD
    assert QueueReader(DiskFiles(), size).units(tmp_path, 0, 10_003) == units(0, 10_003)
    writer.close()


def test_a_write_stays_within_allocated_blocks() -> None:
    rig = Rig()
    rig.disk.fail("allocate", error=errno.ENOSPC)
    with pytest.raises(OSError) as caught:
        rig.write(0, 1, starts=True)
    assert caught.value.errno == errno.ENOSPC
    assert rig.disk.calls["pwrite"] == 0
    rig.write(0, 1, starts=True)
    assert rig.read_all(1) == units(0, 1)


def test_a_file_that_could_not_be_sized_gets_its_size_with_the_next_write() -> None:
    """Else a clean stop would leave a file of a size that no start accepts."""
    rig = Rig()
    size = 100_000
    writer = QueueWriter(rig.disk, size)
    write = [QueueWrite(rig.folder, 0, units(0, 1), True)]
    rig.disk.fail("truncate", error=errno.ENOSPC)
    with pytest.raises(OSError):
        writer.write(write)
    writer.write(write)
    writer.sync()
    assert rig.disk.size(rig.folder / file_name(0)) == size
    assert ends(QueueScanner(rig.disk, size), rig.folder, unclean=False) == (0, 1)


def test_sync_brings_files_and_names_once() -> None:
    rig = Rig()
    rig.write(0, 150, starts=True)
    rig.writer.sync()
    assert rig.disk.calls["datasync"] == 2
    folders = rig.disk.calls["sync_folder"]
    rig.writer.sync()
    assert (rig.disk.calls["datasync"], rig.disk.calls["sync_folder"]) == (2, folders)
    rig.write(150, 1)
    rig.writer.sync()
    assert (rig.disk.calls["datasync"], rig.disk.calls["sync_folder"]) == (3, folders)


@pytest.mark.parametrize("op", ["datasync", "sync_folder"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_is_never_taken_for_a_full_disk(op: str, error: int) -> None:
    """After ENOSPC from a sync Linux was seen to report success for pages that were lost."""
    rig = Rig()
    rig.write(0, 1, starts=True)
    rig.disk.fail(op, error=error)
    with pytest.raises(OSError) as caught:
        rig.writer.sync()
    assert caught.value.errno == errno.EIO


def test_a_sync_that_finds_no_descriptor_may_be_asked_for_again() -> None:
    rig = Rig()
    rig.write(0, 1, starts=True)
    rig.writer.close()  # as if others had taken its handle's place
    for _ in range(2):
        rig.disk.fail("open", error=errno.EMFILE)
        with pytest.raises(OSError) as caught:
            rig.writer.sync()
        assert refusal(caught.value) is not None
        assert rig.disk.calls["datasync"] == 0
    rig.writer.sync()
    assert rig.disk.calls["datasync"] == 1


def test_the_name_of_the_first_file_is_durable_before_that_of_the_second() -> None:
    rig = Rig()
    steps: list[tuple[str, str]] = []
    rig.disk.before_step = lambda op, path: steps.append((op, path.name))
    rig.write(0, 99, starts=True)
    rig.write(99, 2)
    names = [step for step in steps if step[0] in ("create", "sync_folder")]
    assert names[-2:] == [("sync_folder", "0"), ("create", file_name(SIZE))]


def test_many_open_files_are_bounded_and_none_is_forgotten() -> None:
    disk = CrashDisk()
    cache = HandleCache(disk, 3)
    paths = [disk.root / str(number) for number in range(5)]
    files = [cache.get(path, create=True) for path in paths]
    assert cache.get(paths[4]) is files[4]
    with pytest.raises(OSError, match="Bad file descriptor"):
        files[0].pread(1, 0)
    cache.get(paths[2])
    cache.get(paths[0])
    assert cache.get(paths[2]) is files[2], "the least recently used one went"
    cache.forget(paths[2])
    cache.forget(paths[2])
    cache.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        files[4].pread(1, 0)


def test_more_queues_than_handles_are_all_written_and_synced() -> None:
    disk = CrashDisk()
    writer = QueueWriter(disk, SIZE, handle_limit=2)
    folders = [disk.root / "consumequeue" / "T" / str(number) for number in range(6)]
    for first in (0, 3):
        position = first * UNIT_SIZE
        data = units(first, 3)
        writer.write([QueueWrite(folder, position, data, first == 0) for folder in folders])
    writer.sync()
    assert disk.calls["datasync"] == 6
    reader = QueueReader(disk, SIZE, handle_limit=2)
    assert all(reader.units(folder, 0, 6) == units(0, 6) for folder in folders)


# The end of a queue


@pytest.mark.parametrize("count", [1, 63, 64, 65, 99, 100, 101, 199, 350])
def test_the_end_is_behind_the_last_unit(count: int) -> None:
    rig = Rig()
    rig.write(0, count, starts=True)
    assert ends(rig.scanner, rig.folder, unclean=False) == (0, count)


def test_no_folder_is_no_queue() -> None:
    rig = Rig()
    assert rig.scanner.scan(rig.folder, unclean=True) is None


def test_a_hole_ends_the_queue_and_files_behind_it_go() -> None:
    rig = Rig()
    rig.write(0, 350, starts=True)
    rig.overwrite(150, bytes(UNIT_SIZE))
    assert ends(rig.scanner, rig.folder, unclean=True) == (0, 150)
    assert rig.names() == [file_name(0), file_name(SIZE)]


@pytest.mark.parametrize("unit", [UNIT.pack(-1, 100, 0), UNIT.pack(5, 0, 0), UNIT.pack(5, -7, 0)])
def test_what_no_message_can_have_left_ends_the_queue(unit: bytes) -> None:
    rig = Rig()
    rig.write(0, 90, starts=True)
    rig.overwrite(40, unit)
    assert ends(rig.scanner, rig.folder, unclean=True) == (0, 40)


def test_a_missing_file_in_between_ends_the_queue_after_a_crash() -> None:
    rig = Rig()
    rig.write(0, 350, starts=True)
    rig.disk.unlink(rig.folder / file_name(SIZE))
    assert ends(rig.scanner, rig.folder, unclean=True) == (0, 100)
    assert rig.names() == [file_name(0)]


@pytest.mark.parametrize("size", [0, 20, 1999])
def test_a_short_file_is_lengthened_after_a_crash_and_refused_otherwise(size: int) -> None:
    rig = Rig()
    rig.write(0, 150, starts=True)
    rig.disk.open(rig.folder / file_name(SIZE)).truncate(size)
    with pytest.raises(StoreProfileError, match=f"has {size} bytes, mappedFileSizeConsumeQueue"):
        rig.scanner.scan(rig.folder, unclean=False)
    extent = rig.scanner.scan(rig.folder, unclean=True)
    assert extent is not None
    assert extent[:2] == (0, 100 + min(50, size // UNIT_SIZE))
    assert all(rig.disk.size(rig.folder / name) == SIZE for name in rig.names())


@pytest.mark.parametrize("unclean", [True, False])
def test_a_longer_file_and_a_strange_name_are_refused(unclean: bool) -> None:
    rig = Rig()
    rig.write(0, 10, starts=True)
    rig.disk.open(rig.folder / file_name(0)).truncate(SIZE + 20)
    with pytest.raises(StoreProfileError, match="start with the size"):
        rig.scanner.scan(rig.folder, unclean=unclean)
    other = Rig()
    other.disk.make_folder(other.folder)
    other.disk.open(other.folder / "backup", create=True).close()
    with pytest.raises(StoreProfileError, match="not a queue file; move it"):
        other.scanner.scan(other.folder, unclean=unclean)


@pytest.mark.parametrize(("end", "files"), [(350, 4), (300, 3), (250, 3), (200, 2), (1, 1), (0, 1)])
def test_a_cut_leaves_zeros_behind_the_end(end: int, files: int) -> None:
    rig = Rig()
    rig.write(0, 350, starts=True)
    syncs = rig.disk.calls["datasync"]
    rig.scanner.cut(rig.folder, end * UNIT_SIZE)
    assert len(rig.names()) == files
    assert rig.disk.calls["datasync"] == syncs + (0 if end % PER_FILE == 0 and end else 1)
    assert ends(rig.scanner, rig.folder, unclean=False) == (0, end)
    position = end * UNIT_SIZE
    rest = rig.disk.read_all(rig.folder / rig.names()[-1])[position % SIZE :]
    assert end % PER_FILE == 0 or not any(rest)


def test_a_writer_goes_on_after_a_cut() -> None:
    rig = Rig()
    rig.write(0, 150, starts=True)
    rig.scanner.cut(rig.folder, 120 * UNIT_SIZE)
    rig.writer.forget(rig.folder / file_name(SIZE))
    rig.write(120, 10)
    assert rig.read_all(130) == units(0, 130)
    rig.writer.close()
    rig.reader.forget(rig.folder / file_name(0))
    rig.reader.close()
