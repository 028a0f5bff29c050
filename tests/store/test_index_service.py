"""The key index as a part of the store: what is found, when, and what the files then hold."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from skylarkmq.store import release_queue
from skylarkmq.store.errors import StoreProfileError
from skylarkmq.store.index.keys import ENTRY_SIZE
from skylarkmq.store.message_store import StoreState
from skylarkmq.store.results import PutMessageStatus
from tests.store.index_rig import ITEMS, SLOTS, IndexRig, properties
from tests.support.crash_disk import CrashDisk

FULL = ITEMS - 1  # items that a file holds


def started(files: CrashDisk | None = None, **config: Any) -> IndexRig:
    rig = IndexRig(files, **config)
    rig.start()
    return rig


def test_files_are_byte_for_byte_those_that_rocketmq_makes() -> None:
    rig = started()
    rig.send(12, keys="order-1 order-2")
    rig.send(3)
    rig.put("Other", 1, properties=properties("", "order-1  订单"))
    rig.put("Other", 1)
    rig.settle()
    assert len(rig.index_files()) == 5
    rig.check_files()


def test_a_query_sees_what_was_published_before_it() -> None:
    rig = started()
    rig.put(properties=properties("U0", "k"))
    rig.put("Other", properties=properties("U1", "k"))
    answer = rig.find("k")
    assert (answer.offsets, answer.missing) == ([0], "")
    assert rig.find("U0").offsets == [0]
    assert rig.find("k", topic="Other").offsets == [rig.records()[1].physical_offset]
    assert rig.find("U2").offsets == []
    assert answer.last_offset == rig.records()[-1].physical_offset
    assert answer.last_timestamp == rig.records()[-1].store_timestamp


def test_nothing_waits_longer_than_a_moment_for_company() -> None:
    rig = started()
    rig.put(properties=properties("U0"))
    assert rig.store.index.behind_bytes > 0
    rig.clock.advance(0.05)
    rig.workers.index.run_all()
    assert rig.store.index.behind_bytes == 0
    assert rig.store.stats.index_entries == 1


def test_newest_first_over_several_files_and_no_more_than_asked() -> None:
    rig = started()
    rig.send(FULL + 3, keys="k")
    offsets = [record.physical_offset for record in rig.records()]
    assert len(rig.index_files()) == 3
    assert rig.find("k").offsets == offsets[::-1]
    assert rig.find("k", 4).offsets == offsets[: -4 - 1 : -1]
    assert rig.find("k", 0).offsets == []


def test_no_more_than_the_configured_number_is_ever_found() -> None:
    rig = started(max_msgs_num_batch=3)
    rig.send(5, keys="k")
    assert len(rig.find("k", 2**31 - 1).offsets) == 3


def test_times_are_bounds_that_count_with_whole_seconds() -> None:
    rig = started(max_index_num=100)
    rig.send(6, keys="k")
    times = [record.store_timestamp for record in rig.records()]
    offsets = [record.physical_offset for record in rig.records()]
    assert rig.find("k", begin=times[2], end=times[3]).offsets == [offsets[3], offsets[2]]
    assert rig.find("k", begin=times[2] + 1).offsets == offsets[:2:-1]
    assert rig.find("k", end=times[0]).offsets == [offsets[0]]
    assert rig.find("k", begin=times[-1] + 1).offsets == []
    assert rig.find("k", begin=times[3], end=times[2]).offsets == []
    assert rig.find("k", begin=-(2**63), end=2**63 - 1).offsets == offsets[::-1]


def test_without_the_index_nothing_is_made_and_a_query_says_so() -> None:
    rig = started(message_index_enable=False)
    rig.send(2)
    answer = rig.find("U0")
    assert answer.offsets == []
    assert "messageIndexEnable" in answer.missing
    rig.checkpoint()
    rig.stop()
    assert rig.index_files() == []
    again = rig.again()
    again.start()
    again.settle()
    again.check_files()
    again.check_all_found(range(2))


def test_sync_flush_shows_and_indexes_only_what_is_durable() -> None:
    rig = started(flush_disk_type="SYNC_FLUSH")
    rig.put(properties=properties("U0"))
    assert rig.find("U0").offsets == []
    rig.workers.run_all()
    assert rig.find("U0").offsets == [0]


@pytest.mark.parametrize("road", [{}, {"commit_log_write_mode": "mapped"},
                                  {"transient_store_pool_enable": True}])  # fmt: skip
def test_every_write_road_feeds_the_index(road: dict[str, Any]) -> None:
    rig = started(**road)
    rig.send(FULL + 2, keys="k")
    rig.check_files()


def test_a_clean_stop_makes_all_durable_and_the_next_start_reads_nothing_again() -> None:
    rig = started()
    rig.send(FULL + 3, keys="k")
    rig.put(properties=properties("U99"))
    rig.stop()
    rig.check_files()
    again = rig.again()
    again.start()
    assert again.store.index.behind_bytes == 0
    again.workers.run_all()
    assert again.store.stats.index_records_read == 0
    again.number = 100
    again.send(FULL, keys="k")
    again.check_files()
    assert again.find("U99").offsets == [again.records()[FULL + 3].physical_offset]


def test_too_much_at_once_is_read_from_the_log_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylarkmq.store.index.follower.WAITING_SIZE_MAX", 5 * ENTRY_SIZE)
    rig = started(max_index_num=1000)
    for number in range(20):
        rig.put(properties=properties(f"U{number}"))
    answers: list[Any] = []
    rig.store.index.query("T", "U0", 64, 0, 2**62, lambda found, _: answers.append(found))
    rig.settle()
    assert "being built again" in answers[0].missing
    assert rig.store.stats.index_records_read > 0
    rig.check_all_found(range(20))
    assert rig.find("U0").missing == ""
    rig.put(properties=properties("U20"))
    assert len(rig.find("U20").offsets) == 1, "live again"


def test_jobs_end_between_records_whatever_keys_these_have(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in (("BATCH_SIZE", 2), ("JOB_SIZE", 4)):
        monkeypatch.setattr(f"skylarkmq.store.index.follower.{name}", count * ENTRY_SIZE)
    rig = started(max_index_num=1000)
    for number in range(20):
        rig.put(properties=properties(f"U{number}", "a b c d e" if number % 3 else ""))
        rig.put(properties=b"")
    rig.settle()
    assert rig.store.index.behind_bytes == 0
    assert rig.store.stats.index_entries == 20 + 5 * 13
    assert rig.store.stats.index_records_read == 0
    assert [len(rig.find(f"U{number}").offsets) for number in range(20)] == [1] * 20
    assert len(rig.find("e").offsets) == 13


@pytest.mark.parametrize("ends_first", [False, True])
def test_keys_that_wait_for_the_disk_are_bounded_and_all_found_later(
    monkeypatch: pytest.MonkeyPatch, ends_first: bool
) -> None:
    most = 100 * ENTRY_SIZE
    monkeypatch.setattr(release_queue, "ENTRIES_MAX", most)
    rig = started(flush_disk_type="SYNC_FLUSH")
    rig.put(properties=properties("first"))
    rig.settle()
    for number in range(20):
        rig.put(properties=properties(f"U{number}", "a " * 40))
    held = rig.store.writer._queue._held
    assert sum(len(units.entries) for _, units in held) == 82 * ENTRY_SIZE
    if ends_first:
        rig.stop()
        rig = rig.again()
        rig.start()
    rig.settle()
    assert rig.store.index.behind_bytes == 0
    assert not rig.store.writer._queue._entries_size
    rig.check_files()
    assert len(rig.find("U19").offsets) == len(rig.find("first").offsets) == 1


def test_queries_while_behind_answer_with_what_there_is() -> None:
    rig = started()
    rig.send(5)
    rig.stop()
    for name in rig.names():
        rig.files.unlink(rig.store.paths.index / name)
    again = rig.again()
    again.start()
    answers: list[Any] = []
    again.store.index.query("T", "U4", 64, 0, 2**62, lambda found, _: answers.append(found))
    behind = again.store.index.behind_bytes
    assert behind > 0
    again.workers.index.run_all()
    assert f"{behind} bytes" in answers[0].missing
    again.check_files()
    assert again.find("U4").missing == ""


def test_writes_are_refused_while_the_index_has_no_room_and_resume_by_themselves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = started(max_index_num=30)
    rig.send(2, keys="k")
    rig.files.fail("allocate", times=4, error=errno.ENOSPC, path="index")
    rig.files.fail("open", times=0, error=errno.ENOSPC, path="index")
    rig.send(14, keys="k")
    assert len(rig.index_files()) == 1
    assert rig.store.index.refused
    assert "key index" in (rig.store.refusal() or "")
    assert rig.put() is not None
    assert rig.results[-1].status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert "disk is full" in rig.find("U1").missing
    for _ in range(6):
        rig.settle()
    assert not rig.store.index.refused
    assert rig.store.refusal() is None
    rig.check_all_found(range(len(rig.records())))
    assert rig.store.state is StoreState.RUNNING
    told = [text for text in caplog.messages if "does not go on" in text]
    assert len(told) == 1, "once, whatever the number of tries"


def test_a_failed_sync_of_the_index_fails_the_store() -> None:
    rig = started()
    rig.send(1)
    rig.files.fail("datasync", path="index")
    rig.checkpoint()
    assert rig.store.state is StoreState.FAILED
    assert rig.find("U0").offsets == [0], "reads go on"


def test_expired_files_go_but_never_the_last() -> None:
    rig = started()
    rig.send(3 * FULL)
    names = rig.names()
    assert len(names) == 3
    records = rig.records()
    rig.store.index.expire(records[FULL].physical_offset)
    rig.workers.run_all()
    assert rig.names() == names[1:]
    assert rig.find("U0").offsets == []
    rig.store.index.expire(records[-1].physical_offset + 10_000)
    rig.workers.run_all()
    assert rig.names() == names[2:]
    rig.send(1)
    assert rig.find(f"U{rig.number - 1}").offsets


@pytest.mark.parametrize("changed", [{"max_hash_slot_num": SLOTS + 1}, {"max_index_num": 12}])
def test_other_sizes_are_refused_with_the_cure_and_nothing_changes(changed: dict[str, int]) -> None:
    rig = started()
    rig.send(3)
    rig.stop()
    before = rig.files.contents()
    with pytest.raises(StoreProfileError, match="start with --set max"):
        rig.again(**changed).store.load()
    rig.files.unlink(rig.store.paths.profile)
    del before["skylarkmq/profile"]
    if "max_hash_slot_num" in changed:
        with pytest.raises(StoreProfileError, match="index/2"):
            rig.again(**changed).store.load()
        assert {**before, "lock": b""} == {**rig.files.contents(), "lock": b""}
    rig.again().store.load()


def test_what_is_published_while_the_threads_end_is_in_the_index() -> None:
    rig = IndexRig(transient_store_pool_enable=True).start()
    rig.send(5)
    rig.put(body=bytes(20_000), properties=properties("U5"))  # on its way to the file
    rig.put(properties=properties("U6"))  # in the buffer until the store is closed
    rig.store.stop_writing()
    rig.workers.commit.step()
    for worker in rig.workers.all():
        if worker is rig.workers.tables:
            rig.clock.advance(0.05)  # it is busy for longer than units wait for more
        worker.stop()
    for worker in rig.workers.all():
        while worker.deliver():
            pass
    rig.store.close()
    rig.number += 2
    rig = rig.again().start()
    rig.settle()
    rig.check_all_found(range(7))
    rig.check_files()
