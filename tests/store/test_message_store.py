"""The store as its users see it: put, read, flush, stop, start again."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from skylarkmq.protocol.record import decode_messages
from skylarkmq.store.errors import StoreLockedError, StoreProfileError
from skylarkmq.store.message_store import StoreState
from skylarkmq.store.results import GetMessageStatus, PutMessageStatus
from tests.store.support import LOG_SIZE, MESSAGE_MAX, StoreRig, inner
from tests.support.crash_disk import CrashDisk


def bodies(rig: StoreRig, topic: str, queue_id: int, offset: int = 0) -> list[bytes]:
    """All visible bodies from an offset on, read as a consumer would."""
    found: list[bytes] = []
    while True:
        result = rig.store.get_message(topic, queue_id, offset, 32)
        if result.status is not GetMessageStatus.FOUND:
            return found
        found += [each.body for each in decode_messages(b"".join(result.views))]
        offset = result.next_begin_offset


def test_a_message_is_found_where_its_answer_says() -> None:
    rig = StoreRig().start()
    rig.put("A", 1, b"first")
    result = rig.put("A", 1, b"second", properties=b"TAGS\x01x")
    assert result is not None
    assert (result.status, result.queue_offset) == (PutMessageStatus.PUT_OK, 1)
    message = rig.store.look_message(result.physical_offset)
    assert message is not None
    assert (message.body, message.queue_offset, message.properties) == (b"second", 1, {"TAGS": "x"})
    assert bodies(rig, "A", 1) == [b"first", b"second"]
    assert rig.store.max_offset("A", 1) == 2
    assert rig.store.message_time("A", 1, 1) == result.store_timestamp


def test_async_flush_shows_on_append_and_syncs_each_interval() -> None:
    rig = StoreRig().start()
    rig.put()
    assert rig.store.max_offset("T", 0) == 1
    assert rig.store.commit_log.flushed_offset == 0
    rig.clock.advance(0.5)
    rig.workers.run_all()
    assert rig.store.commit_log.flushed_offset == rig.store.commit_log.max_offset > 0


def test_sync_flush_answers_and_shows_in_the_turn_of_the_sync() -> None:
    rig = StoreRig(flush_disk_type="SYNC_FLUSH").start()
    seen: list[int] = []
    rig.store.add_arrival_listener(lambda topic, queue, offset: seen.append(offset))
    assert rig.put() is None
    assert rig.store.max_offset("T", 0) == 0
    assert rig.store.look_message(0) is None
    assert rig.workers.flush.run_job()
    assert (rig.results, seen) == ([], [])
    rig.workers.flush.deliver()
    assert rig.results[0].status is PutMessageStatus.PUT_OK
    assert (rig.store.max_offset("T", 0), seen) == (1, [1])


def test_commits_that_come_during_a_sync_share_the_next_one() -> None:
    rig = StoreRig(flush_disk_type="SYNC_FLUSH").start()
    for _ in range(5):
        rig.put()
    rig.workers.flush.run_job()
    assert not rig.workers.flush.run_job(), "one sync at a time"
    rig.workers.flush.deliver()
    assert len(rig.results) == 1
    rig.workers.flush.step()
    assert len(rig.results) == 5


def test_a_message_that_does_not_wait_is_answered_at_once_and_shown_after_the_sync() -> None:
    rig = StoreRig(flush_disk_type="SYNC_FLUSH").start()
    assert rig.put(wait_store_ok=False) is not None
    assert rig.store.max_offset("T", 0) == 0
    rig.workers.flush.step()
    assert rig.store.max_offset("T", 0) == 1


def test_a_late_sync_is_told_as_such_and_shows_the_message_later() -> None:
    rig = StoreRig(flush_disk_type="SYNC_FLUSH", sync_flush_timeout=5000).start()
    rig.put()
    rig.clock.advance(5.1)
    assert [result.status for result in rig.results] == [PutMessageStatus.FLUSH_DISK_TIMEOUT]
    assert rig.store.max_offset("T", 0) == 0
    rig.workers.flush.run_all()
    assert rig.store.max_offset("T", 0) == 1
    assert len(rig.results) == 1


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_restart_finds_everything(flush: str) -> None:
    disk = CrashDisk()
    rig = StoreRig(disk, flush_disk_type=flush).start()
    sent = [b"%d" % number * 700 for number in range(300)]  # several log and queue files
    for number, body in enumerate(sent):
        rig.put("T", number % 3, body)
        rig.workers.run_all()
    rig.stop()
    assert not disk.exists(rig.store.paths.abort)
    again = StoreRig(disk, flush_disk_type=flush).start()
    assert again.store.recovery is not None
    assert again.store.recovery.clean
    for queue_id in range(3):
        assert bodies(again, "T", queue_id) == sent[queue_id::3]
    result = again.put("T", 0, b"next")
    again.workers.run_all()
    assert again.results[0].queue_offset == 100
    assert result is None or result.queue_offset == 100


def test_a_record_never_spans_two_files_and_the_rest_is_blank() -> None:
    rig = StoreRig().start()
    body = bytes(MESSAGE_MAX)
    for _ in range(9):
        rig.put("T", 0, body)
    offsets = [result.physical_offset for result in rig.results]
    size = offsets[1]
    assert all(offset // LOG_SIZE == (offset + size - 1) // LOG_SIZE for offset in offsets)
    assert offsets[3] == LOG_SIZE, "the fourth record begins the second file"
    assert bodies(rig, "T", 0) == [body] * 9


def test_unknown_queues_answer_and_allocate_nothing() -> None:
    rig = StoreRig().start()
    store = rig.store
    assert store.max_offset("nope", 5) == store.min_offset("nope", 5) == 0
    assert store.offset_by_time("nope", 5, 1) == 0
    assert store.message_time("nope", 5, 0) == -1
    assert store.queue_units("nope", 5, 0, 10) == []
    result = store.get_message("nope", 5, 3, 32)
    assert result.status is GetMessageStatus.NO_MESSAGE_IN_QUEUE
    assert not store.queues.queues


@pytest.mark.parametrize(
    ("offset", "status", "following"),
    [
        (-1, GetMessageStatus.OFFSET_TOO_SMALL, 0),
        (0, GetMessageStatus.FOUND, 5),
        (4, GetMessageStatus.FOUND, 5),
        (5, GetMessageStatus.OFFSET_OVERFLOW_ONE, 5),
        (6, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 5),
        (2**62, GetMessageStatus.OFFSET_OVERFLOW_BADLY, 5),
    ],
)
def test_offsets_are_corrected_as_rocketmq_does(
    offset: int, status: GetMessageStatus, following: int
) -> None:
    rig = StoreRig().start()
    for _ in range(5):
        rig.put()
    result = rig.store.get_message("T", 0, offset, 32)
    assert (result.status, result.next_begin_offset) == (status, following)
    assert (result.min_offset, result.max_offset) == (0, 5)


def test_limits_of_one_read() -> None:
    rig = StoreRig().start()
    for _ in range(40):
        rig.put("T", 0, bytes(100))
    big = bytes(30_000)
    for _ in range(12):
        rig.put("T", 0, big)
    read = rig.store.get_message
    assert read("T", 0, 0, 5).count == 5
    assert read("T", 0, 0, 1000).count == 32, "RocketMQ's cap"
    assert read("T", 0, 40, 32).count == 8, "256 KiB"
    assert read("T", 0, 40, 32, max_bytes=400_000).count == 12, "a reader that asks for more"
    assert read("T", 0, 0, 1000, max_bytes=1 << 20).count == 52
    first = read("T", 0, 40, 1)
    assert (first.count, first.size > len(big)) == (1, True)


def test_neighbours_become_one_view() -> None:
    rig = StoreRig().start()
    for queue_id in (0, 0, 0, 1, 0):
        rig.put("T", queue_id)
    result = rig.store.get_message("T", 0, 0, 32)
    assert (result.count, len(result.views)) == (4, 2)
    assert result.size == sum(len(view) for view in result.views)


def test_unwanted_messages_are_passed_over() -> None:
    rig = StoreRig().start()
    for code in (1, 2, 1, 2, 2):
        rig.put(tags_code=code)
    result = rig.store.get_message("T", 0, 0, 32, matches=lambda code: code == 1)
    assert (result.status, result.count, result.next_begin_offset) == (
        GetMessageStatus.FOUND,
        2,
        5,
    )
    nothing = rig.store.get_message("T", 0, 0, 32, matches=lambda code: code == 9)
    assert (nothing.status, nothing.next_begin_offset) == (GetMessageStatus.NO_MATCHED_MESSAGE, 5)


def test_search_by_time_takes_the_nearest() -> None:
    rig = StoreRig().start()
    times: list[int] = []
    for _ in range(5):
        result = rig.put()
        assert result is not None
        times.append(result.store_timestamp)
        rig.clock.advance(10)
    find = rig.store.offset_by_time
    assert find("T", 0, times[0] - 1_000_000) == 0
    assert find("T", 0, times[4] + 1_000_000) == 4, "the last message, not the end"
    assert [find("T", 0, time) for time in times] == [0, 1, 2, 3, 4]
    assert find("T", 0, times[2] + 4000) == 2
    assert find("T", 0, times[2] + 5000) == 2, "a tie goes to the earlier one"
    assert find("T", 0, times[2] + 6000) == 3
    assert rig.store.message_time("T", 0, 0) == times[0]


def test_store_times_stand_still_where_the_clock_goes_back_a_little() -> None:
    rig = StoreRig().start()
    first = rig.put()
    rig.clock.step_wall(-60)
    second = rig.put()
    assert first is not None
    assert second is not None
    assert second.store_timestamp == first.store_timestamp
    assert rig.store.stats.clock_steps == 0


def test_old_units_are_read_from_the_files() -> None:
    rig = StoreRig().start()
    for number in range(1000):
        rig.put("T", 0, b"%d" % number)
        if number % 100 == 0:
            rig.clock.advance(1.1)
            rig.workers.run_all()
    rig.clock.advance(1.1)
    rig.workers.run_all()
    rig.clock.advance(1.1)
    queue = rig.store.queues.get("T", 0)
    assert queue is not None
    assert len(queue.tail) == 0, "an idle queue holds no memory"
    assert bodies(rig, "T", 0) == [b"%d" % number for number in range(1000)]


def test_a_second_owner_is_refused() -> None:
    disk = CrashDisk()
    StoreRig(disk).start()
    with pytest.raises(StoreLockedError, match="in use by another broker"):
        StoreRig(disk).start()


def test_a_running_store_takes_a_removed_lock_again_or_takes_no_more_messages() -> None:
    disk = CrashDisk()
    rig = StoreRig(disk).start()
    disk.unlink(disk.root / "lock")
    rig.clock.advance(1.1)
    rig.workers.run_all()
    assert disk.exists(disk.root / "lock")
    rig.put("T")
    disk.unlink(disk.root / "lock")
    assert disk.lock(disk.root / "lock") is not None, "another broker has it"
    rig.clock.advance(1.1)
    rig.workers.run_all()
    assert isinstance(rig.store.failure, StoreLockedError)
    assert "has failed" in (rig.store.refusal() or "")


def test_other_sizes_than_before_are_refused_with_the_cure() -> None:
    disk = CrashDisk()
    StoreRig(disk).start().stop()
    with pytest.raises(StoreProfileError, match=f"--set mappedFileSizeCommitLog={LOG_SIZE}"):
        StoreRig(disk, mapped_file_size_commit_log=2 * LOG_SIZE).start()


def test_a_full_disk_refuses_and_passes() -> None:
    disk = CrashDisk()
    rig = StoreRig(disk).start()
    rig.workers.run_all()
    rig.put()
    used_up = disk.free_bytes(rig.store.paths.root)
    assert used_up > 0
    disk.free = 0
    body = bytes(MESSAGE_MAX)
    for _ in range(20):
        rig.put("T", 0, body)
    refused = rig.results[-1]
    assert refused.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert "no room" in refused.why
    assert rig.store.state is StoreState.RUNNING
    stored = rig.store.max_offset("T", 0)
    assert len(bodies(rig, "T", 0)) == stored
    disk.free = None
    rig.clock.advance(1.1)
    result = rig.put()
    assert result is not None
    assert (result.status, result.queue_offset) == (PutMessageStatus.PUT_OK, stored)


def test_a_failed_sync_ends_writing_for_good() -> None:
    disk = CrashDisk()
    rig = StoreRig(disk, flush_disk_type="SYNC_FLUSH").start()
    rig.workers.run_all()
    failures: list[BaseException] = []
    rig.store.failure_listeners.append(failures.append)
    rig.put()
    disk.fail("datasync", error=errno.EIO)
    rig.workers.flush.step()
    assert [result.status for result in rig.results] == [PutMessageStatus.SERVICE_NOT_AVAILABLE]
    assert rig.store.state is StoreState.FAILED
    assert len(failures) == 1
    assert rig.store.max_offset("T", 0) == 0
    result = rig.put()
    assert result is not None
    assert "needs a restart" in result.why
    rig.clock.advance(120)
    assert not rig.workers.flush.step(), "the sync is not tried again"
    rig.stop()
    assert disk.exists(rig.store.paths.abort)


def test_nothing_is_taken_before_the_start_and_after_the_stop() -> None:
    rig = StoreRig()
    assert rig.store.refusal() is not None
    rig.start()
    assert rig.store.refusal() is None
    rig.store.stop_writing()
    assert rig.store.refusal() is not None


# Who is told of arrivals


@pytest.mark.parametrize(
    "config",
    [
        {"flush_disk_type": "SYNC_FLUSH"},
        {"flush_disk_type": "ASYNC_FLUSH"},
        {"transient_store_pool_enable": True, "transient_store_pool_size": 2},
    ],
)
def test_a_listener_that_raises_harms_nobody_else(
    config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    rig = StoreRig(**config).start()
    told: list[tuple[str, int, int]] = []

    def raising(topic: str, queue_id: int, offset: int) -> None:
        raise ValueError(topic)

    rig.store.add_arrival_listener(raising)
    rig.store.add_arrival_listener(lambda *arrived: told.append(arrived))  # pyright: ignore
    for number in range(6):
        rig.put("T", 0, b"%d" % number)
        if number % 3 == 2:  # several commits of one sync
            rig.clock.advance(1.1)
            rig.workers.run_all()
    assert [result.status for result in rig.results] == [PutMessageStatus.PUT_OK] * 6
    assert bodies(rig, "T", 0) == [b"%d" % number for number in range(6)]
    assert [result.queue_offset for result in rig.results] == list(range(6))
    assert told[-1] == ("T", 0, 6)
    assert any("a listener failed over messages of T-0" in text for text in caplog.messages)
    rig.stop()
    assert bodies(StoreRig(rig.files).start(), "T", 0) == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_units_out_of_turn_end_the_writing_and_the_next_start_has_all(flush: str) -> None:
    """Not to be shown as another number: what was acknowledged stays where it was."""
    rig = StoreRig(flush_disk_type=flush).start()
    rig.put("T", 0, b"first")
    rig.workers.run_all()
    queue = rig.store.queues.get("T", 0)
    assert queue is not None
    queue.next_offset += 1  # a bug somewhere
    rig.put("T", 0, b"second")
    rig.workers.run_all()
    assert [result.status for result in rig.results] == [
        PutMessageStatus.PUT_OK,
        PutMessageStatus.SERVICE_NOT_AVAILABLE,
    ]
    assert "message 2 of T-0 would be shown as message 1" in str(rig.store.failure)
    assert bodies(rig, "T", 0) == [b"first"]


def test_a_batch_does_not_begin_over_one_that_is_not_written() -> None:
    rig = StoreRig().start()
    statuses: list[PutMessageStatus] = []
    queue = rig.store.queues.open("T", 0)
    message = inner("T", 0, b"gathered")
    batch = rig.store.begin()
    batch.add_message(queue, message)
    with pytest.raises(RuntimeError, match="a batch of 1 messages must be written"):
        rig.put("T", 0, b"in between")
    assert rig.store.commit(statuses.append)
    rig.put("T", 0, b"after")
    assert statuses == [PutMessageStatus.PUT_OK]
    assert bodies(rig, "T", 0) == [b"gathered", b"after"]
    assert [result.queue_offset for result in rig.results] == [1]
