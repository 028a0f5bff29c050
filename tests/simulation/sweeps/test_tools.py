"""The tools for stopped stores when the n-th call of the system fails, for every n; real files.

A tool that was refused something says so and ends with its code for that. It takes a file that it
could not open for no damage, harms nothing, and does its work when it is called again. One that
says that it has done it has done it.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
from click.testing import Result

from skylarkmq.common import read_only_files
from skylarkmq.tools.store import backup as backups
from tests.support.disk_store import DiskStore
from tests.support.fault_sweep import (
    AMOUNTS,
    NO_BLOCKS,
    NO_DESCRIPTOR,
    NO_MAPPING,
    NO_ROOM,
    PART,
    PART_ALONE,
    SYNC_FAILS,
    WRITE_FAILS,
    Case,
    Strike,
    cases,
    sweep,
)
from tests.support.os_faults import OsFaults
from tests.support.store_samples import SIZES
from tests.tools.store.support import Sample, run, write_sample

DONE, REFUSED = 0, 2
SAMPLE = (1, 6)
LATER_MS = 4_000_000_000_000
_numbers = itertools.count()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """A small store: look only."""
    return write_sample(tmp_path_factory.mktemp("kept") / "store", 5)


class Bench:
    """Folders for one call of a tool after the other."""

    def __init__(self, kept: Sample, folder: Path) -> None:
        self.kept = kept
        self._folder = folder

    def store(self) -> Path:
        """A store of its own."""
        root = self.new()
        shutil.copytree(self.kept.root, root)
        return root

    def new(self) -> Path:
        """A folder that is not there yet."""
        return self._folder / f"{next(_numbers)}"

    def run(self, strike: Strike, *words: object) -> Result:
        """Run a tool while a call of the system fails."""
        with pytest.MonkeyPatch.context() as patch:
            system = OsFaults(patch, self._folder, read_only_files, backups)
            strike.arm(system.faults)
            result = run(*words, "--json")
        assert result.exit_code in (DONE, REFUSED), f"exit code {result.exit_code}: {_said(result)}"
        if result.exit_code == REFUSED:
            assert _said(result).startswith("Error: "), _said(result)
        return result


@pytest.fixture
def bench(kept: Sample, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(kept, tmp_path_factory.mktemp("bench"))


def _said(result: Result) -> str:
    return result.output.strip().splitlines()[-1] if result.output else ""


def _tree(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name not in ("lock", "replica")
    }


def _is_marked(root: Path) -> bool:
    """Whether a folder that a tool has left looks half done; one that does not must be whole."""
    return (root / "abort").exists() or not (root / "commitlog").exists()


def _check_sound(root: Path) -> None:
    result = run("verify", root, "--json")
    assert result.exit_code == DONE, f"not sound: {result.stdout}"


def _messages(root: Path) -> int:
    """How many messages a broker's store reads there, whatever the last stop was like."""
    disk = DiskStore(root, SIZES, LATER_MS)
    disk.start()
    count = sum(map(len, disk.read().values()))
    disk.stop()
    return count


@AMOUNTS
@cases(Case(NO_DESCRIPTOR, ""))
@pytest.mark.parametrize("words", [("verify",), ("info",), ("cat",), ("dump", "commitlog")])
def test_one_that_looks_finds_no_damage_where_it_was_refused(
    bench: Bench, words: tuple[str, ...], case: Case, whole: bool
) -> None:
    root = bench.store()
    command, *more = words
    more = [str(root / "commitlog" / bench.kept.log(0).name)] if more else []
    expected = run(command, root, *more, "--json").stdout

    def live(strike: Strike) -> None:
        result = bench.run(strike, command, root, *more)
        assert result.exit_code == REFUSED or result.stdout == expected, "it says another thing"

    sweep(case, [live], whole=whole, sample=SAMPLE)


