"""The journal of pop consumption: what is told when, files that follow each other, full disks."""

from __future__ import annotations

import errno
import logging
import struct
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from skylarkmq.broker.pop import journal as journal_module
from skylarkmq.broker.pop import journal_folder
from skylarkmq.common.errors import CorruptFileError
from skylarkmq.store.pop.journal_file import HEAD_SIZE, file_head
from skylarkmq.store.pop.journal_records import (
    Changed,
    Done,
    Forgot,
    Key,
    Moved,
    PopState,
    Row,
    Took,
)
from tests.broker.pop.journal_rig import INTERVAL_S, KEY, JournalRig, row
from tests.support.crash_disk import CrashDisk
from tests.support.manual_clock import settle
from tests.support.workers import rest

OTHER = Key("G2", "T", 1, 3)


@pytest.fixture(params=[False, True], ids=["ASYNC_FLUSH", "SYNC_FLUSH"])
def sync(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_folder, "ALLOCATION", 4096)
    monkeypatch.setattr(journal_folder, "RESERVE", 2048)
    monkeypatch.setattr(journal_folder, "CHANGE_SIZE", 2000)
    monkeypatch.setattr(journal_module, "SLICE_ROWS", 3)


def took(key: Key, first: int, count: int, serial: int = 1) -> Took:
    rows = tuple(row(offset, serial) for offset in range(first, first + count))
    return Took(key, first + count, (first + count - 1) * 100, rows)


def same(left: PopState, right: PopState) -> bool:
    return (left.keys, left.last_serial) == (right.keys, right.last_serial)


async def test_nothing_is_on_the_disk_before_the_first_record(sync: bool) -> None:
    rig = JournalRig(sync=sync)
    assert rig.start() == PopState()
    await rig.advance(2)
    assert await rig.keep() is None
    await rig.stop()
    assert not rig.files.exists(rig.folder)


async def test_what_was_noted_is_loaded(sync: bool) -> None:
    rig = JournalRig(sync=sync)
    rig.start()
    answers = [
        await rig.keep(took(KEY, 0, 5), took(OTHER, 7, 2, serial=9)),
        await rig.keep(Done(KEY, 1), Changed(KEY, 2, 12, 5000, 3), Done(KEY, 77)),
        await rig.keep(Took(KEY, 8, 700, (), "attempt"), Moved(Key("M", "T", 0, 1), 4, 300)),
        await rig.keep(took(Key("G3", "Gone", 0, 0), 0, 1), Forgot(None, "Gone")),
    ]
    assert answers == [None] * 4
    found = rig.loaded()
    assert same(found, rig.memory.state)
    assert found.last_serial == 12
    assert found.keys[KEY].rows[2] == Row(2, 200, 12, 5000, 3)
    assert found.keys[KEY].mark == 0
    assert found.keys[KEY].attempt_id == "attempt"
    assert Key("G3", "Gone", 0, 0) not in found.keys
    assert not found.is_clean
    await rig.stop()
    assert rig.loaded().is_clean
    again = JournalRig(rig.files, sync=sync)
    assert same(again.start(), rig.memory.state)
    assert again.names() == ["2"]
    assert not again.loaded().is_clean
    assert same(again.loaded(), rig.memory.state)


async def test_what_is_dropped_at_a_start_does_not_come_back(sync: bool) -> None:
    rig = JournalRig(sync=sync)
    rig.start()
    await rig.keep(took(KEY, 0, 5), took(OTHER, 0, 2))
    again = JournalRig(rig.files, sync=sync)
    loaded = again.journal.load()
    del loaded.keys[KEY]
    again.journal.begin(loaded, again.memory)
    assert again.loaded().keys.keys() == {OTHER}
    assert isinstance(again.files, CrashDisk)
    for state in again.files.crash_states(Random(1), 8):
        left = JournalRig(again.files.crash(state, Random(1))).journal.load()
        assert left.keys.keys() == {OTHER}


async def test_a_turn_is_one_frame() -> None:
    rig = JournalRig()
    rig.start()
    await rig.keep(took(KEY, 0, 50))
    before = rig.files.calls["pwrite"]
    for offset in range(50):
        rig.note(Done(KEY, offset))
        rig.journal.after(rig.told.append)
    await settle(3)
    assert rig.told == [None] * 51
    assert rig.files.calls["pwrite"] == before + 1


async def test_nobody_is_told_in_the_turn_that_notes(sync: bool) -> None:
    rig = JournalRig(sync=sync)
    rig.start()
    rig.journal.after(rig.told.append)
    assert rig.told == []
    await rest(rig.worker)
    assert rig.told == [None]


