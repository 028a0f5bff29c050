"""A log that was cut back is as if it had never been longer; a crash leaves it long or cut."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from skylarkmq.common.errors import CorruptFileError, StoreError
from skylarkmq.store.errors import StoreFullError
from skylarkmq.store.log.log_walk import LogWalk
from skylarkmq.store.log.mapped_file_queue import BROKEN
from skylarkmq.store.upkeep import recovery
from tests.store.support import LOG_SIZE, StoreRig
from tests.store.test_received import (
    files_of,
    found,
    hand_over,
    kinds,
    log_of,
    master,
    queues_of,
    settle,
    slave,
)
from tests.support.amounts import slow
from tests.support.crash_disk import CrashDisk
from tests.support.crash_explorer import seeds
from tests.support.crash_states import CrashState, Keep

COUNT = 130
KEYS = [f"key-{number}" for number in range(0, COUNT + 2, 5)] + [
    f"key-{number}" for number in range(200, 230)
]


def borders(rig: StoreRig) -> list[int]:
    """Every place of a log where a record begins or ends, and every start of a file."""
    log = rig.store.commit_log
    places = {log.min_offset, log.max_offset}
    for record in LogWalk(log.mapped_files, check_crc=False).records(log.min_offset):
        places |= {record[0], record[0] + record[1]}
    places |= set(range(log.min_offset, log.max_offset, LOG_SIZE))
    return sorted(places)


def fed(data: bytes) -> StoreRig:
    """A slave that got these bytes and nothing else."""
    rig = slave()
    if data:
        rig.store.take_records(0, data)
    settle(rig)
    return rig


def other_log(begin: bytes) -> bytes:
    """The log of another master that went on after these bytes."""
    rig = fed(begin)
    rig.stop()
    again = StoreRig(left(rig)).start()
    for number in range(200, 230):
        for message in kinds(number):
            again.store.put_message(message, again.results.append)
        again.workers.run_all()
    settle(again)
    return log_of(again)


def ended(rig: StoreRig, rng: Random) -> CrashDisk:
    """What a master leaves: stopped or killed, with a checkpoint of anywhere."""
    if rng.random() < 0.5:
        rig.clock.advance(61)
        rig.workers.run_all()
        for message in kinds(COUNT):
            rig.store.put_message(message, rig.results.append)
        settle(rig)
    if rng.random() < 0.5:
        rig.stop()
    return left(rig)


def left(rig: StoreRig) -> CrashDisk:
    """The disk as the next process finds it, whether this one was stopped or killed."""
    return rig.files.crash(CrashState(Keep.KILL), Random(0))


def loaded(disk: CrashDisk) -> StoreRig:
    rig = StoreRig(disk, broker_role="SLAVE")
    rig.store.load()
    return rig


def check_same(rig: StoreRig, other: StoreRig) -> None:
    settle(rig, other)
    assert log_of(rig) == log_of(other)
    assert queues_of(rig) == queues_of(other)
    for key in KEYS:
        assert found(rig, key) == found(other, key), key
    assert rig.store.received.next_offset == other.store.received.next_offset


@pytest.mark.parametrize("check_size", [10_000, recovery.CHECK_SIZE])
def test_the_store_is_as_one_that_never_had_the_rest(
    monkeypatch: pytest.MonkeyPatch, check_size: int
) -> None:
    monkeypatch.setattr(recovery, "CHECK_SIZE", check_size)
    for seed in seeds(6):
        rng = Random(seed)
        source = master(COUNT)
        places = borders(source)
        special = [place for place in places if place % LOG_SIZE == 0]
        offset = rng.choice(places if rng.random() < 0.7 else special)
        whole = log_of(source)
        new = other_log(whole[:offset])
        assert new[:offset] == whole[:offset]
        rig = loaded(ended(source, rng))
        end = rig.store.commit_log.max_offset
        rig.store.cut_back(offset)
        assert rig.store.commit_log.max_offset == rig.store.received.next_offset == offset
        kept = [name for name in rig.files.contents() if name.endswith(BROKEN)]
        assert len(kept) == (offset != end)
        if kept:
            data = rig.files.contents()[kept[0]]
            assert data[: len(whole) - offset] == whole[offset:]
        rig.store.start()
        check_same(rig, fed(whole[:offset]))
        rig.store.take_records(offset, new[offset:])
        expected = fed(new)
        check_same(rig, expected)
        if rng.random() < 0.5:  # nothing of the old end comes back
            again = StoreRig(left(rig), broker_role="SLAVE").start()
            check_same(again, expected)
        rig.stop()
        expected.stop()
        for folder in ("commitlog", "consumequeue"):
            assert files_of(rig, folder) == files_of(expected, folder)


def _keep(disk: CrashDisk, kept: list[CrashDisk], first: int, every: int) -> Callable[..., None]:
    """What keeps a picture of the disk before some of its steps."""
    steps = itertools.count(-first)

    def before_step(*_: object) -> None:
        if next(steps) % every == 0:
            kept.append(disk.snapshot())

    return before_step


def _keep_one(disk: CrashDisk, kept: list[CrashDisk], rng: Random) -> Callable[..., None]:
    """What keeps a picture of the disk before one of its steps, each of them as likely."""
    steps = itertools.count(1)

    def before_step(*_: object) -> None:
        if rng.randrange(next(steps)) == 0:
            kept[:] = [disk.snapshot()]

    return before_step


@pytest.mark.parametrize("every", [30, slow(1)])
def test_a_crash_leaves_the_store_as_before_or_as_after(every: int) -> None:
    ends: set[bool] = set()
    for seed in seeds(3):
        rng = Random(seed)
        source = master(COUNT)
        offset = rng.choice([place for place in borders(source) if place < LOG_SIZE * 1.5])
        rig = loaded(ended(source, rng))
        whole = log_of(rig)
        expected = {end: fed(whole[:end]) for end in (offset, len(whole))}
        points: list[CrashDisk] = []
        rig.files.before_step = _keep(rig.files, points, rng.randrange(every), every)
        rig.store.cut_back(offset)
        rig.files.before_step = None
        points.append(rig.files.snapshot())
        for point in points:
            for state in point.crash_states(rng, 8)[rng.randrange(8) :][:1]:
                again = StoreRig(point.crash(state, rng), broker_role="SLAVE").start()
                end = again.store.commit_log.max_offset
                assert end in expected
                assert queues_of(again) == queues_of(expected[end])
                assert log_of(again) == whole[:end]
                ends.add(end == offset)
                if rng.random() < 0.2:
                    check_same(again, expected[end])
    assert ends == {True, False}


def test_a_crash_in_a_crashed_cut_ends_it_too() -> None:
    rng = Random(5)
    source = master(COUNT)
    offset = borders(source)[20]
    rig = loaded(ended(source, rng))
    rig.files.fail("unlink", path="commitlog")
    whole = log_of(rig)
    with pytest.raises(OSError, match="Input/output"):
        rig.store.cut_back(offset)
    rig.files.faults.clear()
    disk = left(rig)
    for _ in range(20):
        points: list[CrashDisk] = []
        disk.before_step = _keep_one(disk, points, rng)
        again = loaded(disk)
        disk.before_step = None
        assert again.store.commit_log.max_offset == offset
        [point] = points
        disk = point.crash(rng.choice(point.crash_states(rng, 8)), rng)
    check_same(StoreRig(disk, broker_role="SLAVE").start(), fed(whole[:offset]))


def test_what_stays_of_the_key_index_is_not_built_again() -> None:
    source = master(COUNT)
    settle(source)
    source.stop()
    rig = loaded(left(source))
    rig.store.cut_back(borders(rig)[60])
    assert rig.store.index.behind_bytes == 0
    assert rig.store.index.file_count > 0


def test_a_place_that_is_no_border_changes_nothing() -> None:
    source = master(COUNT)
    places = borders(source)
    settle(source)
    source.stop()
    rig = loaded(left(source))
    end = rig.store.commit_log.max_offset
    before = rig.files.contents()
    blank = next(place for place in places if place % LOG_SIZE == 0 and place) - 1
    for offset in (-1, places[3] + 1, places[-1] - 1, blank, end + 1, end + LOG_SIZE):
        with pytest.raises(StoreError, match=f"cut back to offset {offset}: "):
            rig.store.cut_back(offset)
    assert rig.files.contents() == before
    rig.store.cut_back(end)
    assert rig.files.contents() == before
    rig.store.start()
    with pytest.raises(StoreError, match="before it starts"):
        rig.store.cut_back(0)


def test_without_room_for_what_goes_nothing_is_cut() -> None:
    rig = loaded(ended(master(COUNT), Random(1)))
    offset, end = borders(rig)[9], rig.store.commit_log.max_offset
    for path in (BROKEN, "cut-back"):
        rig.files.fail("pwrite", error=errno.ENOSPC, path=path)
        with pytest.raises(StoreFullError, match="is not cut back to offset"):
            rig.store.cut_back(offset)
        assert rig.store.commit_log.max_offset == end
        assert not any(name.endswith((BROKEN, "cut-back")) for name in rig.files.contents())
    rig.store.cut_back(offset)
    assert rig.store.commit_log.max_offset == offset


def test_a_rotten_note_of_a_cut_stops_the_start() -> None:
    rig = master(3)
    rig.stop()
    path: Path = rig.store.paths.cut_back
    rig.files.replace(path, b"rot", backup=False)
    with pytest.raises(CorruptFileError, match="too short"):
        loaded(rig.files)


def test_a_slave_goes_on_with_its_master_after_a_cut() -> None:
    source = master(COUNT)
    settle(source)
    rig = fed(log_of(source))
    rig.stop()
    again = loaded(left(rig))
    again.store.cut_back(borders(source)[30])
    again.store.start()
    hand_over(source, again, Random(2))
    check_same(again, source)
