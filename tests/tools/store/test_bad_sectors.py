"""A disk with a bad sector: the rest is read, and nothing is mapped, which would kill."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from skylarkmq.common.files import DiskFile
from tests.support.store_samples import SIZES
from tests.tools.store.support import Sample, run, run_json, run_rows

BLOCK = 4096
SpoilBlock = Callable[[Path, int], None]


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> SpoilBlock:
    """Let the disk refuse to read a block of a file."""
    bad: dict[Path, set[int]] = {}
    pread, view, read_bytes = DiskFile.pread, DiskFile.view, Path.read_bytes

    def refuse(path: Path, begin: int, end: int) -> None:
        first = begin - begin % BLOCK
        if not bad.get(path, set()).isdisjoint(range(first, end, BLOCK)):
            raise OSError(errno.EIO, "Input/output error", str(path))

    def failing_pread(file: DiskFile, size: int, position: int) -> bytes:
        refuse(file.path, position, min(position + size, file.size))
        return pread(file, size, position)

    def failing_read_bytes(path: Path) -> bytes:
        refuse(path, 0, path.stat().st_size)
        return read_bytes(path)

    def no_view(file: DiskFile) -> memoryview:
        if file.path in bad:
            raise AssertionError(f"{file.path} was mapped")
        return view(file)

    monkeypatch.setattr(DiskFile, "pread", failing_pread)
    monkeypatch.setattr(DiskFile, "view", no_view)
    monkeypatch.setattr(Path, "read_bytes", failing_read_bytes)

    def add(path: Path, block: int) -> None:
        bad.setdefault(path, set()).add(block)

    return add


def check_told(sample: Sample, path: Path, block: int) -> set[str]:
    result = run_json("verify", sample.root, exit_code=1)
    (found,) = [one for one in result["findings"] if one["kind"] == "file.unreadable"]
    assert (found["file"], found["position"]) == (str(path), block)
    return set(result["kinds"])


def test_of_the_log(sample: Sample, tmp_path: Path, spoil: SpoilBlock) -> None:
    path, block = sample.log(1), 2 * BLOCK
    spoil(path, block)
    assert "log.damage" in check_told(sample, path, block)
    begin = int(path.name) + block
    ends = [one["physical_offset"] for one in sample.messages[1:]] + [1 << 62]
    kept = [
        one
        for one, end in zip(sample.messages, ends, strict=True)
        if one["physical_offset"] >= begin + BLOCK or end <= begin
    ]
    assert 0 < len(kept) < len(sample.messages)
    rows = run_rows("cat", sample.root, exit_code=1)
    shown = [row["commit_log_offset"] for row in rows if "topic" in row]
    assert shown == [one["physical_offset"] for one in kept]
    assert "corrupt" in {row["kind"] for row in run_rows("dump", sample.root, path)}
    saved = run_json("salvage", sample.root, tmp_path / "new", exit_code=1)
    assert saved["records"] == len(kept)
    assert run_json("verify", tmp_path / "new")["sound"]


def test_at_the_end_of_the_log(sample: Sample, spoil: SpoilBlock) -> None:
    """Where nothing was written it is no message."""
    path, block = sample.log(-1), SIZES["mappedFileSizeCommitLog"] - BLOCK
    spoil(path, block)
    assert check_told(sample, path, block) == {"file.unreadable", "log.leftover"}


@pytest.mark.parametrize("kind", ["queue", "index", "table"])
def test_of_what_is_made_of_the_log(
    sample: Sample, tmp_path: Path, spoil: SpoilBlock, kind: str
) -> None:
    paths = {
        "queue": sample.unit(sample.of("Plain", 0))[0],
        "index": min((sample.root / "index").iterdir()),
        "table": sample.root / "config" / "topics.json",
    }
    path = paths[kind]
    spoil(path, 0)
    check_told(sample, path, 0)
    saved = run_json("salvage", sample.root, tmp_path / "new", exit_code=int(kind == "table"))
    assert saved["records"] == len(sample.messages)
    assert run_json("verify", tmp_path / "new")["sound"]
    assert run("info", sample.root).exit_code == 0
    rows = run("dump", sample.root, path)
    assert rows.exit_code in (0, 2), rows.output
