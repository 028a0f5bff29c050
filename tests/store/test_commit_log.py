"""The log as a whole: places, reads, what a flush has to sync, and what it says afterwards."""

from __future__ import annotations

import errno

import pytest

from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.errors import StoreFullError
from skylarkmq.store.log.append import AppendBatch
from skylarkmq.store.log.commit_log import CommitLog
from skylarkmq.store.log.mapped_file import file_name
from skylarkmq.store.queue.consume_queue import ConsumeQueue
from skylarkmq.store.results import PutMessageStatus
from tests.store.support import BORN, HOST, StoreRig, environment
from tests.support.crash_disk import CrashDisk
from tests.support.manual_clock import START_MS, ManualClock
from tests.support.workers import manual_store_workers

SIZE = 8192


class Rig:
    """A log of small files whose preparation moves when the test says so."""

    def __init__(self, disk: CrashDisk | None = None) -> None:
        self.disk = disk or CrashDisk()
        self.clock = ManualClock()
        workers = manual_store_workers()
        self.worker = workers.prepare
        env = environment(self.disk, self.clock, workers.workers, mapped_file_size_commit_log=SIZE)
        self.stats = env.stats
        self.log = CommitLog(env, DelayLevels().due_time)
        self.queue = ConsumeQueue("T", 0, self.disk.root / "q")

    def names(self) -> list[str]:
        return self.disk.list(self.disk.root / "commitlog")

    def put(self, *bodies: bytes) -> list[int]:
        """Store one batch."""
        batch = self.log.begin()
        places = [self.add(batch, body) for body in bodies]
        batch.write()
        return places

    def add(self, batch: AppendBatch, body: bytes) -> int:
        return batch.add(self.queue, body, b"", START_MS, BORN, HOST, 0)

    def flush(self) -> None:
        request = self.log.flush_request()
        assert request is not None
        request.run()
        self.log.mark_flushed(request)


def test_a_start_makes_the_first_file_and_asks_for_the_next() -> None:
    rig = Rig()
    rig.log.open_first()
    assert rig.names() == [file_name(0)]
    rig.worker.run_all()
    assert rig.names() == [file_name(0), file_name(SIZE)]
    rig.log.close()
    assert rig.names() == [file_name(0)], "what was made ahead goes at the end"


def test_a_later_start_goes_on_in_the_last_file() -> None:
    rig = Rig()
    rig.log.open_first()
    rig.put(b"one")
    rig.log.close()
    again = Rig(rig.disk)
    again.log.mapped_files.load()
    again.log.mapped_files.truncate(100)
    again.log.open_first()
    assert again.put(b"two") == [100]
    again.worker.run_all()
    assert again.names() == [file_name(0), file_name(SIZE)]


def test_a_full_disk_at_the_start_is_told_and_passes() -> None:
    rig = Rig()
    rig.disk.fail("allocate", error=errno.ENOSPC)
    with pytest.raises(StoreFullError):
        rig.log.open_first()
    assert rig.log.max_offset == 0
    rig.clock.advance(1.1)
    assert rig.put(b"now") == [0]


def test_every_roll_finds_its_file_and_asks_for_the_next() -> None:
    rig = Rig()
    rig.log.open_first()
    for number in range(10):
        rig.worker.run_all()
        rig.put(bytes([number]) * 5000)
    assert rig.stats.late_allocations == 0
    assert len(rig.log.mapped_files.mapped) == 10
    assert rig.log.min_offset == 0
    assert rig.log.max_offset == rig.log.mapped_files.mapped[-1].wrote_position + 9 * SIZE


def test_the_store_time_is_taken_once_a_batch_and_goes_not_back_with_the_clock() -> None:
    rig = Rig()
    assert rig.log.begin().store_timestamp == START_MS
    rig.clock.advance(0.25)
    batch = rig.log.begin()
    rig.clock.advance(5)
    assert batch.store_timestamp == START_MS + 250
    rig.clock.step_wall(-60)
    assert rig.log.begin().store_timestamp == START_MS + 250
    now_ms = rig.clock.now_ms()
    rig.log.rewind(0, now_ms + 60_000)  # a recovered log is from the future
    assert rig.log.begin().store_timestamp == now_ms + 60_000