async def test_under_sync_flush_what_comes_during_a_sync_shares_the_next_one() -> None:
    rig = JournalRig(sync=True)
    rig.start()
    await rig.keep(took(KEY, 0, 20))
    syncs = rig.files.calls["datasync"]
    rig.note(Done(KEY, 0))
    rig.journal.after(rig.told.append)
    await settle(3)
    for offset in range(1, 20):
        rig.note(Done(KEY, offset))
        rig.journal.after(rig.told.append)
        await settle(2)
    assert len(rig.told) == 1
    rig.worker.run_job()
    assert len(rig.told) == 1
    rig.worker.deliver()
    assert len(rig.told) == 2
    rig.worker.run_all()
    assert len(rig.told) == 21
    assert rig.files.calls["datasync"] == syncs + 2


async def test_under_async_flush_it_is_synced_at_each_interval() -> None:
    rig = JournalRig()
    rig.start()
    await rig.keep(took(KEY, 0, 20))
    syncs = rig.files.calls["datasync"]
    for offset in range(5):
        assert await rig.keep(Done(KEY, offset)) is None
    assert rig.files.calls["datasync"] == syncs
    await rig.advance(3 * INTERVAL_S)
    assert rig.files.calls["datasync"] == syncs + 1


async def test_under_async_flush_who_needs_it_waits_for_a_sync() -> None:
    rig = JournalRig()
    rig.start()
    await rig.keep(took(KEY, 0, 20))
    rig.clock.advance(INTERVAL_S)
    rig.note(Moved(KEY, 3))
    rig.journal.after(rig.told.append, is_synced=True)
    await settle(3)
    assert len(rig.told) == 1
    syncs = rig.files.calls["datasync"]
    await rest(rig.worker)
    assert len(rig.told) == 2
    assert rig.files.calls["datasync"] > syncs


async def test_under_async_flush_the_loop_writes_beside_a_quick_sync_only() -> None:
    rig = JournalRig()
    rig.start()
    await rig.keep(took(KEY, 0, 20))
    rig.note(Done(KEY, 0))
    await settle(2)
    rig.clock.advance(INTERVAL_S)
    assert not rig.worker.idle
    rig.note(Done(KEY, 1))
    rig.journal.after(rig.told.append)
    await settle(2)
    assert len(rig.told) == 2
    rig.clock.advance(2 * journal_module.SLOW_JOB_S)
    writes = rig.files.calls["pwrite"]
    rig.note(Done(KEY, 2))
    rig.journal.after(rig.told.append)
    await settle(2)
    assert len(rig.told) == 2
    assert rig.files.calls["pwrite"] == writes
    rig.worker.step()
    assert len(rig.told) == 3
    await rest(rig.worker)
    assert same(rig.loaded(), rig.memory.state)


@pytest.mark.usefixtures("small")
async def test_a_file_that_has_grown_is_followed_by_another(sync: bool) -> None:
    rig = JournalRig(sync=sync)
    rig.start()
    keys = [Key("G", "T", 0, queue_id) for queue_id in range(10)]
    for key in keys:
        await rig.keep(took(key, 0, 4))
    names: set[str] = set()
    for turn in range(200):
        key = keys[turn % 10]
        await rig.keep(took(key, 4 + turn, 1), Done(key, 4 + turn))
        await rig.advance(INTERVAL_S)
        names.update(rig.names())
        assert len(rig.names()) <= 2
    assert 3 <= len(names) < 40
    assert same(rig.loaded(), rig.memory.state)


async def test_a_change_of_file_says_a_few_queues_in_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_module, "SLICE_ROWS", 3)
    rig = JournalRig()
    rig.start()
    for queue_id in range(40):
        await rig.keep(took(Key("G", "T", 0, queue_id), 0, 3))
    assert rig.journal._open is not None
    rig.journal._open.change_size = 1
    asked: list[int] = []
    state_of = rig.memory.state_of

    def counted(key: Key) -> Any:
        asked[-1] += 1
        return state_of(key)

    rig.memory.state_of = counted  # type: ignore[method-assign]
    for turn in range(200):
        asked.append(0)
        rig.note(Changed(KEY, 0, turn, 1, 1))
        await settle(1)
        rig.worker.run_all()
    assert sum(asked) == 40
    assert rig.names() == ["2"]
    assert max(asked) == 1
    assert same(rig.loaded(), rig.memory.state)


@pytest.mark.usefixtures("small")
async def test_the_greatest_serial_outlasts_its_messages(sync: bool) -> None:
    rig = JournalRig(sync=sync)
    rig.start()
    await rig.keep(took(KEY, 0, 200, serial=77))
    for offset in range(200):
        await rig.keep(Done(KEY, offset))
        await rig.advance(INTERVAL_S)
    assert len(rig.names()) == 1
    assert rig.names() != ["1"]
    assert rig.loaded().last_serial == 77
    await rig.stop()
    again = JournalRig(rig.files, sync=sync)
    assert again.start().last_serial == 77
    assert again.loaded().last_serial == 77


