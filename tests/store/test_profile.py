"""The sizes of a store are remembered, and a start with others is refused with the cure."""

from __future__ import annotations

import pytest

from skylarkmq.common.errors import CorruptFileError
from skylarkmq.store.errors import StoreProfileError
from skylarkmq.store.folder import check_profile, save_profile
from tests.support.crash_disk import CrashDisk

SIZES = {"mappedFileSizeCommitLog": 1024, "mappedFileSizeConsumeQueue": 2000}


def test_the_first_start_remembers_durably() -> None:
    disk = CrashDisk()
    path = disk.root / "skylarkmq" / "profile"
    save_profile(disk, path, SIZES)
    assert disk.read_all(path).startswith(b"SKMQ")
    assert disk.calls["datasync"] == 1
    save_profile(disk, path, SIZES)
    check_profile(disk, path, SIZES)
    assert disk.calls["rename"] == 1, "written once"


@pytest.mark.parametrize("key", SIZES)
def test_another_size_is_refused_and_nothing_changes(key: str) -> None:
    disk = CrashDisk()
    path = disk.root / "skylarkmq" / "profile"
    save_profile(disk, path, SIZES)
    before = disk.contents()
    with pytest.raises(StoreProfileError) as caught:
        check_profile(disk, path, {**SIZES, key: 4096})
    assert str(disk.root) in str(caught.value)
    assert f"start with --set {key}={SIZES[key]}" in str(caught.value)
    assert disk.contents() == before


def test_a_size_that_an_older_release_did_not_remember_is_accepted() -> None:
    disk = CrashDisk()
    path = disk.root / "skylarkmq" / "profile"
    save_profile(disk, path, SIZES)
    check_profile(disk, path, {**SIZES, "maxHashSlotNum": 5})
    save_profile(disk, path, {**SIZES, "maxHashSlotNum": 5})
    with pytest.raises(StoreProfileError, match="maxHashSlotNum=5"):
        check_profile(disk, path, {**SIZES, "maxHashSlotNum": 6})


def test_checking_alone_remembers_nothing() -> None:
    disk = CrashDisk()
    path = disk.root / "skylarkmq" / "profile"
    check_profile(disk, path, SIZES)
    assert not disk.exists(path)


def test_a_damaged_profile_is_refused_by_name() -> None:
    disk = CrashDisk()
    path = disk.root / "skylarkmq" / "profile"
    save_profile(disk, path, SIZES)
    disk.open(path).pwrite(b"?", 14)
    with pytest.raises(CorruptFileError, match=r"profile at byte \d+: .*; put a good copy"):
        check_profile(disk, path, SIZES)
