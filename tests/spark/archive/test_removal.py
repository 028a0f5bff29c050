"""Messages that leave an archive: what goes, what stays, what is left, and who interferes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skylarkmq.spark.archive.delta_log import DataFile, DeltaLog
from skylarkmq.spark.archive.removal import erase, expire, expired, key_where, vacuum
from skylarkmq.spark.archive.spans import Spans
from skylarkmq.spark.archive.state import ArchiveError
from skylarkmq.spark.archive.table import ArchiveTable
from skylarkmq.spark.offsets import QueueKey
from tests.spark.support.archives import (
    DAY_MS,
    T0_MS,
    Place,
    append,
    commit,
    committed,
    here,
    open_table,
    reports_of,
    row,
    rows_of,
    run_of,
)
from tests.support.amounts import examples

Q = QueueKey("T", "broker-a", 0)
RETRY = QueueKey("%RETRY%g", "broker-a", 1)


def filled(path: Path) -> ArchiveTable:
    """Three days of two topics."""
    table = open_table(path)
    for day in range(3):
        at = T0_MS + day * DAY_MS
        low = day * 10
        append(
            table,
            run_of("T", 0, low, low + 10, stored_ms=at) + run_of("T", 1, low, low + 10),
            run_of("%RETRY%g", 1, low, low + 10, stored_ms=at),
        )
    return table


def without(path: Path, *gone: Place) -> list[Place]:
    return sorted(set(committed(path)) - set(gone))


def test_expire(tmp_path: Path) -> None:
    table = filled(tmp_path)
    gone = expire(table, before="2026-01-02", topics=["T"])
    assert gone == Spans.of([(Q, 0, 10), (Q._replace(queue_id=1), 0, 30)])
    assert expire(table, before="2026-01-02", topics=["T"]) == Spans()
    gone = expire(table, topics=["%RETRY%g"])
    assert gone == Spans.of([(RETRY, 0, 30)])
    assert committed(tmp_path) == [("T", "broker-a", 0, n) for n in range(10, 30)]
    again = open_table(tmp_path)
    assert again.state.present() == Spans.of([(Q, 10, 30)])
    assert (again.state.next_offset(RETRY), again.state.next_offset(Q)) == (30, 30)
    assert expire(again, before="2026-01-03") == Spans.of([(Q, 10, 20)])
    # What comes again, as from a queue that was not there for a while, stays away.
    commit(again, reports_of(again, [run_of("%RETRY%g", 1, 0, 32)], known=again.state.spans))
    assert again.state.present() == Spans.of([(Q, 20, 30), (RETRY, 30, 32)])
    assert len(committed(tmp_path)) == 12


def test_which_files_expire() -> None:
    """One without a date, as another engine may write it, is of no date before another."""
    files = [
        DataFile(topic + date, topic, date, 1, 1, 0, 0, 0, 0)
        for topic in ("T", "U")
        for date in ("2026-01-01", "2026-01-02", "")
    ]

    def names(**bounds: Any) -> list[str]:
        return [file.name for file in expired(files, **bounds)]

    assert names(before="2026-01-02") == ["T2026-01-01", "U2026-01-01"]
    assert names(before="2026-01-02", topics=["U"]) == ["U2026-01-01"]
    assert names(topics=["T"]) == ["T2026-01-01", "T2026-01-02", "T"]


def test_erase(tmp_path: Path) -> None:
    table = filled(tmp_path)
    untouched = {file for file in table.files() if file.first_offset != 0}
    seen: list[tuple[int, int]] = []
    gone = erase(table, key_where(["k3", "nobody", "k"]), on_file=lambda *n: seen.append(n))
    assert gone == Spans.of(
        [(Q, 3, 4), (Q._replace(queue_id=1), 3, 4), (RETRY, 3, 4)]
    )  # the key k3, and not k, k30 or "k3 q0" as a whole
    assert seen == [(1, 2), (2, 2)]
    left = [p for p in committed(tmp_path) if p[3] == 3]
    assert (left, len(committed(tmp_path))) == ([], 87)
    files = table.files()
    assert untouched <= set(files)
    assert sum(file.rows or 0 for file in files) == 87
    rows = {(r["topic"], r["queueId"], r["queueOffset"]): r for r in rows_of(tmp_path).to_pylist()}
    for key, found in rows.items():
        day = key[2] // 10 if key[:2] != ("T", 1) else 0
        expected = row((key[0], "broker-a", *key[1:]), T0_MS + day * DAY_MS)
        assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("where", "offsets"),
    [
        ("topic = '%RETRY%g' AND queueOffset BETWEEN 3 AND 4", [3, 4]),
        ("topic = '%RETRY%g' AND storeTimestamp >= '2026-01-03T00:00:00Z'", range(20, 30)),
        ("topic = '%RETRY%g' AND properties['KEYS'] = 'k7'", [7]),
        ("body = '%RETRY%g/broker-a/1/5'", [5]),
    ],
)
def test_conditions(tmp_path: Path, where: str, offsets: Any) -> None:
    gone = erase(filled(tmp_path), where)
    assert {o for _, low, high in gone.items() for o in range(low, high)} == set(offsets)
    assert gone.queues() == [RETRY]


@pytest.mark.parametrize(
    "where",
    [
        "nosuch = 1",
        "queueOffset = 3 AN topic = 'T'",  # the parser would take the first half alone
        "1 = 1; DROP TABLE x",
        "1 = 1 --",
        "",
        "queueOffset",
        "keys = 'it",
    ],
)
def test_no_condition(tmp_path: Path, where: str) -> None:
    table = filled(tmp_path)
    with pytest.raises(ArchiveError, match="condition"):
        erase(table, where)
    assert len(committed(tmp_path)) == 90


def test_an_erased_message_is_nowhere(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    secret = {"body": b"Alice lives in Wonderland Street", "keys": "alice@example.org it's"}
    rows = run_of("T", 0, 0, 3)
    rows[1] |= secret | {"tags": "alice", "msgId": "alice-1", "bornHost": "10.9.8.7:1"}
    append(table, rows)
    DeltaTable(str(tmp_path)).optimize.z_order(["queueId"])
    append(table, run_of("T", 0, 3, 4))
    DeltaTable(str(tmp_path)).optimize.compact()
    table.reload()
    assert erase(table, key_where(["it's"])).count() == 1
    held = [path for path in tmp_path.rglob("*.parquet") if b"alice" in path.read_bytes()]
    assert len(held) == 3  # for older versions of the table
    removed = vacuum(table, retention_hours=0)
    assert len(removed) >= 3
    for path in tmp_path.rglob("*"):
        if path.is_file():
            for word in (b"alice", b"Alice", b"Wonderland", b"10.9.8.7", b"it's"):
                assert word not in path.read_bytes(), path
    assert [p[3] for p in committed(tmp_path)] == [0, 2, 3]
    # Time travel: the old versions are told of, and what they had is not to be had.
    with pytest.raises(FileNotFoundError):
        rows_of(tmp_path, version=2)
    append(table, run_of("T", 0, 4, 5))
    assert len(committed(tmp_path)) == 4


def test_a_vacuum_leaves_what_a_running_job_writes(tmp_path: Path) -> None:
    table = filled(tmp_path)
    job = open_table(tmp_path)
    reports = reports_of(job, [run_of("T", 0, 30, 33)])
    erase(table, "queueOffset = 1")
    vacuum(table, retention_hours=0)
    commit(job, reports)
    assert len(committed(tmp_path)) == 90


def test_what_killed_tasks_have_written(tmp_path: Path) -> None:
    table = filled(tmp_path)
    old, new = (reports_of(table, [run_of("T", 0, 30, 33)])[0]["files"][0]["path"] for _ in "12")
    long_ago = (tmp_path / old).stat().st_mtime - 7 * 3600
    os.utime(tmp_path / old, (long_ago, long_ago))
    stale = open_table(tmp_path)
    append(table, run_of("T", 0, 30, 33))
    with pytest.raises(ArchiveError, match="younger than 6 hours"):
        vacuum(stale, retention_hours=0, full=True)
    assert vacuum(stale, retention_hours=6, full=True) == [old]
    assert (tmp_path / new).exists()
    assert len(committed(tmp_path)) == 93


def interfering(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], times: int = 1
) -> list[int]:
    """Let others act just before a commit is written."""
    original = DeltaLog._write
    count: list[int] = []

    def first(log: DeltaLog, *arguments: Any) -> None:
        if len(count) < times:
            count.append(1)
            with monkeypatch.context() as patch:
                patch.setattr(DeltaLog, "_write", original)
                act()
        original(log, *arguments)

    monkeypatch.setattr(DeltaLog, "_write", first)
    return count


@pytest.mark.parametrize("what", ["erase", "expire"])
def test_an_optimize_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It has put other files in the place of those that were to go: nothing may be there twice."""
    table = filled(tmp_path)
    for number in range(30, 34):
        append(table, run_of("T", 0, number, number + 1))
    everything = committed(tmp_path)
    optimize = DeltaTable(str(tmp_path)).optimize.compact
    interfering(monkeypatch, optimize)
    if what == "erase":
        gone = erase(table, "topic = 'T' AND queueId = 0 AND queueOffset IN (2, 31)")
        assert gone == Spans.of([(Q, 2, 3), (Q, 31, 32)])
    else:
        gone = expire(table, before="2026-01-02", topics=["T"])
        assert gone.count() == 10 + 30 + 4
    left = [p for p in everything if (QueueKey(*p[:3]), p[3]) not in gone]
    assert committed(tmp_path) == left


