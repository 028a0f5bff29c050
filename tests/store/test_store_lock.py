"""One owner of a store: in this process, in another one, by another path, and after a refusal."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skylarkmq.common.files import DiskFiles
from skylarkmq.store.errors import StoreLockedError
from skylarkmq.store.folder import AbortFile, StoreLock, StorePaths
from tests.support.crash_disk import CrashDisk

# A second broker process, as far as the lock goes: says whether it got the store, and keeps it.
OWNER = """
import sys
from pathlib import Path
from skylarkmq.store.errors import StoreLockedError
from skylarkmq.common.files import DiskFiles
from skylarkmq.store.folder import StorePaths
from skylarkmq.store.folder import StoreLock
try:
    StoreLock(DiskFiles(), StorePaths(Path(sys.argv[1]))).acquire()
except StoreLockedError as error:
    print(error, flush=True)
else:
    print("mine", flush=True)
sys.stdin.read()
"""


# A RocketMQ broker, which locks one byte of one file.
JAVA = """
import fcntl, sys
with open(sys.argv[1], "ab") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, 0)
    except OSError:
        print("refused", flush=True)
    else:
        print("locked", flush=True)
    sys.stdin.read()
"""


def lock(root: Path) -> StoreLock:
    return StoreLock(DiskFiles(), StorePaths(root))


@contextmanager
def other_process(root: Path) -> Iterator[str]:
    """What a second process says that tries to own the store."""
    yield from _said(OWNER, root)


@contextmanager
def java_broker(root: Path) -> Iterator[str]:
    """What a broker of RocketMQ says that tries to own the store."""
    yield from _said(JAVA, root / "lock")


def _said(program: str, path: Path) -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
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


# What somebody does to the files of a running store


def test_a_removed_lock_file_lets_no_second_broker_in(tmp_path: Path) -> None:
    mine = lock(tmp_path)
    mine.acquire()
    (tmp_path / "lock").unlink()
    with other_process(tmp_path) as said:
        assert f"{tmp_path} is in use by another broker" in said
    mine.release()
    with other_process(tmp_path) as said:
        assert said == "mine"


@pytest.mark.parametrize("replaced", [False, True])
def test_a_removed_lock_file_is_locked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, replaced: bool
) -> None:
    mine = lock(tmp_path)
    mine.acquire()
    mine.keep()
    (tmp_path / "lock").unlink()
    if replaced:
        (tmp_path / "lock").write_bytes(b"")
    with java_broker(tmp_path) as said:
        assert said == "locked", "this is what must not last"
    mine.keep()
    assert [f"{tmp_path}/lock was removed or replaced" in text for text in caplog.messages] == [
        True
    ]
    with java_broker(tmp_path) as said:
        assert said == "refused"
    mine.release()
    with java_broker(tmp_path) as said:
        assert said == "locked"


def test_a_store_that_another_broker_took_is_not_shared(tmp_path: Path) -> None:
    mine = lock(tmp_path)
    mine.acquire()
    (tmp_path / "lock").unlink()
    with (
        java_broker(tmp_path) as said,
        pytest.raises(StoreLockedError, match="stop both"),
    ):
        assert said == "locked"
        mine.keep()
    mine.release()


def test_two_roots_may_not_share_a_commit_log(tmp_path: Path) -> None:
    for name in ("a", "b", "log"):
        (tmp_path / name).mkdir()
    first, second = (
        StoreLock(DiskFiles(), StorePaths(tmp_path / name, tmp_path / "log")) for name in "ab"
    )
    first.acquire()
    with pytest.raises(StoreLockedError, match="choose another storePathCommitLog"):
        second.acquire()
    with other_process(tmp_path / "b") as said:
        assert said == "mine", "a refusal keeps nothing"
    first.release()
    second.acquire()
    second.release()


def test_a_disk_that_locks_no_folders_still_has_its_lock_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.EBADF, "as NFS says of a folder")

    monkeypatch.setattr(fcntl, "flock", flock)
    mine = lock(tmp_path)
    mine.acquire()
    with java_broker(tmp_path) as said:
        assert said == "refused"
    mine.release()
