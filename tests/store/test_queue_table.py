"""All queues: publishing, writing behind, syncing with the checkpoint, the cost of many."""

from __future__ import annotations

import errno
import tracemalloc
from pathlib import Path

import pytest

from skylarkmq.common.errors import StoreError
from skylarkmq.common.files import DiskFiles, Files
from skylarkmq.store.checkpoint import Checkpoint, Marks
from skylarkmq.store.errors import StoreProfileError
from skylarkmq.store.queue.consume_queue import PRE_BLANK_SIZE, TAIL_WRITE_COUNT, UNIT, UNIT_SIZE
from skylarkmq.store.queue.queue_flusher import SYNC_SLICE
from skylarkmq.store.queue.queue_loader import QueueLoader
from skylarkmq.store.queue.queue_table import QueueTable
from skylarkmq.store.units import Units
from tests.store.support import environment
from tests.support.amounts import slow
from tests.support.crash_disk import CrashDisk
from tests.support.manual_clock import ManualClock
from tests.support.workers import manual_store_workers

SIZE = 2000
RECORD = 100


class Rig:
    """A table whose thread moves when the test says so."""

    def __init__(
        self, files: Files | None = None, root: Path | None = None, file_size: int = SIZE
    ) -> None:
        self.disk = CrashDisk()
        self.files = files or self.disk
        workers = manual_store_workers()
        self.worker = workers.queues
        self.failures: list[BaseException] = []
        env = environment(
            self.files,
            ManualClock(),
            workers.workers,
            root=root or self.disk.root,
            fail=self.failures.append,
            mapped_file_size_consume_queue=file_size,
        )
        self.paths = env.paths
        self.table = QueueTable(env)
        self.loader = QueueLoader(env, self.table)
        self.end = 0  # of the log

    def publish(self, topic: str = "T", queue_id: int = 0, count: int = 1) -> None:
        """Store so many messages and show them."""
        queue = self.table.open(topic, queue_id)
        units = Units()
        for _ in range(count):
            units.add(queue, queue.next_offset, self.end, RECORD, 7, b"", 0)
            queue.next_offset += 1
            self.end += RECORD
        self.table.publish(units)

    def turn(self) -> None:
        """One second passes."""
        self.table.flusher.tick()
        self.worker.run_all()

    def reopened(self) -> Rig:
        """The next start over the same files."""
        again = Rig(self.files, self.paths.root)
        again.loader.load(unclean=False)
        return again


def numbers(rig: Rig, topic: str = "T", queue_id: int = 0) -> list[int]:
    """Commit offsets of all visible units, read in steps."""
    queue = rig.table.get(topic, queue_id)
    assert queue is not None
    offset, found = queue.min_offset, list[int]()
    while offset < queue.max_offset:
        data = rig.table.units(queue, offset, 37)
        assert data
        found += [unit[0] for unit in UNIT.iter_unpack(data)]
        offset += len(data) // UNIT_SIZE
    return found


def test_asking_makes_no_queue_and_opening_makes_one() -> None:
    rig = Rig()
    assert rig.table.get("T", 0) is None
    assert not rig.table.queues
    queue = rig.table.open("T", 0)
    assert rig.table.open("T", 0) is rig.table.get("T", 0) is queue
    assert rig.disk.calls["create"] == 0, "a file comes with the first unit"


@pytest.mark.parametrize("topic", ["../up", "a/b", "", ".", ".."])
def test_no_name_leaves_the_folder(topic: str) -> None:
    with pytest.raises(StoreError):
        Rig().table.open(topic, 0)


def test_units_are_read_from_memory_and_from_files_alike() -> None:
    rig = Rig()
    for _ in range(12):
        rig.publish(count=30)
        rig.turn()
        rig.publish(count=5)
    assert numbers(rig) == [RECORD * number for number in range(12 * 35)]
    rig.turn()
    rig.turn()
    queue = rig.table.get("T", 0)
    assert queue is not None
    assert len(queue.tail) == 0, "idle: all of it is in the files"
    assert numbers(rig) == [RECORD * number for number in range(12 * 35)]


def test_a_read_stops_at_the_end_of_a_queue_file() -> None:
    rig = Rig()
    rig.publish(count=150)
    rig.turn()
    rig.turn()
    queue = rig.table.get("T", 0)
    assert queue is not None
    assert len(rig.table.units(queue, 90, 32)) == 10 * UNIT_SIZE
    assert rig.table.units_per_file == SIZE // UNIT_SIZE