def test_an_archive_job_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written anew counts, and what came meanwhile stays."""
    table = filled(tmp_path)
    job = open_table(tmp_path)
    looked: list[int] = []
    numbers = iter(range(30, 40))

    def archive() -> None:
        at = next(numbers)
        job.reload()
        append(job, run_of("T", 0, at, at + 1))

    came = interfering(monkeypatch, archive, times=3)
    gone = erase(table, key_where(["k2", "k31"]), on_file=lambda at, of: looked.append(at))
    assert (len(came), looked) == (3, [1, 2])
    assert gone.count() == 3
    assert len(committed(tmp_path)) == 90 - 3 + 3
    assert open_table(tmp_path).state.next_offset(Q) == 33


def test_two_erase_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both take the same file; the second one looks at what the first one has left of it."""
    table = filled(tmp_path)
    other = open_table(tmp_path)
    interfering(monkeypatch, lambda: erase(other, "queueOffset = 4"))
    erase(table, "queueOffset = 5")
    assert {p[3] for p in committed(tmp_path)} == set(range(30)) - {4, 5}
    assert len(committed(tmp_path)) == 84
    assert open_table(tmp_path).state.gone == Spans.of(
        (key, 4, 6) for key in (Q, Q._replace(queue_id=1), RETRY)
    )


