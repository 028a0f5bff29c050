"""A slave's log: a master's bytes, cut anywhere, give the same files; what is no record is refused.

The two stores here have disks, workers and clocks of their own, which the test moves.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from skylarkmq.protocol.record import MESSAGE_MAGIC
from skylarkmq.protocol.tags_code import tags_code
from skylarkmq.store import received
from skylarkmq.store.errors import StoreFullError
from skylarkmq.store.received import ReceivedError
from skylarkmq.store.results import MessageInner, PutMessageStatus
from tests.store.support import LOG_SIZE, StoreRig, inner
from tests.support.crash_explorer import seeds
from tests.support.crash_states import CrashState

OK = PutMessageStatus.PUT_OK
PREPARED, COMMIT, ROLLBACK = 0x4, 0x8, 0xC
V6 = bytes(range(16)) + (40000).to_bytes(4, "big")


def slave(**config: Any) -> StoreRig:
    """A store that takes another one's log."""
    return StoreRig(broker_role="SLAVE", **config).start()


def master(count: int = 60, **config: Any) -> StoreRig:
    """A store with messages of all kinds, over several files."""
    rig = StoreRig(**config).start()
    for number in range(count):
        for message in kinds(number):
            rig.store.put_message(message, rig.results.append)
        rig.clock.advance(0.01)
        rig.workers.run_all()
    assert {result.status for result in rig.results} == {OK}
    return rig


def kinds(number: int) -> list[MessageInner]:
    keyed = b"KEYS\x01key-%d\x02TAGS\x01Tag-%d" % (number, number % 3)
    code = tags_code(f"Tag-{number % 3}")
    messages = [
        inner("Plain", number % 3, b"plain %d " % number * 300),
        inner("Keyed", 0, b"", properties=keyed, tags_code=code),
        inner("Hosts", 1, b"v6", born_host=V6),
        inner("SCHEDULE_TOPIC_XXXX", 2, b"later", properties=b"DELAY\x013", delay_level=3),
        inner("Deals", 0, b"half", properties=keyed, sys_flag=PREPARED, tags_code=code),
        inner("Deals", 0, b"done", properties=keyed, sys_flag=COMMIT, tags_code=code),
        inner("Deals", 0, b"back", properties=keyed, sys_flag=ROLLBACK),
    ]
    return messages[: 1 + number % len(messages)] if number % 4 else messages


def log_of(rig: StoreRig) -> bytes:
    """All of a log from its oldest file on."""
    log = rig.store.commit_log
    offset, parts = log.min_offset, list[bytes]()
    while part := log.part(offset, 1 << 30):
        parts.append(bytes(part))
        offset += len(part)
    assert offset == log.stored_offset
    return b"".join(parts)


def hand_over(source: StoreRig, target: StoreRig, rng: Random, size_max: int = 5000) -> None:
    """Send what the target lacks, in parts of any size."""
    log = source.store.commit_log
    offset = max(target.store.received.next_offset, log.min_offset)
    while part := log.part(offset, rng.randint(1, size_max)):
        target.store.take_records(offset, bytes(part))
        offset += len(part)
        target.workers.run_all()


def files_of(rig: StoreRig, *folders: str) -> dict[str, bytes]:
    return {
        name.partition(folder)[2]: data
        for name, data in rig.files.contents().items()
        for folder in folders
        if f"/{folder}/" in name or name.startswith(f"{folder}/")
    }


def queues_of(rig: StoreRig) -> dict[tuple[str, int], tuple[int, int, bytes]]:
    store = rig.store
    return {
        key: (
            queue.min_offset,
            queue.max_offset,
            b"".join(
                store.queues.units(queue, unit, 1)
                for unit in range(queue.min_offset, queue.max_offset)
            ),
        )
        for key, queue in store.queues.queues.items()
        if queue.max_offset
    }


def settle(*rigs: StoreRig) -> None:
    for rig in rigs:
        for _ in range(3):
            rig.workers.run_all()
            rig.clock.advance(1.0)
        rig.workers.run_all()


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("size_max", [40, 3000, 2 * LOG_SIZE])
def test_any_cut_of_a_log_gives_the_same_store(flush: str, size_max: int) -> None:
    for seed in seeds(3):
        rng = Random(seed)
        source, target = master(60, flush_disk_type=flush), slave(flush_disk_type=flush)
        hand_over(source, target, rng, size_max)
        settle(source, target)
        assert source.store.commit_log.min_offset == 0
        assert source.store.commit_log.wrote_offset > LOG_SIZE
        assert log_of(target) == log_of(source)
        assert queues_of(target) == queues_of(source)
        for number in range(60):
            assert found(target, f"key-{number}") == found(source, f"key-{number}")
        source.stop()
        target.stop()
        for folder in ("commitlog", "consumequeue"):
            assert files_of(target, folder) == files_of(source, folder)


def found(rig: StoreRig, key: str) -> list[int]:
    answers: list[Any] = []
    rig.store.index.query(
        "Keyed", key, 64, 0, 1 << 62, lambda answer, error: answers.append(answer or error)
    )
    rig.workers.run_all()
    return sorted(answers[0].offsets)


