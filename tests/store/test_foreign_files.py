"""Files that do not belong into a store, or are not whole: named, and left as they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skylarkmq.common.errors import CorruptFileError, StoreError
from skylarkmq.protocol.record import decode_messages
from skylarkmq.store.errors import StoreProfileError
from skylarkmq.store.results import GetMessageStatus
from tests.store.support import LOG_SIZE, inner
from tests.support.disk_store import DiskStore

SIZES = {
    "mappedFileSizeCommitLog": LOG_SIZE,
    "mappedFileSizeConsumeQueue": 2000,
    "maxMessageSize": 32768,
    "maxHashSlotNum": 100,
    "maxIndexNum": 500,
}
COUNT = 150


@pytest.fixture(params=["clean", "killed"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store with two log files and two queue files, stopped or killed."""
    store = DiskStore(tmp_path / "store", SIZES)
    store.start()
    for number in range(COUNT):
        message = inner("T", 0, b"%04d" % number + bytes(1000), properties=b"KEYS\x01k")
        store.store.put_message(message, lambda _: None)
    for _ in range(2):
        store.clock.advance(61)
        store.workers.run_all()
    if request.param == "clean":
        store.stop()
    else:
        store.store._lock.release()
    return tmp_path / "store"


def start(root: Path) -> DiskStore:
    store = DiskStore(root, SIZES)
    store.start()
    return store


def numbers(store: DiskStore) -> list[int]:
    found: list[int] = []
    while (result := store.store.get_message("T", 0, len(found), 32)).status is (
        GetMessageStatus.FOUND
    ):
        found += [int(each.body[:4]) for each in decode_messages(b"".join(result.views))]
    return found


def tree(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name not in ("lock", "abort")
    }


def refusal(root: Path) -> str:
    """The one line of a start that is refused; nothing is changed by it."""
    before, was_unclean = tree(root), (root / "abort").exists()
    with pytest.raises(StoreError) as caught:
        start(root)
    assert tree(root) == before
    assert (root / "abort").exists() == was_unclean
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("commitlog/notes.txt", "is not a log file; move it"),
        ("commitlog/0000000000000013107", "is not a log file; move it"),
        ("consumequeue/T/0/notes.txt", "is not a queue file; move it"),
        ("consumequeue/T/zero/file", "is not a queue; move it"),
        ("consumequeue/T/notes.txt", "is not a queue; move it"),
    ],
)
def test_a_foreign_file_where_ours_are_counted_is_refused_by_name(
    root: Path, name: str, why: str
) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("hello")
    text = refusal(root)
    assert why in text
    assert str(path if "zero" not in name else path.parent) in text
    path.unlink()
    if "zero" in name:
        path.parent.rmdir()
    assert numbers(start(root)) == list(range(COUNT))


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "timerwheel",
        "timerlog/00000000000000000000",
        "config/notes.txt",
        "config/timermetrics",
        "skylarkmq/notes.txt",
        "index/notes.txt",
        "compaction/x/y",
        "commitlog/lost+found/x",
        "consumequeue/notes.txt",
    ],
)
def test_a_file_that_nobody_here_knows_is_left_alone(root: Path, name: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("hello")
    store = start(root)
    assert numbers(store) == list(range(COUNT))
    store.stop()
    assert path.read_text() == "hello"
    assert numbers(start(root)) == list(range(COUNT))


@pytest.mark.parametrize("index", [0, -1])
@pytest.mark.parametrize("size", [100, LOG_SIZE // 2, LOG_SIZE - 1, LOG_SIZE + 1])
def test_a_log_file_of_another_size_is_refused_with_the_key(
    root: Path, index: int, size: int
) -> None:
    paths = [path for path in sorted((root / "commitlog").iterdir()) if any(path.read_bytes())]
    os.truncate(paths[index], size)
    text = refusal(root)
    assert f"{paths[index]} has {size} bytes, mappedFileSizeCommitLog is {LOG_SIZE}" in text


def test_a_log_file_that_lost_all_its_bytes_is_missed(root: Path) -> None:
    path = [path for path in sorted((root / "commitlog").iterdir()) if any(path.read_bytes())][-1]
    for other in (root / "commitlog").iterdir():
        if other.name > path.name:
            other.unlink()  # the one made ahead
    os.truncate(path, 0)
    before = tree(root / "commitlog")
    with pytest.raises(CorruptFileError, match="the file is missing, but") as caught:
        start(root)
    assert caught.value.path == path
    assert tree(root / "commitlog") == before


@pytest.mark.parametrize("size", [0, 100, 2020])
def test_a_queue_file_of_another_size(root: Path, size: int) -> None:
    clean = not (root / "abort").exists()
    path = root / "consumequeue" / "T" / "0" / f"{0:020d}"
    os.truncate(path, size)
    if clean or size > 2000:
        assert f"{path} has {size} bytes, mappedFileSizeConsumeQueue is 2000" in refusal(root)
    else:
        assert numbers(start(root)) == list(range(COUNT))


@pytest.mark.parametrize("name", ["checkpoint", "skylarkmq/recovery-point"])
@pytest.mark.parametrize("size", [0, 10, 30, 5000])
def test_marks_that_are_not_whole_make_a_start_longer_at_most(
    root: Path, name: str, size: int
) -> None:
    os.truncate(root / name, size)
    assert numbers(start(root)) == list(range(COUNT))


@pytest.mark.parametrize("size", [0, 5, 40])
def test_a_profile_that_is_not_whole_is_refused_with_its_place(root: Path, size: int) -> None:
    path = root / "skylarkmq" / "profile"
    os.truncate(path, size)
    assert f"{path} at byte " in refusal(root)


@pytest.mark.parametrize("key", list(SIZES))
def test_other_sizes_than_those_of_the_store_are_refused_with_the_cure(
    root: Path, key: str
) -> None:
    if key == "maxMessageSize":
        return  # no file depends on it
    before = tree(root)
    with pytest.raises(StoreProfileError, match=f"start with --set {key}={SIZES[key]}"):
        DiskStore(root, {**SIZES, key: SIZES[key] * 2}).start()
    assert tree(root) == before


def test_other_sizes_are_refused_without_a_profile_too(root: Path) -> None:
    (root / "skylarkmq" / "profile").unlink()
    keys = ["mappedFileSizeCommitLog"]
    if not (root / "abort").exists():  # a crash leaves short files of the other kinds
        keys += ["mappedFileSizeConsumeQueue", "maxHashSlotNum"]
    for key in keys:
        with pytest.raises((StoreProfileError, CorruptFileError), match=key):
            DiskStore(root, {**SIZES, key: SIZES[key] * 2}).start()
    assert numbers(start(root)) == list(range(COUNT))


def test_a_folder_in_the_place_of_a_file_is_named(root: Path) -> None:
    path = root / "commitlog" / f"{LOG_SIZE * 9:020d}"
    path.mkdir()
    with pytest.raises((StoreError, OSError), match=str(path)):
        start(root)