async def test_what_is_discarded_does_not_come_back() -> None:
    rig = JournalRig()
    rig.start()
    await rig.keep(took(KEY, 0, 3))
    again = JournalRig(rig.files)
    again.journal.discard()
    assert again.start() == PopState()
    assert again.names() == []
    assert isinstance(again.files, CrashDisk)
    for state in again.files.crash_states(Random(1), 8):
        assert JournalRig(again.files.crash(state, Random(1))).journal.load() == PopState()


# A disk that is full, or fails


@pytest.mark.usefixtures("small")
async def test_a_full_disk_ends_receives_and_then_answers(sync: bool) -> None:
    rig = JournalRig(sync=sync)
    disk = rig.files
    assert isinstance(disk, CrashDisk)
    rig.start()
    assert rig.journal.refusal() is None
    await rig.keep(took(KEY, 0, 900))
    await rig.advance(1)
    disk.free = 0
    kept = 0
    while await rig.keep(Done(KEY, kept)) is None:
        await rig.advance(INTERVAL_S)
        kept += 1
        assert kept < 890
    assert kept > 10
    assert "full" in (rig.journal.refusal() or "")
    error = await rig.keep(Done(KEY, 899))
    assert isinstance(error, OSError)
    assert error.errno == errno.ENOSPC
    assert rig.loaded().keys[KEY].mark == kept
    assert rig.failures == []
    disk.free = 1 << 30
    await rig.advance(2 * INTERVAL_S)
    assert rig.journal.refusal() is None
    assert same(rig.loaded(), rig.memory.state)
    assert len(rig.names()) == 1
    assert await rig.keep(Done(KEY, 898)) is None
    assert same(rig.loaded(), rig.memory.state)


@pytest.mark.usefixtures("small")
async def test_receives_are_refused_while_there_is_room_for_answers(sync: bool) -> None:
    rig = JournalRig(sync=sync)
    disk = rig.files
    assert isinstance(disk, CrashDisk)
    rig.start()
    await rig.keep(took(KEY, 0, 300))
    await rig.advance(1)
    disk.free = 0
    offset = 0
    while rig.journal.refusal() is None:
        assert await rig.keep(Done(KEY, offset)) is None
        await rig.advance(INTERVAL_S)
        offset += 1
    for _ in range(10):
        offset += 1
        assert await rig.keep(Done(KEY, offset)) is None
    disk.free = 1 << 30
    await rig.advance(2 * INTERVAL_S)
    assert rig.journal.refusal() is None


async def test_a_disk_that_is_full_from_the_start(sync: bool) -> None:
    rig = JournalRig(sync=sync)
    disk = rig.files
    assert isinstance(disk, CrashDisk)
    rig.start()
    disk.free = 0
    assert isinstance(await rig.keep(took(KEY, 0, 3)), OSError)
    assert rig.journal.refusal() is not None
    assert rig.loaded() == PopState()
    disk.free = 1 << 30
    await rig.advance(2 * INTERVAL_S)
    assert rig.journal.refusal() is None
    assert same(rig.loaded(), rig.memory.state)


async def test_a_full_disk_while_it_is_full_costs_no_memory() -> None:
    rig = JournalRig()
    disk = rig.files
    assert isinstance(disk, CrashDisk)
    rig.start()
    disk.free = 0
    await rig.keep(took(KEY, 0, 3))
    for _ in range(100):
        rig.note(Done(KEY, 1))
    assert rig.journal._pending == []


@pytest.mark.parametrize("op", ["pwrite", "datasync", "allocate", "sync_folder", "create"])
@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.usefixtures("small")
async def test_a_disk_that_fails_fails_the_store(sync: bool, op: str, at: int) -> None:
    rig = JournalRig(sync=sync)
    rig.start()
    if op not in ("create", "sync_folder"):
        assert await rig.keep(took(KEY, 0, 300)) is None
    elif at == 2:
        return
    disk = rig.files
    assert isinstance(disk, CrashDisk)
    disk.fail(op, at=at, path="pop")
    answers: list[BaseException | None] = []
    for serial in range(900):
        answers.append(await rig.keep(Changed(KEY, 1, serial, serial, 2)))
        await rig.advance(INTERVAL_S)
        if rig.failures:
            break
    assert len(rig.failures) == 1
    assert await rig.keep(Done(KEY, 299)) is rig.failures[0]
    assert "failed" in (rig.journal.refusal() or "")
    if sync:
        assert answers[-1] is rig.failures[0]
    await rig.stop()
    assert len(rig.failures) == 1
    assert not rig.loaded().is_clean