def test_reads_see_what_is_written_and_no_more() -> None:
    rig = Rig()
    first, second = rig.put(b"one", b"two")
    size = second - first
    end = rig.log.max_offset
    assert rig.log.record(second, size) is not None
    for offset, length in ((second, size + 1), (end, 1), (SIZE, 1), (-1, 1), (10 * SIZE, 1)):
        assert rig.log.record(offset, length) is None
    view = rig.log.read(second)
    assert view is not None
    assert (view.physical_offset, view.queue_offset, view.size) == (second, 1, size)
    for offset in (-1, 1, second + 1, end, end + 4, SIZE, 1 << 50):
        assert rig.log.read(offset) is None


def test_the_blank_rest_of_a_file_is_no_message() -> None:
    rig = Rig()
    rig.put(bytes(5000))
    end = rig.log.max_offset
    rig.put(bytes(5000))
    assert rig.log.read(end) is None
    assert rig.log.locate(end) is not None


@pytest.mark.parametrize(("offset", "following"), [(0, SIZE), (SIZE - 1, SIZE), (SIZE, 2 * SIZE)])
def test_where_the_next_file_begins(offset: int, following: int) -> None:
    assert Rig().log.next_file_offset(offset) == following


def test_a_flush_syncs_older_files_first_and_only_what_is_not_synced() -> None:
    rig = Rig()
    assert rig.log.flush_request() is None
    rig.put(b"one")
    request = rig.log.flush_request()
    assert request is not None
    assert (len(request.files), request.end_offset) == (1, rig.log.max_offset)
    rig.flush()
    assert rig.log.flush_request() is None
    for _ in range(3):
        rig.put(bytes(5000))
    synced: list[str] = []
    rig.disk.before_step = lambda op, path: synced.append(path.name) if op == "datasync" else None
    rig.flush()
    assert synced == [file_name(start * SIZE) for start in range(3)]
    assert rig.log.flushed_offset == rig.log.max_offset
    assert [file.flushed_position for file in rig.log.mapped_files.mapped[:2]] == [SIZE, SIZE]


def test_what_is_written_during_a_sync_is_not_marked_by_it() -> None:
    rig = Rig()
    rig.put(b"before")
    request = rig.log.flush_request()
    assert request is not None
    request.run()
    rig.worker.run_all()
    rig.clock.advance(1)
    rig.put(b"during", bytes(7000), bytes(7000))
    rig.log.mark_flushed(request)
    assert rig.log.flushed_offset == request.end_offset < rig.log.max_offset
    assert request.store_timestamp == START_MS
    first = rig.log.mapped_files.mapped[0]
    assert first.flushed_position == request.end_offset < first.wrote_position
    rig.flush()
    assert rig.log.flushed_offset == rig.log.max_offset


def test_the_end_of_a_file_counts_as_synced_with_its_blank_record() -> None:
    rig = Rig()
    rig.put(bytes(7000))
    rig.put(bytes(7000))
    rig.flush()
    assert rig.log.flushed_offset == SIZE + rig.log.mapped_files.mapped[1].wrote_position
    assert rig.log.flush_request() is None


def test_a_batch_that_was_begun_before_the_failure_is_not_written() -> None:
    rig = StoreRig(flush_disk_type="SYNC_FLUSH").start()
    rig.workers.run_all()
    batch = rig.store.begin()
    batch.add(rig.store.queues.open("T", 0), b"x", b"", START_MS, BORN, HOST, 0)
    rig.store.fail(OSError(errno.EIO, "the next file could not be made"))
    statuses: list[PutMessageStatus] = []
    writes = rig.files.calls["pwrite"]
    assert not rig.store.commit(statuses.append)
    assert statuses == [PutMessageStatus.SERVICE_NOT_AVAILABLE]
    assert not rig.store.commit(None)
    assert rig.files.calls["pwrite"] == writes


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_slaves_get_what_the_flush_mode_calls_stored(flush: str) -> None:
    """Under SYNC_FLUSH a slave must not have what a power cut may take from its master."""
    rig = StoreRig(flush_disk_type=flush).start()
    rig.put()
    log = rig.store.commit_log
    end = log.wrote_offset
    assert len(log.part(0, 1 << 20)) == (0 if flush == "SYNC_FLUSH" else end)
    rig.workers.run_all()
    rig.clock.advance(1)
    rig.workers.run_all()
    assert len(log.part(0, 1 << 20)) == end
    assert len(log.part(0, end - 1)) == end - 1
