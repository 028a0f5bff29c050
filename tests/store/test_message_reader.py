"""Reading: the limits of one answer, what removal leaves, places and times. More of it is told in
`test_message_store.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.record import decode_messages
from skylarkmq.store.queue.queue_loader import QueueLoader
from skylarkmq.store.read.message_reader import BIG_PULL_COUNT, SCANNED_UNITS_MIN, MessageReader
from skylarkmq.store.results import GetMessageResult, GetMessageStatus
from tests.store.support import LOG_SIZE, StoreRig, store_config

FOUND = GetMessageStatus.FOUND


def filled(count: int, size: int = 100, **config: object) -> StoreRig:
    """One queue of so many messages, all in files."""
    rig = StoreRig(**config).start()
    for number in range(count):
        rig.put("T", 0, b"%06d" % number + bytes(size - 6), tags_code=number % 10)
    settle(rig)
    return rig


def settle(rig: StoreRig) -> None:
    for _ in range(3):
        rig.clock.advance(1.1)
        rig.workers.run_all()


def reader(rig: StoreRig, memory_size: int, **config: object) -> MessageReader:
    """A reader that believes in so much memory, of which 40 percent hold the log's end."""
    store = rig.store
    env = replace(store.environment, config=store_config(rig.files.root, **config))
    return MessageReader(env, store.commit_log, store.queues, memory_size)


def bodies(result: GetMessageResult) -> list[int]:
    messages = decode_messages(b"".join(result.views))
    assert len(messages) == result.count
    assert sum(message.store_size for message in messages) == result.size
    return [int(message.body[:6]) for message in messages]


def remove_first_log_file(rig: StoreRig) -> int:
    """As the cleaning will: the file goes, the queue learns of it later. The log's new start."""
    log = rig.store.commit_log
    log.mapped_files.mapped.pop(0).close()
    return log.min_offset


def test_caps_are_lower_for_what_lies_on_the_disk() -> None:
    rig = filled(500, 500)
    old = reader(rig, 50_000)
    assert not old.is_in_memory(0)
    assert bodies(old.get_message("T", 0, 0, 32)) == list(range(8))
    end = rig.store.max_offset("T", 0)
    assert bodies(old.get_message("T", 0, end - 30, 32)) == list(range(end - 30, end))


def test_the_byte_cap_of_the_disk() -> None:
    rig = filled(40, 20_000)
    assert bodies(reader(rig, 1000).get_message("T", 0, 0, 32)) == [0, 1, 2], "64 KiB"


def test_configured_caps() -> None:
    rig = filled(100, 1000)
    small = reader(
        rig,
        1 << 33,
        max_transfer_count_on_message_in_memory=5,
        max_transfer_bytes_on_message_in_memory=4000,
    )
    assert bodies(small.get_message("T", 0, 0, 32)) == [0, 1, 2]
    assert bodies(small.get_message("T", 0, 0, 2)) == [0, 1]


@pytest.mark.parametrize(("more", "count"), [(0, 9), (1, 8)])
def test_an_answer_has_as_many_bytes_as_the_cap_and_not_one_more(more: int, count: int) -> None:
    rig = filled(8, 30_000)
    record_size = rig.store.get_message("T", 0, 0, 1).size
    rest = 262_144 - 8 * record_size - (record_size - 30_000)
    rig.put("T", 0, b"%06d" % 8 + bytes(rest + more - 6))
    rig.put("T", 0, b"%06d" % 9)
    settle(rig)
    assert bodies(rig.store.get_message("T", 0, 0, 32)) == list(range(count))


def test_a_pull_is_big_from_one_byte_above_the_cap() -> None:
    rig = filled(40)
    assert len(bodies(rig.store.get_message("T", 0, 0, 40, max_bytes=262_144))) == 32
    assert len(bodies(rig.store.get_message("T", 0, 0, 40, max_bytes=262_145))) == 40


