"""Recovery after kills and damage. The simulator explores; here each rule stands alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from skylarkmq.common.errors import CorruptFileError
from skylarkmq.store.queue.consume_queue import UNIT_SIZE
from skylarkmq.store.results import PutMessageStatus
from skylarkmq.store.upkeep import recovery
from tests.store.support import LOG_SIZE, QUEUE_SIZE, StoreRig
from tests.store.test_message_store import bodies
from tests.support.crash_disk import CrashDisk
from tests.support.crash_states import CrashState, Keep

BODY_SIZE = 3000


def filled(disk: CrashDisk, count: int = 100, **config: object) -> StoreRig:
    """A running store with messages over several files, all of them synced, no checkpoint."""
    rig = StoreRig(disk, **config).start()
    for number in range(count):
        rig.put("T", number % 2, body_of(number))
        rig.clock.advance(0.6)
        rig.workers.run_all()
    rig.clock.advance(1.1)
    rig.workers.run_all()
    return rig


def body_of(number: int) -> bytes:
    return b"%04d" % number + b"z" * BODY_SIZE


def killed(rig: StoreRig) -> CrashDisk:
    """The disk as the next process finds it after a kill: everything written is there."""
    return rig.files.snapshot()


def numbers(rig: StoreRig, queue_id: int) -> list[int]:
    return [int(body[:4]) for body in bodies(rig, "T", queue_id)]


def on(disk: CrashDisk, rig: StoreRig, path: Path) -> Path:
    """A path of the store as it is called on a copy of its disk."""
    return disk.root / path.relative_to(rig.files.root)


def log_path(disk: CrashDisk, rig: StoreRig, index: int) -> Path:
    return on(disk, rig, rig.store.commit_log.mapped_files.mapped[index].file.path)


def overwrite(disk: CrashDisk, path: Path, position: int, data: bytes) -> None:
    file = disk.open(path)
    file.pwrite(data, position)
    file.datasync()
    file.close()


def reopened(disk: CrashDisk) -> StoreRig:
    """A second process on the disk."""
    return StoreRig(disk).start()


def test_after_a_kill_every_message_is_there_and_offsets_go_on() -> None:
    rig = filled(CrashDisk(), count=90)  # less than a checkpoint's interval
    again = reopened(killed(rig))
    report = again.store.recovery
    assert report is not None
    assert (report.clean, report.records, report.rebuilt) == (False, 90, 90)
    assert numbers(again, 0) == list(range(0, 90, 2))
    assert numbers(again, 1) == list(range(1, 90, 2))
    result = again.put("T", 0, b"new")
    assert result is not None
    assert (result.status, result.queue_offset) == (PutMessageStatus.PUT_OK, 45)


def test_a_torn_tail_is_cut_and_its_bytes_become_zeros() -> None:
    rig = filled(CrashDisk(), count=89)  # less than a checkpoint's interval
    rig.put("T", 1, body_of(89))  # not synced
    disk = killed(rig)
    end = rig.store.commit_log.max_offset
    path = log_path(disk, rig, -1)
    last_start = end % LOG_SIZE - (BODY_SIZE + 96)
    overwrite(disk, path, last_start + 1024, bytes(1024))
    again = reopened(disk)
    assert numbers(again, 0) == list(range(0, 90, 2))
    assert numbers(again, 1) == list(range(1, 89, 2)), "the torn one is gone"
    assert again.store.recovery is not None
    assert again.store.recovery.truncated_bytes > 0
    mapped = again.store.commit_log.mapped_files.last
    assert mapped is not None
    assert not any(bytes(mapped.view[mapped.wrote_position :]))


def test_a_record_at_the_wrong_place_is_not_one() -> None:
    rig = filled(CrashDisk(), count=10)
    disk = killed(rig)
    path = log_path(disk, rig, 0)
    end = rig.store.commit_log.max_offset
    file = disk.open(path)
    stale = file.pread(end // 2, 0)
    overwrite(disk, path, end, stale)  # good records of another place, right behind the end
    again = reopened(disk)
    assert again.store.commit_log.max_offset == end
    assert numbers(again, 0) == [0, 2, 4, 6, 8]


def test_damage_inside_durable_data_is_refused_with_file_and_place() -> None:
    rig = filled(CrashDisk())
    rig.clock.advance(61)
    rig.workers.run_all()
    for number in range(100, 120):
        rig.put("T", number % 2, body_of(number))
        rig.clock.advance(0.6)
        rig.workers.run_all()
    rig.clock.advance(61)
    rig.workers.run_all()
    disk = killed(rig)
    path = log_path(disk, rig, -1)
    position = 5 * (BODY_SIZE + 96)
    record_start = _record_start(rig, position)
    overwrite(disk, path, record_start + 200, random.Random(1).randbytes(64))
    before = disk.contents()
    with pytest.raises(CorruptFileError, match="put a good copy") as caught:
        StoreRig(disk).start()
    assert caught.value.path.name == path.name
    assert caught.value.position == record_start
    after = disk.contents()
    assert {name: data for name, data in after.items() if "commitlog" in name} == {
        name: data for name, data in before.items() if "commitlog" in name
    }


def _record_start(rig: StoreRig, position: int) -> int:
    """Where the record begins that holds a byte of the last log file."""
    mapped = rig.store.commit_log.mapped_files.last
    assert mapped is not None
    offset = mapped.start_offset
    while True:
        view = rig.store.commit_log.read(offset)
        assert view is not None
        if offset + view.size > mapped.start_offset + position:
            return offset - mapped.start_offset
        offset += view.size


@pytest.mark.parametrize("damage", ["missing", "zeros", "garbage", "short"])
def test_damaged_queues_are_built_again(damage: str) -> None:
    rig = filled(CrashDisk())  # long enough for a checkpoint that covers part of the queues
    disk = killed(rig)
    folder = on(disk, rig, rig.store.paths.queue_folder("T", 0))
    names = disk.list(folder)
    if damage == "missing":
        for name in names:
            disk.unlink(folder / name)
    elif damage == "short":
        disk.open(folder / names[-1]).truncate(100)
    else:
        rubbish = bytes(400) if damage == "zeros" else random.Random(3).randbytes(400)
        overwrite(disk, folder / names[0], 200, rubbish)
    again = reopened(disk)
    assert numbers(again, 0) == list(range(0, 100, 2))
    result = again.put("T", 0, b"next")
    assert result is not None
    assert result.queue_offset == 50


def test_a_checkpoint_bounds_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "CHECK_SIZE", 100_000)
    rig = filled(CrashDisk())
    rig.clock.advance(61)
    rig.workers.run_all()
    for number in range(100, 160):
        rig.put("T", number % 2, body_of(number))
        rig.workers.run_all()
    again = reopened(killed(rig))
    report = again.store.recovery
    assert report is not None
    assert report.records < 160
    assert numbers(again, 0) == list(range(0, 160, 2))
    assert numbers(again, 1) == list(range(1, 160, 2))


def test_recovering_twice_changes_nothing_more() -> None:
    rig = filled(CrashDisk())
    first = reopened(killed(rig))
    once = killed(first)
    second = reopened(once.snapshot())
    twice = killed(second)
    assert once.contents() == twice.contents()


def test_a_clean_stop_is_trusted_and_walks_the_newest_files_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "CHECK_SIZE", 100_000)
    disk = CrashDisk()
    rig = filled(disk, count=200)
    rig.stop()
    again = StoreRig(disk).start()
    report = again.store.recovery
    assert report is not None
    assert report.clean
    assert 0 < report.records < 200
    assert numbers(again, 0) == list(range(0, 200, 2))


@pytest.mark.parametrize("lost", ["last units", "one unit", "another place", "the queue"])
def test_a_clean_store_of_somebody_else_has_a_unit_for_each_record_walked(lost: str) -> None:
    """One of RocketMQ's, or one that was put back in parts: it has no recovery point of ours."""
    disk = CrashDisk()
    rig = filled(disk, count=200)
    folder = rig.store.paths.queue_folder("T", 1)
    point = rig.store.paths.recovery_point
    rig.stop()
    disk.unlink(point)
    names = disk.list(folder)
    if lost == "last units":
        place = 90 * UNIT_SIZE
        overwrite(disk, folder / names[-1], place % QUEUE_SIZE, bytes(10 * UNIT_SIZE))
    elif lost == "one unit":
        overwrite(disk, folder / names[-1], 95 * UNIT_SIZE % QUEUE_SIZE, bytes(UNIT_SIZE))
    elif lost == "another place":  # a unit that speaks of another record
        overwrite(disk, folder / names[-1], 95 * UNIT_SIZE % QUEUE_SIZE, bytes(8))
    else:
        for name in names:
            disk.unlink(folder / name)
        disk.remove_folder(folder)
    again = StoreRig(disk).start()
    assert numbers(again, 0) == list(range(0, 200, 2))
    assert numbers(again, 1) == list(range(1, 200, 2))
    result = again.put("T", 1, b"next")
    assert result is not None
    assert result.queue_offset == 100


