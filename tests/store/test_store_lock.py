"""One owner of a store: in this process, in another one, by another path, and after a refusal."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skylarkmq.store.errors import StoreLockedError
from skylarkmq.store.files import DiskFiles
from skylarkmq.store.paths import StorePaths
from skylarkmq.store.store_lock import AbortFile, StoreLock
from tests.support.crash_disk import CrashDisk

# A second broker process, as far as the lock goes: says whether it got the store, and keeps it.
OWNER = """
import sys
from pathlib import Path
from skylarkmq.store.errors import StoreLockedError
from skylarkmq.store.files import DiskFiles
from skylarkmq.store.paths import StorePaths
from skylarkmq.store.store_lock import StoreLock
try:
    StoreLock(DiskFiles(), StorePaths(Path(sys.argv[1]))).acquire()
except StoreLockedError as error:
    print(error, flush=True)
else:
    print("mine", flush=True)
sys.stdin.read()
"""


def lock(root: Path) -> StoreLock:
    return StoreLock(DiskFiles(), StorePaths(root))


@contextmanager
def other_process(root: Path) -> Iterator[str]:
    """What a second process says that tries to own the store."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()
    assert process.returncode == 0


def test_two_stores_of_one_process(tmp_path: Path) -> None:
    first, second = lock(tmp_path), lock(tmp_path)
    first.acquire()
    with pytest.raises(StoreLockedError, match="in use by another broker"):
        second.acquire()
    second.release()
    with pytest.raises(StoreLockedError):
        lock(tmp_path).acquire()
    first.release()
    second.acquire()
    second.release()
    second.release()


def test_a_refusal_names_the_folder_and_the_cure(tmp_path: Path) -> None:
    first = lock(tmp_path)
    first.acquire()
    with pytest.raises(StoreLockedError) as caught:
        lock(tmp_path).acquire()
    assert str(tmp_path) in str(caught.value)
    assert "storePathRootDir" in str(caught.value)
    first.release()


def test_another_path_to_the_same_folder_is_the_same_store(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "store")
    first = lock(tmp_path / "store")
    first.acquire()
    for path in (tmp_path / "link", tmp_path / "store" / ".." / "store"):
        with pytest.raises(StoreLockedError):
            lock(path).acquire()
    first.release()


def test_two_folders_are_two_stores(tmp_path: Path) -> None:
    locks = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        locks.append(lock(tmp_path / name))
        locks[-1].acquire()
    for each in locks:
        each.release()


def test_two_processes(tmp_path: Path) -> None:
    mine = lock(tmp_path)
    mine.acquire()
    with other_process(tmp_path) as said:
        assert "in use by another broker" in said
    mine.release()
    with other_process(tmp_path) as said:
        assert said == "mine"
        with pytest.raises(StoreLockedError):
            mine.acquire()
        with pytest.raises(StoreLockedError):
            mine.acquire()
    mine.acquire()
    mine.release()


def test_refusing_a_second_store_of_this_process_does_not_drop_the_lock(tmp_path: Path) -> None:
    """Closing any descriptor of the lock file would; so the second one must not open it."""
    mine = lock(tmp_path)
    mine.acquire()
    with pytest.raises(StoreLockedError):
        lock(tmp_path).acquire()
    with other_process(tmp_path) as said:
        assert "in use by another broker" in said
    mine.release()


def test_the_mark_of_an_unclean_stop_is_durable_both_ways() -> None:
    disk = CrashDisk()
    abort = AbortFile(disk, StorePaths(disk.root))
    assert not abort.exists()
    abort.create()
    abort.create()
    assert abort.exists()
    assert (disk.calls["create"], disk.calls["sync_folder"]) == (1, 1)
    abort.remove()
    assert not abort.exists()
    assert disk.calls["sync_folder"] == 2
