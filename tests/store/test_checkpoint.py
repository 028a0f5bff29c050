"""The checkpoint file: RocketMQ's bytes, and what a missing, short or strange one means."""

from __future__ import annotations

import errno
import struct

import pytest

from skylarkmq.common.sidecar import Kind, encode_sidecar
from skylarkmq.store.checkpoint import FILE_SIZE, SAFETY_MS, Checkpoint, IndexPoint, Marks
from tests.protocol.message_vectors import STORE
from tests.support.crash_disk import CrashDisk

GOLDEN = STORE["checkpoint"]
FIRST = bytes.fromhex(GOLDEN["first24BytesHex"])


def checkpoint() -> tuple[CrashDisk, Checkpoint]:
    disk = CrashDisk()
    return disk, Checkpoint(disk, disk.root / "checkpoint", disk.root / "own" / "recovery-point")


def test_the_bytes_are_rocketmqs() -> None:
    disk, saved = checkpoint()
    saved.save(Marks(*struct.unpack(">qqq", FIRST)))
    data = disk.read_all(disk.root / "checkpoint")
    assert data == FIRST + bytes(GOLDEN["fileSize"] - len(FIRST))
    assert saved.load() == Marks(*struct.unpack(">qqq", FIRST))


def test_a_missing_file_knows_nothing() -> None:
    disk, saved = checkpoint()
    assert saved.load() == Marks()
    assert disk.calls["create"] == 0


@pytest.mark.parametrize("size", [0, 8, 23])
def test_a_short_file_knows_nothing_and_is_completed(
    size: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk, saved = checkpoint()
    file = disk.open(disk.root / "checkpoint", create=True)
    file.pwrite(FIRST[:size], 0)
    assert saved.load() == Marks()
    assert f"checkpoint at byte {size}: the file is too short" in caplog.text
    saved.save(Marks(1, 2, 3))
    assert saved.load() == Marks(1, 2, 3)
    assert disk.size(disk.root / "checkpoint") == FILE_SIZE


def test_negative_times_are_none() -> None:
    disk, saved = checkpoint()
    disk.open(disk.root / "checkpoint", create=True).pwrite(struct.pack(">qqq", -1, 5, -(2**63)), 0)
    assert saved.load() == Marks(0, 5, 0)


def test_each_save_is_synced_and_the_name_once() -> None:
    disk, saved = checkpoint()
    for number in range(3):
        saved.save(Marks(number, number, 0))
    assert (disk.calls["datasync"], disk.calls["sync_folder"]) == (3, 1)


@pytest.mark.parametrize(
    ("physic", "logics", "bound"),
    [
        (10_000, 10_000, 10_000 - SAFETY_MS),
        (10_000, 9_000, 9_000 - SAFETY_MS),
        (9_000, 10_000, 9_000 - SAFETY_MS),
        (10_000, 0, 0),
        (2_000, 2_000, 0),
    ],
)
def test_what_both_sides_vouch_for_bounds_a_recovery(physic: int, logics: int, bound: int) -> None:
    assert Marks(physic, logics, 0).min_timestamp == bound


def test_no_room_leaves_nothing_that_misleads() -> None:
    disk, saved = checkpoint()
    disk.fail("allocate", error=errno.ENOSPC)
    with pytest.raises(OSError):
        saved.save(Marks(1, 1, 0))
    assert saved.load() == Marks()
    saved.save(Marks(1, 1, 0))
    assert saved.load() == Marks(1, 1, 0)


PLACED = Marks(5, 6, 7, 4096, IndexPoint("20231114221320000", 12, 4000, 1_700_000_000_000))


def test_the_places_come_back_with_the_times_they_belong_to() -> None:
    disk, saved = checkpoint()
    saved.save(PLACED)
    assert saved.load() == PLACED
    saved.save(PLACED._replace(index_point=None))
    assert saved.load() == PLACED._replace(index_point=None)
    assert disk.size(disk.root / "checkpoint") == FILE_SIZE


def test_places_of_other_times_count_for_nothing() -> None:
    disk, saved = checkpoint()
    saved.save(PLACED)
    file = disk.open(disk.root / "checkpoint")
    file.pwrite(struct.pack(">q", 6), 0)  # as a Java broker does, which knows no recovery point
    assert saved.load() == Marks(6, 6, 7)


def test_a_damaged_recovery_point_counts_for_nothing() -> None:
    disk, saved = checkpoint()
    saved.save(PLACED)
    file = disk.open(disk.root / "own" / "recovery-point")
    file.pwrite(b"\xff", 20)
    assert saved.load() == Marks(5, 6, 7)


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"times": [5, 6, 7]},
        {"times": 3, "offset": 1},
        {"times": [5, 6, 7], "offset": "x"},
    ],
)
def test_a_recovery_point_of_another_make_counts_for_nothing(content: dict[str, object]) -> None:
    disk, saved = checkpoint()
    saved.save(PLACED)
    path = disk.root / "own" / "recovery-point"
    disk.replace(path, encode_sidecar(Kind.RECOVERY_POINT, content), backup=False)
    assert saved.load() == Marks(5, 6, 7)


def test_a_full_disk_costs_the_places_alone() -> None:
    disk, saved = checkpoint()
    saved.save(PLACED)
    disk.fail("pwrite", error=errno.ENOSPC, path="recovery-point")
    saved.save(PLACED._replace(physic_timestamp=50, commit_log_offset=9000))
    assert saved.load() == Marks(50, 6, 7)