def test_much_that_is_unwritten_does_not_wait_for_the_clock() -> None:
    rig = Rig()
    rig.publish(count=TAIL_WRITE_COUNT - 1)
    assert rig.worker.idle
    rig.publish(count=3)
    assert not rig.worker.idle
    rig.worker.run_all()
    queue = rig.table.get("T", 0)
    assert queue is not None
    assert queue.written >= TAIL_WRITE_COUNT


def test_the_clock_has_files_synced_that_have_much_unsynced() -> None:
    rig = Rig(file_size=2 * TAIL_WRITE_COUNT * UNIT_SIZE)
    for queue_id in range(SYNC_SLICE + 1):
        rig.publish("T", queue_id, count=TAIL_WRITE_COUNT)
        rig.worker.run_all()
    assert rig.disk.calls["datasync"] == 0, "a write that comes sooner syncs nothing"
    rig.turn()
    assert rig.disk.calls["datasync"] == SYNC_SLICE + 1
    rig.publish("T", 0, count=3)
    rig.turn()
    rig.turn()
    assert rig.disk.calls["datasync"] == SYNC_SLICE + 1, "three units wait for the sync of all"


def test_what_comes_during_a_write_goes_with_the_next() -> None:
    rig = Rig()
    rig.publish(count=10)
    rig.table.flusher.write()
    rig.publish(count=10)
    rig.publish("T", 1, count=10)
    rig.table.flusher.write()
    assert rig.worker.step(), "one job at a time"
    assert rig.worker.idle
    rig.turn()
    again = rig.reopened()
    assert len(numbers(again)) == 20
    assert len(numbers(again, "T", 1)) == 10


def test_sync_writes_everything_and_then_the_checkpoint() -> None:
    rig = Rig()
    for queue_id in range(5):
        rig.publish("T", queue_id, count=3)
    steps: list[str] = []
    rig.disk.before_step = lambda op, path: steps.append(op + " " + path.name)
    rig.table.flusher.sync(Marks(5, 5, 0))
    rig.worker.run_all()
    assert steps[-1] == f"sync_folder {rig.paths.root.name}", "the checkpoint's name, made last"
    assert Checkpoint(rig.disk, rig.paths.checkpoint, rig.paths.recovery_point).load() == Marks(
        5, 5, 0
    )
    synced = [step for step in steps if step.startswith("datasync")]
    assert len(synced) == 6
    assert synced[-1] == "datasync checkpoint"


def test_a_sync_that_is_wanted_during_a_write_comes_after_it() -> None:
    rig = Rig()
    rig.publish()
    rig.table.flusher.write()
    rig.publish()
    rig.table.flusher.sync(Marks(9, 9, 0))
    rig.worker.run_all()
    assert Checkpoint(rig.disk, rig.paths.checkpoint, rig.paths.recovery_point).load() == Marks(
        9, 9, 0
    )
    assert len(numbers(rig.reopened())) == 2


def test_a_full_disk_is_said_tried_again_and_passes() -> None:
    rig = Rig()
    rig.publish(count=3)
    rig.disk.fail("allocate", error=errno.ENOSPC, times=2)
    rig.turn()
    assert rig.table.flusher.refused
    assert rig.failures == []
    assert numbers(rig) == [0, RECORD, 2 * RECORD], "still readable, from memory"
    rig.turn()
    assert rig.table.flusher.refused
    rig.turn()
    assert not rig.table.flusher.refused
    assert len(numbers(rig.reopened())) == 3


def test_another_failure_is_the_stores_failure() -> None:
    rig = Rig()
    rig.publish()
    rig.disk.fail("pwrite")
    rig.turn()
    assert len(rig.failures) == 1
    assert not rig.table.flusher.refused


def test_after_the_end_nothing_is_started() -> None:
    rig = Rig()
    rig.publish()
    rig.table.flusher.end()
    rig.turn()
    rig.table.flusher.sync(Marks(1, 1, 0))
    assert rig.worker.idle
    rig.table.flusher.write_now(Marks(2, 2, 0))
    assert len(numbers(rig.reopened())) == 1, "the last write is the stopping thread's own"


def test_write_now_that_finds_no_room_can_be_repeated() -> None:
    rig = Rig()
    rig.publish(count=3)
    rig.disk.fail("allocate", error=errno.ENOSPC)
    with pytest.raises(OSError):
        rig.table.flusher.write_now()
    rig.turn()
    assert len(numbers(rig.reopened())) == 3


