"""A task's part of an archive: what it writes, what it leaves out, what it refuses."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skylarkmq.spark.archive import durability
from skylarkmq.spark.archive import writer as archive_writer
from skylarkmq.spark.archive.spans import OverlapError, Spans
from skylarkmq.spark.archive.state import ArchiveError
from skylarkmq.spark.archive.writer import STATISTICS, TaskWriter, WritePlan, write_batches
from skylarkmq.spark.offsets import QueueKey
from tests.spark.support.archives import DAY_MS, T0_MS, batch, here, row, run_of

Q = QueueKey("T", "broker-a", 0)
HOUR_MS = 3_600_000


def plan(folder: Path, **more: Any) -> WritePlan:
    return WritePlan(here(folder), **more)


def read(folder: Path, report: dict[str, Any]) -> dict[str, list[int]]:
    """Offsets by file, by folder."""
    found: dict[str, list[int]] = {}
    for file in report["files"]:
        path = folder / file["path"]
        table = pq.ParquetFile(path).read()
        assert (path.stat().st_size, table.num_rows) == (file["size"], file["rows"])
        assert not {"topic", "date"} & set(table.column_names)
        offsets = table["queueOffset"].to_pylist()
        stats = file["stats"]
        assert stats["numRecords"] == file["rows"]
        assert (stats["minValues"]["queueOffset"], stats["maxValues"]["queueOffset"]) == (
            min(offsets), max(offsets),
        )  # fmt: skip
        folder_name = file["path"].rpartition("/")[0]
        assert folder_name.endswith(f"/date={file['date']}")
        found.setdefault(folder_name, []).extend(offsets)
    return found


def test_by_topic_and_date(tmp_path: Path) -> None:
    rows = run_of("T", 0, 0, 2, stored_ms=T0_MS + DAY_MS - 1) + run_of("%DLQ%g", 1, 9, 10)
    rows += run_of("T", 0, 2, 4, stored_ms=T0_MS + DAY_MS)
    rows += run_of("T", 0, 4, 5, stored_ms=T0_MS)  # the broker's clock went back
    report = write_batches(plan(tmp_path), [batch(rows[:3]), batch([]), batch(rows[3:])])
    assert json.loads(json.dumps(report)) == report
    assert read(tmp_path, report) == {
        "topic=T/date=2026-01-01": [0, 1, 4],
        "topic=T/date=2026-01-02": [2, 3],
        "topic=%25DLQ%25g/date=2026-01-01": [9],
    }
    assert sorted((f["topic"], f["date"]) for f in report["files"]) == [
        ("%DLQ%g", "2026-01-01"), ("T", "2026-01-01"), ("T", "2026-01-02"),
    ]  # fmt: skip
    spans = Spans.from_json(report["spans"])
    assert spans == Spans.of([(Q, 0, 5), (QueueKey("%DLQ%g", "broker-a", 1), 9, 10)])


def test_what_the_log_is_told(tmp_path: Path) -> None:
    rows = run_of("T", 3, 7, 9, stored_ms=T0_MS + 5)
    rows[1]["reconsumeTimes"] = None
    (file,) = write_batches(plan(tmp_path), [batch(rows)])["files"]
    stats = file["stats"]
    assert tuple(stats["minValues"]) == tuple(stats["nullCount"]) == STATISTICS
    assert stats["minValues"]["storeTimestamp"] == "2026-01-01T00:00:00.005Z"
    assert stats["minValues"]["brokerName"] == "broker-a"
    assert (stats["maxValues"]["queueId"], stats["maxValues"]["physicalOffset"]) == (3, 800)
    assert stats["nullCount"] == dict.fromkeys(STATISTICS, 0) | {"reconsumeTimes": 1}


def test_nothing(tmp_path: Path) -> None:
    report = write_batches(plan(tmp_path), [])
    assert (report["files"], report["spans"], report["repeated"]) == ([], {}, 0)
    assert not list(tmp_path.iterdir())


def test_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file ends when it is large enough; few are open at once; row groups are bounded."""
    monkeypatch.setattr(archive_writer, "GROUP_BYTES", 10_000)
    monkeypatch.setattr(archive_writer, "BUFFER_BYTES", 30_000)
    monkeypatch.setattr(archive_writer, "OPEN_MAX", 3)
    rows = [
        row(("T", "broker-a", 0, n), T0_MS + n % 5 * DAY_MS, bytes([n % 251]) * 2_000)
        for n in range(100)
    ]
    with TaskWriter(plan(tmp_path, file_bytes=20_000, compression="none")) as writer:
        for place in range(0, 100, 10):
            writer.add(batch(rows[place : place + 10]))
            assert len(writer._open) <= 3
            assert sum(file.buffered for file in writer._open.values()) <= 30_000
        report = writer.close()
    found = read(tmp_path, report)
    assert sorted(chain(*found.values())) == list(range(100))
    assert all(file["size"] < 45_000 for file in report["files"])
    assert len(report["files"]) > 10


