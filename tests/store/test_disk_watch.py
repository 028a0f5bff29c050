"""How full a partition is, as `df` says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylarkmq.common.files import DiskFiles, DiskSpace
from skylarkmq.store.upkeep.cleaning import clamped_max_used
from skylarkmq.store.upkeep.disk_watch import Spaces, measure, used_percent
from tests.support.crash_disk import CrashDisk


@pytest.mark.parametrize(
    ("space", "percent"),
    [
        (DiskSpace(0, 100), 0),
        (DiskSpace(1, 999), 1),
        (DiskSpace(750, 250), 75),
        (DiskSpace(751, 249), 76),
        (DiskSpace(100, 0), 100),
        (DiskSpace(0, 0), -1),
        (None, -1),
    ],
)
def test_percents_are_rounded_up(space: DiskSpace | None, percent: int) -> None:
    assert used_percent(space) == percent


def test_bytes_that_come_free_by_themselves_do_not_count() -> None:
    assert used_percent(DiskSpace(86, 14), less=1) == 85
    assert used_percent(DiskSpace(1, 99), less=50) == 0


def test_one_partition_or_two() -> None:
    one, other = DiskSpace(50, 50), DiskSpace(20, 50)
    assert Spaces(one, DiskSpace(51, 49)).is_shared
    assert not Spaces(one, other).is_shared


def test_a_folder_that_is_not_there_yet_lies_where_the_root_does(tmp_path: Path) -> None:
    spaces = measure(DiskFiles(), tmp_path / "commitlog", tmp_path, tmp_path)
    assert spaces.log is not None and spaces.is_shared
    assert 0 < used_percent(spaces.log) <= 100


def test_a_disk_that_does_not_answer() -> None:
    disk = CrashDisk()
    disk.fail("space")
    spaces = measure(disk, disk.root, disk.root, disk.root)
    assert spaces.log is None and spaces.queues is not None


@pytest.mark.parametrize(("ratio", "counts_as"), [(0, 10), (9, 10), (75, 75), (96, 95), (100, 95)])
def test_the_ratio_of_expired_files_has_limits(ratio: int, counts_as: int) -> None:
    assert clamped_max_used(ratio) == counts_as
