"""Files of an archive that are gone, cut, or of nobody; and a writer at work meanwhile."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from skylarkmq.spark import archive_table
from skylarkmq.spark.archive import commits as archive_commits
from skylarkmq.spark.archive.commits import ArchiveWriter, TableState
from skylarkmq.spark.archive.compaction import compact, groups
from skylarkmq.spark.durable_folder import DurableFolder
from skylarkmq.spark.jobs.audit import CheckedFiles, FileFault, check_files
from tests.spark.support.archives import append, open_writer, run_of


def filled(table: Path) -> list[Path]:
    """Three files of topic T and one of U."""
    with open_writer(table) as writer:
        for number in range(3):
            append(writer, f"{number}", [run_of("T", 0, number * 5, number * 5 + 5)])
        append(writer, "u", [run_of("U", 0, 0, 2)])
    return [Path(file.path) for file in archive_table.files(table)]


def faults(found: CheckedFiles) -> list[tuple[str, str, int | None]]:
    return [(fault.kind, Path(fault.name).name, fault.rows) for fault in found.faults]


def test_sound(tmp_path: Path) -> None:
    paths = filled(tmp_path)
    (paths[0].parent / "_SUCCESS").touch()
    (paths[0].parent / ".hidden.parquet").touch()
    (paths[0].parent / "part.parquet.crc").touch()
    found = check_files(tmp_path, ("T",))
    assert ([Path(file.path) for file in found.sound], found.faults) == (paths[:3], [])
    assert (found.tables(), list(found.notes())) == ((), [])


def test_every_kind_of_fault(tmp_path: Path) -> None:
    paths = filled(tmp_path)
    paths[0].unlink()
    os.truncate(paths[1], 100)
    shutil.copy(paths[2], paths[2].with_name("copy.parquet"))
    shutil.copy(paths[2], tmp_path / "loose.parquet")
    shutil.copy(paths[3], paths[3].with_name("of-another-topic.parquet"))
    found = check_files(tmp_path, ("T",))
    assert [Path(file.path) for file in found.sound] == [paths[2]]
    assert faults(found) == [
        ("gone", paths[0].name, 5),
        ("stray", "loose.parquet", None),
        ("stray", "copy.parquet", None),
        ("unreadable", paths[1].name, 5),
    ]
    (table,) = found.tables()
    assert table.rows[0] == ("gone", "topic=T/date=2026-01-01", paths[0].name, 5)
    assert len(list(found.notes())) == 2


def test_a_writer_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction takes files away after they were listed, and a batch comes: nothing is wrong."""
    filled(tmp_path)
    whereabouts = archive_table.whereabouts

    def meanwhile(path: Path) -> object:
        with open_writer(tmp_path) as writer:
            compact(writer, groups(writer.state))
            append(writer, "more", [run_of("T", 0, 15, 20)])
        return whereabouts(path)

    monkeypatch.setattr(archive_table, "whereabouts", meanwhile)
    found = check_files(tmp_path, ("T",))
    assert (len(found.sound), found.faults) == (2, [])


def test_files_move_between_commits_and_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that has read the commits before a compaction, and the disk after it."""
    filled(tmp_path)
    load = archive_commits.load
    calls: list[ArchiveWriter] = []

    def slow(table: DurableFolder) -> TableState:
        state = load(table)
        if not calls:
            calls.append(writer := open_writer(tmp_path))
            with monkeypatch.context() as patch:
                patch.setattr(archive_commits, "load", load)
                with writer:
                    compact(writer, groups(writer.state))
        return state

    monkeypatch.setattr(archive_commits, "load", slow)
    files = archive_table.files(tmp_path, topics=["T"])
    assert [file.rows for file in files] == [15]
    assert check_files(tmp_path, ("T",)).faults == list[FileFault]()