def test_queues_that_lag_at_a_clean_stop_get_the_units_of_the_newest_records() -> None:
    """As RocketMQ leaves a store whose dispatch has not caught up when it stops."""
    disk = CrashDisk()
    rig = filled(disk, count=200)
    folders = [rig.store.paths.queue_folder("T", queue_id) for queue_id in (0, 1)]
    point = rig.store.paths.recovery_point
    rig.stop()
    disk.unlink(point)
    for folder in folders:
        last = folder / disk.list(folder)[-1]
        overwrite(disk, last, 90 * UNIT_SIZE % QUEUE_SIZE, bytes(10 * UNIT_SIZE))
    again = StoreRig(disk).start()
    report = again.store.recovery
    assert report is not None
    assert (report.clean, report.rebuilt) == (True, 20)
    assert numbers(again, 0) == list(range(0, 200, 2))
    assert numbers(again, 1) == list(range(1, 200, 2))
    result = again.put("T", 1, b"next")
    assert result is not None
    assert result.queue_offset == 100


def test_a_delayed_message_keeps_its_due_time_when_its_queue_is_rebuilt() -> None:
    rig = StoreRig(CrashDisk()).start()
    rig.put("SCHEDULE_TOPIC_XXXX", 2, b"later", properties=b"DELAY\x013", delay_level=3)
    before = rig.store.queue_units("SCHEDULE_TOPIC_XXXX", 2, 0, 1)
    again = reopened(killed(rig))
    assert again.store.queue_units("SCHEDULE_TOPIC_XXXX", 2, 0, 1) == before
    assert before[0].tags_code == rig.results[0].store_timestamp + 10_000