def test_loading_finds_queues_by_their_folders() -> None:
    rig = Rig()
    for topic, queue_id in (("A", 0), ("A", 7), ("%RETRY%g", 0)):
        rig.publish(topic, queue_id, count=120)
    rig.turn()
    again = rig.reopened()
    assert again.table.queues.keys() == {("A", 0), ("A", 7), ("%RETRY%g", 0)}
    queue = again.table.get("A", 7)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (0, 120, 120)
    assert queue.max_physical_offset == 240 * RECORD
    again.end = rig.end
    again.publish("A", 7)
    again.turn()
    assert numbers(again.reopened(), "A", 7)[-1] == rig.end


@pytest.mark.parametrize("name", ["old", "-1", "1" * 10, "\u0661"])
def test_what_is_no_queue_is_refused_by_name(name: str) -> None:
    rig = Rig()
    rig.publish()
    rig.turn()
    rig.disk.make_folder(rig.paths.consume_queue / "T" / name)
    with pytest.raises(StoreProfileError, match="not a queue; move it"):
        rig.reopened()


def test_the_first_readable_unit_follows_the_start_of_the_log() -> None:
    rig = Rig()
    rig.publish(count=50)
    rig.loader.correct_min_offsets(0)
    queue = rig.table.get("T", 0)
    assert queue is not None
    assert queue.min_offset == 0
    rig.loader.correct_min_offsets(17 * RECORD)
    assert queue.min_offset == 17
    rig.loader.correct_min_offsets(17 * RECORD + 1)
    assert queue.min_offset == 18
    rig.loader.correct_min_offsets(10_000 * RECORD)
    assert queue.min_offset == queue.max_offset == 50


def test_a_queue_that_begins_late_is_padded_in_front() -> None:
    rig = Rig()
    for number in range(130, 135):
        rig.loader.rebuild_unit("T", 0, number, (number * RECORD, RECORD, 0))
    assert not rig.loader.lacking or rig.table.get("T", 0) is not None
    rig.table.flusher.write_now()
    again = rig.reopened()
    queue = again.table.get("T", 0)
    assert queue is not None
    assert (queue.first_offset, queue.max_offset) == (100, 135)
    assert queue.max_physical_offset == 135 * RECORD
    again.loader.correct_min_offsets(0)
    assert queue.min_offset == 130
    assert UNIT.unpack(again.table.units(queue, 129, 1))[1] == PRE_BLANK_SIZE


def test_a_unit_that_is_there_is_not_built_again() -> None:
    rig = Rig()
    rig.publish(count=3)
    rig.loader.rebuild_unit("T", 0, 1, (RECORD, RECORD, 7))
    rig.loader.rebuild_unit("T", 0, 3, (3 * RECORD, RECORD, 7))
    assert numbers(rig) == [0, RECORD, 2 * RECORD, 3 * RECORD]


class HastyFiles(DiskFiles):
    """A real disk without the waiting: names are not brought to it."""

    def sync_folder(self, path: Path) -> None:
        pass


@pytest.mark.parametrize(
    "layout", ["mm", "mmPPPm", "PPmm", "mPPPPmm", "mmP", "mPPmP", "mPmPPPmPPP"]
)
def test_a_cut_removes_each_unit_behind_it_wherever_padding_lies(layout: str) -> None:
    """Padding behind the cut was taken for units that stay, and all before it stayed as well."""
    places = [place for place, kind in enumerate(layout) if kind == "m"]
    for kept in range(len(places) + 1):
        rig = Rig()
        queue = rig.table.open("T", 0)
        for kind in layout:
            if kind == "m":
                rig.publish()
            else:
                rig.table.pad(queue, queue.max_offset + 1)
        rig.turn()
        rig.loader.cut(kept * RECORD, lambda *_: True)
        left = rig.table.get("T", 0)
        end = 0 if left is None else left.max_offset
        assert end == (len(layout) if kept == len(places) else places[kept])


@pytest.mark.parametrize("count", [300, slow(10_000)])
def test_many_queues_cost_kilobytes_each(tmp_path: Path, count: int) -> None:
    rig = Rig(HastyFiles(), tmp_path, file_size=6_000_000)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            rig.publish(f"topic-{number % 100}", number // 100)
        for _ in range(3):
            rig.turn()
        memory = (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()
    files = list(rig.paths.consume_queue.glob("*/*/*"))
    assert len(files) == count
    blocks = sum(path.stat().st_blocks for path in files) * 512
    assert blocks <= count << 13, "a few KB each, for a file of 6 MB"
    assert memory < 3000, "bytes of memory a queue"
    assert not rig.failures
    rig.table.close()