def test_a_big_pull_has_its_own_caps() -> None:
    rig = filled(1500, 100, mapped_file_size_consume_queue=40_000)
    found = rig.store.get_message("T", 0, 0, 10_000, max_bytes=1 << 30)
    assert bodies(found) == list(range(BIG_PULL_COUNT))
    assert bodies(rig.store.get_message("T", 0, 0, 100, max_bytes=262_144)) == list(range(32)), (
        "not above RocketMQ's cap: its rules"
    )


def test_the_end_of_a_queue_file_ends_an_answer() -> None:
    rig = filled(150)  # 100 units a file
    assert bodies(rig.store.get_message("T", 0, 90, 32)) == list(range(90, 100))
    assert bodies(rig.store.get_message("T", 0, 100, 32)) == list(range(100, 132))


def test_a_read_looks_at_so_many_units_and_goes_on_behind_them() -> None:
    rig = filled(2000, mapped_file_size_consume_queue=40_000)
    result = rig.store.get_message("T", 0, 0, 32, matches=lambda code: False)
    assert result.status is GetMessageStatus.NO_MATCHED_MESSAGE
    assert result.next_begin_offset == SCANNED_UNITS_MIN
    result = rig.store.get_message("T", 0, 0, 32, matches=lambda code: code == 3)
    assert bodies(result) == list(range(3, 320, 10))
    assert result.next_begin_offset == 314, "right behind the last one taken"


def test_the_next_offset_is_behind_passed_over_units_at_the_end() -> None:
    rig = filled(25)
    result = rig.store.get_message("T", 0, 0, 32, matches=lambda code: code == 3)
    assert (bodies(result), result.next_begin_offset) == ([3, 13, 23], 25)


