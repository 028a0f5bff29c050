"""Removing log files one by one: age by a clock that does not jump, readers, failures, crashes."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random
from typing import Any

import pytest

from skylarkmq.common.files import DiskFiles, DiskSpace
from skylarkmq.store.message_store import MessageStore, StoreState
from skylarkmq.store.results import PutMessageStatus
from tests.store.clean_rig import HOUR_S, CleanRig
from tests.store.support import LOG_SIZE, MESSAGE_MAX, inner, store_config
from tests.support.crash_disk import CrashDisk
from tests.support.invariants import check_starts
from tests.support.manual_clock import ManualClock
from tests.support.workers import manual_store_workers

ALL_HOURS = ";".join(str(hour) for hour in range(24))
RUN_S = 75.0
MAPPED = {"commit_log_write_mode": "mapped"}
POOL = {"transient_store_pool_enable": True, "transient_store_pool_size": 3}
SMALL_QUEUES: dict[str, Any] = {"mapped_file_size_consume_queue": 80}  # of four units


def _filled(file_count: int = 4, **config: Any) -> CleanRig:
    return CleanRig(**config).start().fill(file_count).settle()


# Age


def test_a_clock_that_steps_ahead_costs_no_file() -> None:
    rig = _filled(delete_when=ALL_HOURS).again(1, delete_when=ALL_HOURS).fill(6).settle()
    rig.clock.step_wall(100 * HOUR_S)
    rig.fill(8)
    assert rig.spend(RUN_S).names() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_clock_that_steps_back_keeps_no_file() -> None:
    config: dict[str, Any] = {"delete_when": ALL_HOURS, "file_reserved_time": 1}
    rig = _filled().again(0.5, **config).fill(6).settle()
    rig.clock.step_wall(-24 * HOUR_S)
    assert rig.spend(0.4 * HOUR_S).names() == [0, 1, 2, 3, 4, 5]
    rig.spend(0.15 * HOUR_S)
    assert rig.names() == [3, 4, 5], "those of the earlier run have their age"
    rig.spend(0.6 * HOUR_S)
    assert rig.names() == [5]


def test_files_from_the_future_age_from_the_start_on() -> None:
    rig = _filled()
    rig.stop()
    rig = CleanRig(rig.files, age_h=-2000, delete_when=ALL_HOURS, file_reserved_time=1).start()
    assert rig.spend(0.9 * HOUR_S).names() == [0, 1, 2, 3]
    assert rig.spend(0.2 * HOUR_S).names() == [3]


def test_a_file_of_this_run_ages_from_its_end() -> None:
    config: dict[str, Any] = {"delete_when": ALL_HOURS, "file_reserved_time": 1}
    rig = CleanRig(**config).start()
    rig.put("orders", 0, bytes(MESSAGE_MAX))
    rig.spend(2 * HOUR_S)
    rig.fill(2)
    rig.spend(0.9 * HOUR_S)
    assert rig.names() == [0, 1], "it was written to an hour ago"
    assert rig.spend(0.2 * HOUR_S).names() == [1]


# What must be on the disk first


def test_a_file_stays_until_a_checkpoint_covers_its_units() -> None:
    rig = CleanRig(flush_consume_queue_thorough_interval=300_000).start().fill(4)
    rig.percent = 95
    assert rig.spend(RUN_S * 2).names() == [0, 1, 2, 3]
    assert rig.spend(175).names() == [3]


def test_a_start_on_a_full_disk_can_make_room() -> None:
    rig = _filled(4)
    rig.stop()
    again = CleanRig(rig.files, age_h=1)
    again.files.free = 0
    again.percent = 100
    again.files.fail("pwrite", path="checkpoint", error=errno.ENOSPC, times=1000)
    again.start()
    assert again.store.queues.flusher.refused
    assert again.spend(RUN_S).names() == [3]


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("road", [{}, MAPPED, POOL], ids=["pwrite", "mapped", "pool"])
def test_all_roads_lose_their_files(road: dict[str, Any], flush: str) -> None:
    rig = CleanRig(flush_disk_type=flush, **road).start()
    for _ in range(24):
        rig.put("orders", 0, bytes(MESSAGE_MAX))
        rig.spend(1)
    rig.settle()
    count, last = rig.store.max_offset("orders", 0), rig.names()[-1]
    assert count == 24 and last > 4
    rig.percent = 86
    assert rig.spend(RUN_S).names() == rig.on_disk() == [last]
    assert rig.readable() == list(range(rig.store.min_offset("orders", 0), count))
    rig.put("orders", 0, bytes(MESSAGE_MAX))
    rig.spend(1)
    assert rig.store.max_offset("orders", 0) == count + 1


# Readers


class _SmallPartition(DiskFiles):
    """A real disk whose partition is as full as the test says."""

    used = 86

    def space(self, path: Path) -> DiskSpace:
        return DiskSpace(self.used * LOG_SIZE, (100 - self.used) * LOG_SIZE)


def _real_store(root: Path) -> tuple[MessageStore, Any, ManualClock]:
    clock, workers = ManualClock(), manual_store_workers()
    config = store_config(
        root,
        disk_space_warning_level_ratio=90,
        disk_space_clean_forcibly_ratio=85,
        flush_consume_queue_thorough_interval=20_000,
    )
    store = MessageStore(config, _SmallPartition(), clock, workers.workers)
    store.load()
    store.start()
    for _ in range(30):
        store.put_message(inner("orders", body=bytes(range(256)) * 128), lambda _: None)
        clock.advance(1)
        workers.run_all()
    assert len(store.commit_log.mapped_files.mapped) > 7
    return store, workers, clock


def _run(store: MessageStore, workers: Any, clock: ManualClock) -> None:
    for _ in range(400):
        clock.advance(0.1)
        workers.run_all()
    assert store.stats.log_files_deleted


def test_readers_keep_a_removed_file_and_its_space_counts_as_free(tmp_path: Path) -> None:
    store, workers, clock = _real_store(tmp_path)
    result = store.get_message("orders", 0, 0, 1)
    (view,) = result.views
    before = bytes(view)
    _run(store, workers, clock)
    assert store.stats.log_files_deleted == 1, "one file is one percent here"
    assert not (tmp_path / "commitlog" / f"{0:020d}").exists()
    assert bytes(view) == before
    del result, view
    _run(store, workers, clock)
    assert store.stats.log_files_deleted > 3, "the disk is as full as before, and nobody reads"


def test_a_holder_keeps_descriptor_and_mapping(tmp_path: Path) -> None:
    store, workers, clock = _real_store(tmp_path)
    mapped = store.commit_log.mapped_files.mapped[0]
    mapped.hold()
    head = bytes(mapped.view[:100])
    _run(store, workers, clock)
    assert store.stats.log_files_deleted == 1
    assert mapped.file.pread(100, 0) == bytes(mapped.view[:100]) == head
    mapped.release()
    assert mapped.file.pread(1, 0), "not on the loop: freeing the blocks takes 0.3 s a GiB"
    workers.tables.run_all()
    with pytest.raises(OSError):
        mapped.file.pread(1, 0)


# Failures


def test_a_file_that_cannot_be_removed_is_tried_again_later() -> None:
    rig = _filled()
    rig.percent = 86
    rig.files.fail("unlink", path="commitlog", error=errno.EACCES)
    assert rig.spend(RUN_S + 60).names() == [0, 1, 2, 3], "and none behind it goes first"
    assert rig.store.state is StoreState.RUNNING
    assert rig.spend(40).names() == rig.on_disk() == [3]


def test_a_removal_that_finds_no_descriptor_is_tried_again_later() -> None:
    rig = _filled()
    rig.percent = 86
    rig.files.fail("open", path="commitlog", error=errno.EMFILE)  # of the sync of its folder
    assert rig.spend(RUN_S + 60).names() == [0, 1, 2, 3]
    assert rig.files.faults.raised
    assert rig.store.state is StoreState.RUNNING
    assert rig.spend(40).names() == rig.on_disk() == [3]


def test_who_fails_to_say_whether_a_file_may_go_holds_up_one_round() -> None:
    rig = _filled()
    rig.percent = 86
    answers = iter([ZeroDivisionError("somewhere in it")])

    def keeper(_: int) -> bool:
        for error in answers:
            raise error
        return True

    rig.store.cleaning.keepers.append(keeper)
    assert rig.spend(RUN_S).names() == rig.on_disk() == [3]
    assert rig.store.state is StoreState.RUNNING


def test_a_file_that_somebody_removed_does_not_hold_up_the_others() -> None:
    rig = _filled().again(73, delete_when=ALL_HOURS)
    rig.files.unlink(rig.store.commit_log.mapped_files.mapped[0].file.path)
    assert rig.spend(RUN_S).names() == rig.on_disk() == [3]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_folder_that_cannot_be_synced_fails_the_store(error: int) -> None:
    rig = _filled()
    rig.percent = 86
    rig.files.fail("sync_folder", path="commitlog", error=error)
    rig.spend(RUN_S)
    assert rig.store.state is StoreState.FAILED
    assert rig.names() == [0, 1, 2, 3] and rig.on_disk() == [1, 2, 3]
    assert rig.readable() == list(range(rig.store.max_offset("orders", 0)))


def test_a_file_on_its_way_out_while_the_store_fails_costs_its_own_messages_alone() -> None:
    rig = _filled()
    queue = rig.store.queues.get("orders", 0)
    assert queue is not None
    rig.percent = 86
    rig.spend_until(lambda: rig.store.stats.log_files_deleted == 1)
    begin = queue.min_offset
    tables = rig.workers.tables
    for _ in range(100):
        if not tables.run_job():
            rig.clock.advance(0.1)
        elif rig.on_disk() == [2, 3]:
            break  # and the loop has not heard of it
        else:
            tables.deliver()
    rig.store.fail(OSError(errno.EIO, "the disk failed"))
    rig.workers.run_all()
    assert rig.names() == [2, 3] and 0 < queue.min_offset == begin, "no queue follows any more"
    check_starts(rig.store)
    left = [
        unit.commit_offset >= 2 * LOG_SIZE for unit in rig.store.queue_units("orders", 0, begin, 99)
    ]
    assert False in left and len(rig.readable()) == sum(left)
    rig.stop()
    after = CleanRig(rig.files).start()
    assert after.store.min_offset("orders", 0) == begin + left.index(True)


def test_a_crash_at_any_step_leaves_a_log_without_a_gap() -> None:
    rig = _filled(6, **SMALL_QUEUES)
    rig.put("idle")  # its unit will expire
    rig.fill(8).settle()
    ends = {topic: rig.store.max_offset(topic, 0) for topic in ("orders", "idle")}
    moments: list[CrashDisk] = []
    rig.files.before_step = lambda op, path: moments.append(rig.files.snapshot())
    rig.percent = 86
    rig.spend_until(lambda: rig.store.stats.log_files_deleted == 7)
    rig.spend(5)
    rig.files.before_step = None
    assert rig.store.stats.queue_files_deleted and len(moments) > 20
    rng = Random(7)
    first_offsets: set[int] = set()
    for moment in [*moments[::3], rig.files]:
        for state in moment.crash_states(rng, 4):
            after = CleanRig(moment.crash(state, rng), age_h=1, **SMALL_QUEUES).start()
            assert {topic: after.store.max_offset(topic, 0) for topic in ends} == ends
            minimum = after.store.min_offset("orders", 0)
            assert after.readable() == list(range(minimum, ends["orders"]))
            first_offsets.add(minimum)
            result = after.put("idle")
            assert result is not None and result.status is PutMessageStatus.PUT_OK
            assert result.queue_offset == ends["idle"], "no queue offset is given out twice"
    assert len(first_offsets) > 3
