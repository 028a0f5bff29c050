"""Recovery from the recovery point on: how far it goes back, what it trusts, what it refuses."""

from __future__ import annotations

import struct

import pytest

from skylarkmq.common.errors import CorruptFileError
from skylarkmq.store.checkpoint import Checkpoint, Marks
from skylarkmq.store.upkeep import checkpoint_service, recovery
from skylarkmq.store.upkeep.recovery import RecoveryReport
from tests.store.support import LOG_SIZE, StoreRig
from tests.store.test_recovery import (
    BODY_SIZE,
    body_of,
    filled,
    killed,
    log_path,
    numbers,
    on,
    overwrite,
    reopened,
)
from tests.support.crash_disk import CrashDisk

RECORD_SIZE = BODY_SIZE + 4 + 92


def checkpointed(count: int, more: int) -> StoreRig:
    """Messages, a checkpoint of all of them, and some behind it."""
    rig = filled(CrashDisk(), count)
    rig.clock.advance(70)
    rig.workers.run_all()
    for number in range(count, count + more):
        rig.put("T", number % 2, body_of(number))
    rig.workers.run_all()
    return rig


def marks_of(rig: StoreRig) -> Marks:
    return Checkpoint(rig.files, rig.store.paths.checkpoint, rig.store.paths.recovery_point).load()


def report_of(rig: StoreRig) -> RecoveryReport:
    report = rig.store.recovery
    assert report is not None
    return report


def everything(rig: StoreRig, count: int) -> None:
    assert numbers(rig, 0) == list(range(0, count, 2))
    assert numbers(rig, 1) == list(range(1, count, 2))