def test_a_run_of_neighbours_is_cut_at_a_log_file() -> None:
    rig = filled(40, 10_000)
    result = rig.store.get_message("T", 0, 0, 32)
    assert bodies(result) == list(range(25)), "256 KiB"
    units = rig.store.queue_units("T", 0, 0, 25)
    assert len(result.views) == len({unit.commit_offset // LOG_SIZE for unit in units}) == 3


def test_a_removed_log_file_is_skipped_and_said() -> None:
    rig = filled(40, 10_000)
    start = remove_first_log_file(rig)
    first = next(
        number
        for number, unit in enumerate(rig.store.queue_units("T", 0, 0, 40))
        if unit.commit_offset >= start
    )
    result = rig.store.get_message("T", 0, 0, 32)
    assert bodies(result)[0] == first
    gone = rig.store.get_message("T", 0, 0, 32, matches=lambda code: code == 0)
    assert bodies(gone)[0] == 20
    del rig.store.commit_log.mapped_files.mapped[:-1]
    nothing = rig.store.get_message("T", 0, 0, 32, matches=lambda code: code == 0)
    assert nothing.status is GetMessageStatus.MESSAGE_WAS_REMOVING
    assert (nothing.count, nothing.views, nothing.next_begin_offset) == (0, (), 40)


def test_a_unit_that_points_behind_the_log_costs_its_message_alone() -> None:
    rig = filled(40, 100)
    queue = rig.store.queues.get("T", 0)
    assert queue is not None
    path = queue.folder / f"{0:020d}"
    rig.files.open(path).pwrite((1 << 40).to_bytes(8, "big"), 3 * 20)
    result = rig.store.get_message("T", 0, 0, 10)
    assert bodies(result) == [0, 1, 2, *range(4, 11)]


def test_views_stay_readable_when_the_file_is_removed() -> None:
    rig = filled(40, 10_000)
    result = rig.store.get_message("T", 0, 0, 3)
    remove_first_log_file(rig)
    assert bodies(result) == [0, 1, 2]


def test_a_removed_queue_file_sends_the_reader_to_the_next() -> None:
    rig = filled(250)
    queue = rig.store.queues.get("T", 0)
    assert queue is not None
    rig.store.queues.reader.close()  # as when its handle fell out of the cache
    rig.files.unlink(queue.folder / rig.files.list(queue.folder)[0])
    result = rig.store.get_message("T", 0, 7, 32)
    assert result.status is GetMessageStatus.OFFSET_FOUND_NULL
    assert result.next_begin_offset == 100
    assert bodies(rig.store.get_message("T", 0, 100, 5)) == [100, 101, 102, 103, 104]


def test_offsets_below_the_first_readable_one() -> None:
    rig = filled(40, 10_000)
    loader = QueueLoader(rig.store.environment, rig.store.queues)
    loader.correct_min_offsets(remove_first_log_file(rig))
    first = rig.store.min_offset("T", 0)
    assert first > 0
    result = rig.store.get_message("T", 0, first - 1, 32)
    assert (result.status, result.next_begin_offset) == (GetMessageStatus.OFFSET_TOO_SMALL, first)
    assert rig.store.queue_units("T", 0, first - 1, 5) == []
    assert rig.store.message_time("T", 0, first - 1) == -1
    assert rig.store.offset_by_time("T", 0, 0) == first
    assert bodies(rig.store.get_message("T", 0, first, 1)) == [first]


@pytest.mark.parametrize("born", ["192.0.2.7", "2001:db8::7"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_store_times_are_found_behind_hosts_of_either_size(born: str, host: str) -> None:
    rig = StoreRig().start()
    hosts = {
        "born_host": HostAddress(born, 1).pack(),
        "store_host": HostAddress(host, 2).pack(),
    }
    for _ in range(3):
        result = rig.put("T", 0, b"x", **hosts)
        assert result is not None
        assert rig.store.message_time("T", 0, result.queue_offset) == result.store_timestamp
        found = rig.store.look_message(result.physical_offset)
        assert found is not None
        assert (found.born_host.ip, found.store_host.ip) == (born, host)
        rig.clock.advance(1)


def test_looking_by_place_takes_only_where_a_record_starts() -> None:
    rig = filled(3)
    size = rig.store.commit_log.max_offset // 3
    assert rig.store.look_message(size) is not None
    for offset in (-1, 1, size + 1, 3 * size, LOG_SIZE, 1 << 62):
        assert rig.store.look_message(offset) is None


def test_looking_under_sync_flush_shows_what_is_durable() -> None:
    rig = StoreRig(flush_disk_type="SYNC_FLUSH").start()
    rig.put()
    rig.workers.run_all()
    end = rig.store.commit_log.max_offset
    rig.put()
    assert rig.store.look_message(0) is not None
    assert rig.store.look_message(end) is None
    rig.workers.run_all()
    assert rig.store.look_message(end) is not None


def test_a_message_that_is_bigger_than_every_cap_is_read_alone() -> None:
    rig = StoreRig().start()
    for _ in range(3):
        rig.put("T", 0, bytes(30_000))
    small = reader(rig, 1 << 33, max_transfer_bytes_on_message_in_memory=10)
    for offset in range(3):
        result = small.get_message("T", 0, offset, 32)
        assert (result.status, result.count, result.next_begin_offset) == (FOUND, 1, offset + 1)


@pytest.mark.parametrize("size", [10, 9_000, 200_000])
@pytest.mark.parametrize("tags", [None, {3, 4}, {77}])
def test_what_is_near_is_read_as_what_was_there_before_the_start(
    size: int, tags: set[int] | None
) -> None:
    """What this run stored takes a way of its own, which looks at no record."""
    rig = filled(60, size)
    matches = None if tags is None else tags.__contains__
    for offset in (0, 7, 55, 59):
        for count in (1, 5, 32, 100):
            found: list[object] = []
            for verify_below in (0, 1 << 62):
                rig.store._reader.verify_below = verify_below
                result = rig.store.get_message("T", 0, offset, count, None, matches)
                found.append((b"".join(result.views), replace(result, views=())))
            assert found[0] == found[1]
