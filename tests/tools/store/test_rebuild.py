"""`store rebuild` and `store truncate`: they write what the store itself would have written."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import pytest

from skylarkmq.common.files import DiskFiles
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.folder import StoreLock, StorePaths
from skylarkmq.store.stopped.reader import StoppedStore
from skylarkmq.tools.store.truncate import Truncation
from tests.support.disk_store import DiskStore
from tests.support.store_samples import SIZES, by_key, by_queue, is_queued, put
from tests.tools.store.support import Sample, flip, overwrite, run, run_json

LATER_MS = 4_000_000_000_000


def derived(root: Path) -> dict[str, bytes]:
    """Queue and index files by their path."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for folder in ("consumequeue", "index")
        for path in (root / folder).rglob("*")
        if path.is_file()
    }


def everything(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_same_bytes_again(sample: Sample) -> None:
    before = derived(sample.root)
    for path in (sample.root / "consumequeue").rglob("0*"):
        if path.is_file() and path.parent.parent.name in ("Tagged", "Plain"):
            path.unlink()
    overwrite(sample.unit(sample.of("Keyed", 3))[0], 40, b"\xff" * 40)
    for path in (sample.root / "index").iterdir():
        overwrite(path, 60, b"\xff" * 40)
    result = run_json("rebuild", sample.root, "--write")
    assert result == {
        "root": str(sample.root),
        "written": True,
        "records": len(sample.messages),
        "queues": len(by_queue(sample.messages)),
        "units": len([message for message in sample.messages if is_queued(message)]),
        "entries": sum(map(len, by_key(sample.messages).values())),
        "passed_over": 0,
        "damages": [],
    }
    assert derived(sample.root) == before
    assert run_json("verify", sample.root)["sound"]


@pytest.mark.parametrize("only", ["queues", "index"])
def test_only_one_of_them(sample: Sample, only: str) -> None:
    before = derived(sample.root)
    overwrite(sample.unit(sample.of("Keyed", 3))[0], 40, b"\xff" * 40)
    index = sorted((sample.root / "index").iterdir())[0]
    overwrite(index, 600, b"\xff" * 40)
    damaged = derived(sample.root)
    run_json("rebuild", sample.root, "--write", "--only", only)
    after = derived(sample.root)
    for path in after:
        is_repaired = path.startswith("index") == (only == "index")
        assert after[path] == (before if is_repaired else damaged)[path]


def test_without_write_nothing_changes(sample: Sample) -> None:
    before = everything(sample.root)
    assert run_json("rebuild", sample.root)["written"] is False
    assert "--write" in run("rebuild", sample.root).stdout
    end = sample.of("Plain", 40)["physical_offset"]
    assert run_json("truncate", sample.root, "--to", end)["written"] is False
    assert everything(sample.root) == before


def test_a_hole_keeps_the_places_of_those_behind_it(sample: Sample) -> None:
    message = sample.of("Tagged", 5)
    path, position = sample.place(message)
    flip(path, position + 100)
    result = run_json("rebuild", sample.root, "--write", exit_code=1)
    (damage,) = result["damages"]
    assert (damage["file"], damage["position"]) == (str(path), position)
    unit_path, unit_position = sample.unit(message)
    assert unit_path.read_bytes()[unit_position : unit_position + 20] == struct.pack(
        ">qiq", 0, 0x7FFFFFFF, 0
    )
    following = sample.of("Tagged", 6)
    unit_path, unit_position = sample.unit(following)
    unit = struct.unpack_from(">qiq", unit_path.read_bytes(), unit_position)
    assert unit[0] == following["physical_offset"]


def test_a_missing_log_file_is_told(sample: Sample) -> None:
    sample.log(1).unlink()
    (damage,) = run_json("rebuild", sample.root, "--write", exit_code=1)["damages"]
    assert (damage["file"], damage["size"]) == (str(sample.log(1)), SIZES_LOG)


def test_units_of_expired_messages_stay(sample: Sample) -> None:
    sample.log(0).unlink()
    first = next(m for m in sample.messages if m["physical_offset"] >= SIZES_LOG)
    before = derived(sample.root)
    run_json("rebuild", sample.root, "--write", "--only", "queues")
    assert derived(sample.root) == before
    queues = run_json("info", sample.root)["queues"]
    (queue,) = [
        queue
        for queue in queues
        if (queue["topic"], queue["queue_id"]) == (first["topic"], first["queue_id"])
    ]
    assert queue["min_offset"] == first["queue_offset"]


SIZES_LOG = SIZES["mappedFileSizeCommitLog"]


def test_units_that_lead_to_messages_of_others_go(sample: Sample) -> None:
    queues = sample.root / "consumequeue"
    shutil.copytree(queues / "Once", queues / "Ghost")
    assert run_json("verify", sample.root, exit_code=1)["kinds"] == {"queue.dangling": 1}
    run_json("rebuild", sample.root, "--write", "--only", "queues")
    assert run_json("verify", sample.root)["kinds"] == {}
    assert not list((queues / "Ghost" / "0").iterdir())


def test_the_store_goes_on_after_a_rebuild(sample: Sample) -> None:
    shutil.rmtree(sample.root / "consumequeue")
    shutil.rmtree(sample.root / "index")
    run_json("rebuild", sample.root, "--write")
    assert not (sample.root / "abort").exists()
    disk = DiskStore(sample.root, SIZES, LATER_MS)
    assert disk.start().clean
    assert disk.read() == by_queue(sample.messages)
    disk.stop()
    assert run_json("verify", sample.root)["sound"]


def test_a_store_that_was_not_stopped_cleanly_keeps_its_mark(sample: Sample) -> None:
    (sample.root / "abort").touch()
    run_json("rebuild", sample.root, "--write")
    assert (sample.root / "abort").exists()
    assert not any((sample.root / "checkpoint").read_bytes())


@pytest.mark.parametrize("words", [("rebuild",), ("truncate", "--to", 0)])
def test_a_store_in_use_is_refused(sample: Sample, words: tuple[object, ...]) -> None:
    before = everything(sample.root)
    lock = StoreLock(DiskFiles(), StorePaths(sample.root))
    lock.acquire()
    try:
        result = run(words[0], sample.root, *words[1:], "--write")
        assert result.exit_code == 2
        assert "is in use by" in result.stderr
        assert everything(sample.root) == before
    finally:
        lock.release()


@pytest.mark.parametrize("number", [0, 1, 60, 140, -1])
def test_truncation_is_as_if_the_rest_had_never_been(sample: Sample, number: int) -> None:
    check_truncation(sample, sample.messages[number]["physical_offset"])


def test_keys_go_with_the_last_record_of_a_full_index_file(sample: Sample) -> None:
    store = StoppedStore(sample.root)
    first = store.index_file(store.index_names[0])
    assert first.is_full
    check_truncation(sample, first.header.end_offset)


def check_truncation(sample: Sample, end: int) -> None:
    kept = [one for one in sample.messages if one["physical_offset"] < end]
    result = run_json("truncate", sample.root, "--to", end, "--write")
    assert result["records"] == len(sample.messages) - len(kept)
    assert list(result) == [
        "root", "written", "end_offset", "old_end_offset", "records", "bytes", "queues"
    ]  # fmt: skip
    kinds = set(json.loads(run("verify", sample.root, "--json").stdout)["kinds"])
    assert kinds <= {"table.offset-ahead", "index.none"}  # of the sample's consumer; no keys left
    disk = DiskStore(sample.root, SIZES, LATER_MS)
    report = disk.start()
    assert (report.clean, report.end_offset) == (True, end)
    assert disk.read() == by_queue(kept)
    for (topic, key), offsets in list(by_key(kept).items())[:20]:
        assert disk.query(topic, key) == offsets[-64:]
    disk.stop()
    keys = (sample.root / "index").iterdir()
    assert not [path for path in keys if _last_of(sample, path) >= end]


def _last_of(sample: Sample, path: Path) -> int:
    """The last record whose keys an index file has."""
    return StoppedStore(sample.root).index_file(path.name).header.end_offset


def test_what_a_broker_has_stored_since_the_first_look_is_cut_and_told(sample: Sample) -> None:
    end = sample.messages[-3]["physical_offset"]
    truncation = Truncation(StoppedStore(sample.root), end, DelayLevels())
    assert truncation.plan()["records"] == 3
    disk = DiskStore(sample.root, SIZES, LATER_MS)
    disk.start()
    for number in range(5):
        disk.run(put("Since", 0, str(number)))
    disk.stop()
    result = truncation.write()
    assert result["records"] == 3 + 5
    since = {"topic": "Since", "queue_id": 0, "first": 0, "last": 4}
    assert since in result["queues"]
    assert run_json("info", sample.root)["commit_log"]["end_offset"] == end


def test_truncation_needs_the_begin_of_a_record(sample: Sample) -> None:
    message = sample.of("Plain", 30)
    result = run("truncate", sample.root, "--to", message["physical_offset"] + 1)
    assert result.exit_code == 2
    assert str(message["physical_offset"]) in result.stderr


@pytest.mark.parametrize("number", [60, 100])
def test_a_log_file_that_was_cut_short_can_be_truncated_there(sample: Sample, number: int) -> None:
    """As one that was killed between cutting the file and giving it its size back."""
    end = sample.messages[number]["physical_offset"]
    kept = [one for one in sample.messages if one["physical_offset"] < end]
    (last,) = [one for one in StoppedStore(sample.root).log_files if one.start <= end < one.end]
    os.truncate(last.path, end - last.start)
    assert run_json("truncate", sample.root, "--to", end, "--write")["end_offset"] == end
    assert last.path.stat().st_size == last.size
    disk = DiskStore(sample.root, SIZES, LATER_MS)
    assert disk.start().end_offset == end
    assert disk.read() == by_queue(kept)
    disk.stop()


def test_a_truncation_that_ends_early_is_recovered_from(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = sample.messages[100]["physical_offset"]
    kept = [one for one in sample.messages if one["physical_offset"] < end]

    def fail(*_: object) -> None:
        raise OSError(5, "the disk is gone")

    monkeypatch.setattr("skylarkmq.tools.store.truncate.Truncation._cut_queues", fail)
    assert run("truncate", sample.root, "--to", end, "--write").exit_code == 2
    assert (sample.root / "abort").exists()
    disk = DiskStore(sample.root, SIZES, LATER_MS)
    assert disk.start().end_offset == end
    assert disk.read() == by_queue(kept)
    disk.stop()