@pytest.fixture
def no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in front of the recovery point is read again."""
    monkeypatch.setattr(recovery, "CHECK_SIZE", 0)


@pytest.mark.usefixtures("no_check")
def test_only_what_came_after_the_point_is_read_again() -> None:
    rig = checkpointed(100, more=7)
    assert marks_of(rig).commit_log_offset == rig.store.commit_log.max_offset - 7 * RECORD_SIZE
    again = reopened(killed(rig))
    assert (report_of(again).records, report_of(again).rebuilt) == (7, 7)
    everything(again, 107)
    result = again.put("T", 1, b"new")
    assert result is not None
    assert result.queue_offset == 53


@pytest.mark.usefixtures("no_check")
def test_an_early_checkpoint_comes_with_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_service, "CHECKPOINT_SIZE", 10 * BODY_SIZE)
    rig = StoreRig(CrashDisk()).start()
    for number in range(40):
        rig.put("T", number % 2, body_of(number))
        rig.clock.advance(0.3)
        rig.workers.run_all()
    assert 40 * RECORD_SIZE - marks_of(rig).commit_log_offset < 20 * RECORD_SIZE
    again = reopened(killed(rig))
    assert report_of(again).records < 20
    everything(again, 40)


def test_a_point_is_never_ahead_of_the_flush() -> None:
    rig = filled(CrashDisk(), count=10)
    flushed = rig.store.commit_log.flushed_offset
    rig.put("T", 0, body_of(10))  # published, and not synced
    marks = rig.store._checkpoints.marks()
    assert rig.store.writer.published_offset > flushed
    assert marks.commit_log_offset <= flushed
    assert marks.unit_count <= 10


@pytest.mark.usefixtures("no_check")
def test_without_a_record_at_the_point_the_walk_begins_with_its_file() -> None:
    rig = checkpointed(100, more=2)
    disk = killed(rig)
    point = marks_of(rig).commit_log_offset
    overwrite(disk, log_path(disk, rig, -1), point % LOG_SIZE, bytes(4) + b"?")
    again = reopened(disk)
    assert 1 < report_of(again).records < 100
    everything(again, 100)
    assert again.store.commit_log.max_offset == point


def test_the_point_counts_for_nothing_after_a_java_broker() -> None:
    rig = checkpointed(100, more=10)
    disk = killed(rig)
    overwrite(disk, on(disk, rig, rig.store.paths.checkpoint), 16, struct.pack(">q", 77))
    again = reopened(disk)
    assert report_of(again).rebuilt > 10, "from a file that is old enough"
    everything(again, 110)


@pytest.mark.parametrize("clean", [True, False])
def test_damage_in_front_of_the_point_is_refused(clean: bool) -> None:
    rig = checkpointed(100, more=0)
    if clean:
        rig.stop()
    disk = killed(rig)
    end = 100 * RECORD_SIZE
    point = Checkpoint(
        disk, on(disk, rig, rig.store.paths.checkpoint),
        on(disk, rig, rig.store.paths.recovery_point),
    ).load().commit_log_offset  # fmt: skip
    path = on(disk, rig, rig.store.paths.commit_log) / f"{point - point % LOG_SIZE:020d}"
    last = (point - RECORD_SIZE) % LOG_SIZE
    assert end <= point
    overwrite(disk, path, last + 300, b"\x00\x01")  # in the newest record: nothing is behind it
    before = disk.contents()
    with pytest.raises(CorruptFileError, match=f"on the disk up to offset {point}") as caught:
        StoreRig(disk).start()
    assert (caught.value.path, caught.value.position) == (path, last)
    assert "\n" not in str(caught.value)
    assert {name: data for name, data in disk.contents().items() if "commitlog" in name} == {
        name: data for name, data in before.items() if "commitlog" in name
    }
    marked = disk.exists(on(disk, rig, rig.store.paths.abort))
    assert marked is not clean, "a store that was stopped cleanly still counts as that"


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", [1, 99])
@pytest.mark.parametrize("check_size", [0, recovery.CHECK_SIZE])
def test_log_files_that_are_missing_at_the_end_are_refused(
    clean: bool, lost: int, check_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "CHECK_SIZE", check_size)
    rig = checkpointed(100, more=0)
    paths = [mapped.file.path for mapped in rig.store.commit_log.mapped_files.mapped]
    if clean:
        rig.stop()
    disk = killed(rig)
    folder = on(disk, rig, rig.store.paths.commit_log)
    for name in disk.list(folder)[-lost if clean else -lost - 1 :]:  # one is made ahead
        disk.unlink(folder / name)
    with pytest.raises(CorruptFileError, match="the file is missing, but") as caught:
        StoreRig(disk).start()
    assert caught.value.path.name == paths[max(0, len(paths) - lost)].name


@pytest.mark.usefixtures("no_check")
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["missing", "first file", "last file", "zeros"])
def test_a_queue_that_lost_units_long_on_the_disk_is_built_again(
    clean: bool, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = StoreRig(CrashDisk()).start()
    for number in range(150):
        rig.put("idle", 0, b"%04d" % number)
    rig.clock.advance(1)
    rig.workers.run_all()
    for number in range(100):
        rig.put("T", number % 2, body_of(number))
    for _ in range(2):
        rig.clock.advance(61)
        rig.workers.run_all()
    if clean:
        rig.stop()
    disk = killed(rig)
    folder = on(disk, rig, rig.store.paths.queue_folder("idle", 0))
    names = disk.list(folder)
    assert len(names) == 2
    if damage == "zeros":
        overwrite(disk, folder / names[1], 0, bytes(2000))
    else:
        for name in {"missing": names, "first file": names[:1], "last file": names[1:]}[damage]:
            disk.unlink(folder / name)
    again = reopened(disk)
    assert "building all queues from the log" in caplog.text
    assert again.store.max_offset("idle", 0) == 150
    everything(again, 100)
    result = again.put("idle", 0, b"new")
    assert result is not None
    assert result.queue_offset == 150


@pytest.mark.parametrize("clean", [True, False])
def test_a_unit_that_speaks_of_another_record_is_noticed(clean: bool) -> None:
    rig = checkpointed(100, more=0)
    if clean:
        rig.stop()
    disk = killed(rig)
    path = on(disk, rig, rig.store.paths.queue_folder("T", 0)) / ("0" * 20)
    unit = disk.open(path).pread(20, 30 * 20)
    overwrite(disk, path, 20 * 20, unit)
    everything(reopened(disk), 100)


@pytest.mark.usefixtures("no_check")
@pytest.mark.parametrize("counts", [True, False])
def test_a_second_crash_while_all_queues_are_built_again(
    counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not counts:  # as when the flush was behind at each checkpoint
        monkeypatch.setattr(recovery.Recovery, "_check_totals", lambda self: None)
    rig = checkpointed(100, more=1)
    disk = killed(rig)
    folder = on(disk, rig, rig.store.paths.queue_folder("T", 0))
    for name in disk.list(folder):
        disk.unlink(folder / name)
    steps: list[CrashDisk] = []
    disk.before_step = lambda _op, _path: steps.append(disk.snapshot())
    everything(StoreRig(disk).start(), 101)
    assert len(steps) > 10
    for step in steps:
        everything(reopened(step), 101)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("step_s", [-3600, 86_400, -400 * 86_400])
def test_the_wall_clock_may_step_between_stop_and_start(clean: bool, step_s: int) -> None:
    rig = checkpointed(100, more=5)
    if clean:
        rig.stop()
    again = StoreRig(killed(rig))
    again.clock.step_wall((rig.clock.now_ms() - again.clock.now_ms()) / 1000 + step_s)
    again.start()
    everything(again, 105)
    result = again.put("T", 1, body_of(105))
    assert result is not None
    assert result.store_timestamp == again.clock.now_ms()
    again.clock.advance(70)
    again.workers.run_all()
    for number in range(106, 110):
        again.put("T", number % 2, body_of(number))
    third = StoreRig(killed(again))
    third.clock.step_wall((rig.clock.now_ms() - third.clock.now_ms()) / 1000)
    everything(third.start(), 110)
