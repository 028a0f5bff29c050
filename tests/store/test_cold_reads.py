"""Reads off the loop: the same messages as from memory, none that is damaged, none left open."""

from __future__ import annotations

import errno
import logging
from typing import Any

import pytest

from skylarkmq.protocol.record import decode_messages
from skylarkmq.store.read.cold_reads import ColdReads
from skylarkmq.store.read.message_reader import Matches
from skylarkmq.store.results import GetMessageResult, GetMessageStatus
from tests.store.support import LOG_SIZE, StoreRig
from tests.store.test_message_reader import filled, reader, remove_first_log_file, settle
from tests.support.extensions import extend

FOUND = GetMessageStatus.FOUND
BODY_POSITION = 88  # of a record between IPv4 hosts


class Cold:
    """Cold reads of a store that believes in so much memory, of which 40 percent hold the end."""

    def __init__(self, rig: StoreRig, memory_size: int = 25_000) -> None:
        self.rig = rig
        store = rig.store
        self.hot = reader(rig, memory_size)
        self.worker = rig.workers.reads
        self.reads = ColdReads(store.environment, self.hot, store.commit_log, store.queues)
        self.answers: list[GetMessageResult | None] = []
        self.errors: list[BaseException | None] = []

    def ask(self, offset: int, count: int = 32, matches: Matches | None = None) -> None:
        self.reads.get_message("T", 0, offset, count, None, matches, self._done)
        assert len(self.answers) == 0, "never before the call returns"

    def _done(self, result: GetMessageResult | None, error: BaseException | None) -> None:
        self.answers.append(result)
        self.errors.append(error)

    def answer(self) -> GetMessageResult:
        self.worker.run_all()
        (result,), (error,) = self.answers, self.errors
        assert result is not None and error is None
        self.answers, self.errors = [], []
        return result

    def get(self, offset: int, count: int = 32, matches: Matches | None = None) -> GetMessageResult:
        self.ask(offset, count, matches)
        return self.answer()


def numbers(result: GetMessageResult) -> list[int]:
    assert sum(map(len, result.views)) == result.size
    return [int(message.body[:6]) for message in decode_messages(b"".join(result.views))]


def spoil(rig: StoreRig, offset: int) -> None:
    """Change a byte in the body of a message of `T`, on the disk."""
    (unit,) = rig.store.queue_units("T", 0, offset, 1)
    mapped = rig.store.commit_log.mapped_files.find(unit.commit_offset)
    assert mapped is not None
    position = unit.commit_offset - mapped.start_offset + BODY_POSITION + 50
    mapped.file.pwrite(b"!", position)


@pytest.mark.parametrize("matches", [None, lambda code: code == 3, lambda code: code > 99])
def test_cold_reads_give_what_hot_ones_give(matches: Matches | None) -> None:
    rig = filled(900, 300)
    for _ in range(5):
        rig.put("T", 0, b"%06d" % 999, tags_code=3)  # these units are in memory alone
    cold = Cold(rig)

    def walk(get: Any) -> tuple[list[int], GetMessageStatus]:
        offset, found = 0, []
        for _ in range(2000):
            result = get(offset)
            if result.status is GetMessageStatus.OFFSET_OVERFLOW_ONE:
                return found, result.status
            assert result.next_begin_offset > offset
            assert (result.min_offset, result.max_offset) == (0, 905)
            found += numbers(result)
            offset = result.next_begin_offset
        raise AssertionError("it never comes to the end")

    hot = walk(lambda offset: cold.hot.get_message("T", 0, offset, 32, None, matches))
    assert walk(lambda offset: cold.get(offset, 32, matches)) == hot
    assert len(hot[0]) == (905 if matches is None else 95 if matches(3) else 0)
    assert cold.get(0, 32, matches).count <= 8, "the limits of what lies on the disk"


def test_what_is_cold_follows_the_end_of_the_log_and_the_memory() -> None:
    rig = filled(900, 300)
    cold = Cold(rig)
    assert cold.reads.is_cold("T", 0, 0)
    for _ in range(100):
        rig.put("T", 0, bytes(300))
    ages = [cold.reads.is_cold("T", 0, offset) for offset in range(1000)]
    first_warm = ages.index(False)
    assert 900 < first_warm < 999 and True not in ages[first_warm:]
    assert not cold.reads.is_cold("T", 0, 1000)
    assert not cold.reads.is_cold("T", 1, 0) and not cold.reads.is_cold("U", 0, 0)
    assert not Cold(rig, 1 << 30).reads.is_cold("T", 0, 0), "all of it fits"


def test_outside_of_the_queue_the_answers_are_the_same() -> None:
    rig = filled(20)
    cold = Cold(rig)
    for topic, offset in (("T", 20), ("T", 99), ("U", 0), ("T", -1)):
        expected = cold.hot.get_message(topic, 0, offset, 32)
        cold.reads.get_message(topic, 0, offset, 32, None, None, cold._done)
        assert cold.answer() == expected


