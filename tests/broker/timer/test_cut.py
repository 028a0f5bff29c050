"""Timed messages after a cut of the log that took copies, and left what waited."""

from __future__ import annotations

import pytest

from skylarkmq.store.timer import index as index_module
from tests.broker.timer.timer_rig import TOPIC, WHEEL, TimerRig
from tests.store.support import inner
from tests.support.crash_disk import CrashDisk


@pytest.fixture(autouse=True)
def _small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "MEMORY_MAX", 4)
    monkeypatch.setattr(index_module, "FAN_IN", 3)


def after_a_cut(disk: CrashDisk, place: int, later_s: float, **config: int) -> TimerRig:
    """Start on what is left; the log ends at `place`."""
    rig = TimerRig(disk, **config)
    rig.clock.step_wall(later_s)
    rig.store.load()
    rig.store.cut_back(place)
    rig.service.load()
    rig.store.start()
    rig.service.start()
    return rig


def begin_of(rig: TimerRig, offset: int) -> int:
    """Where in the log the message at an offset of the topic's queue begins."""
    (unit,) = rig.store.queue_units(TOPIC, 2, offset, 1)
    return unit.commit_offset


def log_end(rig: TimerRig) -> int:
    return rig.store.commit_log.max_offset


def bodies_of(count: int) -> set[bytes]:
    return {b"%d" % number for number in range(count)}


async def delivered_by_the_second(count: int) -> TimerRig:
    rig = TimerRig().start()
    for number in range(count):
        rig.after(1000 * (1 + number), b"%d" % number)
    await rig.advance(count + 3)
    assert len(rig.bodies()) == count
    return rig


async def test_copies_that_a_cut_took_come_again_and_no_others() -> None:
    rig = await delivered_by_the_second(12)
    place = begin_of(rig, 7)
    await rig.stop_all()
    again = after_a_cut(rig.files, place, 20.0)
    assert again.store.max_offset(WHEEL, 0) == 12
    await again.advance(3)
    bodies = again.bodies()
    assert bodies[:7] == [b"%d" % number for number in range(7)]
    assert bodies_of(12) == set(bodies)
    assert len(bodies) <= 13, "what was delivered within the interval of the file, once more"


async def test_however_late_they_had_been_stored() -> None:
    """The broker was down while they became due."""
    rig = TimerRig().start()
    rig.after(1000, b"in time")
    for number in range(6):
        rig.after(10_000, b"%d" % number)
    await rig.advance(5)
    await rig.stop_all()
    late = TimerRig(rig.files)
    late.clock.step_wall(3600)
    late.start()
    late.store.put_message(inner("other", 0, b"the cut is here"), late.results.append)
    place = log_end(late)
    await late.advance(5)
    assert len(late.bodies()) == 7
    await late.stop_all()
    again = after_a_cut(late.files, place, 3700.0)
    await again.advance(3)
    assert sorted(again.bodies()) == sorted([b"in time", *(b"%d" % number for number in range(6))])


async def test_a_kill_after_the_cut_changes_nothing() -> None:
    rig = await delivered_by_the_second(6)
    place = begin_of(rig, 2)
    await rig.stop_all()
    killed = after_a_cut(rig.files, place, 20.0).files.snapshot()
    again = TimerRig(killed)
    again.clock.step_wall(30)
    again.start()
    await again.advance(3)
    assert set(again.bodies()) == {b"%d" % number for number in range(6)}


async def test_a_cut_of_all_that_the_checkpoint_knows_delivers_all_again() -> None:
    rig = TimerRig().start()
    for number in range(3):
        rig.after(1000, b"%d" % number)
    place = log_end(rig)
    await rig.advance(3)
    await rig.stop_all()
    again = after_a_cut(rig.files, place, 20.0)
    await again.advance(3)
    assert again.bodies() == [b"0", b"1", b"2"]


async def test_a_log_that_has_grown_again_is_cut_again() -> None:
    """What an earlier life of the log knew counts no more."""
    rig = await delivered_by_the_second(6)
    place = begin_of(rig, 2)
    await rig.stop_all()
    second = after_a_cut(rig.files, place, 20.0)
    await second.advance(3)
    second.after(60_000, b"waits")
    cut = log_end(second)
    second.after(1000, b"6")
    await second.advance(5)
    await second.stop_all()
    third = after_a_cut(second.files, cut, 40.0)
    await third.advance(3)
    assert set(third.bodies()) == bodies_of(6)
    assert third.service.waiting_count == 1


async def test_a_second_cut_knows_what_the_first_life_said() -> None:
    rig = await delivered_by_the_second(12)
    places = begin_of(rig, 10), begin_of(rig, 8)
    await rig.stop_all()
    second = after_a_cut(rig.files, places[0], 20.0)
    await second.advance(3)
    await second.stop_all()
    third = after_a_cut(second.files, places[1], 40.0)
    await third.advance(3)
    assert set(third.bodies()) == bodies_of(12)
    assert len(third.bodies()) <= 13


async def test_little_is_repeated_and_the_checkpoint_stays_small() -> None:
    """What was known of a shorter log gets sparser with its distance."""
    rig = TimerRig(timer_flush_interval_ms=100).start()
    for number in range(300):
        rig.after(1000 * (1 + number), b"%d" % number)
    await rig.advance(302, step_s=0.5)
    assert len(rig.bodies()) == 300
    size = len(rig.files.read_all(rig.store.paths.timer / "checkpoint"))
    assert size < 4096
    places = {offset: begin_of(rig, offset) for offset in (290, 150, 3)}
    await rig.stop_all()
    for offset, place in places.items():
        again = after_a_cut(rig.files.snapshot(), place, 400.0)
        await again.advance(3)
        assert set(again.bodies()) == bodies_of(300)
        repeated = len(again.bodies()) - 300
        assert repeated <= max(12, 300 - offset), offset


async def test_a_broker_that_is_busy_with_others_writes_no_checkpoint_for_them() -> None:
    rig = TimerRig(timer_flush_interval_ms=100).start()
    rig.after(60_000, b"waits")
    await rig.advance(3)
    path = rig.store.paths.timer / "checkpoint"
    before = rig.files.read_all(path)
    for _ in range(5):
        rig.store.put_message(inner("other", 0, b"more"), rig.results.append)
        await rig.advance(2)
    assert rig.files.read_all(path) == before


async def test_what_was_stored_again_and_cut_waits_where_it_was() -> None:
    rig = TimerRig(timer_max_delay_sec=10_000).start()
    for number in range(6):
        rig.after(3_600_000, b"%d" % number)
    await rig.advance(2)
    place = log_end(rig)
    rig.service.rolling.want(place)
    await rig.advance(5)
    assert rig.service.rolling.rolled_count == 6
    await rig.stop_all()
    again = after_a_cut(rig.files, place, 3700.0)
    await again.advance(3)
    assert again.bodies() == [b"%d" % number for number in range(6)]


async def test_a_kill_while_the_queue_is_read_again() -> None:
    """The log has become longer than it was before the cut."""
    rig = await delivered_by_the_second(6)
    place = begin_of(rig, 2)
    await rig.stop_all()
    second = after_a_cut(rig.files, place, 20.0)
    for _ in range(20):
        second.store.put_message(inner("other", 0, bytes(200)), second.results.append)
    second.workers.flush.run_all()
    killed = TimerRig(second.files.snapshot())
    killed.clock.step_wall(30)
    killed.start()
    await killed.advance(3)
    assert set(killed.bodies()) == bodies_of(6)
