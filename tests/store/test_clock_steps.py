"""A clock that was far ahead for a moment: store times and searches go back with it."""

from __future__ import annotations

import logging
from functools import partial

import pytest

from skylarkmq.store.checkpoint import Checkpoint, Marks
from skylarkmq.store.folder import StorePaths
from skylarkmq.store.log.clock_steps import STEPS_MAX, ClockSteps
from tests.store.index_rig import ITEMS, IndexRig
from tests.store.support import StoreRig
from tests.support.crash_disk import CrashDisk

DAY_S = 24 * 3600
BEFORE, AHEAD, AFTER = 5, 10, 20


@pytest.fixture(autouse=True, params=["all is walked", "the end is walked"])
def _walk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "the end is walked":
        monkeypatch.setattr("skylarkmq.store.upkeep.recovery.CHECK_SIZE", 200)


def put(rig: StoreRig, count: int) -> list[int]:
    """Store messages, one a second; their store times."""
    times: list[int] = []
    for _ in range(count):
        rig.put("T", 0)
        rig.workers.run_all()
        times.append(rig.store.message_time("T", 0, rig.store.max_offset("T", 0) - 1))
        rig.clock.advance(1)
    return times


def glitched(disk: CrashDisk | None = None, **config: object) -> tuple[StoreRig, list[int]]:
    """A store whose clock was a day ahead for a moment; the times of its messages."""
    rig = StoreRig(disk, **config).start()
    times = put(rig, BEFORE)
    rig.clock.step_wall(DAY_S)
    times += put(rig, AHEAD)
    rig.clock.step_wall(-DAY_S)
    return rig, times + put(rig, AFTER)


def found(rig: StoreRig, time_ms: int) -> list[int]:
    """What both searches find, in memory and off the loop."""
    offsets = [rig.store.offset_by_time("T", 0, time_ms)]
    rig.store.offset_by_time_cold("T", 0, time_ms, lambda offset, _: offsets.append(offset or 0))
    rig.workers.run_all()
    return offsets


def check_searches(rig: StoreRig, times: list[int]) -> None:
    for offset in (*range(BEFORE), *range(BEFORE + AHEAD, len(times))):
        at = BEFORE if offset == BEFORE + AHEAD else offset  # those ahead count as of that time
        assert found(rig, times[offset]) == [at, at], offset
    assert found(rig, times[-1] + DAY_S * 500) == [len(times) - 1] * 2


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_only_what_was_stored_meanwhile_is_of_tomorrow(
    flush: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "skylarkmq.store.log.commit_log"):
        rig, times = glitched(flush_disk_type=flush)
    assert times[BEFORE] - times[0] > DAY_S * 1000
    assert times[BEFORE + AHEAD] == times[0] + 1000 * (BEFORE + AHEAD)
    assert sorted(times[BEFORE + AHEAD :]) == times[BEFORE + AHEAD :]
    assert rig.store.stats.clock_steps == 1
    (line,) = caplog.messages
    assert line.startswith("the clock is 86399 s behind the newest message")
    check_searches(rig, times)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("knows", ["a checkpoint", "the walk alone"])
def test_the_next_life_searches_as_well(is_clean: bool, knows: str) -> None:
    rig, times = glitched(
        **{} if knows == "a checkpoint" else {"flush_consume_queue_thorough_interval": 10**7}
    )
    if knows == "a checkpoint":
        times += put(rig, 15)
    if is_clean:
        rig.stop()
    again = StoreRig(rig.files if is_clean else rig.files.snapshot())
    again.clock.step_wall(60)
    again.start()
    check_searches(again, times)


