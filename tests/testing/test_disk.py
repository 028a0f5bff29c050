"""The disk of a test's broker: what is left out of it, and its faults."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from skylarkmq.testing.disk import TestFiles


def log_path(tmp_path: Path) -> Path:
    folder = tmp_path / "commitlog"
    folder.mkdir()
    return folder / "0"


def test_a_dead_broker_s_writes_reach_nothing(tmp_path: Path) -> None:
    files = TestFiles(syncs=True, sparse_log=False)
    path = tmp_path / "table.json"
    files.replace(path, b"before", backup=False)
    file = files.open(path)
    files.is_dead = True
    file.pwrite(b"AFTER!", 0)
    file.truncate(1)
    file.allocate(0, 4096)
    file.datasync()
    files.replace(path, b"after", backup=True)
    files.unlink(path)
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["table.json"]
    for make in (
        lambda: files.open(tmp_path / "new", create=True),
        lambda: files.make_folder(tmp_path / "folder"),
        lambda: files.lock(tmp_path / "lock"),
    ):
        with pytest.raises(OSError, match="was killed"):
            make()
    file.close()


@pytest.mark.parametrize("syncs", [True, False])
def test_a_table_is_replaced_and_its_backup_kept(tmp_path: Path, syncs: bool) -> None:
    files = TestFiles(syncs=syncs, sparse_log=not syncs)
    folder = tmp_path / "a" / "b"
    files.make_folder(folder)
    path = folder / "topics.json"
    for text in (b"one", b"two", b"three"):
        files.replace(path, text, backup=True)
    assert (path.read_bytes(), (folder / "topics.json.bak").read_bytes()) == (b"three", b"two")
    assert sorted(os.listdir(folder)) == ["topics.json", "topics.json.bak"]


def test_only_the_log_of_the_small_profile_is_sparse(tmp_path: Path) -> None:
    path = log_path(tmp_path)
    for sparse, others in ((True, path), (False, tmp_path / "other")):
        files = TestFiles(syncs=False, sparse_log=sparse)
        file = files.open(others, create=True)
        file.allocate(0, 1 << 20)
        assert file.size == others.stat().st_size == 1 << 20
        assert (others.stat().st_blocks == 0) is sparse
        file.close()


def test_faults_of_the_disk(tmp_path: Path) -> None:
    files = TestFiles(syncs=False, sparse_log=True)
    file = files.open(log_path(tmp_path), create=True)
    assert files.space(tmp_path).used == 0
    files.is_full = True
    assert (files.space(tmp_path).free, files.free_bytes(tmp_path)) == (0, 0)
    with pytest.raises(OSError) as full:
        file.allocate(0, 4096)
    assert full.value.errno == errno.ENOSPC
    with pytest.raises(OSError) as full:
        files.replace(tmp_path / "table", b"", backup=False)
    assert full.value.errno == errno.ENOSPC
    files.is_full = False
    file.allocate(0, 4096)
    file.datasync()
    files.sync_error = errno.EIO
    with pytest.raises(OSError) as broken:
        file.datasync()
    assert broken.value.errno == errno.EIO
    file.close()
