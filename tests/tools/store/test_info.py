"""`store info` and who may look."""

from __future__ import annotations

from pathlib import Path

from skylarkmq.common.files import DiskFiles
from skylarkmq.store.folder import StoreLock, StorePaths
from skylarkmq.store.index.file import IndexShape
from skylarkmq.store.stopped.reader import StoppedStore
from tests.support.store_samples import SIZES, by_queue
from tests.tools.store.support import Sample, run, run_json


def test_json_has_this_shape(pristine: Sample) -> None:
    info = run_json("info", pristine.root)
    assert list(info) == [
        "root", "running", "clean_stop", "sizes", "sizes_known_from", "commit_log", "queues",
        "index", "checkpoint", "tables", "own_files", "timed_messages",
    ]  # fmt: skip
    assert info["running"] is None and info["clean_stop"] is True
    assert info["sizes"]["mappedFileSizeCommitLog"] == SIZES["mappedFileSizeCommitLog"]
    last = pristine.messages[-1]
    assert info["commit_log"]["min_offset"] == 0
    assert info["commit_log"]["end_offset"] > last["physical_offset"]
    assert info["commit_log"]["last_store_timestamp"] == last["store_timestamp"]
    assert info["tables"][1] == {
        "name": "consumerOffset.json", "bytes": 42, "readable": True, "entries": 1,
        "version": None, "backup": False,
    }  # fmt: skip


def test_every_queue_has_its_bounds(pristine: Sample) -> None:
    queues = {
        (queue["topic"], queue["queue_id"]): (queue["min_offset"], queue["max_offset"])
        for queue in run_json("info", pristine.root)["queues"]
    }
    assert queues == {
        queue: (0, len(messages)) for queue, messages in by_queue(pristine.messages).items()
    }


def test_sizes_without_a_profile_come_from_the_files(sample: Sample) -> None:
    (sample.root / "skylarkmq" / "profile").unlink()
    info = run_json("info", sample.root)
    assert set(info["sizes_known_from"].values()) == {"files", "default"}  # no extension
    keys = (
        "mappedFileSizeCommitLog",
        "mappedFileSizeConsumeQueue",
        "maxHashSlotNum",
        "maxIndexNum",
    )
    assert [info["sizes"][key] for key in keys] == [SIZES[key] for key in keys]
    assert StoppedStore(sample.root).sizes.index == IndexShape(
        SIZES["maxHashSlotNum"], SIZES["maxIndexNum"]
    )


def test_text_names_what_matters(pristine: Sample) -> None:
    text = run("info", pristine.root).stdout
    assert "stopped cleanly" in text
    assert "Tagged" in text


def test_a_store_in_use_is_shown_and_not_read(sample: Sample) -> None:
    lock = StoreLock(DiskFiles(), StorePaths(sample.root))
    lock.acquire()
    try:
        assert run_json("info", sample.root)["running"] == "this process"
        result = run("dump", sample.root, "checkpoint")
        assert result.exit_code == 2
        assert result.stderr == (
            f"Error: {sample.root} is in use by this process; stop that broker first\n"
        )
    finally:
        lock.release()


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "missing"):
        result = run("info", root)
        assert result.exit_code == 2
        assert str(root) in result.stderr
