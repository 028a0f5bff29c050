"""Queues follow the log: their minima, their files, the files of their extensions."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from skylarkmq.store.message_store import StoreState
from skylarkmq.store.queue.consume_queue import PRE_BLANK, UNIT, UNIT_SIZE, first_unit_at
from tests.store.clean_rig import CleanRig
from tests.store.support import LOG_SIZE, MESSAGE_MAX
from tests.support.crash_states import CrashState, Keep
from tests.support.extensions import extend

SMALL: dict[str, Any] = {
    "mapped_file_size_consume_queue": 80,  # of four units
}


def _files(rig: CleanRig, folder: Path, size: int) -> list[int]:
    return [int(name) // size for name in rig.files.list(folder)]


def _unit_files(rig: CleanRig, topic: str = "orders") -> list[int]:
    return _files(rig, rig.store.paths.queue_folder(topic, 0), 80)


def _ext_files(rig: CleanRig) -> list[int]:
    return _files(rig, rig.store.paths.queue_ext_folder("orders", 0), 104)


def _expire(rig: CleanRig, log_files: int) -> CleanRig:
    """Let so many log files go, and the queues follow."""
    rig.percent = 86
    rig.spend_until(lambda: rig.store.stats.log_files_deleted == log_files)
    rig.percent = 50
    return rig.spend(10)


def test_files_without_a_readable_unit_go() -> None:
    rig = CleanRig(**SMALL).start().fill(8).settle()
    count = rig.store.max_offset("orders", 0)
    before = _unit_files(rig)
    assert before == list(range(len(before))) and len(before) > 5
    _expire(rig, 5)
    minimum = rig.store.min_offset("orders", 0)
    assert 0 < minimum < count
    record = rig.store.queue_units("orders", 0, minimum, 1)[0]
    assert record.commit_offset >= 5 * LOG_SIZE
    assert _unit_files(rig) == before[minimum // 4 :]
    assert rig.store.stats.queue_files_deleted == minimum // 4
    assert rig.store.queues.open("orders", 0).first_offset == minimum // 4 * 4
    assert rig.readable() == list(range(minimum, count))


def test_names_go_in_order_each_durably_before_the_next() -> None:
    rig = CleanRig(**SMALL).start().fill(8).settle()
    steps: list[str] = []

    def note(op: str, path: Path) -> None:
        if op in ("unlink", "sync_folder") and "orders" in str(path):
            steps.append(op)

    rig.files.before_step = note
    _expire(rig, 7)
    assert steps.count("unlink") > 3
    assert ("unlink", "unlink") not in pairwise(steps)


def test_the_last_file_of_a_queue_stays_and_so_does_its_next_offset() -> None:
    rig = CleanRig(**SMALL).start()
    for _ in range(8):
        rig.put("idle")
    _expire(rig.fill(4).settle(), 3)
    assert rig.store.min_offset("idle", 0) == rig.store.max_offset("idle", 0) == 8
    assert _unit_files(rig, "idle") == [1], "full, but the only one that tells the next offset"
    after = rig.again(1, **SMALL)
    result = after.put("idle")
    assert result is not None and result.queue_offset == 8


def test_units_in_memory_alone_are_looked_at() -> None:
    rig = CleanRig(**SMALL).start().fill(4).settle()
    queue = rig.store.queues.open("orders", 0)
    count = rig.store.max_offset("orders", 0)
    units = [rig.store.queues.stored_units(queue, number, 1) for number in range(count)]
    queue.tail = bytearray(b"".join(units[2:]))
    queue.tail_start = queue.written = 2
    _expire(rig, 3)
    minimum = rig.store.min_offset("orders", 0)
    assert UNIT.unpack(units[minimum])[0] >= 3 * LOG_SIZE > UNIT.unpack(units[minimum - 1])[0]


def test_all_of_many_queues_follow_in_slices() -> None:
    rig = CleanRig(**SMALL).start()
    for queue_id in range(300):
        rig.put("wide", queue_id)
    rig.fill(2)
    for queue_id in range(0, 300, 3):
        rig.put("wide", queue_id)
    rig.fill(3).settle()
    rig.percent = 86
    rig.spend_until(lambda: rig.store.stats.log_files_deleted == 1)
    rig.percent = 50
    assert rig.store.cleaning.disk.refusal() is None
    rig.spend(1)
    minima = [rig.store.min_offset("wide", queue_id) for queue_id in range(300)]
    assert minima == [1] * 300
    assert [rig.store.max_offset("wide", queue_id) for queue_id in range(6)] == [2, 1, 1, 2, 1, 1]


def test_a_pause_lies_between_two_queues_that_lose_files() -> None:
    rig = CleanRig(**SMALL, delete_consume_queue_files_interval=700).start()
    for _ in range(9):
        for topic in ("a", "b", "c"):
            rig.put(topic)
    rig.fill(3).settle()
    rig.percent = 86
    rig.spend_until(lambda: rig.store.stats.log_files_deleted == 1)
    rig.percent = 50
    assert [rig.store.min_offset(topic, 0) for topic in ("a", "b", "c")] == [9, 9, 9], "at once"
    times: list[float] = []
    for count in (2, 4, 6):
        while rig.store.stats.queue_files_deleted < count:
            rig.spend(0.05)
        times.append(rig.clock.monotonic())
    assert times[1] - times[0] == pytest.approx(0.7, abs=0.06)
    assert times[2] - times[1] == pytest.approx(0.7, abs=0.06)


def test_an_extension_goes_when_no_unit_points_to_it() -> None:
    rig = CleanRig(**SMALL).start().fill(10).settle()
    extended = rig.store.max_offset("orders", 0)
    rig.stop()
    extend(rig.files, rig.files.root)
    rig = rig.again(1, **SMALL).fill(20).settle()
    found, count = _ext_files(rig), rig.store.max_offset("orders", 0)
    assert len(found) > 4
    _expire(rig, 7)
    minimum = rig.store.min_offset("orders", 0)
    assert 0 < minimum < extended and _ext_files(rig) == found
    assert rig.readable() == list(range(minimum, count))
    units = rig.store.queue_units("orders", 0, minimum, 9)
    assert units and {unit.tags_code for unit in units} == {0}
    _expire(rig, 12)
    minimum = rig.store.min_offset("orders", 0)
    assert minimum >= extended and _ext_files(rig) == []
    assert rig.readable() == list(range(minimum, count))
    after = rig.again(2, **SMALL)
    assert after.store.min_offset("orders", 0) == minimum
    assert after.readable() == list(range(minimum, count))
    units = after.store.queue_units("orders", 0, minimum, 9)
    assert units and {unit.tags_code for unit in units} == {0}


def test_the_key_index_follows() -> None:
    rig = CleanRig(**SMALL, max_index_num=4).start()
    while len(rig.names()) < 6:
        rig.put("orders", 0, bytes(MESSAGE_MAX), properties=b"KEYS\x01k\x02")
    rig.settle()
    before = rig.files.list(rig.store.paths.index)
    _expire(rig, 4)
    after = rig.files.list(rig.store.paths.index)
    assert len(after) < len(before) and after == before[-len(after) :]


def test_a_queue_file_that_cannot_be_read_keeps_its_minimum() -> None:
    rig = CleanRig(**SMALL).start().fill(4)
    rig.put("other")
    rig.fill(5).settle()
    rig.files.fail("pread", path="consumequeue/orders", times=1)
    _expire(rig, 4)
    assert rig.store.state is StoreState.RUNNING
    assert rig.store.min_offset("other", 0) == 1


def test_a_failed_sync_of_a_queue_folder_fails_the_store() -> None:
    rig = CleanRig(**SMALL).start().fill(8).settle()
    rig.files.fail("sync_folder", path="consumequeue/orders")
    rig.percent = 86
    rig.spend_until(lambda: rig.store.state is StoreState.FAILED)


def test_what_finds_no_descriptor_goes_with_the_next_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = CleanRig(**SMALL).start().fill(8).settle()
    sync, refused = rig.files.sync_folder, list[Path]()

    def refuse(path: Path) -> None:
        if "consumequeue" in str(path) and not refused:
            refused.append(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        sync(path)

    monkeypatch.setattr(rig.files, "sync_folder", refuse)
    _expire(rig, 3)
    assert refused
    assert rig.store.state is StoreState.RUNNING
    minimum = rig.store.min_offset("orders", 0)
    assert _unit_files(rig)[0] < minimum // 4, "they stay for now"
    assert rig.readable()[0] == minimum
    _expire(rig, 5)
    assert rig.store.min_offset("orders", 0) > minimum
    assert _unit_files(rig)[0] == rig.store.min_offset("orders", 0) // 4


def test_an_unclean_stop_before_the_queues_followed() -> None:
    rig = CleanRig(**SMALL).start().fill(8).settle()
    count = rig.store.max_offset("orders", 0)
    rig.percent = 86
    rig.spend_until(lambda: rig.store.stats.log_files_deleted == 3)
    after = CleanRig(rig.files.crash(CrashState(Keep.KILL), Random(1)), **SMALL).start()
    minimum = after.store.min_offset("orders", 0)
    assert after.readable() == list(range(minimum, count)) and minimum > 0


def test_first_unit_at() -> None:
    units = [PRE_BLANK, PRE_BLANK, *(UNIT.pack(place, 10, 0) for place in (100, 110, 120, 500))]
    reads: list[int] = []

    def read(number: int, count: int) -> bytes:
        reads.append(number)
        return b"".join(units[number : number + count])

    found = [first_unit_at(read, 0, 6, place) for place in (0, 100, 101, 120, 121, 500, 501)]
    assert found == [2, 2, 3, 4, 5, 5, 6]
    reads.clear()
    assert first_unit_at(read, 3, 6, 50) == 3
    assert reads[0] == 3, "mostly nothing has gone"


@pytest.mark.parametrize("file_units", [1, 2, 7, 10_000])
def test_padding_between_messages_hides_none_of_them(file_units: int) -> None:
    """Padding says nothing of where it lies: live messages may stand before it."""
    blank = PRE_BLANK * 9000
    places = (100, 110, 120)
    units = b"".join(UNIT.pack(place, 10, 0) for place in places) + blank + UNIT.pack(500, 10, 0)
    end = len(units) // UNIT_SIZE

    def read(number: int, count: int) -> bytes:
        count = min(count, file_units - number % file_units)
        return units[number * UNIT_SIZE : (number + count) * UNIT_SIZE]

    found = [first_unit_at(read, 0, end, place) for place in (100, 101, 111, 121, 500, 501)]
    assert found == [0, 1, 2, end - 1, end - 1, end]
    assert first_unit_at(read, 3, end - 1, 0) == end - 1, "nothing but padding"
