"""The commits of an archive: what is refused, what readers see, what is found damaged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from skylarkmq.spark import archive_table
from skylarkmq.spark.archive import commits as archive_commits
from skylarkmq.spark.archive.commits import (
    COMMITS,
    SNAPSHOTS,
    STAGING,
    TABLE,
    ArchiveError,
    Commit,
    DataFile,
    open_files,
)
from skylarkmq.spark.archive.compaction import CompactPlan, compact, compact_group, groups
from skylarkmq.spark.archive.spans import OverlapError
from skylarkmq.spark.offsets import QueueKey
from tests.spark.support.archives import (
    DAY_MS,
    T0_MS,
    append,
    committed,
    listed,
    open_writer,
    run_of,
    stage,
)

Q = QueueKey("T", "broker-a", 0)


def filled(path: Path, count: int = 3) -> None:
    """A table of `count` commits of five messages each, a day each."""
    with open_writer(path) as writer:
        for number in range(count):
            at = T0_MS + number * DAY_MS
            append(writer, str(number), [run_of("T", 0, number * 5, number * 5 + 5, stored_ms=at)])


def test_files_are_chosen_by_topic_and_time(tmp_path: Path) -> None:
    filled(tmp_path)
    with open_writer(tmp_path) as writer:
        append(writer, "u", [run_of("U", 0, 0, 2)])
    files = archive_table.files(tmp_path)
    assert [(f.topic, f.date, f.hour, f.rows) for f in files] == [
        ("T", "2026-01-01", None, 5), ("T", "2026-01-02", None, 5), ("T", "2026-01-03", None, 5),
        ("U", "2026-01-01", None, 2),
    ]  # fmt: skip
    assert all(Path(f.path).stat().st_size == f.size for f in files)
    assert archive_table.files(tmp_path, topics=["U"]) == files[3:]
    assert archive_table.files(tmp_path, start_ms=T0_MS + DAY_MS) == files[1:3]
    assert archive_table.files(tmp_path, end_ms=T0_MS + DAY_MS) == [files[0], files[3]]


def test_an_offset_comes_once(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    with open_writer(tmp_path) as writer:
        reports = stage(writer, "a", [run_of("T", 0, 5, 7)])
        with pytest.raises(OverlapError):  # two attempts of one task must not both count
            writer.append("a", [*reports, *stage(writer, "a", [run_of("T", 0, 6, 7)])])
        writer.append("a", reports)
        with pytest.raises(ArchiveError, match="adds a file twice"):
            writer.append("a", reports)
        again = json.loads(json.dumps(reports).replace("part-", "other-"))
        with pytest.raises(OverlapError, match=r"offsets \[5, 7\) are there already"):
            writer.append("a", again)
    assert len(committed(tmp_path)) == len(listed(tmp_path)) == 7


def test_where_a_run_goes_on(tmp_path: Path) -> None:
    other = Q._replace(queue_id=1)
    with open_writer(tmp_path) as writer:
        writer.begin({Q: 3, other: 8})
        append(writer, "0", [run_of("T", 0, 3, 5)])
    with open_writer(tmp_path) as writer:
        writer.begin({Q: 0, other: 99})  # known already: changes nothing
        assert (writer.state.next_offset(Q), writer.state.next_offset(other)) == (5, 8)
        assert writer.state.next_offset(Q._replace(queue_id=2)) is None
        assert writer.state.number == 2


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with open_writer(tmp_path):
        with pytest.raises(ArchiveError, match=r"another job writes .* process \d+ on "):
            open_writer(tmp_path).__enter__()
        assert archive_table.files(tmp_path) == []  # readers need not wait
    with open_writer(tmp_path):
        pass


def test_files_that_the_driver_does_not_see(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        reports = stage(writer, "0", [run_of("T", 0, 0, 2)])
        staged = next((tmp_path / STAGING).rglob("*.staged"))
        whole = staged.read_bytes()
        staged.write_bytes(whole[:-1])
        with pytest.raises(ArchiveError, match=f"driver sees {len(whole) - 1} bytes"):
            writer.append("0", reports)
        staged.unlink()
        with pytest.raises(ArchiveError, match="driver does not see it"):
            writer.append("0", reports)
        assert writer.state.number == 0
        append(writer, "1", [run_of("T", 0, 0, 2)])
    assert len(committed(tmp_path)) == 2


def test_a_compaction_task_that_is_tried_again_writes_another_file(tmp_path: Path) -> None:
    """Spark tries a task again that was killed, or that a second one is to overtake."""
    with open_writer(tmp_path) as writer:
        for number in range(4):
            append(writer, str(number), [run_of("T", 0, number * 5, number * 5 + 5)])
        chosen = groups(writer.state)

        def tries(plans: Sequence[CompactPlan]) -> list[DataFile]:
            firsts = [compact_group(plan) for plan in plans]
            again = [compact_group(plan) for plan in plans]
            assert {file.name for file in firsts}.isdisjoint(file.name for file in again)
            return again

        before = committed(tmp_path)
        assert compact(writer, chosen, run_tasks=tries) == 3
    assert committed(tmp_path) == before
    assert committed(tmp_path) == listed(tmp_path)
    assert not list((tmp_path / STAGING).iterdir())


def test_compaction_keeps_every_message(tmp_path: Path) -> None:
    with open_writer(tmp_path) as writer:
        for number in range(6):
            append(writer, str(number), [run_of("T", 0, number * 5, number * 5 + 5)])
        before = committed(tmp_path)
        assert groups(writer.state, files_min=7) == []
        chosen = groups(writer.state)
        assert [len(group) for group in chosen] == [6]
        size = max(file.size for file in chosen[0])
        assert [len(group) for group in groups(writer.state, file_bytes=size * 3)] == [3, 3]
        with pytest.raises(ArchiveError, match="30 messages into 29"):
            name = f"{chosen[0][0].folder}/part-x.parquet"
            writer.replace("x", [DataFile(name, 29, 1, 0, 0)], [file.name for file in chosen[0]])
        assert compact(writer, chosen) == 5
    assert len(archive_table.files(tmp_path)) == 1
    assert committed(tmp_path) == listed(tmp_path) == before
    offsets = archive_table.dataset(tmp_path).to_table()["queueOffset"].to_pylist()
    assert offsets == list(range(30))


def test_snapshots_take_the_place_of_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_commits, "SNAPSHOT_EVERY", 3)
    filled(tmp_path, 10)
    assert [int(p.stem) for p in sorted((tmp_path / SNAPSHOTS).iterdir())] == [6, 9]
    assert [int(p.stem) for p in sorted((tmp_path / COMMITS).iterdir())] == [7, 8, 9, 10]
    with_snapshot = archive_table.state(tmp_path)
    (tmp_path / SNAPSHOTS / f"{9:012d}.json").unlink()
    without = archive_table.state(tmp_path)
    assert (with_snapshot.files, with_snapshot.spans) == (without.files, without.spans)
    assert with_snapshot.last_ms == without.last_ms == {Q: T0_MS + 9 * DAY_MS}
    assert len(committed(tmp_path)) == 50


def test_damage_is_told(tmp_path: Path) -> None:
    filled(tmp_path)
    second = tmp_path / COMMITS / f"{2:012d}.json"
    whole = second.read_bytes()
    second.write_bytes(whole[:50])
    with pytest.raises(ArchiveError, match=r"000000000002\.json is damaged"):
        archive_table.files(tmp_path)
    second.unlink()
    with pytest.raises(ArchiveError, match=r"000000000002\.json is not there"):
        archive_table.files(tmp_path)
    later = json.loads(whole) | {"v": 2}
    second.write_text(json.dumps(later))
    with pytest.raises(ArchiveError, match="version 2, this release knows 1"):
        archive_table.files(tmp_path)
    second.write_bytes(whole)
    first, *_, last = archive_table.files(tmp_path)
    Path(last.path).unlink()
    with pytest.raises(ArchiveError, match=rf"{Path(last.path).name} of the archive .* is gone"):
        archive_table.files(tmp_path)
    Path(first.path).unlink()
    with pytest.raises(ArchiveError, match=rf"{Path(first.path).name} and 1 more of the archive"):
        archive_table.files(tmp_path)
    with pytest.raises(ArchiveError, match="is gone"):
        open_writer(tmp_path).__enter__()
    (tmp_path / TABLE).write_text("{")
    with pytest.raises(ArchiveError, match="cannot be read"):
        archive_table.files(tmp_path)


def test_no_archive_there(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="there is no archive"):
        archive_table.files(tmp_path / "none")
    for path in ("s3://bucket/x", "hdfs:/x", "", "/data/*"):
        with pytest.raises(ArchiveError):
            open_files(path)
    assert open_files("file:///data/x").root == Path("/data/x")


def test_hourly_is_fixed(tmp_path: Path) -> None:
    with open_writer(tmp_path, hourly=True):
        pass
    with open_writer(tmp_path) as writer:
        assert writer.hourly
    with pytest.raises(ArchiveError, match="is divided by hour"):
        open_writer(tmp_path, hourly=False).__enter__()
    assert archive_table.dataset(tmp_path).schema.names[-2:] == ["date", "hour"]


def test_after_a_commit_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it counts is not known to this writer; the next one knows, and nothing is lost."""
    with open_writer(tmp_path) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(writer.files, "rename", _refuse)
            with pytest.raises(OSError, match="disk"):
                append(writer, "0", [run_of("T", 0, 0, 2)])
        with pytest.raises(ArchiveError, match="commit before this one failed"):
            append(writer, "1", [run_of("T", 0, 2, 4)])
    assert len(committed(tmp_path)) == 2 and listed(tmp_path) == []
    with open_writer(tmp_path):
        assert len(listed(tmp_path)) == 2


def _refuse(old: str, new: str) -> None:
    raise OSError("the disk says no")


def test_commit_as_json() -> None:
    commit = Commit(3, "compact", "run", 5, "run/1", (), ("a",))
    assert Commit.from_json(commit.to_json(), "here") == commit
