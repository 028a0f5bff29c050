"""The crash disk behaves as a disk while the machine runs, and loses what it may when it stops."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from skylarkmq.common.files import DiskFiles, Files
from tests.support.crash_disk import CrashDisk
from tests.support.crash_states import CrashState, Keep, Names
from tests.support.workers import ManualWorker

RNG = Random(1)
NOTHING = CrashState(Keep.NONE, names=Keep.NONE)
EVERYTHING = CrashState(Keep.ALL, names=Keep.ALL)


@pytest.fixture(params=["real", "crash"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Files, Path]]:
    crash = CrashDisk()
    yield (DiskFiles(), tmp_path) if request.param == "real" else (crash, crash.root)


def test_files_are_read_as_they_were_written(disk: tuple[Files, Path]) -> None:
    files, root = disk
    files.make_folder(root / "a" / "b")
    file = files.open(root / "a" / "b" / "file", create=True)
    file.allocate(0, 10_000)
    view = file.view()
    file.pwrite(b"hello", 4094)
    assert bytes(view[4094:4099]) == b"hello"
    assert (view.readonly, len(view), file.size) == (True, 10_000, 10_000)
    file.pwrite(b"more", 10_000)
    file.pwrite(b"seen", 0)
    assert (bytes(view[:4]), len(view), file.size) == (b"seen", 10_000, 10_004)
    assert file.pread(8, 9_998) == b"\0\0more"
    del view
    file.truncate(4_096)
    file.allocate(4_096, 100)
    assert file.pread(200, 4_090) == b"\0" * 4 + b"he" + bytes(100)
    file.datasync()
    file.close()
    assert files.size(root / "a" / "b" / "file") == 4_196
    assert files.list(root) == ["a"]
    assert files.list(root / "a" / "b") == ["file"]
    assert files.list(root / "missing") == []
    with pytest.raises(FileNotFoundError):
        files.open(root / "missing")
    with pytest.raises(OSError):
        file.pread(1, 0)


def test_a_replaced_file_keeps_its_predecessor(disk: tuple[Files, Path]) -> None:
    files, root = disk
    for text in (b"one", b"two", b"three"):
        files.replace(root / "table", text, backup=True)
    assert files.read_all(root / "table") == b"three"
    assert files.read_all(root / "table.bak") == b"two"
    assert files.list(root) == ["table", "table.bak"]
    files.unlink(root / "table")
    assert not files.exists(root / "table")


def test_the_lock_excludes_and_passes_on(disk: tuple[Files, Path]) -> None:
    files, root = disk
    lock = files.lock(root / "lock")
    assert lock is not None
    assert files.read_all(root / "lock") == b"lock"
    lock.release()
    again = files.lock(root / "lock")
    assert again is not None
    again.release()


def _written(disk: CrashDisk, *, named: bool = True) -> Path:
    """A file of three pages, its first one synced."""
    path = disk.root / "file"
    file = disk.open(path, create=True)
    file.allocate(0, 3 * 4096)
    file.pwrite(b"a" * 4096, 0)
    file.datasync()
    if named:
        disk.sync_folder(disk.root)
    file.pwrite(b"b" * 4096, 4096)
    file.pwrite(b"c" * 4096, 8192)
    return path


def _pages_left(disk: CrashDisk, state: CrashState) -> str:
    data = next(iter(disk.crash(state, Random(3)).contents().values()))
    return "".join(chr(data[page * 4096]) for page in range(3)).replace("\0", "-")


@pytest.mark.parametrize(
    ("state", "left"),
    [
        (NOTHING, "a--"),
        (EVERYTHING, "abc"),
        (CrashState(Keep.KILL), "abc"),
        (CrashState(Keep.ONE, 1), "a-c"),
        (CrashState(Keep.ALL_BUT_ONE, 1), "ab-"),
        (CrashState(Keep.PREFIX, 1), "ab-"),
    ],
)
def test_a_power_cut_keeps_what_was_synced_and_the_chosen_pages(
    state: CrashState, left: str
) -> None:
    disk = CrashDisk()
    _written(disk)
    assert _pages_left(disk, state) == left


def test_a_torn_page_mixes_old_and_new_by_sectors() -> None:
    disk = CrashDisk()
    _written(disk)
    state = CrashState(Keep.ALL, torn=True)
    images = [disk.crash(state, Random(seed)).contents()["file"] for seed in range(20)]
    pages = {image[4096:8192] for image in images}
    assert len(pages) > 5
    assert all(len(set(page[at : at + 512])) == 1 for page in pages for at in range(0, 4096, 512))
    assert {image[:4096] for image in images} == {b"a" * 4096}


def test_a_half_filled_page_may_be_what_arrives() -> None:
    disk = CrashDisk()
    file = disk.open(disk.root / "file", create=True)
    file.allocate(0, 4096)
    file.datasync()
    disk.sync_folder(disk.root)
    for number in range(4):
        file.pwrite(b"%d" % number, number)
    state = CrashState(Keep.ALL, torn=True)
    heads = {disk.crash(state, Random(seed)).contents()["file"][:4] for seed in range(60)}
    assert {b"0\0\0\0", b"01\0\0", b"0123"} <= heads


def test_names_need_a_sync_of_the_folder() -> None:
    disk = CrashDisk(Names.STRICT)
    path = _written(disk, named=False)
    assert disk.crash(NOTHING, RNG).contents() == {}
    assert _pages_left(disk, EVERYTHING) == "abc"
    disk.sync_folder(disk.root)
    disk.unlink(path)
    assert list(disk.crash(NOTHING, RNG).contents()) == ["file"]
    assert disk.crash(EVERYTHING, RNG).contents() == {}


def test_strict_names_are_lost_on_their_own_and_ordered_ones_from_the_end() -> None:
    def left(mode: Names) -> set[tuple[str, ...]]:
        disk = CrashDisk(mode)
        for name in "abc":
            disk.open(disk.root / name, create=True)
        state = CrashState(Keep.NONE)
        return {tuple(disk.crash(state, Random(seed)).contents()) for seed in range(60)}

    assert len(left(Names.STRICT)) == 8
    assert left(Names.ORDERED) == {(), ("a",), ("a", "b"), ("a", "b", "c")}


def test_a_replace_is_whole_at_each_of_its_steps() -> None:
    for mode in Names:
        disk = CrashDisk(mode)
        snapshots: list[CrashDisk] = []
        disk.replace(disk.root / "table", b"old", backup=True)
        disk.before_step = lambda _op, _path: snapshots.append(disk.snapshot())  # noqa: B023
        disk.replace(disk.root / "table", b"new", backup=True)
        seen: set[bytes] = set()
        for snapshot in snapshots:
            for seed, state in enumerate(snapshot.crash_states(Random(1), 20)):
                after = snapshot.crash(state, Random(seed))
                seen.add(after.read_all(after.root / "table"))
        assert seen == {b"old", b"new"}
        disk.before_step = None
        assert disk.crash(NOTHING, RNG).contents()["table"] == b"new"


def test_what_a_failed_sync_gave_up_stays_lost() -> None:
    disk = CrashDisk()
    path = _written(disk)
    file = disk.open(path)
    disk.fail("datasync", at=1, error=errno.EIO)
    with pytest.raises(OSError):
        file.datasync()
    file.datasync()  # says that all is well
    assert _pages_left(disk, EVERYTHING) == "a--"
    assert _pages_left(disk, CrashState(Keep.KILL)) == "abc"


def test_faults_hit_the_call_that_was_named() -> None:
    disk = CrashDisk()
    file = disk.open(disk.root / "file", create=True)
    disk.fail("pwrite", at=2, short=3)
    file.pwrite(b"12345", 0)
    with pytest.raises(OSError):
        file.pwrite(b"67890", 5)
    assert file.pread(10, 0) == b"12345678"
    disk.faults.clear()
    disk.fail("pwrite", path="other")
    file.pwrite(b"x", 0)


def test_a_disk_with_little_room_takes_what_fits_of_a_write() -> None:
    disk = CrashDisk(free=2 * 4096)
    file = disk.open(disk.root / "file", create=True)
    file.pwrite(b"a" * 100, 0)
    with pytest.raises(OSError):
        file.pwrite(b"b" * 9000, 100)
    assert disk.free == 0
    assert file.pread(10_000, 0) == b"a" * 100 + b"b" * (2 * 4096 - 100)
    with pytest.raises(OSError) as caught:
        file.pwrite(b"c", 2 * 4096)
    assert caught.value.errno == errno.ENOSPC
    file.pwrite(b"d", 0)  # its block is there


def test_a_slow_call_lets_others_have_their_turn() -> None:
    disk = CrashDisk()
    file = disk.open(disk.root / "file", create=True)
    disk.sync_folder(disk.root)
    disk.faults.slow_down(
        "datasync", at=2, path="file", meanwhile=lambda: file.pwrite(b"c" * 4096, 8192)
    )
    file.pwrite(b"a" * 4096, 0)
    file.datasync()
    file.pwrite(b"b" * 4096, 4096)
    file.datasync()
    assert file.pread(1, 8192) == b"c"
    left = disk.crash(NOTHING, RNG).contents()["file"]
    assert left == b"a" * 4096 + b"b" * 4096, "a sync covers what was there when it began"
    file.datasync()
    assert len(disk.crash(NOTHING, RNG).contents()["file"]) == 3 * 4096


def test_a_job_that_lingers_is_not_run_twice_nor_followed() -> None:
    worker, ran = ManualWorker(), list[str]()

    def job(name: str) -> Callable[[], None]:
        return lambda: ran.append(f"{name} {worker.step()} {worker.idle}")

    worker.submit(job("first"), lambda *_: None)
    worker.submit(job("second"), lambda *_: None)
    worker.run_all()
    assert ran == ["first False False", "second False False"]
    assert worker.idle


def test_a_full_disk_refuses_and_space_comes_back_with_an_unlink() -> None:
    disk = CrashDisk(free=3 * 4096)
    first = disk.open(disk.root / "first", create=True)
    first.allocate(0, 2 * 4096)
    second = disk.open(disk.root / "second", create=True)
    with pytest.raises(OSError) as caught:
        second.allocate(0, 2 * 4096)
    assert caught.value.errno == errno.ENOSPC
    assert disk.free_bytes(disk.root) == 0
    disk.unlink(disk.root / "first")
    disk.unlink(disk.root / "second")
    assert disk.free_bytes(disk.root) == 3 * 4096
    first.pwrite(b"a file without a name can still be written", 0)


def test_a_file_may_not_shrink_under_a_view() -> None:
    disk = CrashDisk()
    file = disk.open(_written(disk))
    view = file.view()
    with pytest.raises(AssertionError, match="SIGBUS"):
        file.truncate(0)
    del view
    file.truncate(0)


@pytest.mark.parametrize("synced", [0, 1, 2])
def test_an_added_folder_lasts_once_its_parents_are_synced(synced: int) -> None:
    disk = CrashDisk()
    folder = disk.root / "a" / "b"
    parents = disk.add_folder(folder)
    assert parents == (disk.root / "a", disk.root)
    assert disk.add_folder(folder) == ()
    file = disk.open(folder / "file", create=True)
    file.pwrite(b"kept", 0)
    file.datasync()
    disk.sync_folder(folder)
    for parent in parents[:synced]:
        disk.sync_folder(parent)
    after = disk.crash(NOTHING, RNG)
    assert after.exists(after.root / "a" / "b" / "file") == (synced == 2)
    assert after.exists(after.root / "a") == (synced == 2)
    assert disk.crash(EVERYTHING, RNG).contents() == {"a/b/file": b"kept"}
