"""The batches of the job `metrics`: killed at every call to the disk, run again, compared."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from prometheus_client import CollectorRegistry

from skylarkmq.spark.durable_folder import DurableFolder
from skylarkmq.spark.jobs import metrics
from skylarkmq.spark.jobs.common import JobError, JobSettings
from skylarkmq.spark.jobs.metrics import Counting, MetricsOptions, WindowMetrics, row_text
from skylarkmq.spark.jobs.windows import Partial, Tally, WindowFiles, WindowKey, WindowRow
from tests.spark.support.archives import open_table

WINDOW_MS = 100
QUERY = "query-1"


def batch(number: int) -> list[Partial]:
    """Batch 2 brings some for the first window, which batch 1 has closed."""
    starts = [0, 100, 200] if number == 2 else [number * 100]
    return [Partial(WindowKey(at, "T", "x"), Tally(messages=number + 1), at + 60) for at in starts]


class Killed(BaseException):
    """The process was killed here."""


class DyingFolder(DurableFolder):
    """Dies before or after the call to the disk with the given number."""

    calls = 0
    last = -1
    after = False

    def _count(self, change: Any, *arguments: Any) -> None:
        kind = type(self)
        kind.calls += 1
        dies = kind.calls == kind.last
        if dies and not kind.after:
            raise Killed
        change(*arguments)
        if dies:
            raise Killed

    def create(self, name: str, data: bytes) -> None:
        self._count(super().create, name, data)

    def rename(self, old: str, new: str) -> None:
        self._count(super().rename, old, new)

    def remove(self, name: str) -> None:
        self._count(super().remove, name)

    def sync_folder(self, name: str) -> None:
        self._count(super().sync_folder, name)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's part: a frame is the number of its batch."""
    monkeypatch.setattr(metrics, "partials", lambda frame, *_, **__: batch(frame))


def job(output: Path, *, query: str = QUERY) -> Iterator[Counting]:
    files = WindowFiles(output)
    files.open()
    try:
        book, query_id = files.load(WINDOW_MS, 0, "store")
        Path(files.checkpoint).mkdir(exist_ok=True)
        (Path(files.checkpoint) / "metadata").write_text(json.dumps({"id": query}))
        options = MetricsOptions(("T",), str(output), window_ms=WINDOW_MS, delay_ms=0)
        counting = Counting(options, JobSettings(), files, book, query_id)
        counting._checkpoint = Path(files.checkpoint)
        yield counting
    finally:
        files.close()


def run(output: Path, numbers: range, *, query: str = QUERY) -> Counting:
    """One process: the batches until it is killed or done."""
    for counting in job(output, query=query):
        for number in numbers:
            counting.take(number, number)  # type: ignore[arg-type]
        return counting
    raise AssertionError


def rows_in(output: Path) -> list[dict[str, Any]]:
    return [
        row for file in sorted(output.glob("*.parquet")) for row in pq.read_table(file).to_pylist()
    ]


@pytest.mark.usefixtures("batches")
def test_all_messages_are_there_once(tmp_path: Path) -> None:
    counting = run(tmp_path, range(5))
    rows = rows_in(tmp_path)
    kinds = Counter[str]()
    for row in rows:
        kinds[row["kind"]] += row["messages"]
    opened = counting.summary().figures["messages_in_open_windows"]
    expected = sum(partial.tally.messages for number in range(5) for partial in batch(number))
    assert kinds["late"] == 3
    assert sum(kinds.values()) + opened == expected


@pytest.mark.usefixtures("batches")
def test_figures_for_prometheus(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    counting = run(tmp_path, range(5))
    registry.register(WindowMetrics(counting._book))
    name = "skylarkmq_spark_window_messages_total"
    assert registry.get_sample_value(name, {"kind": "late"}) == 3
    assert registry.get_sample_value(name, {"kind": "window"}) == sum(
        row["messages"] for row in rows_in(tmp_path) if row["kind"] == "window"
    )
    assert registry.get_sample_value("skylarkmq_spark_windows_open") == 1
    watermark = registry.get_sample_value("skylarkmq_spark_windows_watermark_timestamp_seconds")
    assert watermark == 0.46


@pytest.mark.usefixtures("batches")
@pytest.mark.parametrize("after", [False, True])
def test_killed_anywhere_the_result_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)  # the disk outlives a killed process
    run(tmp_path / "whole", range(5))
    expected = rows_in(tmp_path / "whole")
    monkeypatch.setattr("skylarkmq.spark.jobs.windows.DurableFolder", DyingFolder)
    DyingFolder.after = after
    died = 0
    for last in range(1, 100):
        output = tmp_path / f"{last}"
        DyingFolder.calls, DyingFolder.last = 0, last
        try:
            run(output, range(5))
        except Killed:
            died += 1
        else:
            break
        DyingFolder.last = -1
        done = [int(file.stem) for file in output.glob("_skylarkmq/state/*.json")]
        # Spark runs the batch again that it has not noted: the last one done, or the next.
        for first in {max(done, default=0), max(done, default=-1) + 1}:
            again = tmp_path / f"{last}-{first}"
            shutil.copytree(output, again)
            run(again, range(first, 5))
            assert rows_in(again) == expected
    assert died > 20
    states = sorted(file.name for file in (tmp_path / "1-0/_skylarkmq/state").iterdir())
    assert states == ["000000000003.json", "000000000004.json"]