@pytest.mark.usefixtures("small")
async def test_no_descriptor_at_any_open_fails_nothing(sync: bool) -> None:
    """At the first file, at a change of file, and at the removal of the older ones."""
    keys = [Key("G", "T", 0, queue_id) for queue_id in range(10)]
    for at in range(1, 6):
        rig = JournalRig(sync=sync)
        rig.start()
        disk = rig.files
        assert isinstance(disk, CrashDisk)
        disk.fail("open", at=at, path="pop", error=errno.EMFILE)
        for turn in range(60):
            await rig.keep(took(keys[turn % 10], 4 * turn, 4), Done(keys[turn % 10], 4 * turn))
            await rig.advance(INTERVAL_S)
        assert disk.faults.raised, "there were fewer calls than that"
        assert rig.failures == []
        assert rig.journal.refusal() is None
        assert same(rig.loaded(), rig.memory.state)


# Files that are not as they were written


async def damaged(
    change: Callable[[bytearray, list[int]], None], *, sync: bool = True
) -> JournalRig:
    """A journal of ten frames, the bytes of its file changed."""
    rig = JournalRig(sync=sync)
    rig.start()
    ends: list[int] = []
    for number in range(10):
        await rig.keep(took(KEY, 10 * number, 10))
        assert rig.journal._open is not None
        ends.append(rig.journal._open.position)
    (name,) = rig.files.list(rig.folder)
    data = bytearray(rig.files.read_all(rig.folder / name))
    change(data, ends)
    rig.files.replace(rig.folder / name, bytes(data), backup=False)
    return rig


async def test_a_torn_end_is_cut_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    def tear(data: bytearray, ends: list[int]) -> None:
        data[ends[-1] - 7 :] = bytes(len(data) - ends[-1] + 7)

    rig = await damaged(tear)
    with caplog.at_level(logging.WARNING):
        found = rig.loaded()
    assert found.keys[KEY].next_offset == 90
    assert caplog.records == []


async def test_damage_in_the_middle_is_told_once_and_nothing_behind_it_believed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def flip(data: bytearray, ends: list[int]) -> None:
        data[ends[4] + 20] ^= 1

    rig = await damaged(flip)
    with caplog.at_level(logging.WARNING):
        found = rig.loaded()
    assert found.keys[KEY].next_offset == 50
    (line,) = caplog.records
    assert "damaged at byte" in line.getMessage()
    again = JournalRig(rig.files)
    again.start()
    caplog.clear()
    assert again.loaded().keys[KEY].next_offset == 50
    assert caplog.records == []


async def test_what_was_not_synced_may_be_lost_in_the_middle(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def flip(data: bytearray, ends: list[int]) -> None:
        data[ends[4] + 20] ^= 1

    rig = await damaged(flip, sync=False)
    with caplog.at_level(logging.WARNING):
        found = rig.loaded()
    assert found.keys[KEY].next_offset == 50
    assert caplog.records == []


@pytest.mark.parametrize("length", [0, 1, HEAD_SIZE - 1, HEAD_SIZE, HEAD_SIZE + 3])
async def test_any_length_of_a_file_is_read(length: int) -> None:
    def cut(data: bytearray, _: list[int]) -> None:
        del data[length:]

    rig = await damaged(cut)
    assert rig.loaded().keys == {}
    again = JournalRig(rig.files)
    again.start()
    assert await again.keep(took(KEY, 0, 1)) is None
    assert same(again.loaded(), again.memory.state)


async def test_a_file_of_a_later_release_is_refused() -> None:
    def later(data: bytearray, _: list[int]) -> None:
        head = struct.pack(">4sHHq", b"SKPJ", 2, 0, 1)
        data[:HEAD_SIZE] = head + struct.pack(">I", zlib.crc32(head))

    rig = await damaged(later)
    with pytest.raises(CorruptFileError, match="later release"):
        rig.loaded()
    assert len(rig.names()) == 1


async def test_a_file_under_another_name_is_not_believed(caplog: pytest.LogCaptureFixture) -> None:
    def rename(data: bytearray, _: list[int]) -> None:
        data[:HEAD_SIZE] = file_head(7)

    rig = await damaged(rename)
    assert rig.loaded().keys == {}


async def test_foreign_files_are_left_alone() -> None:
    rig = JournalRig()
    rig.files.make_folder(rig.folder)
    rig.files.replace(rig.folder / "notes.txt", b"x", backup=False)
    rig.start()
    await rig.keep(took(KEY, 0, 1))
    again = JournalRig(rig.files)
    again.start()
    assert again.files.list(rig.folder)[-1] == "notes.txt"