def test_keys_are_found_in_an_index_file_that_began_ahead() -> None:
    rig = IndexRig()
    rig.start()
    rig.clock.step_wall(DAY_S)
    rig.send(1)
    rig.clock.step_wall(-DAY_S)
    rig.send(ITEMS // 2)
    now_ms = rig.clock.now_ms()
    for number in range(1, ITEMS // 2 + 1):
        assert rig.find(f"U{number}", end=now_ms).offsets, number
        assert rig.find(f"U{number}", begin=now_ms - 60_000, end=now_ms - 1).offsets, number


def test_a_step_right_after_the_recovery_point_is_found() -> None:
    """Its first record is the first one of the walk."""
    rig = StoreRig().start()
    put(rig, 3)
    rig.clock.step_wall(DAY_S)
    put(rig, 3)
    rig.stop()
    again = StoreRig(rig.files)
    again.start()
    put(again, 4)
    assert again.store.stats.clock_steps == 1
    killed = StoreRig(again.files.snapshot()).start()
    assert killed.store.commit_log.clock_steps.rows == again.store.commit_log.clock_steps.rows
    assert killed.store.commit_log.store_timestamp == again.store.commit_log.store_timestamp


def test_a_recovery_by_times_begins_before_a_step_that_came_after_the_checkpoint() -> None:
    """Times behind it are those that the checkpoint covers; what was stored then is not."""
    rig = StoreRig().start()
    times = put(rig, 3)
    rig.clock.step_wall(-3600)
    topics: list[str] = []
    while len(rig.store.commit_log.mapped_files.mapped) < 2:
        topics.append(f"once-{len(topics)}")
        rig.put(topics[-1], 0, bytes(20_000))
        rig.workers.run_all()
    disk = rig.files.snapshot()
    paths = StorePaths(disk.root)
    Checkpoint(disk, paths.checkpoint, paths.recovery_point).save(Marks(times[2], times[2]))
    again = StoreRig(disk).start()
    assert [again.store.max_offset(topic, 0) for topic in topics] == [1] * len(topics)


def test_a_log_that_ends_ahead_is_no_reason_to_stay_there() -> None:
    """As every restart did for a day."""
    rig = StoreRig().start()
    rig.clock.step_wall(DAY_S)
    put(rig, 3)
    rig.stop()
    again = StoreRig(rig.files).start()
    (time_ms,) = put(again, 1)
    assert time_ms <= again.clock.now_ms()


@pytest.mark.parametrize("pool", [False, True])
def test_what_the_checkpoint_says_goes_back_too(pool: bool) -> None:
    rig, times = glitched(transient_store_pool_enable=pool, transient_store_pool_size=2)
    put(rig, 15)
    assert rig.store.queues.flusher.checkpoint.load().physic_timestamp < times[BEFORE]


def test_a_cut_forgets_the_steps_behind_it() -> None:
    rig, _ = glitched()
    ((place, _, _),) = rig.store.commit_log.clock_steps.rows
    rig.stop()
    again = StoreRig(rig.files)
    again.store.load()
    assert again.store.commit_log.clock_steps.rows
    unit = again.store.queue_units("T", 0, BEFORE + 2, 1)[0]
    assert unit.commit_offset < place
    again.store.cut_back(unit.commit_offset)
    assert again.store.commit_log.clock_steps.rows == ()


def test_records_of_another_broker_step_without_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    master, times = glitched()
    slave = StoreRig(broker_role="SLAVE").start()
    caplog.clear()
    log = master.store.commit_log
    while slave.store.received.next_offset < log.max_offset:
        offset = slave.store.received.next_offset
        record = log.read(offset)
        assert record is not None
        slave.store.take_records(offset, bytes(log.part(offset, record.size)))
        slave.workers.run_all()
    assert slave.store.stats.clock_steps == 0
    assert not caplog.messages
    check_searches(slave, times)


@pytest.mark.parametrize("way", ["in a run", "a kill", "a stop"])
def test_a_clock_that_was_behind_for_a_while_bounds_nothing_before(way: str) -> None:
    rig = StoreRig().start()
    times = put(rig, 3)
    rig.clock.step_wall(-400 * DAY_S)
    put(rig, 3)
    assert len(rig.store.commit_log.clock_steps.rows) == 1
    if way != "in a run":
        if way == "a stop":
            rig.stop()
        rig = StoreRig(rig.files.snapshot())
        rig.clock.step_wall(10)
        rig.start()
    else:
        rig.clock.step_wall(400 * DAY_S)
    put(rig, 3)
    assert rig.store.commit_log.clock_steps.rows == ()
    assert rig.store.commit_log.clock_steps.open_ms > times[-1] + DAY_S * 10**6
    killed = StoreRig(rig.files.snapshot())
    killed.clock.step_wall(60)
    killed.start()
    assert killed.store.commit_log.clock_steps.rows == ()


def test_messages_each_second_tell_that_it_was_ahead_for_good() -> None:
    rig = StoreRig().start()
    times = put(rig, 3)
    rig.clock.step_wall(100)
    times += put(rig, 3)
    rig.clock.step_wall(-100)
    times += put(rig, 150)
    assert times[5] < times[-1]
    for again in (rig, StoreRig(rig.files.snapshot())):
        if again is not rig:
            again.clock.step_wall(300)
            again.start()
        assert len(again.store.commit_log.clock_steps.rows) == 1
        for offset in (0, 2, *range(7, len(times))):
            assert found(again, times[offset]) == [offset, offset]


def test_times_of_places_rise() -> None:
    steps = ClockSteps()
    assert steps.bounded(0, 7) == 7
    steps.add(100, 50, 500)
    steps.add(200, 60, 500)
    bounded = partial(map, lambda place: steps.bounded(place, 1000))
    assert list(bounded((0, 99, 100, 199, 200))) == [50, 50, 60, 60, 1000]
    assert (steps.bounded(0, 10), steps.bounded(0, -1)) == (10, -1)
    steps.add(300, 55, 500)
    assert steps.rows == ((100, 50, 500), (300, 55, 500))
    steps.add(400, 40, 500)
    assert steps.rows == ((400, 40, 500),)
    for number in range(2 * STEPS_MAX):
        steps.add(500 + number, 1000 + number, 10**6)
    assert len(steps.rows) == STEPS_MAX
    assert steps.rows[-1] == (499 + 2 * STEPS_MAX, 999 + 2 * STEPS_MAX, 10**6)
    steps.keep(500 + 2 * STEPS_MAX - 3, 500 + 2 * STEPS_MAX - 2)
    assert len(steps.rows) == 1


def test_the_end_of_a_file_that_comes_alone_is_no_step_back() -> None:
    """It has no store time."""
    master, slave = StoreRig().start(), StoreRig(broker_role="SLAVE").start()
    log = master.store.commit_log
    blank = 0  # where the record begins that ends the first file
    while len(log.mapped_files.mapped) == 1:
        blank = log.max_offset
        master.put("T", 0, bytes(9000))
        master.workers.run_all()
    for end in (blank, log.file_size, log.max_offset):
        while (offset := slave.store.received.next_offset) < end:
            slave.store.take_records(offset, bytes(log.part(offset, end - offset)))
            slave.workers.run_all()
    assert slave.store.commit_log.clock_steps.rows == ()
    assert slave.store.commit_log.store_timestamp == log.store_timestamp


def test_a_recovery_by_times_does_not_believe_those_of_before() -> None:
    """The crash came between the two files of the checkpoint, whose times are ahead."""
    rig = StoreRig().start()
    rig.clock.step_wall(DAY_S)
    put(rig, 3)
    rig.store.queues.flusher.sync(rig.store._checkpoints.marks())
    rig.workers.run_all()
    marks = rig.store.queues.flusher.checkpoint.load()
    assert marks.physic_timestamp > DAY_S
    rig.clock.step_wall(-DAY_S)
    rig.put("T", 0, b"is in the first file")
    number = 0  # each to a queue of its own: no gap tells of the one before
    while len(rig.store.commit_log.mapped_files.mapped) < 3:
        number += 1
        rig.put("other", number, bytes(9000))
        rig.workers.flush.run_all()
        rig.workers.prepare.run_all()
    killed = StoreRig(rig.files.snapshot())
    killed.files.unlink(killed.store.paths.recovery_point)
    killed.start()
    assert killed.store.max_offset("T", 0) == 4
    assert all(killed.store.max_offset("other", one) == 1 for one in range(1, number + 1))
