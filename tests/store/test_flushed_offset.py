"""What was synced is never cut off, wherever the recovery point stands; what was not is kept aside.

A store that was killed seconds after a start has a recovery point that speaks of that start; the
flushed offset speaks of its last sync.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from skylarkmq.common.errors import CorruptFileError
from skylarkmq.common.sidecar import Kind, decode_sidecar
from skylarkmq.store.checkpoint import UNKNOWN, Checkpoint
from skylarkmq.store.log import flushed_offset
from skylarkmq.store.log.flushed_offset import FlushedOffset
from tests.store.support import LOG_SIZE, StoreRig
from tests.store.test_recovery import (
    body_of,
    filled,
    killed,
    log_path,
    numbers,
    on,
    overwrite,
    reopened,
)
from tests.support.crash_disk import CrashDisk

ROADS: dict[str, dict[str, object]] = {
    "async": {"flush_disk_type": "ASYNC_FLUSH"},
    "sync": {"flush_disk_type": "SYNC_FLUSH"},
    "mapped": {"commit_log_write_mode": "mapped"},
    "pool": {"transient_store_pool_enable": True, "transient_store_pool_size": 2},
    "sync pool": {
        "flush_disk_type": "SYNC_FLUSH",
        "transient_store_pool_enable": True,
        "transient_store_pool_size": 2,
    },
}


def flushed(rig: StoreRig, disk: CrashDisk) -> int:
    return FlushedOffset(disk, on(disk, rig, rig.store.paths.flushed_offset)).load()


def commit_log_files(disk: CrashDisk) -> dict[str, bytes]:
    return {name: data for name, data in disk.contents().items() if "commitlog" in name}


def broken_files(disk: CrashDisk) -> dict[str, bytes]:
    return {name: data for name, data in disk.contents().items() if name.endswith(".broken")}


def not_synced(rig: StoreRig, first: int, count: int) -> None:
    for number in range(first, first + count):
        rig.put("T", number % 2, body_of(number))


def flip(rig: StoreRig, disk: CrashDisk, number: int) -> tuple[Path, int]:
    """Change one bit in the body of a message; file and place of its record."""
    place = rig.results[number].physical_offset
    path = log_path(disk, rig, place // LOG_SIZE)
    record = rig.store.commit_log.read(place)
    assert record is not None
    body = disk.read_all(path)[place % LOG_SIZE + 200]
    overwrite(disk, path, place % LOG_SIZE + 200, bytes((body ^ 1,)))
    return path, place % LOG_SIZE


@pytest.mark.parametrize("road", ROADS)
def test_one_flipped_bit_in_what_was_synced_is_refused(road: str) -> None:
    rig = filled(CrashDisk(), count=90, **ROADS[road])  # less than a checkpoint's interval
    disk = killed(rig)
    marks = Checkpoint(
        disk, on(disk, rig, rig.store.paths.checkpoint),
        on(disk, rig, rig.store.paths.recovery_point),
    ).load()  # fmt: skip
    assert marks.commit_log_offset < rig.results[40].physical_offset, "it speaks of the start"
    end = rig.store.commit_log.max_offset
    assert flushed(rig, disk) == end
    path, position = flip(rig, disk, 40)
    before = commit_log_files(disk)
    with pytest.raises(CorruptFileError, match=f"on the disk up to offset {end}") as caught:
        StoreRig(disk, **ROADS[road]).start()
    assert (caught.value.path, caught.value.position) == (path, position)
    assert f"truncate --to {rig.results[40].physical_offset}" in str(caught.value)
    assert commit_log_files(disk) == before, "the log was not changed"
    assert not broken_files(disk)


def test_the_last_synced_message_is_refused_too() -> None:
    rig = filled(CrashDisk(), count=20)
    disk = killed(rig)
    flip(rig, disk, 19)
    with pytest.raises(CorruptFileError, match="the body's checksum is wrong"):
        StoreRig(disk).start()


def test_a_log_that_ends_before_the_flushed_offset_is_refused() -> None:
    rig = filled(CrashDisk(), count=20)
    disk = killed(rig)
    place = rig.results[15].physical_offset
    overwrite(disk, log_path(disk, rig, 0), place, bytes(LOG_SIZE - place))
    with pytest.raises(CorruptFileError, match="nothing was written here") as caught:
        StoreRig(disk).start()
    assert caught.value.position == place


def test_what_follows_damage_above_the_flushed_offset_is_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = filled(CrashDisk(), count=20)
    not_synced(rig, 20, 10)
    disk = killed(rig)
    first, last = rig.results[20].physical_offset, rig.store.commit_log.max_offset
    flip(rig, disk, 20)
    kept = disk.read_all(log_path(disk, rig, 0))[first:last]
    again = reopened(disk)
    assert numbers(again, 0) + numbers(again, 1) == [*range(0, 20, 2), *range(1, 20, 2)]
    assert broken_files(disk) == {f"skylarkmq/{first:020d}.broken": kept.rstrip(b"\0")}
    (told,) = [text for text in caplog.messages if "cutting the log" in text]
    assert f"sound messages begin at offset {rig.results[21].physical_offset}" in told
    assert f"{disk.root}/skylarkmq/{first:020d}.broken" in told
    assert "\n" not in told
    killed(reopened(killed(again)))
    assert len(broken_files(disk)) == 1, "once"


def test_what_is_kept_may_span_files_and_have_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = filled(CrashDisk(), count=60)
    not_synced(rig, 60, 200)
    first, last = rig.results[60].physical_offset, rig.store.commit_log.max_offset
    assert last // LOG_SIZE - first // LOG_SIZE >= 2
    disk = killed(rig)
    overwrite(disk, log_path(disk, rig, first // LOG_SIZE), first % LOG_SIZE, bytes(40_000))
    log = b"".join(commit_log_files(disk)[name] for name in sorted(commit_log_files(disk)))
    reopened(disk)
    (kept,) = broken_files(disk).values()
    assert kept == log[first:last].rstrip(b"\0")


def test_a_torn_end_is_cut_without_a_copy(caplog: pytest.LogCaptureFixture) -> None:
    rig = filled(CrashDisk(), count=20)
    not_synced(rig, 20, 1)
    disk = killed(rig)
    flip(rig, disk, 20)
    reopened(disk)
    assert not broken_files(disk)
    assert [text for text in caplog.messages if "cutting the log" in text]


def test_without_room_for_the_copy_the_start_says_so(caplog: pytest.LogCaptureFixture) -> None:
    rig = filled(CrashDisk(), count=20)
    not_synced(rig, 20, 10)
    disk = killed(rig)
    flip(rig, disk, 20)
    disk.fail("pwrite", error=errno.ENOSPC, path=".broken")
    again = reopened(disk)
    assert numbers(again, 0) == list(range(0, 20, 2))
    assert not broken_files(disk)
    assert any("there is no room to keep them" in text for text in caplog.messages)


def test_a_copy_does_not_replace_an_earlier_one() -> None:
    rig = filled(CrashDisk(), count=20)
    not_synced(rig, 20, 10)
    disk = killed(rig)
    flip(rig, disk, 20)
    name = f"{rig.results[20].physical_offset:020d}"
    disk.replace(disk.root / "skylarkmq" / f"{name}.broken", b"earlier", backup=False)
    reopened(disk)
    kept = broken_files(disk)
    assert sorted(kept) == [f"skylarkmq/{name}.2.broken", f"skylarkmq/{name}.broken"]
    assert kept[f"skylarkmq/{name}.broken"] == b"earlier"


# When it counts for nothing


def test_after_somebody_else_ran_on_the_store_it_counts_for_nothing() -> None:
    rig = filled(CrashDisk(), count=20)
    log = log_path(rig.files, rig, 0)
    rig.stop()
    disk = killed(rig)
    path = on(disk, rig, rig.store.paths.checkpoint)
    overwrite(disk, path, 16, (77).to_bytes(8, "big"))  # as a RocketMQ broker's stop does
    place = rig.results[15].physical_offset
    overwrite(disk, on(disk, rig, log), place, bytes(LOG_SIZE - place))  # which cut the log
    again = reopened(disk)
    assert again.store.commit_log.max_offset == place
    assert flushed(again, disk) == place, "and the new point may not meet the old offset"


@pytest.mark.parametrize("data", [b"", b"?" * 33, bytes(33), b"SKMQ" * 20])
def test_a_damaged_one_counts_for_nothing_and_is_written_anew(data: bytes) -> None:
    rig = filled(CrashDisk(), count=20)
    disk = killed(rig)
    disk.replace(on(disk, rig, rig.store.paths.flushed_offset), data, backup=False)
    again = reopened(disk)
    assert numbers(again, 0) == list(range(0, 20, 2))
    assert flushed(again, disk) == rig.store.commit_log.max_offset


def test_a_start_without_room_for_it_takes_messages_all_the_same() -> None:
    disk = CrashDisk()
    disk.fail("pwrite", error=errno.ENOSPC, path="flushed-offset", times=1000)
    rig = filled(disk, count=20)
    assert rig.store.failure is None
    assert flushed(rig, disk) == UNKNOWN
    assert numbers(reopened(killed(rig)), 0) == list(range(0, 20, 2))


def test_a_disk_that_becomes_full_leaves_what_it_says(caplog: pytest.LogCaptureFixture) -> None:
    rig = filled(CrashDisk(), count=20)
    end = rig.store.commit_log.max_offset
    rig.files.fail("pwrite", error=errno.ENOSPC, path="flushed-offset", times=1000)
    not_synced(rig, 20, 5)
    rig.clock.advance(1.0)
    rig.workers.run_all()
    assert rig.store.failure is None
    assert flushed(rig, rig.files) == end < rig.store.commit_log.flushed_offset
    assert sum("which stays as it is" in text for text in caplog.messages) == 1


def test_a_failed_write_of_it_ends_the_writing() -> None:
    rig = filled(CrashDisk(), count=20)
    rig.files.fail("pwrite", path="flushed-offset")
    not_synced(rig, 20, 5)
    rig.clock.advance(1.0)
    rig.workers.run_all()
    assert rig.store.failure is not None


def test_it_is_a_sidecar_of_constant_size() -> None:
    for offset in (0, 1, 127, 1 << 32, (1 << 63) - 1):
        data = flushed_offset.encode(offset)
        assert len(data) == 33
        assert decode_sidecar(Path("x"), Kind.FLUSHED_OFFSET, data) == {"offset": offset}