@AMOUNTS
@cases(
    Case(NO_DESCRIPTOR, ""),
    Case(NO_MAPPING, ""),
    Case(PART, ""),
    Case(PART_ALONE, ""),
    Case(NO_ROOM, ""),
    Case(NO_BLOCKS, ""),
    Case(SYNC_FAILS, ""),
    Case(WRITE_FAILS, ""),
)
def test_a_salvage(bench: Bench, case: Case, whole: bool) -> None:
    def live(strike: Strike) -> None:
        root, new = bench.store(), bench.new()
        result = bench.run(strike, "salvage", root, new)
        assert _tree(root) == _tree(bench.kept.root), "the source was changed"
        if result.exit_code == REFUSED and _is_marked(new):
            new = bench.new()
            assert run("salvage", root, new, "--json").exit_code == DONE
        _check_sound(new)
        assert _messages(new) == _messages(root), "messages are missing"

    sweep(case, [live], whole=whole, sample=SAMPLE)


@AMOUNTS
@cases(
    Case(NO_DESCRIPTOR, ""),
    Case(NO_MAPPING, ""),
    Case(PART, ""),
    Case(NO_ROOM, ""),
    Case(SYNC_FAILS, ""),
    Case(WRITE_FAILS, ""),
)
def test_a_truncation(bench: Bench, case: Case, whole: bool) -> None:
    end = bench.kept.messages[len(bench.kept.messages) // 2]["physical_offset"]
    whole_root = bench.store()
    assert run("truncate", whole_root, "--to", end, "--write").exit_code == DONE
    count = _messages(whole_root)

    def live(strike: Strike) -> None:
        root = bench.store()
        result = bench.run(strike, "truncate", root, "--to", end, "--write")
        if result.exit_code == REFUSED:
            again = bench.new()
            shutil.copytree(root, again)
            assert _messages(again) >= count, "messages below the new end are lost"
            assert run("truncate", root, "--to", end, "--write").exit_code == DONE
        assert _messages(root) == count

    sweep(case, [live], whole=whole, sample=SAMPLE)


@AMOUNTS
@cases(
    Case(NO_DESCRIPTOR, ""),
    Case(PART, ""),
    Case(PART_ALONE, ""),
    Case(NO_ROOM, ""),
    Case(SYNC_FAILS, ""),
    Case(WRITE_FAILS, ""),
)
def test_a_backup(bench: Bench, case: Case, whole: bool) -> None:
    root = bench.store()

    def live(strike: Strike) -> None:
        target, new = bench.new(), bench.new()
        result = bench.run(strike, "backup", root, target)
        if result.exit_code == REFUSED:
            early = bench.new()
            if run("restore", target, early, "--json").exit_code == DONE:
                assert _tree(early) == _tree(root), "half of it was restored"
            assert run("backup", root, target, "--json").exit_code == DONE
        restored = run("restore", target, new, "--json")
        assert restored.exit_code == DONE, f"the backup is damaged: {_said(restored)}"
        assert _tree(new) == _tree(bench.kept.root), "another thing was restored"

    sweep(case, [live], whole=whole, sample=SAMPLE)


@AMOUNTS
@cases(
    Case(NO_DESCRIPTOR, ""),
    Case(PART, "commitlog"),
    Case(PART_ALONE, ""),
    Case(NO_ROOM, ""),
    Case(SYNC_FAILS, ""),
    Case(WRITE_FAILS, ""),
)
def test_a_restore(bench: Bench, case: Case, whole: bool) -> None:
    target = bench.new()
    assert run("backup", bench.kept.root, target, "--json").exit_code == DONE

    def live(strike: Strike) -> None:
        new = bench.new()
        result = bench.run(strike, "restore", target, new)
        if result.exit_code == REFUSED and _is_marked(new):
            new = bench.new()
            assert run("restore", target, new, "--json").exit_code == DONE
        assert _tree(new) == _tree(bench.kept.root), "another thing was restored"

    sweep(case, [live], whole=whole, sample=SAMPLE)
