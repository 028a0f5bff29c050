"""Files of an archive that are gone, cut or exchanged, and what is no part of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from skylarkmq.spark.jobs.audit import CheckedFiles, check_files
from tests.spark.support.archives import append, open_table, reports_of, run_of


def filled(path: Path) -> list[Path]:
    """Four files of topic T and one of U."""
    table = open_table(path)
    for number in range(4):
        append(table, run_of("T", 0, number * 5, number * 5 + 5))
    append(table, run_of("U", 0, 0, 2))
    return [path / file.name for file in sorted(table.files(), key=lambda f: f[1:])]


def faults(found: CheckedFiles) -> list[tuple[str, str, int | None]]:
    return [(fault.kind, Path(fault.name).name, fault.rows) for fault in found.faults]


def test_sound(tmp_path: Path) -> None:
    paths = filled(tmp_path)
    table = open_table(tmp_path)
    # What no version names is no part of the table, for any reader.
    shutil.copy(paths[2], paths[2].with_name("copy.parquet"))
    reports_of(table, [run_of("T", 0, 20, 25)])
    found = check_files(table, ("T",))
    assert {tmp_path / file.name for file in found.sound} == set(paths[:4])
    assert (found.faults, found.rows, found.tables(), list(found.notes())) == ([], 20, (), [])


def test_every_kind_of_fault(tmp_path: Path) -> None:
    paths = filled(tmp_path)
    gone, cut, empty, other = paths[:4]
    gone.unlink()
    os.truncate(cut, 100)
    os.truncate(empty, 0)
    shutil.copy(paths[4], other)  # sound by itself, and not what the log says
    found = check_files(open_table(tmp_path), ("T",))
    assert found.sound == []
    assert sorted(faults(found)) == sorted(
        [("gone", gone.name, 5), *(("unreadable", path.name, 5) for path in (cut, empty, other))]
    )
    (table,) = found.tables()
    assert table.rows[0] == ("gone", "topic=T/date=2026-01-01", gone.name, 5)
    assert len(list(found.notes())) == 1
    assert check_files(open_table(tmp_path), ("U",)).faults == []