@pytest.mark.parametrize(("number", "claimed"), [(0, 1 << 40), (20, 18), (20, 30), (20, 1 << 40)])
def test_a_damaged_queue_offset_costs_at_most_its_own_message(number: int, claimed: int) -> None:
    rig = filled(CrashDisk(), count=90)
    place = rig.results[number].physical_offset
    disk = killed(rig)
    path = log_path(disk, rig, place // LOG_SIZE)
    overwrite(disk, path, place % LOG_SIZE + 20, claimed.to_bytes(8, "big"))
    again = reopened(disk)
    assert [each for each in numbers(again, 0) if each != number] == [
        each for each in range(0, 90, 2) if each != number
    ]
    assert again.store.max_offset("T", 0) == 45
    assert numbers(again, 1) == list(range(1, 90, 2))


def test_a_hole_in_front_of_the_newest_files_is_no_expired_message() -> None:
    """It says offset 0, which lies in front of a log whose first file has expired."""
    sizes = {"mapped_file_size_consume_queue": 5 * UNIT_SIZE}
    rig = filled(CrashDisk(), count=89, **sizes)  # less than a checkpoint's interval
    disk = killed(rig)
    disk.unlink(log_path(disk, rig, 0))
    folder = on(disk, rig, rig.store.paths.queue_folder("T", 0))
    names = disk.list(folder)
    assert len(names) == 9
    overwrite(disk, folder / names[4], 4 * UNIT_SIZE, bytes(UNIT_SIZE))  # the pages of unit 24
    for name in names[5:]:  # and of those behind it were lost
        overwrite(disk, folder / name, 0, bytes(5 * UNIT_SIZE))
    again = StoreRig(disk, **sizes).start()
    first = again.store.min_offset("T", 0)
    assert 0 < first < 24
    left = [int(body[:4]) for body in bodies(again, "T", 0, first)]
    assert left == list(range(2 * first, 89, 2))


def test_what_a_start_has_shown_outlives_a_power_cut() -> None:
    """A killed process leaves bytes that no sync has covered: the start syncs them first."""
    rig = StoreRig().start()
    for number in range(10):
        rig.put("T", 0, body_of(number))
    again = reopened(killed(rig))
    assert numbers(again, 0) == [*range(10)]
    after = reopened(again.files.crash(CrashState(Keep.NONE), random.Random(1)))
    assert numbers(after, 0) == [*range(10)]
