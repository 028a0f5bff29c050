"""An archive's commits: what is refused, what readers see, races, other engines, lost metadata."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from skylarkmq.spark.archive import delta_log
from skylarkmq.spark.archive.delta_log import INFO, ConflictError, DeltaLog
from skylarkmq.spark.archive.spans import OverlapError, Spans
from skylarkmq.spark.archive.state import ArchiveError
from skylarkmq.spark.archive.table import APP, ArchiveTable
from skylarkmq.spark.offsets import QueueKey
from tests.spark.support.archives import (
    DAY_MS,
    T0_MS,
    append,
    commit,
    committed,
    here,
    open_table,
    reports_of,
    rows_of,
    run_of,
)
from tests.support.amounts import slow

Q = QueueKey("T", "broker-a", 0)
RETRY = QueueKey("%RETRY%g", "broker-a", 0)


def filled(path: Path, count: int = 3) -> ArchiveTable:
    """A table of `count` commits of five messages each, a day each."""
    table = open_table(path)
    for number in range(count):
        at = T0_MS + number * DAY_MS
        append(table, run_of("T", 0, number * 5, number * 5 + 5, stored_ms=at))
    return table


def test_files_with_what_readers_pass_over_by(tmp_path: Path) -> None:
    table = filled(tmp_path)
    append(table, run_of("%RETRY%g", 0, 7, 9))
    files = table.files()
    told = [(f.topic, f.date, f.rows, f.first_ms, f.first_offset, f.last_offset) for f in files]
    assert sorted(told, reverse=True) == [
        ("T", "2026-01-03", 5, T0_MS + 2 * DAY_MS, 10, 14),
        ("T", "2026-01-02", 5, T0_MS + DAY_MS, 5, 9),
        ("T", "2026-01-01", 5, T0_MS, 0, 4),
        ("%RETRY%g", "2026-01-01", 2, T0_MS, 7, 8),
    ]  # fmt: skip
    assert all((tmp_path / f.name).stat().st_size == f.size for f in files)
    assert files[0].name.startswith("topic=%25RETRY%25g/date=2026-01-01/part-")
    delta = DeltaTable(str(tmp_path))
    assert delta.transaction_version(APP) == 4
    logged = "".join(path.read_text() for path in (tmp_path / "_delta_log").glob("*.json"))
    for private in ("k3", "127.0.0.1"):  # what a user wrote, and addresses, must not outlive a row
        assert private not in logged


def test_an_offset_comes_once(tmp_path: Path) -> None:
    table = filled(tmp_path, 1)
    reports = reports_of(table, [run_of("T", 0, 5, 7)])
    with pytest.raises(OverlapError):  # two attempts of one task must not both count
        commit(table, [*reports, *reports_of(table, [run_of("T", 0, 6, 7)])])
    commit(table, reports)
    again = ArchiveTable.open(here(tmp_path))
    for writer in (table, again):
        with pytest.raises(OverlapError, match=r"offsets \[5, 7\) are there already"):
            commit(writer, reports)
    assert len(committed(tmp_path)) == 7


def test_where_a_run_goes_on(tmp_path: Path) -> None:
    other = Q._replace(queue_id=1)
    table = open_table(tmp_path)
    table.begin({Q: 3, other: 8})
    append(table, run_of("T", 0, 3, 5))
    table = open_table(tmp_path)
    table.begin({Q: 0, other: 99})  # known already: changes nothing
    assert (table.state.next_offset(Q), table.state.next_offset(other)) == (5, 8)
    assert table.state.next_offset(Q._replace(queue_id=2)) is None
    assert table.state.number == 2


def test_two_writers_race(tmp_path: Path) -> None:
    """Both have loaded the same version; nothing is lost or doubled, whoever comes first."""
    filled(tmp_path, 1)
    one, two = open_table(tmp_path), open_table(tmp_path)
    same = [run_of("T", 0, 5, 8)]
    mine, yours = reports_of(one, same), reports_of(two, same)
    commit(one, mine)
    with pytest.raises(OverlapError, match=r"\[5, 8\)"):
        commit(two, yours)
    assert two.state.spans == one.state.spans  # it has seen what came first
    commit(two, reports_of(two, [run_of("T", 0, 5, 9)], known=two.state.spans))
    append(one, run_of("T", 1, 0, 2))  # after it, without a conflict to resolve
    assert committed(tmp_path) == [("T", "broker-a", 0, n) for n in range(9)] + [
        ("T", "broker-a", 1, n) for n in range(2)
    ]
    assert DeltaTable(str(tmp_path)).transaction_version(APP) == 4


@pytest.mark.parametrize("lost", [False, True], ids=["told", "answer lost"])
def test_another_comes_right_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """Between a commit and the look at what it has made: the next one must know of it."""
    table, other = filled(tmp_path, 1), open_table(tmp_path)
    write = DeltaLog._write

    def and_another(log: DeltaLog, *arguments: Any) -> None:
        write(log, *arguments)
        with monkeypatch.context() as patch:
            patch.setattr(DeltaLog, "_write", write)
            other.reload()
            append(other, run_of("T", 0, 7, 9))
        if lost:
            raise OSError("connection reset")

    reports = reports_of(table, [run_of("T", 0, 5, 7)])
    with monkeypatch.context() as patch:
        patch.setattr(DeltaLog, "_write", and_another)
        commit(table, reports)
    assert table.state.next_offset(Q) == 9
    with pytest.raises(OverlapError, match=r"\[8, 9\)"):
        append(table, run_of("T", 0, 8, 10))
    append(table, run_of("T", 0, 9, 10))
    assert len(set(committed(tmp_path))) == len(committed(tmp_path)) == 10
    assert open_table(tmp_path).state.number == table.state.number == 4


def test_two_make_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[ArchiveTable] = []
    original = DeltaTable.create

    def first_another(*arguments: Any, **more: Any) -> DeltaTable:
        with monkeypatch.context() as patch:
            patch.setattr(DeltaTable, "create", original)
            opened.append(open_table(tmp_path))
        return original(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create", first_another)
        table = open_table(tmp_path)
    append(opened[0], run_of("T", 0, 0, 2))
    append(table, run_of("T", 0, 2, 4))
    assert len(committed(tmp_path)) == 4


@pytest.mark.parametrize("made", [False, True], ids=["not made", "made"])
def test_the_answer_to_a_commit_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    table = filled(tmp_path, 1)
    original = DeltaLog._write

    def lost(log: DeltaLog, *arguments: Any) -> None:
        if made:
            original(log, *arguments)
        raise OSError("connection reset")

    reports = reports_of(table, [run_of("T", 0, 5, 7)])
    with monkeypatch.context() as patch:
        patch.setattr(DeltaLog, "_write", lost)
        if made:
            commit(table, reports)
        else:
            with pytest.raises(OSError, match="reset"):
                commit(table, reports)
            patch.undo()
            commit(table, reports)
    append(table, run_of("T", 0, 7, 8))
    assert len(committed(tmp_path)) == 8


def test_others_always_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = filled(tmp_path, 1)

    def conflict(*arguments: Any) -> None:
        raise ConflictError("another")

    monkeypatch.setattr(DeltaLog, "commit", conflict)
    with pytest.raises(ArchiveError, match="50 times in a row"):
        append(table, run_of("T", 0, 5, 6))


def test_other_engines_in_between(tmp_path: Path) -> None:
    """OPTIMIZE, Z-order and VACUUM, while a writer has the version before them loaded."""
    table = filled(tmp_path)
    append(table, run_of("%RETRY%g", 0, 0, 3))
    append(table, run_of("%RETRY%g", 0, 3, 4))
    before = committed(tmp_path)
    assert DeltaTable(str(tmp_path)).optimize.compact()["numFilesRemoved"] == 2
    append(table, run_of("T", 0, 15, 16))
    DeltaTable(str(tmp_path)).optimize.z_order(["queueOffset"])
    append(table, run_of("%RETRY%g", 0, 4, 6))
    vacuumed = DeltaTable(str(tmp_path)).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert len(vacuumed) >= 5
    again = open_table(tmp_path)
    assert again.state.spans == table.state.spans
    assert again.state.next_offset(RETRY) == 6
    assert not again.state.note
    came = [("T", "broker-a", 0, 15), *(("%RETRY%g", "broker-a", 0, n) for n in (4, 5))]
    assert committed(tmp_path) == sorted([*before, *came])
    assert all((tmp_path / file.name).exists() for file in again.files())


def without_log(path: Path, versions: range) -> None:
    """A checkpoint, and the log files that it stands for removed, as a clean-up does."""
    DeltaTable(str(path)).create_checkpoint()
    for version in versions:
        (path / "_delta_log" / f"{version:020d}.json").unlink()


def test_log_clean_up_took_our_commits(tmp_path: Path) -> None:
    table = filled(tmp_path)
    table.begin({Q._replace(queue_id=5): 9})
    append(table, run_of("%RETRY%g", 0, 2, 3), run_of("%RETRY%g", 0, 5, 7))
    DeltaTable(str(tmp_path)).optimize.compact()
    without_log(tmp_path, range(6))
    again = ArchiveTable.open(here(tmp_path))
    assert (
        again.state.spans
        == table.state.spans
        == Spans.of([(Q, 0, 15), (RETRY, 2, 3), (RETRY, 5, 7)])
    )
    assert "taken from the rows" in again.state.note
    assert again.state.number == 5
    append(again, run_of("T", 0, 15, 16))
    told = ArchiveTable.open(here(tmp_path))
    assert told.state.number == 6
    assert len(committed(tmp_path)) == 19


def test_a_table_that_was_set_back(tmp_path: Path) -> None:
    """RESTORE takes rows away, and our commits in the log know nothing of it."""
    filled(tmp_path)
    DeltaTable(str(tmp_path)).restore(2)
    table = open_table(tmp_path)
    assert table.state.next_offset(Q) == 10
    append(table, run_of("T", 0, 10, 12))
    again = open_table(tmp_path)
    assert (again.state.next_offset(Q), again.state.note) == (12, "")
    assert len(committed(tmp_path)) == 12


@pytest.mark.parametrize(
    ("queues", "commits", "in_full"), [(4000, 34, [1, 32]), slow(20_000, 70, [1, 32, 64])]
)
def test_many_queues(tmp_path: Path, queues: int, commits: int, in_full: list[int]) -> None:
    """The sum does not stand in every commit, and is told from those that lead to it."""
    table = open_table(tmp_path)
    table.begin({QueueKey("T", f"broker-{n // 500}", n % 500): n for n in range(queues)})
    size = (tmp_path / "_delta_log" / f"{1:020d}.json").stat().st_size
    assert size < 150_000
    for number in range(commits):
        append(table, run_of("T", 0, number * 2, number * 2 + 1))
    sizes = [p.stat().st_size for p in sorted((tmp_path / "_delta_log").glob("0*.json"))]
    large = [version for version, each in enumerate(sizes) if each > 10_000]
    assert large == in_full
    again = open_table(tmp_path)
    assert (again.state.start, again.state.spans) == (table.state.start, table.state.spans)
    assert not again.state.note


@pytest.mark.parametrize("every", [10, slow(delta_log.CHECKPOINT_EVERY)])
def test_checkpoints_and_clean_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    monkeypatch.setattr(delta_log, "CHECKPOINT_EVERY", every)
    table = open_table(tmp_path)
    for number in range(every + 2):
        append(table, run_of("T", 0, number, number + 1))
    log = tmp_path / "_delta_log"
    assert (log / f"{every:020d}.checkpoint.parquet").exists()
    assert len(committed(tmp_path)) == every + 2


def test_what_is_no_archive(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="there is no archive"):
        ArchiveTable.open(here(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious.txt").write_text("x")
    with pytest.raises(ArchiveError, match="is not empty, and no archive"):
        open_table(tmp_path / "full")
    DeltaTable.create(str(tmp_path / "other"), rows_of(make(tmp_path / "a")).schema)
    for opening in (open_table, lambda path: ArchiveTable.open(here(path))):
        with pytest.raises(ArchiveError, match="other is no archive"):
            opening(tmp_path / "other")


def make(path: Path) -> Path:
    open_table(path)
    return path


def test_of_a_later_release(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    newest = tmp_path / "_delta_log" / f"{1:020d}.json"
    text = newest.read_text()
    newest.write_text(text.replace('{\\"v\\":1,', '{\\"v\\":2,', 1))
    with pytest.raises(ArchiveError, match="version 2, this release knows 1"):
        open_table(tmp_path)
    newest.write_text(text.replace('\\"n\\":1', '\\"n\\":\\"x\\"', 1))
    with pytest.raises(ArchiveError, match="is damaged"):
        open_table(tmp_path)


def test_a_log_that_cannot_be_read(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(ArchiveError, match="cannot be read"):
        ArchiveTable.open(here(tmp_path))


def test_time_travel(tmp_path: Path) -> None:
    filled(tmp_path)
    assert rows_of(tmp_path, version=2).num_rows == 10
    log = DeltaLog.open(here(tmp_path), version=1)
    assert log is not None
    assert ArchiveTable(log).state.next_offset(Q) == 5


def test_what_a_commit_says(tmp_path: Path) -> None:
    table = filled(tmp_path, 2)
    info = json.loads(next(iter(table.log.commits()))[INFO])
    assert (info["n"], info["kind"], info["run"], info["whole"]) == (2, "append", table.run, True)
    assert info["spans"] == {"T": {"broker-a": {"0": [[0, 10]]}}}
    assert os.listdir(tmp_path / "_delta_log")