def test_a_slave_goes_on_where_it_stopped() -> None:
    source, target = master(20), slave()
    hand_over(source, target, Random(1))
    files = target.files
    target.stop()
    for message in kinds(4):
        source.store.put_message(message, source.results.append)
    again = StoreRig(files, broker_role="SLAVE").start()
    assert again.store.recovery is not None and again.store.recovery.clean
    before = again.store.commit_log.wrote_offset
    hand_over(source, again, Random(2))
    assert again.store.commit_log.wrote_offset > before
    assert log_of(again) == log_of(source)
    assert queues_of(again) == queues_of(source)


def test_a_slave_becomes_a_master() -> None:
    source, target = master(20), slave()
    hand_over(source, target, Random(1))
    target.stop()
    promoted = StoreRig(target.files).start()
    result = promoted.put("Plain", 0)
    assert result is not None
    assert result.queue_offset == source.store.max_offset("Plain", 0)
    assert result.physical_offset == source.store.commit_log.wrote_offset


def test_the_copy_of_a_log_whose_first_files_are_gone_begins_there() -> None:
    source = master(120)
    log = source.store.commit_log
    while len(log.mapped_files.mapped) > 2:
        log.mapped_files.drop_first().close()
    target = slave()
    assert log.min_offset > 0
    hand_over(source, target, Random(3))
    settle(target)
    assert target.store.commit_log.min_offset == log.min_offset
    assert log_of(target) == log_of(source)
    for key, (first, end, units) in queues_of(target).items():
        wanted = queues_of(source)[key]
        assert first > 0 or key[0] == "Keyed"
        assert end == wanted[1]
        assert wanted[2].endswith(units)
    ends = {key: value[1] for key, value in queues_of(target).items()}
    units = queues_of(target)
    target.stop()
    again = StoreRig(target.files, broker_role="SLAVE").start()
    assert queues_of(again) == units
    assert {key: value[1] for key, value in queues_of(again).items()} == ends


def test_an_empty_slave_waits_for_the_place_where_its_masters_log_begins() -> None:
    empty = StoreRig().start()
    assert list(files_of(empty, "commitlog")) != []
    empty.stop()
    target = StoreRig(empty.files, broker_role="SLAVE").start()
    assert target.store.commit_log.mapped_files.last is None
    with pytest.raises(ReceivedError, match="mappedFileSizeCommitLog"):
        target.store.take_records(LOG_SIZE + 1, b"x")
    target.store.take_records(3 * LOG_SIZE, b"")
    assert target.store.commit_log.min_offset == 3 * LOG_SIZE
    target.stop()
    assert StoreRig(target.files, broker_role="SLAVE").start().store.received.next_offset in (
        0,
        3 * LOG_SIZE,
    )


def damaged(data: bytes, position: int, value: int = 0xFF) -> bytes:
    return data[:position] + bytes((data[position] ^ value,)) + data[position + 1 :]


@pytest.mark.parametrize(
    ("position", "cause"),
    [(5, "magic"), (30, "physical offset"), (95, "checksum"), (84, "larger"), (0, "larger")],
)
def test_damage_is_refused_with_its_cause_and_nothing_is_stored(position: int, cause: str) -> None:
    source, target = master(1), slave()
    data = log_of(source)
    with pytest.raises(ReceivedError, match=cause):
        target.store.take_records(0, damaged(data, position))
    assert target.store.commit_log.wrote_offset == 0
    assert not queues_of(target)
    target.store.take_records(0, data)
    assert log_of(target) == data


def test_each_damaged_bit_is_refused_or_waits() -> None:
    """Topic and properties have no checksum; what damages them may pass, as in recovery."""
    source = StoreRig().start()
    source.put("T", 0, b"body" * 10)
    data = log_of(source)
    target = slave()
    uncovered = set(range(12, 28)) | set(range(36, 84)) | set(range(len(data) - 3, len(data)))
    for position in set(range(len(data))) - uncovered:
        with pytest.raises((ReceivedError, AssertionError)):
            target.store.take_records(0, damaged(data, position, 1))
            assert target.store.received.next_offset == target.store.commit_log.wrote_offset
        assert target.store.commit_log.wrote_offset == 0
        target.store.received.forget()


def test_zeros_and_another_place_are_refused() -> None:
    target = slave()
    with pytest.raises(ReceivedError, match="nothing was written"):
        target.store.take_records(0, bytes(100))
    with pytest.raises(ReceivedError, match="goes on"):
        target.store.take_records(50, b"x")


def test_another_file_size_is_refused_where_the_file_ends() -> None:
    source = master(60)
    smaller, larger = (
        slave(mapped_file_size_commit_log=LOG_SIZE - 4096),
        slave(mapped_file_size_commit_log=2 * LOG_SIZE),
    )
    for target in (smaller, larger):
        with pytest.raises(ReceivedError, match="mappedFileSizeCommitLog"):
            hand_over(source, target, Random(5))
        taken = log_of(target)
        assert taken and log_of(source).startswith(taken)


