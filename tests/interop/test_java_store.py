"""Stores go both ways between us and RocketMQ's own store, over all write roads."""

from __future__ import annotations

import os
import shutil
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.store.errors import StoreLockedError
from tests.interop.children import ChildFailedError, Children
from tests.interop.store_shell import JavaStore
from tests.support.disk_store import DiskStore
from tests.support.store_samples import (
    SIZES,
    Fields,
    by_key,
    by_queue,
    record_size,
    sample_commands,
)

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("maven")]

OURS: dict[str, dict[str, Any]] = {
    "pwrite": {},
    "pool": {"transient_store_pool_enable": True},
    "mapped": {"commit_log_write_mode": "mapped", "warm_maped_file_enable": True},
}
JAVA: dict[str, dict[str, Any]] = {
    "async": {},
    "sync": {"flushDiskType": "SYNC_FLUSH"},
    "pool": {"transientStorePoolEnable": True},
    "warm": {"warmMapedFileEnable": True},
    "ext": {"enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": 500},
}
HOUR_MS = 3_600_000
# RocketMQ names index files by the millisecond, and one that is built again in less than that takes
# two for one: where it must build, the keys fit into one file.
ONE_INDEX_FILE = {**SIZES, "maxIndexNum": 1000}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def hour_ago() -> int:
    return int(time.time() * 1000) - HOUR_MS


def write_ours(store: DiskStore, first: int = 0, rounds: int = 40) -> list[Fields]:
    stored = [one for command in sample_commands(rounds, first) for one in store.run(command)]
    store.settle()
    return stored


def without_code(messages: list[Fields]) -> list[Fields]:
    return [{k: v for k, v in one.items() if k != "tags_code"} for one in messages]


def date_queue_files(root: Path, stored: list[Fields]) -> None:
    """Give each queue file the time of its last unit: RocketMQ's search by time goes by that."""
    times = {one["physical_offset"]: one["store_timestamp"] for one in stored}
    for path in root.glob("consumequeue/*/*/*"):
        units = [unit for unit in struct.iter_unpack(">qiq", path.read_bytes()) if unit[1]]
        if units:
            os.utime(path, ns=(times[units[-1][0]] * 1_000_000,) * 2)


def check_java(java: JavaStore, stored: list[Fields]) -> None:
    """RocketMQ's store has all of these messages, by queue, by place, by key and by time."""
    assert java.read() == by_queue(stored)
    assert java.look([one["physical_offset"] for one in stored]) == without_code(stored)
    keys = by_key(stored)
    assert java.query(keys) == list(keys.values())
    for (topic, queue_id), messages in by_queue(stored).items():
        times = [one["store_timestamp"] for one in messages]
        found = java.offsets_by_time(topic, queue_id, times)
        # Messages of one batch share their time, and the search takes any of them.
        assert [times[offset] for offset in found] == times


def check_ours(ours: DiskStore, stored: list[Fields]) -> None:
    """The same of our store."""
    assert ours.read() == by_queue(stored)
    found = [ours.look(one["physical_offset"]) for one in stored]
    assert found == without_code(stored)
    for (topic, key), places in by_key(stored).items():
        assert ours.query(topic, key) == places, (topic, key)
    for (topic, queue_id), messages in by_queue(stored).items():
        times = [one["store_timestamp"] for one in messages]
        found_at = [ours.store.offset_by_time(topic, queue_id, at) for at in times]
        assert [times[offset] for offset in found_at] == times


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("road", OURS)
def test_java_reads_and_goes_on(children: Children, root: Path, road: str, flush: str) -> None:
    ours = DiskStore(root, SIZES, hour_ago(), flush_disk_type=flush, **OURS[road])
    ours.start()
    stored = write_ours(ours)
    ours.stop()
    date_queue_files(root, stored)
    java = JavaStore(children, root, flushDiskType=flush, **JAVA.get(road, {}))
    assert not java.loaded["unclean"]
    assert java.loaded["max_offset"] == stored[-1]["physical_offset"] + record_size(stored[-1])
    check_java(java, stored)
    stored += java.run(sample_commands(10, 40))
    assert java.read() == by_queue(stored)
    java.stop()
    again = DiskStore(root, SIZES, hour_ago() + 2 * HOUR_MS, flush_disk_type=flush, **OURS[road])
    report = again.start()
    assert report.clean and not report.truncated_bytes
    check_ours(again, stored)
    stored += write_ours(again, 50, 10)
    check_ours(again, stored)
    again.stop()


@pytest.mark.parametrize("road", OURS)
def test_java_recovers_what_we_left(children: Children, root: Path, road: str) -> None:
    """A copy of a store that runs is what a kill leaves; ours goes on with the original."""
    ours = DiskStore(root, ONE_INDEX_FILE, hour_ago(), **OURS[road])
    ours.start()
    stored = write_ours(ours)
    copy = root.with_name("copy")
    shutil.copytree(root, copy)
    java = JavaStore(children, copy, **{**JAVA.get(road, {}), **ONE_INDEX_FILE})
    assert java.loaded["unclean"]
    assert java.read() == by_queue(stored)
    keys = by_key(stored)
    assert java.query(keys) == list(keys.values())
    java.stop()
    ours.stop()


@pytest.mark.parametrize("kind", JAVA)
def test_we_read_and_go_on(children: Children, root: Path, kind: str) -> None:
    java = JavaStore(children, root, **JAVA[kind])
    stored = java.run(sample_commands())
    java.stop()
    ours = DiskStore(root, SIZES, hour_ago() + 2 * HOUR_MS, **OURS.get(kind, {}))
    report = ours.start()
    assert report.clean and not report.truncated_bytes
    check_ours(ours, stored)
    added = write_ours(ours, 40, 10)
    check_ours(ours, stored + added)
    ours.stop()
    date_queue_files(root, stored + added)
    java = JavaStore(children, root, **JAVA[kind])
    check_java(java, stored + added)
    java.stop()


@pytest.mark.parametrize("kind", JAVA)
def test_we_recover_what_a_killed_java_left(children: Children, root: Path, kind: str) -> None:
    """All that was acknowledged; of a pool, all that was committed, which a read waits for."""
    java = JavaStore(children, root, **JAVA[kind])
    stored = java.run(sample_commands())
    if kind == "pool":
        java.read()
    java.kill()
    ours = DiskStore(root, SIZES, hour_ago() + 2 * HOUR_MS, **OURS.get(kind, {}))
    assert not ours.start().clean
    check_ours(ours, stored)
    stored += write_ours(ours, 40, 10)
    ours.stop()
    again = DiskStore(root, SIZES, hour_ago() + 2 * HOUR_MS, **OURS.get(kind, {}))
    assert again.start().clean
    check_ours(again, stored)
    again.stop()
    date_queue_files(root, stored)
    java = JavaStore(children, root, **JAVA[kind])
    check_java(java, stored)
    java.stop()


def test_one_at_a_time(children: Children, root: Path) -> None:
    """The lock file keeps each from the other's store."""
    java = JavaStore(children, root)
    with pytest.raises(StoreLockedError):
        DiskStore(root, SIZES, hour_ago()).start()
    java.stop()
    ours = DiskStore(root, SIZES, hour_ago())
    ours.start()
    with pytest.raises(ChildFailedError, match="MQ already started"):
        JavaStore(children, root)
    ours.stop()
