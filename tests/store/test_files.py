"""The real disk: what each call does to a folder of this machine."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from skylarkmq.common.files import DiskFiles, StoreFile
from skylarkmq.common.refusal import is_no_space

FILES = DiskFiles()
# Takes the lock on byte 0 as a Java broker does, says so, and holds it until its input ends.
LOCKER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def file(tmp_path: Path) -> StoreFile:
    made = FILES.open(tmp_path / "file", create=True)
    made.allocate(0, 8192)
    return made


def open_count() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_missing_file_is_not_made_by_reading_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FILES.open(tmp_path / "file")
    assert not FILES.exists(tmp_path / "file")
    assert FILES.list(tmp_path / "nothing") == []


def test_what_is_written_is_read_and_seen_through_a_mapping(file: StoreFile) -> None:
    view = file.view()
    file.pwrite(b"hello", 100)
    file.pwrite(memoryview(b"-world")[1:], 105)
    assert file.pread(10, 100) == b"helloworld"
    assert bytes(view[100:110]) == b"helloworld"
    assert len(view) == file.size == 8192
    with pytest.raises(TypeError):
        view[0] = 1
    file.datasync()


def test_reading_past_the_end_is_short(file: StoreFile) -> None:
    assert len(file.pread(100, 8150)) == 42
    assert file.pread(10, 9000) == b""


def test_allocated_means_blocks(file: StoreFile) -> None:
    file.allocate(0, 1 << 20)
    stat = file.path.stat()
    assert stat.st_size == file.size == 1 << 20
    assert stat.st_blocks * 512 >= 1 << 20
    file.allocate(0, 4096)
    assert file.size == 1 << 20, "never shorter"


def test_a_longer_file_by_truncate_has_no_blocks(tmp_path: Path) -> None:
    made = FILES.open(tmp_path / "sparse", create=True)
    made.truncate(64 << 20)
    assert FILES.size(tmp_path / "sparse") == made.size == 64 << 20
    assert (tmp_path / "sparse").stat().st_blocks * 512 <= 8192
    made.truncate(10)
    assert made.pread(100, 0) == bytes(10)


def _taking(monkeypatch: pytest.MonkeyPatch, *counts: int) -> None:
    """Let the system take so many bytes of each write in turn, and then have no room."""
    write, left = os.pwrite, list(counts)

    def some(fd: int, data: bytes | memoryview, at: int) -> int:
        if not left:
            raise OSError(errno.ENOSPC, "no room")
        return write(fd, bytes(data)[: left.pop(0)], at)

    monkeypatch.setattr(os, "pwrite", some)


def test_a_write_that_is_taken_in_parts_is_whole(
    file: StoreFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    _taking(monkeypatch, 3, 0, 1, 2)
    file.pwrite(b"hello!", 8192)
    assert file.pread(9, 8192) == b"hello!"
    assert file.size == 8198


@pytest.mark.parametrize(
    ("counts", "error"), [((), errno.ENOSPC), ((3,), errno.ENOSPC), ((3, 0, 0), errno.EIO)]
)
def test_a_write_without_its_rest_is_the_systems_error(
    file: StoreFile, monkeypatch: pytest.MonkeyPatch, counts: tuple[int, ...], error: int
) -> None:
    _taking(monkeypatch, *counts)
    before = file.size
    with pytest.raises(OSError, match=r"\(write\)") as caught:
        file.pwrite(b"hello", 8192)
    assert (caught.value.errno, caught.value.filename) == (error, str(file.path))
    assert file.size == before


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda file: file.pwrite(b"x", 0), "write"),
        (lambda file: file.pread(1, 0), "read"),
        (lambda file: file.datasync(), "sync"),
        (lambda file: file.allocate(0, 4096), "allocation"),
        (lambda file: file.truncate(1), "truncation"),
        (lambda file: file.view(), "mapping"),
    ],
)
def test_an_error_names_the_file_and_what_was_tried(
    file: StoreFile, call: Callable[[StoreFile], object], what: str
) -> None:
    file.close()
    with pytest.raises(OSError, match=rf"Bad file descriptor \({what}\)") as caught:
        call(file)
    assert (caught.value.errno, caught.value.filename) == (errno.EBADF, str(file.path))


def test_a_closed_file_leaves_its_views(file: StoreFile) -> None:
    before = open_count()
    file.pwrite(b"kept", 0)
    view = file.view()
    file.close()
    assert bytes(view[:4]) == b"kept"
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.pread(1, 0)
    del view
    assert open_count() == before - 1, "the mapping's own descriptor went with its last view"


def test_folders_are_made_with_their_parents(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "c"
    FILES.make_folder(folder)
    FILES.make_folder(folder)
    assert folder.is_dir()
    assert oct(folder.stat().st_mode & 0o777) == "0o750"
    (folder / "z").touch()
    (folder / "a").touch()
    assert FILES.list(folder) == ["a", "z"]
    FILES.unlink(folder / "a")
    assert FILES.list(folder) == ["z"]
    FILES.sync_folder(folder)
    assert FILES.free_bytes(folder) > 0


def test_added_folders_are_told_to_whoever_syncs_them(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert FILES.add_folder(folder) == (tmp_path / "a", tmp_path)
    assert FILES.add_folder(folder) == ()
    assert FILES.add_folder(tmp_path / "a" / "c") == (tmp_path / "a",)
    assert oct(folder.stat().st_mode & 0o777) == "0o750"


def test_files_are_not_for_everybody(tmp_path: Path) -> None:
    FILES.open(tmp_path / "file", create=True).close()
    FILES.replace(tmp_path / "table", b"x", backup=False)
    for name in ("file", "table"):
        assert (tmp_path / name).stat().st_mode & 0o007 == 0


# Replacing


def test_replace_keeps_the_one_before_as_bak(tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    for number in range(4):
        FILES.replace(path, b"version %d" % number, backup=True)
        assert path.read_bytes() == b"version %d" % number
    assert path.with_name("topics.json.bak").read_bytes() == b"version 2"
    assert FILES.list(tmp_path) == ["topics.json", "topics.json.bak"]


def test_replace_without_backup_leaves_one_file(tmp_path: Path) -> None:
    for text in (b"one", b"two"):
        FILES.replace(tmp_path / "profile", text, backup=False)
    assert FILES.list(tmp_path) == ["profile"]
    assert FILES.read_all(tmp_path / "profile") == b"two"


def test_leftovers_of_a_crash_are_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    FILES.replace(path, b"old", backup=True)
    (tmp_path / "t.json.tmp").write_bytes(b"a longer half of something that was cut off")
    (tmp_path / "t.json.bak.tmp").write_bytes(b"x")
    FILES.replace(path, b"new", backup=True)
    assert path.read_bytes() == b"new"
    assert FILES.list(tmp_path) == ["t.json", "t.json.bak"]


def test_writes_in_pieces_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data)[:7]))
    FILES.replace(tmp_path / "t", b"0123456789" * 5, backup=False)
    assert (tmp_path / "t").read_bytes() == b"0123456789" * 5


@pytest.mark.parametrize("call", ["open", "fsync"])
def test_a_folder_whose_name_is_not_synced_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "refused")

    with monkeypatch.context() as broken:
        broken.setattr(os, call, fail)
        with pytest.raises(OSError, match="refused"):
            FILES.make_folder(tmp_path / "a" / "b")
    assert os.listdir(tmp_path) == []
    FILES.make_folder(tmp_path / "a" / "b")
    assert FILES.list(tmp_path / "a") == ["b"]


@pytest.mark.parametrize("call", ["write", "fdatasync", "link", "replace"])
def test_a_replace_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "t.json"
    for text in (b"oldest", b"old"):
        FILES.replace(path, text, backup=True)
    before = open_count()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as broken:
        broken.setattr(os, call, fail)
        broken.setattr("skylarkmq.common.files._datasync", os.fdatasync)
        with pytest.raises(OSError) as caught:
            FILES.replace(path, b"new", backup=True)
    assert is_no_space(caught.value)
    assert caught.value.filename is not None or call in ("link", "replace")
    assert path.read_bytes() == b"old"
    assert path.with_name("t.json.bak").exists()
    assert open_count() == before
    FILES.replace(path, b"new", backup=True)
    assert path.read_bytes() == b"new"
    assert path.with_name("t.json.bak").read_bytes() == b"old"


def test_the_order_in_which_a_replace_becomes_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FILES.replace(tmp_path / "t", b"old", backup=True)
    steps: list[str] = []
    for name in ("write", "link", "replace", "fsync"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *args, _name=name, _real=real: (steps.append(_name), _real(*args))[1]
        )
    monkeypatch.setattr(
        "skylarkmq.common.files._datasync", lambda fd: (steps.append("fdatasync"), os.fdatasync(fd))
    )
    FILES.replace(tmp_path / "t", b"new", backup=True)
    assert steps == ["write", "fdatasync", "link", "replace", "replace", "fsync"]


def test_a_folder_that_can_not_be_synced_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "broken")

    before = open_count()
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"broken \(sync\)") as caught:
        FILES.sync_folder(tmp_path)
    assert caught.value.filename == str(tmp_path)
    assert open_count() == before


# Locks


def test_a_lock_excludes_another_process_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = FILES.lock(path)
    assert lock is not None
    run = subprocess.run(
        [sys.executable, "-c", LOCKER, path], capture_output=True, text=True, input=""
    )
    assert run.returncode != 0, run.stdout
    lock.release()
    assert path.read_bytes() == b"lock", "as RocketMQ writes it; a read drops a lock that is held"
    run = subprocess.run(
        [sys.executable, "-c", LOCKER, path], capture_output=True, text=True, input=""
    )
    assert run.stdout == "locked\n", run.stderr


def test_a_lock_that_another_process_holds_is_not_had(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    before = open_count()
    with subprocess.Popen(
        [sys.executable, "-c", LOCKER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        assert FILES.lock(path) is None
        other.communicate()
    assert open_count() == before
    lock = FILES.lock(path)
    assert lock is not None, "it went with its process"
    lock.release()


@pytest.mark.parametrize(("module", "call"), [(os, "fsync"), (os, "pwrite"), (fcntl, "lockf")])
def test_a_disk_that_knows_no_locks_is_not_another_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: object, call: str
) -> None:
    before = open_count()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(module, call, fail)
    with pytest.raises(OSError, match="no locks") as caught:
        FILES.lock(tmp_path / "lock")
    assert caught.value.filename == str(tmp_path / "lock")
    assert open_count() == before
