"""A topic that was removed from a store stays away whatever the tools do to it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from skylarkmq.store.results import PutMessageResult
from tests.store.support import inner
from tests.support.disk_store import DiskStore
from tests.support.store_samples import SIZES
from tests.tools.store.support import run_json


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store whose topic T was removed and made again; it has one new message."""
    disk = DiskStore(tmp_path / "store", SIZES)
    disk.start()
    results: list[PutMessageResult] = []
    for number in range(6):
        disk.store.put_message(inner("TU"[number % 2], 0, b"old"), results.append)
    disk.settle()
    errors: list[BaseException | None] = []
    assert disk.store.removal.remove("T", errors.append)
    disk.settle()
    disk.store.removal.release("T", errors.append)
    disk.settle()
    assert errors == [None, None]
    disk.store.put_message(inner("T", 0, b"new"), results.append)
    disk.settle()
    disk.stop()
    return disk.root


def ends(root: Path) -> dict[str, int]:
    """Where the queues end, by a store of our own."""
    disk = DiskStore(root, SIZES)
    disk.start()
    found = {topic: disk.store.max_offset(topic, 0) for topic in "TU"}
    disk.stop()
    return found


def test_verify_finds_nothing_wrong(root: Path) -> None:
    assert run_json("verify", root)["sound"]


def test_rebuild_leaves_old_messages_out(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")
    assert run_json("rebuild", root)["units"] == 4
    assert run_json("rebuild", root, "--write")["units"] == 4
    assert ends(root) == {"T": 1, "U": 3}
    assert run_json("verify", root)["sound"]


def test_a_saved_store_knows_it_too(root: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    run_json("salvage", root, new)
    assert run_json("verify", new)["sound"]
    shutil.rmtree(new / "consumequeue")
    (new / "checkpoint").unlink()
    assert ends(new) == {"T": 1, "U": 3}