def test_a_damaged_message_is_passed_over_counted_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = filled(40, 300)
    cold = Cold(rig)
    spoil(rig, 3)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            result = cold.get(0)
            assert numbers(result) == [0, 1, 2, 4, 5, 6, 7]
            assert result.next_begin_offset == 8
    assert rig.store.stats.corrupt_records == 3
    (said,) = [record.getMessage() for record in caplog.records if "00000" in record.getMessage()]
    assert "commitlog" in said
    spoil(rig, 30)
    only = cold.get(30, 1)
    assert (only.status, only.count, only.next_begin_offset) == (
        GetMessageStatus.NO_MATCHED_MESSAGE, 0, 31,
    )  # fmt: skip
    assert numbers(cold.get(31))[0] == 31


def test_bytes_that_a_start_found_are_checked_on_the_hot_road_too() -> None:
    rig = filled(20, 300)
    rig.stop()
    again = StoreRig(rig.files).start()
    spoil(again, 5)
    again.put("T", 0, b"%06d" % 20 + bytes(294))
    settle(again)
    result = again.store.get_message("T", 0, 0, 32)
    assert numbers(result) == [*range(5), *range(6, 21)]
    assert again.store.look_message(again.store.queue_units("T", 0, 5, 1)[0].commit_offset) is None


def test_a_log_file_that_goes_while_it_is_read_stays_readable() -> None:
    rig = filled(900, 300)
    cold = Cold(rig)
    cold.ask(0)
    cold.worker.step()  # the units; the walk has held the file
    mapped = rig.store.commit_log.mapped_files.mapped[0]
    remove_first_log_file(rig)
    assert numbers(cold.answer()) == list(range(8))
    with pytest.raises((ValueError, OSError)):
        mapped.file.pread(1, 0)


def test_a_log_file_that_went_before_is_passed_over() -> None:
    rig = filled(900, 300)
    cold = Cold(rig)
    cold.ask(0)
    start = remove_first_log_file(rig)
    result = cold.answer()
    assert result.status is GetMessageStatus.MESSAGE_WAS_REMOVING
    while not result.count:
        result = cold.get(result.next_begin_offset)
    first = numbers(result)[0]
    assert rig.store.queue_units("T", 0, first, 1)[0].commit_offset >= start > LOG_SIZE - 1


def test_a_disk_that_fails_is_told() -> None:
    rig = filled(40, 300)
    cold = Cold(rig)
    for path in ("consumequeue", "commitlog"):
        rig.files.fail("pread", path=path, error=errno.EIO)
        cold.ask(0)
        cold.worker.run_all()
        (error,) = cold.errors
        assert isinstance(error, OSError) and cold.answers == [None]
        cold.answers, cold.errors = [], []
    assert numbers(cold.get(0)) == list(range(8))


def test_records_by_place_are_whole_and_sound_or_none() -> None:
    rig = filled(20, 300)
    places = [unit.commit_offset for unit in rig.store.queue_units("T", 0, 0, 20)]
    spoil(rig, 3)
    found: list[bytes | None] = []
    end = rig.store.commit_log.max_offset
    asked = [places[0], places[3], places[1] + 4, -1, end, end - 1, 10**15, places[19]]
    rig.store.read_records(asked, lambda got, _: found.extend(got or ()))
    assert found == []
    rig.workers.reads.run_all()
    assert [record is not None for record in found] == [True, *[False] * 6, True]
    assert found[0] is not None and numbers_of(found[0]) == 0
    assert found[7] is not None and numbers_of(found[7]) == 19


def test_a_bad_sector_takes_its_own_record_alone() -> None:
    """All that was asked for at once was taken for damaged: delayed messages were passed over."""
    rig = filled(5, 300)
    places = [unit.commit_offset for unit in rig.store.queue_units("T", 0, 0, 5)]
    found: list[bytes | None] = []
    rig.files.fail("pread", at=4)  # two for each: its size, and all of it
    rig.store.read_records(places, lambda got, _: found.extend(got or ()))
    rig.workers.reads.run_all()
    assert [record is not None for record in found] == [True, False, True, True, True]


def test_a_read_that_the_machine_refuses_says_nothing_of_records() -> None:
    rig = filled(3, 300)
    errors: list[object] = []
    rig.files.fail("pread", at=3, error=errno.ENOMEM)
    rig.store.read_records([0], lambda got, error: errors.append(error))
    rig.store.read_records([0], lambda got, error: errors.append(error))
    rig.workers.reads.run_all()
    assert errors[0] is None
    assert isinstance(errors[1], OSError)


def numbers_of(record: bytes) -> int:
    (message,) = decode_messages(record)
    return int(message.body[:6])


