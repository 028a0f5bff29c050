"""A replica that may have lost what it confirmed is a new one."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from skylarkmq.broker.replication.failover.replica_id import ReplicaFile, boot_id
from skylarkmq.common.errors import CorruptFileError
from tests.support.crash_disk import CrashDisk

BOOT, NEXT_BOOT = "boot-1", "boot-2"


def loaded(disk: CrashDisk, boot: str = BOOT, *, keeps_all: bool = False) -> ReplicaFile:
    found = ReplicaFile(disk, path_of(disk), boot)
    found.load(keeps_all=keeps_all)
    return found


def path_of(disk: CrashDisk) -> Path:
    return disk.root / "skylarkmq" / "replica"


def test_a_killed_process_comes_back_as_who_it_was() -> None:
    disk = CrashDisk()
    first = loaded(disk)
    assert first.id and first.set_id == ""
    first.join("set-1")
    again = loaded(disk)
    assert (again.id, again.set_id) == (first.id, "set-1")


def test_a_machine_that_went_down_brings_back_a_new_one_of_the_same_set() -> None:
    disk = CrashDisk()
    first = loaded(disk)
    first.join("set-1")
    again = loaded(disk, NEXT_BOOT)
    assert again.id != first.id
    assert again.set_id == "set-1"
    assert loaded(disk, NEXT_BOOT).id == again.id


def test_what_is_synced_or_stopped_cleanly_outlives_the_machine() -> None:
    disk = CrashDisk()
    first = loaded(disk)
    again = loaded(disk, NEXT_BOOT, keeps_all=True)
    assert again.id == first.id
    # The next crash is one of this boot.
    assert loaded(disk, NEXT_BOOT).id == first.id
    assert loaded(disk, "boot-3").id != first.id


def test_where_no_boot_is_known_every_unclean_stop_counts() -> None:
    disk = CrashDisk()
    assert loaded(disk, "").id != loaded(disk, "").id


def test_a_full_disk_holds_up_only_who_is_new() -> None:
    disk = CrashDisk()
    first = loaded(disk)
    disk.fail("pwrite", error=errno.ENOSPC, times=3)
    again = loaded(disk, NEXT_BOOT, keeps_all=True)
    assert again.id == first.id
    with pytest.raises(OSError, match="No space"):
        loaded(disk, NEXT_BOOT)  # who it was would come back with its next start
    with pytest.raises(OSError, match="No space"):
        again.join("set-1")
    again.join("set-1")
    assert loaded(disk, NEXT_BOOT).set_id == "set-1", "the second one was not written"


def test_a_damaged_file_is_named() -> None:
    disk = CrashDisk()
    loaded(disk)
    path = path_of(disk)
    data = bytearray(disk.read_all(path))
    data[-1] ^= 1
    disk.replace(path, bytes(data), backup=False)
    with pytest.raises(CorruptFileError, match="replica"):
        loaded(disk)


def test_this_machine_tells_its_boot() -> None:
    assert boot_id() == boot_id()