def test_a_whole_file_is_erased(tmp_path: Path) -> None:
    table = filled(tmp_path)
    files = len(table.files())
    erase(table, "topic = '%RETRY%g' AND date = '2026-01-02'")
    assert len(table.files()) == files - 1
    assert len(committed(tmp_path)) == 80
    assert len(list(tmp_path.rglob("part-*.parquet"))) == files


def test_of_a_version_that_is_not_the_newest(tmp_path: Path) -> None:
    """A table opened long ago works on what is there now."""
    filled(tmp_path)
    old = ArchiveTable.open(here(tmp_path))
    append(open_table(tmp_path), run_of("T", 0, 30, 31))
    assert erase(old, "topic = 'T' AND queueId = 0 AND queueOffset = 2").count() == 1
    assert len(committed(tmp_path)) == 90


@examples(4, 25)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    runs=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 6), st.booleans()), max_size=8, unique=True
    ),
    chosen=st.sets(st.integers(0, 50)),
)
def test_any_rows_against_sets(
    tmp_path_factory: pytest.TempPathFactory,
    runs: list[tuple[int, int, bool]],
    chosen: set[int],
) -> None:
    """Stretches of seven of three queues, some joined by another engine; any offsets go."""
    path = tmp_path_factory.mktemp("table")
    table = open_table(path)
    there: set[Place] = set()
    for queue, stretch, optimized in runs:
        rows = run_of("T", queue, stretch * 7, stretch * 7 + 7)
        places = {("T", "broker-a", queue, r["queueOffset"]) for r in rows}
        if places & there:
            continue
        append(table, rows)
        there |= places
        if optimized:
            DeltaTable(str(path)).optimize.z_order(["storeSize"])
    table.reload()
    text = ",".join(map(str, [-1, *chosen]))
    gone = erase(table, f"queueOffset IN ({text})")
    left = {place for place in there if place[3] not in chosen}
    assert committed(path) == sorted(left)
    assert gone.count() == len(there) - len(left)
    assert open_table(path).state.present().count() == len(left)
