"""One sync at a time; what is asked meanwhile is not forgotten; a failure is the last word."""

from __future__ import annotations

from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.log.commit_log import CommitLog
from skylarkmq.store.log.flush_service import FlushService
from skylarkmq.store.queue.consume_queue import ConsumeQueue
from tests.store.support import BORN, HOST, environment
from tests.support.crash_disk import CrashDisk
from tests.support.manual_clock import START_MS, ManualClock
from tests.support.workers import manual_store_workers


class Rig:
    """A log with a flush service whose thread moves when the test says so."""

    def __init__(self) -> None:
        self.disk = CrashDisk()
        self.clock = ManualClock()
        self.flushed: list[int] = []
        self.failures: list[BaseException] = []
        workers = manual_store_workers()
        self.worker = workers.flush
        self.env = environment(self.disk, self.clock, workers.workers, fail=self.failures.append)
        self.stats = self.env.stats
        self.log = CommitLog(self.env, DelayLevels().due_time)
        self.queue = ConsumeQueue("T", 0, self.disk.root / "q")
        self.service = FlushService(self.env, self.log, self.flushed.append)

    def put(self) -> int:
        batch = self.log.begin()
        batch.add(self.queue, b"x", b"", START_MS, BORN, HOST, 0)
        return batch.write()


def test_nothing_written_is_nothing_to_sync() -> None:
    rig = Rig()
    rig.service.flush()
    assert rig.worker.idle
    assert rig.service.idle


def test_what_comes_during_a_sync_shares_the_next_one() -> None:
    rig = Rig()
    first = rig.put()
    rig.service.flush()
    for _ in range(5):
        end = rig.put()
        rig.service.flush()
    assert not rig.service.idle
    assert rig.worker.step()
    assert rig.flushed == [first]
    assert rig.worker.step()
    assert not rig.worker.step()
    assert rig.flushed == [first, end]
    assert rig.stats.fsync_commit_log.count == 2


def test_the_synced_time_is_that_of_the_last_synced_record() -> None:
    rig = Rig()
    rig.put()
    rig.service.flush()
    rig.clock.advance(2)
    rig.put()
    rig.worker.step()
    assert rig.service.flushed_timestamp == START_MS
    rig.service.flush()
    rig.worker.step()
    assert rig.service.flushed_timestamp == START_MS + 2000


def test_a_failed_sync_is_final() -> None:
    rig = Rig()
    rig.put()
    rig.service.flush()
    rig.put()
    rig.service.flush()
    rig.disk.fail("datasync")
    rig.worker.run_all()
    assert (len(rig.failures), rig.flushed, rig.log.flushed_offset) == (1, [], 0)
    rig.service.flush()
    assert rig.worker.idle
    assert rig.service.flushed_timestamp == 0
    assert rig.stats.fsync_errors == 1


def test_after_the_end_no_sync_begins() -> None:
    rig = Rig()
    rig.put()
    rig.service.flush()
    rig.put()
    rig.service.flush()
    rig.service.end()
    rig.worker.run_all()
    assert len(rig.flushed) == 1, "the one under way is told, the wanted one is not started"


def test_a_commit_from_within_the_announcement_is_synced_too() -> None:
    rig = Rig()
    ends: list[int] = []

    def on_flushed(offset: int) -> None:
        rig.flushed.append(offset)
        if len(rig.flushed) == 1:
            ends.append(rig.put())
            service.flush()

    service = FlushService(rig.env, rig.log, on_flushed)
    rig.put()
    service.flush()
    rig.worker.run_all()
    assert rig.flushed[1:] == ends


def test_of_what_is_asked_for_during_a_sync_the_one_that_wants_most_counts() -> None:
    """A flush that waits for many dirty pages does not put off one that waits for none."""
    for wishes in ((0, 4), (4, 0)):
        rig = Rig()
        rig.put()
        rig.service.flush()
        end = rig.put()
        for least_pages in wishes:
            rig.service.flush(least_pages)
        rig.worker.run_all()
        assert rig.flushed[-1] == end, wishes


def test_the_end_of_a_file_is_synced_however_few_pages_it_needs() -> None:
    rig = Rig()
    size = rig.log.file_size
    batch = rig.log.begin()
    batch.add(rig.queue, bytes(size - 200), b"", START_MS, BORN, HOST, 0)
    batch.write()
    rig.service.flush()
    rig.worker.run_all()
    rig.put()
    rig.service.flush(4)
    assert rig.worker.idle, "some bytes are no four pages"
    end = rig.put()
    assert end > size
    rig.service.flush(4)
    rig.worker.run_all()
    assert rig.flushed[-1] == end