def test_files_are_synced_before_they_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(durability, "sync_path", synced.append)
    table = tmp_path / "table"
    table.mkdir()
    report = write_batches(plan(table), [batch(run_of("T", 0, 0, 2))])
    (file,) = report["files"]
    folder = table / "topic=T" / "date=2026-01-01"
    assert synced == [table / file["path"], folder, folder.parent, table]


def test_known_rows_are_left_out(tmp_path: Path) -> None:
    known = Spans.of([(Q, 0, 3), (Q, 5, 6), (Q, 9, 40)])
    told = plan(tmp_path, known=known.to_json())
    report = write_batches(told, [batch(run_of("T", 0, 1, 8)), batch(run_of("T", 0, 8, 12))])
    assert read(tmp_path, report) == {"topic=T/date=2026-01-01": [3, 4, 6, 7, 8]}
    assert report["repeated"] == 6
    assert Spans.from_json(report["spans"]) == Spans.of([(Q, 3, 5), (Q, 6, 9)])


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=40,
)
@given(
    known=st.sets(st.integers(0, 30)),
    runs=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), max_size=4, unique=True),
    cut=st.integers(1, 9),
)
def test_any_rows_against_sets(
    tmp_path_factory: pytest.TempPathFactory,
    known: set[int],
    runs: list[tuple[int, int]],
    cut: int,
) -> None:
    """Rows of queues 0 to 2 in stretches of seven, in batches of any size."""
    folder = tmp_path_factory.mktemp("task")
    spans = Spans.of((Q, offset, offset + 1) for offset in known)
    told = plan(folder, known=spans.to_json())
    starts = {(queue, start - start % 7) for queue, start in runs}
    rows = [one for queue, start in sorted(starts) for one in run_of("T", queue, start, start + 7)]
    batches = [batch(rows[place : place + cut]) for place in range(0, len(rows), cut)]
    report = write_batches(told, batches)
    expected = [
        r["queueOffset"] for r in rows if r["queueId"] != 0 or r["queueOffset"] not in known
    ]
    assert list(chain(*read(folder, report).values())) == expected
    assert report["repeated"] == len(rows) - len(expected)
    assert Spans.from_json(report["spans"]).count() == len(expected)


def test_twice_in_a_task(tmp_path: Path) -> None:
    with pytest.raises(OverlapError, match=r"offsets \[2, 3\) are there already"):
        write_batches(plan(tmp_path), [batch(run_of("T", 0, 0, 3)), batch(run_of("T", 0, 2, 4))])


@pytest.mark.parametrize("name", ["storeTimestamp", "topic", "queueOffset"])
def test_a_row_without_its_place(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArchiveError, match="a row "):
        write_batches(plan(tmp_path), [batch([row((*Q, 0)) | {name: None}])])


def test_from_another_time_zone(tmp_path: Path) -> None:
    """Spark gives times in the session's zone; dates are those of UTC."""
    given = batch(run_of("T", 0, 0, 1, stored_ms=T0_MS + HOUR_MS))
    place = given.schema.get_field_index("storeTimestamp")
    local = given.column(place).cast(pa.timestamp("us", tz="America/New_York"))
    report = write_batches(plan(tmp_path), [given.set_column(place, "storeTimestamp", local)])
    assert read(tmp_path, report) == {"topic=T/date=2026-01-01": [0]}