def test_a_record_without_end_takes_no_memory_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received, "RECORD_SIZE_MAX", 1 << 20)
    target = slave(mapped_file_size_commit_log=8 << 20)
    head = (7 << 20).to_bytes(4, "big") + MESSAGE_MAGIC.to_bytes(4, "big", signed=True)
    with pytest.raises(ReceivedError, match="maxMessageSize"):
        target.store.take_records(0, head)


def test_a_full_disk_stores_what_is_before_and_the_rest_later() -> None:
    source, target = master(120), slave()
    hand_over_first = bytes(source.store.commit_log.part(0, 5000))
    target.store.take_records(0, hand_over_first)
    target.files.fail("allocate", times=1, error=28)
    refused = 0
    while target.store.commit_log.wrote_offset < source.store.commit_log.wrote_offset:
        try:
            hand_over(source, target, Random(6))
        except StoreFullError:
            refused += 1
            target.store.received.forget()
            assert log_of(source).startswith(log_of(target))
            target.clock.advance(5)
        assert refused < 5
    assert refused
    assert log_of(target) == log_of(source)
    assert queues_of(target) == queues_of(source)


def test_records_that_find_no_room_after_a_start_have_their_numbers_later() -> None:
    source, target = master(120), slave()
    first = source.store.commit_log.part(0, LOG_SIZE // 2)
    target.store.take_records(0, bytes(first))
    target.workers.run_all()
    target.stop()
    target.files.fail("allocate", times=1, error=28)
    again = StoreRig(target.files, broker_role="SLAVE").start()
    with pytest.raises(StoreFullError):
        hand_over(source, again, Random(5), size_max=LOG_SIZE)
    again.store.received.forget()
    again.clock.advance(5)
    hand_over(source, again, Random(5), size_max=LOG_SIZE)
    assert again.store.received.left_out == 0
    assert log_of(again) == log_of(source)
    assert queues_of(again) == queues_of(source)


def test_a_slave_that_has_no_whole_record_yet_starts_again_and_again() -> None:
    source, target = master(120), slave()
    begun = source.store.commit_log.part(LOG_SIZE, 50)
    target.store.take_records(LOG_SIZE, bytes(begun))
    for _ in range(3):
        target.workers.run_all()
        target.stop()
        target = StoreRig(target.files, broker_role="SLAVE").start()
        assert target.store.commit_log.mapped_files.last is None
    target.store.take_records(LOG_SIZE, bytes(source.store.commit_log.part(LOG_SIZE, 5000)))
    assert target.store.commit_log.min_offset == LOG_SIZE
    assert target.store.commit_log.wrote_offset > LOG_SIZE


def test_missing_numbers_become_padding_and_repeated_ones_get_no_unit() -> None:
    source = StoreRig().start()
    source.put("T", 0, b"first")
    source.store.queues.open("T", 0).next_offset = 5
    source.store.queues.pad(source.store.queues.open("T", 0), 5)
    source.put("T", 0, b"sixth")
    target = slave()
    hand_over(source, target, Random(8))
    assert target.store.max_offset("T", 0) == 6
    assert queues_of(target) == queues_of(source)
    begin = source.store.commit_log.wrote_offset
    queue = source.store.queues.open("T", 0)
    queue.max_offset = queue.next_offset = 2  # as a topic that was made again
    source.put("T", 0, b"again")
    target.store.take_records(begin, bytes(source.store.commit_log.part(begin, 1000)))
    assert target.store.max_offset("T", 0) == 6
    assert target.store.received.left_out == 1
    assert log_of(target) == log_of(source)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_what_was_confirmed_under_sync_flush_survives_a_power_cut(flush: str) -> None:
    source = master(40)
    whole = log_of(source)
    for seed in seeds(30):
        rng = Random(seed)
        target = slave(flush_disk_type=flush)
        offset, limit = 0, rng.randrange(len(whole))
        while offset < limit:
            part = whole[offset : offset + rng.randint(1, 9000)]
            target.store.take_records(offset, part)
            offset += len(part)
            if rng.random() < 0.5:
                target.workers.run_all()
            if rng.random() < 0.1:
                settle(target)
        confirmed = target.store.commit_log.stored_offset
        for state in target.files.crash_states(rng, 2):
            check_crash(target, state, rng, whole, confirmed if flush == "SYNC_FLUSH" else 0)


def check_crash(
    target: StoreRig, state: CrashState, rng: Random, whole: bytes, confirmed: int
) -> None:
    again = StoreRig(target.files.crash(state, rng), broker_role="SLAVE").start()
    log = again.store.commit_log
    end = log.wrote_offset
    assert end >= confirmed
    assert log_of(again) == whole[:end]
    again.store.take_records(end, whole[end:])
    settle(again)
    assert log_of(again) == whole


def test_what_lies_in_a_blank_record_is_stored_as_it_came() -> None:
    """RocketMQ leaves old bytes of its buffers there."""
    whole = log_of(master(60))
    data = damaged(whole, LOG_SIZE - 3, 0x55)
    target = slave()
    target.store.take_records(0, data)
    assert log_of(target) == data != whole