def test_under_sync_flush_a_record_by_place_is_seen_once_it_is_durable() -> None:
    rig = StoreRig(flush_disk_type="SYNC_FLUSH").start()
    rig.put("T", 0, b"000000")
    found: list[bytes | None] = []
    rig.store.read_records([0], lambda got, _: found.extend(got or ()))
    rig.workers.reads.run_all()
    assert found == [None]
    rig.workers.flush.run_all()
    rig.store.read_records([0], lambda got, _: found.extend(got or ()))
    rig.workers.reads.run_all()
    assert found[1] is not None


def test_searches_by_time_pass_over_padding() -> None:
    rig = StoreRig().start()
    store = rig.store
    times: dict[int, int] = {}

    def put(count: int) -> None:
        for _ in range(count):
            result = rig.put("T", 0, b"x")
            assert result is not None
            times[result.queue_offset] = rig.clock.now_ms()
            rig.clock.advance(1)
            rig.workers.run_all()

    put(100)
    queue = store.queues.get("T", 0)
    assert queue is not None
    store.queues.pad(queue, 300)
    put(20)
    found: list[int] = []
    for timestamp in times.values():
        store.offset_by_time_cold("T", 0, timestamp, lambda offset, _: found.append(offset))
        rig.workers.reads.run_all()
    assert found == [*times] == [*range(100), *range(300, 320)]
    assert [store.offset_by_time("T", 0, timestamp) for timestamp in times.values()] == found
    assert store.offset_by_time("T", 0, times[99] + 100) == 99
    assert store.offset_by_time("T", 0, times[319] + 10**6) == 319
    assert store.message_time("T", 0, 200) == -1, "padding has no time"


def test_searches_by_time_agree_with_those_in_memory() -> None:
    rig = StoreRig().start()
    times: list[int] = []
    for number in range(300):
        rig.put("T", 0, b"%06d" % number + bytes(1000))
        times.append(rig.clock.now_ms())
        rig.clock.advance(0.5)
        rig.workers.run_all()
    store = rig.store
    asked = [0, *times[::37], times[5] + 100, times[5] + 251, times[-1], times[-1] + 10**6]
    found: list[int] = []

    def searched(offset: int, error: BaseException | None) -> None:
        assert error is None
        found.append(offset)

    for timestamp in asked:
        store.offset_by_time_cold("T", 0, timestamp, searched)
        store.message_time_cold("T", 0, len(found) * 13, searched)  # queued behind it
        rig.workers.reads.run_all()
    assert found[::2] == [store.offset_by_time("T", 0, timestamp) for timestamp in asked]
    assert found[1::2] == [
        store.message_time("T", 0, number * 13) for number in range(0, 2 * len(asked), 2)
    ]
    store.offset_by_time_cold("U", 0, 5, searched)
    store.message_time_cold("U", 0, 5, searched)
    rig.workers.reads.run_all()
    assert found[-2:] == [0, -1]


def test_a_queue_file_that_was_removed_sends_the_reader_to_the_next_one() -> None:
    rig = filled(250)
    cold = Cold(rig)
    cold.ask(7)
    folder = rig.files.root / "consumequeue" / "T" / "0"
    rig.files.unlink(folder / min(rig.files.list(folder)))
    result = cold.answer()
    assert (result.status, result.next_begin_offset) == (GetMessageStatus.OFFSET_FOUND_NULL, 100)


@pytest.mark.parametrize("position", [12, 27, BODY_POSITION + 300 + 1])
def test_a_record_that_says_it_is_of_another_queue_is_not_handed_out(position: int) -> None:
    """No checksum covers queue id, queue offset and topic."""
    rig = filled(20, 300)
    rig.stop()
    again = StoreRig(rig.files).start()
    (unit,) = again.store.queue_units("T", 0, 4, 1)
    file = again.store.commit_log.mapped_files.mapped[0].file
    file.pwrite(b"\x55", unit.commit_offset + position)
    assert numbers(again.store.get_message("T", 0, 0, 32)) == [*range(4), *range(5, 20)]
    assert numbers(Cold(again, 0).get(0)) == [*range(4), *range(5, 8)]
    assert again.store.stats.corrupt_records == 2


def test_an_extension_that_cannot_be_read_fails_the_read_and_leaves_nothing_held() -> None:
    rig = StoreRig().start()
    for number in range(600):
        rig.put(body=b"%06d" % number + bytes(200))
    rig.stop()
    extend(rig.files, rig.files.root)
    rig = StoreRig(rig.files).start()
    cold = Cold(rig)
    rig.files.fail("pread", path="consumequeue_ext")
    cold.ask(0)
    cold.worker.run_all()
    assert cold.answers == [None]
    assert isinstance(cold.errors[0], OSError)
    first = rig.store.commit_log.mapped_files.mapped[0]
    rig.stop()
    with pytest.raises(OSError):
        first.file.pread(1, 0)