@pytest.mark.usefixtures("batches")
def test_a_checkpoint_that_was_taken_away_is_told(tmp_path: Path) -> None:
    run(tmp_path, range(3))
    for first, query in ((0, "query-2"), (2, "query-2"), (0, QUERY), (4, QUERY)):
        with pytest.raises(JobError, match="the checkpoint was taken away or changed"):
            run(tmp_path, range(first, first + 1), query=query)


@pytest.mark.usefixtures("batches")
def test_other_settings_are_refused(tmp_path: Path) -> None:
    run(tmp_path, range(1))
    with pytest.raises(JobError, match="windows are 100 ms long, not 60000"):
        WindowFiles(tmp_path).load(60_000, 0, "store")


@pytest.mark.usefixtures("batches")
def test_a_damaged_state_is_told(tmp_path: Path) -> None:
    run(tmp_path, range(1))
    (tmp_path / "_skylarkmq/state/000000000000.json").write_text('{"query_id": "x"}')
    with pytest.raises(JobError, match=r"000000000000\.json is damaged"):
        WindowFiles(tmp_path).load(WINDOW_MS, 0, "store")


@pytest.mark.parametrize("name", ["notes.txt", "topic=T/date=2026-01-01/x.parquet"])
def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(JobError, match="holds no windows of an earlier run") as raised:
        WindowFiles(tmp_path).open()
    assert raised.value.exit_code == 2
    assert not (tmp_path / "_skylarkmq").exists()


def test_an_archive_is_left_alone_even_an_empty_one(tmp_path: Path) -> None:
    open_table(tmp_path)
    with pytest.raises(JobError, match="holds no windows"):
        WindowFiles(tmp_path).open()


def test_killed_before_it_had_all_its_folders(tmp_path: Path) -> None:
    (tmp_path / "_skylarkmq").mkdir()
    files = WindowFiles(tmp_path)
    files.open()
    files.close()


def test_one_job_at_a_time(tmp_path: Path) -> None:
    first, second = WindowFiles(tmp_path), WindowFiles(tmp_path)
    first.open()
    with pytest.raises(Exception, match=rf"process {os.getpid()} on .*, metrics"):
        second.open()
    first.close()
    second.open()
    second.close()


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    files = WindowFiles(tmp_path / "none", dry=True)
    files.open()
    book, _ = files.load(WINDOW_MS, 0, "store")
    files.write(book, book.apply(0, batch(0)), body_bytes=False)
    files.finish(book, QUERY)
    files.close()
    assert not (tmp_path / "none").exists()


def test_a_row_as_a_message() -> None:
    row = WindowRow(WindowKey(60_000, "T", ""), "window", Tally(messages=3), 7)
    document = json.loads(row_text(row, 60_000, body_bytes=False))
    assert document["windowStart"] == "1970-01-01T00:01:00Z"
    assert document["windowEnd"] == "1970-01-01T00:02:00Z"
    assert (document["tag"], document["bodyBytes"], document["messages"]) == (None, None, 3)
    assert document["batchId"] == 7


def test_the_subject_with_groups_finds_topics_that_come_later() -> None:
    plain = MetricsOptions(("a", "b"), "x").source_options(JobSettings(name_server="n:1"))
    assert plain["topic"] == "a,b"
    assert plain["nameServer"] == "n:1"
    grouped = MetricsOptions(("a",), "x", groups=("g-1",)).source_options(JobSettings())
    assert grouped["subscribePattern"] == r"a|%RETRY%g\-1|%DLQ%g\-1"
    assert "topic" not in grouped
