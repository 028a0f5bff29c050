"""The crash disk fails as a real file does: the same calls, the same faults of the system below.

On the real side `common/files.py` runs as it is; only the system's calls are replaced. So a change
of what the product makes of a write that was taken in part must show on both sides alike.
"""

from __future__ import annotations

import errno
from collections import Counter
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from skylarkmq.common.files import DiskFiles, Files, StoreFile
from tests.support.crash_disk import CrashDisk
from tests.support.crash_explorer import seeds
from tests.support.crash_faults import Faults
from tests.support.failing_files import FailingFiles
from tests.support.os_faults import OsFaults

REFUSALS = {
    "open": (errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    "map": (errno.ENOMEM, errno.ENFILE),
    "pwrite": (errno.ENOSPC, errno.EDQUOT, errno.EIO),
    "datasync": (errno.EIO,),
    "allocate": (errno.ENOSPC,),
    "truncate": (errno.EIO,),
}


class Side(NamedTuple):
    """A disk, and what happened on it."""

    files: Files
    root: Path
    faults: Faults
    said: list[str]

    def do(self, what: str, call: object) -> None:
        """Note what a call returned or raised."""
        try:
            result = call()  # type: ignore[operator]
        except OSError as error:
            self.said.append(f"{what}: {errno.errorcode[error.errno or 0]}")
        else:
            self.said.append(f"{what}: {result!r}")


class Script:
    """The same random calls for each side; each keeps its own open files."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        rng = Random(seed)
        self._plan: list[tuple[str, str, int, int, bytes]] = []
        for _ in range(40):
            name = rng.choice(("table", "log", "queue"))
            op = rng.choice(("pwrite", "pwrite", "pwrite", "replace", "open", "view", "list"))
            if rng.random() < 0.3:
                op = rng.choice(("datasync", "allocate", "truncate", "fail", "fail"))
            size = rng.choice((1, 7, 4096, 9000))
            data = rng.randbytes(size)
            self._plan.append((op, name, rng.randrange(9000), size, data))

    def run(self, side: Side) -> None:
        """Do it all on one side."""
        opened: dict[str, StoreFile] = {}
        rng = Random(self._seed + 1)
        for op, name, position, size, data in self._plan:
            path = side.root / name
            if op == "fail":
                self._fail(side.faults, rng)
                continue
            if op == "replace":
                side.do(op, lambda: side.files.replace(path, data, backup=False))  # noqa: B023
                if name in opened:
                    opened.pop(name).close()  # another file has the name now
                continue
            if op == "list":
                side.do(op, lambda: side.files.list(side.root))
                continue
            if op == "open" or name not in opened:
                side.do("open", lambda: _opened(side.files, path, opened))  # noqa: B023
            if name in opened and op != "open":
                side.do(f"{op} {name}", _call(opened[name], op, position, size, data))
                side.said.append(f"{name} has {opened[name].size}")
        side.faults.clear()
        for file in opened.values():
            file.close()

    @staticmethod
    def _fail(faults: Faults, rng: Random) -> None:
        op = rng.choice(("open", "map", "pwrite", "pwrite", "pwrite", "datasync", "allocate"))
        short = rng.choice((None, None, 1, 500, 4096, 8000)) if op == "pwrite" else None
        at, times = rng.randrange(1, 4), rng.randrange(1, 3)
        faults.add(op, at=at, times=times, error=rng.choice(REFUSALS[op]), path="", short=short)


def _opened(files: Files, path: Path, opened: dict[str, StoreFile]) -> int:
    file = files.open(path, create=True)
    if path.name in opened:
        opened.pop(path.name).close()
    opened[path.name] = file
    return file.size


def _call(file: StoreFile, op: str, position: int, size: int, data: bytes) -> object:
    def view() -> str:
        return bytes(file.view()).hex() if file.size else ""

    calls = {
        "pwrite": lambda: file.pwrite(data, position),
        "datasync": file.datasync,
        "allocate": lambda: file.allocate(position, size),
        "truncate": lambda: file.truncate(position),
        "view": view,
    }
    return calls[op]


def _contents(side: Side) -> dict[str, bytes]:
    return {name: side.files.read_all(side.root / name) for name in side.files.list(side.root)}


@pytest.mark.parametrize("count", [40, pytest.param(2000, marks=pytest.mark.fault)])
def test_both_say_the_same_and_hold_the_same(count: int, tmp_path: Path) -> None:
    power: Counter[str] = Counter()
    for seed in seeds(count):
        crash = CrashDisk()
        (tmp_path / f"{seed}").mkdir()
        with pytest.MonkeyPatch.context() as patch:
            faults = OsFaults(patch, tmp_path).faults
            real = Side(DiskFiles(), tmp_path / f"{seed}", faults, [])
            memory = Side(crash, crash.root, crash.faults, [])
            script = Script(seed)
            for side in (real, memory):
                script.run(side)
            assert real.said == memory.said, f"replay with SKYLARKMQ_SEED={seed}"
            assert _contents(real) == _contents(memory), f"replay with SKYLARKMQ_SEED={seed}"
        power.update(word.rsplit(" ", 1)[-1] for word in real.said)
        power["raised"] += real.faults.raised
    if count > 1:
        assert min(power[name] for name in ("EMFILE", "ENOMEM", "ENOSPC", "EIO")) > 5, power


@pytest.fixture(params=["real", "failing", "crash"])
def side(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Side:
    """Each disk that can fail on order."""
    if request.param == "real":
        return Side(DiskFiles(), tmp_path, OsFaults(monkeypatch, tmp_path).faults, [])
    if request.param == "failing":
        failing = FailingFiles()
        return Side(failing, tmp_path, failing._faults, [])
    crash = CrashDisk()
    return Side(crash, crash.root, crash.faults, [])


def test_a_write_is_taken_in_part_and_the_next_call_of_the_system_says_why(side: Side) -> None:
    file = side.files.open(side.root / "file", create=True)
    side.faults.add("pwrite", at=2, times=1, error=errno.ENOSPC, path="", short=3)
    file.pwrite(b"12345", 0)
    with pytest.raises(OSError) as caught:
        file.pwrite(b"67890", 5)
    # The product calls a short count a failure of the disk. Where it asks the system again, it
    # hears the reason; either way nothing is taken for written.
    assert caught.value.errno in (errno.EIO, errno.ENOSPC)
    asks_again = caught.value.errno == errno.ENOSPC
    assert side.files.read_all(file.path) == b"12345678"
    assert file.size == 5
    if not asks_again:
        with pytest.raises(OSError) as caught:
            file.pwrite(b"90", 8)
    assert caught.value.errno == errno.ENOSPC
    file.pwrite(b"90", 8)
    assert file.pread(20, 0) == b"1234567890"


def test_a_table_that_is_taken_in_part_is_written_on_until_the_system_refuses(side: Side) -> None:
    table = side.root / "table"
    side.files.replace(table, b"old", backup=True)
    side.faults.add("pwrite", at=1, times=0, error=errno.ENOSPC, path="table", short=2)
    if not isinstance(side.files, FailingFiles):  # which has no hand in these writes
        side.files.replace(table, b"a part is no error", backup=True)
        assert side.files.read_all(table) == b"a part is no error"
        side.faults.add("pwrite", at=1, times=1, error=errno.ENOSPC, path="table", short=2)
        with pytest.raises(OSError) as caught:
            side.files.replace(table, b"new", backup=True)
        assert caught.value.errno == errno.ENOSPC
        assert side.files.read_all(table) == b"a part is no error"


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_every_call_that_needs_a_descriptor_or_a_mapping_may_be_refused(
    side: Side, error: int
) -> None:
    files, root = side.files, side.root
    file = files.open(root / "file", create=True)
    file.pwrite(b"text", 0)
    refused = {
        "open": [
            lambda: files.open(root / "file"),
            lambda: files.open(root / "other", create=True),
            lambda: files.list(root),
            lambda: files.sync_folder(root),
            lambda: files.read_all(root / "file"),
            lambda: files.replace(root / "table", b"text", backup=True),
            lambda: files.lock_folder(root),
        ],
        "map": [file.view, file.writable_view],
    }
    for op, calls in refused.items():
        for call in calls:
            side.faults.add(op, at=1, times=1, error=error, path="", short=None)
            if isinstance(files, FailingFiles) and call is refused["open"][-1]:
                side.faults.clear()  # locks are taken before a test orders anything
                continue
            with pytest.raises(OSError) as caught:
                call()
            assert caught.value.errno == error
    assert files.list(root) == ["file"], "nothing was made"
    assert bytes(file.view()) == b"text"
