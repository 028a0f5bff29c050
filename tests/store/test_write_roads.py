"""The three roads into the log: the same bytes, the same promises; and what is each one's own."""

from __future__ import annotations

import errno
import itertools
import logging
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.store.log import memory as page_cache
from skylarkmq.store.message_store import StoreState
from skylarkmq.store.results import PutMessageStatus
from tests.store.support import LOG_SIZE, StoreRig, inner
from tests.store.test_message_store import bodies
from tests.support.crash_disk import CrashDisk
from tests.support.crash_states import CrashState, Keep

ROADS: dict[str, dict[str, Any]] = {
    "pwrite": {},
    "mapped": {"commit_log_write_mode": "mapped"},
    "mapped, warmed": {
        "commit_log_write_mode": "mapped",
        "warm_maped_file_enable": True,
        "flush_least_pages_when_warm_maped_file": 4,
    },
    "pool": {"transient_store_pool_enable": True},
}
FLUSHES = ("ASYNC_FLUSH", "SYNC_FLUSH")
PREPARED, COMMIT, ROLLBACK = 0x4, 0x8, 0xC
IPV6 = HostAddress("2001:db8::7", 40000).pack()

every_road = pytest.mark.parametrize("road", ROADS)
every_flush = pytest.mark.parametrize("flush", FLUSHES)


def rig_on(road: str, flush: str, disk: CrashDisk | None = None, **config: Any) -> StoreRig:
    return StoreRig(disk, flush_disk_type=flush, **ROADS[road], **config)


def pool_rig(flush: str = "ASYNC_FLUSH", **config: Any) -> StoreRig:
    return rig_on("pool", flush, **config).start()


def put_all_kinds(rig: StoreRig, rng: Random, count: int) -> None:
    """Messages of every kind, in batches of all sizes, over several rolls."""
    kinds: list[Callable[[int], dict[str, Any]]] = [
        lambda _: {},
        lambda number: {"properties": f"KEYS\x01k{number}\x02TAGS\x01t".encode(), "tags_code": 116},
        lambda _: {"born_host": IPV6},
        lambda _: {"born_host": IPV6, "store_host": IPV6},
        lambda number: {"topic": "SCHEDULE_TOPIC_XXXX", "delay_level": 1 + number % 18},
        lambda _: {"sys_flag": PREPARED},
        lambda number: {"sys_flag": COMMIT, "prepared_transaction_offset": number},
        lambda number: {"sys_flag": ROLLBACK, "prepared_transaction_offset": number},
    ]
    number = 0
    while number < count:
        batch = rig.store.begin()
        for _ in range(rng.choice((1, 1, 2, 7, 40))):
            changes = rng.choice(kinds)(number)
            message = inner(
                changes.pop("topic", rng.choice("AB")),
                rng.randrange(3),
                rng.randbytes(rng.choice((0, 10, 300, 3000))),
                **changes,
            )
            batch.add_message(rig.store.queues.open(message.topic, message.queue_id), message)
            number += 1
            if rng.random() < 0.05:  # while the batch is open
                rig.clock.advance(0.25)
                rig.workers.run_all()
        rig.store.commit(None)
        rig.clock.advance(rng.choice((0.0, 0.003, 0.25)))
        if rng.random() < 0.5:
            rig.workers.run_all()
    rig.workers.run_all()


def contents(rig: StoreRig) -> dict[str, bytes]:
    """The log and the queues, byte for byte."""
    files: dict[str, bytes] = {}
    disk = rig.files
    for folder in ("commitlog", "consumequeue"):
        todo = [disk.root / folder]
        while todo:
            for name in disk.list(here := todo.pop()):
                path = here / name
                if disk.list(path):
                    todo.append(path)
                else:
                    files[str(path.relative_to(disk.root))] = disk.read_all(path)
    return files


def test_all_roads_write_the_same_files() -> None:
    written: dict[str, dict[str, bytes]] = {}
    for road, flush in itertools.product(ROADS, FLUSHES):
        rig = rig_on(road, flush).start()
        put_all_kinds(rig, Random(7), 900)
        rig.stop()
        assert rig.store.state is StoreState.CLOSED
        written[f"{road} {flush}"] = contents(rig)
    first = written.pop("pwrite ASYNC_FLUSH")
    assert sum(name.startswith("commitlog/") for name in first) > 4
    for name, files in written.items():
        assert files.keys() == first.keys(), name
        assert [path for path in files if files[path] != first[path]] == [], name


@every_flush
def test_a_log_goes_on_over_any_other_road(flush: str) -> None:
    disk, said = CrashDisk(), []
    for turn, road in enumerate(("pool", "mapped", "pwrite", "mapped, warmed", "pool")):
        rig = rig_on(road, flush, disk).start()
        assert bodies(rig, "T", 0) == said
        for number in range(60):
            said.append(b"%d.%d " % (turn, number) + bytes(1000))
            rig.put(body=said[-1])
        rig.workers.run_all()
        rig.clock.advance(0.2)
        rig.workers.run_all()
        assert bodies(rig, "T", 0) == said
        rig.stop()


@every_road
def test_what_sync_flush_acknowledged_outlives_any_crash(road: str) -> None:
    rng = Random(11)
    rig = rig_on(road, "SYNC_FLUSH").start()
    for number in range(150):
        rig.put(body=b"%d " % number + bytes(2000))
        if rng.random() < 0.3:
            rig.workers.flush.step()
    acked = sum(result.status is PutMessageStatus.PUT_OK for result in rig.results)
    assert acked > 0
    for state in rig.files.crash_states(rng, 8):
        after = rig_on(road, "SYNC_FLUSH", rig.files.crash(state, rng)).start()
        found = bodies(after, "T", 0)
        assert [int(body.split()[0]) for body in found] == list(range(len(found)))
        assert len(found) >= acked


@every_road
@every_flush
def test_a_sync_that_ends_while_a_batch_is_open_takes_nothing_of_it_for_synced(
    road: str, flush: str
) -> None:
    """It rolled into the next file; the rest of the old one is written after that sync."""
    rig = rig_on(road, flush).start()
    for number in range(3):  # the first is synced, the others share the sync after it
        rig.put(body=b"%d " % number)
    answers: list[PutMessageStatus] = []
    batch = rig.store.begin(lambda: None)
    queue = rig.store.queues.open("T", 0)
    begun_at = batch.physical_offset
    while batch.physical_offset < 2 * LOG_SIZE:
        batch.add_message(queue, inner("T", 0, bytes(1500)))
    count = 3 + batch.units.count
    let_time_pass(rig)
    log = rig.store.commit_log
    assert log.max_offset == log.wrote_offset == log.flushed_offset == begun_at
    rig.store.commit(answers.append)
    let_time_pass(rig)
    assert answers == [PutMessageStatus.PUT_OK]
    assert log.flushed_offset == batch.physical_offset
    nothing_unsynced = CrashState(Keep.NONE, names=Keep.NONE)
    after = rig_on(road, flush, rig.files.crash(nothing_unsynced, Random(1))).start()
    assert len(bodies(after, "T", 0)) == count


def let_time_pass(rig: StoreRig) -> None:
    """Let what is due be done: syncs and commits too, one after the other."""
    for _ in range(3):
        rig.clock.advance(1)
        rig.workers.run_all()


@every_road
@every_flush
def test_a_failed_write_or_sync_ends_writing_and_keeps_reading(road: str, flush: str) -> None:
    rig = rig_on(road, flush).start()
    rig.put(body=b"before")
    rig.clock.advance(1)
    rig.workers.run_all()
    rig.files.fail("datasync", path="commitlog")
    rig.put(body=b"lost")
    rig.clock.advance(1)
    rig.workers.run_all()
    assert rig.store.state is StoreState.FAILED
    assert rig.store.refusal() is not None
    assert bodies(rig, "T", 0)[:1] == [b"before"]
    if flush == "SYNC_FLUSH":
        assert rig.results[-1].status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    rig.stop()
    assert (rig.files.root / "abort") in [
        rig.files.root / name for name in rig.files.list(rig.files.root)
    ]


# The pool


def test_the_pool_answers_at_once_and_shows_after_the_commit() -> None:
    rig = pool_rig()
    result = rig.put(body=b"staged")
    assert result is not None and result.status is PutMessageStatus.PUT_OK
    log = rig.store.commit_log
    assert (log.max_offset, rig.store.max_offset("T", 0)) == (0, 0)
    assert log.wrote_offset > 0
    assert rig.store.look_message(0) is None, "no reader looks into a buffer"
    rig.clock.advance(0.2)
    rig.workers.commit.run_all()
    assert log.max_offset == log.wrote_offset
    assert rig.store.max_offset("T", 0) == 1
    assert log.flushed_offset == 0
    assert bodies(rig, "T", 0) == [b"staged"]


def test_four_staged_pages_are_committed_without_waiting_for_the_clock() -> None:
    rig = pool_rig()
    rig.put(body=bytes(12_000))
    assert rig.workers.commit.idle
    rig.put(body=bytes(5_000))
    rig.workers.commit.run_all()
    assert rig.store.max_offset("T", 0) == 2


@pytest.mark.parametrize("timed", [True, False])
def test_a_commit_asks_for_a_flush_unless_flushes_are_timed(timed: bool) -> None:
    rig = pool_rig(flush_commit_log_timed=timed)
    rig.put(body=b"staged")
    rig.clock.advance(0.2)
    rig.workers.commit.run_all()
    rig.workers.flush.run_all()
    log = rig.store.commit_log
    assert log.max_offset > 0
    assert log.flushed_offset == (0 if timed else log.max_offset)


def test_less_than_the_least_pages_waits_for_the_thorough_commit() -> None:
    rig = pool_rig(commit_commit_log_thorough_interval=1000)
    rig.put(body=b"small")
    rig.clock.advance(0.9)
    rig.workers.run_all()
    assert rig.store.max_offset("T", 0) == 0
    rig.clock.advance(0.2)
    rig.workers.run_all()
    assert rig.store.max_offset("T", 0) == 1


def test_a_flush_syncs_what_is_committed_and_says_no_more() -> None:
    rig = pool_rig(commit_interval_commit_log=10_000)
    rig.put(body=bytes(20_000))
    rig.workers.commit.run_all()
    committed = rig.store.commit_log.max_offset
    rig.put(body=b"staged")
    rig.clock.advance(0.5)
    rig.workers.flush.run_all()
    assert rig.store.commit_log.flushed_offset == committed < rig.store.commit_log.wrote_offset


def test_sync_flush_commits_syncs_and_then_answers() -> None:
    rig = pool_rig("SYNC_FLUSH")
    assert rig.put(body=b"x") is None
    assert rig.workers.commit.idle, "the sync takes the commit along"
    steps: list[tuple[str, str]] = []
    rig.files.before_step = lambda op, path: steps.append((op, path.parent.name))
    assert rig.workers.flush.run_job()
    assert steps == [
        ("pwrite", "commitlog"), ("datasync", "commitlog"), ("pwrite", "skylarkmq")
    ], "what is said to be on the disk is there"  # fmt: skip
    assert rig.results == []
    rig.workers.flush.deliver()
    assert rig.results[0].status is PutMessageStatus.PUT_OK
    assert bodies(rig, "T", 0) == [b"x"]


def fill_files(rig: StoreRig, count: int) -> None:
    """Append until the log has begun `count` files, no commit coming through."""
    while len(rig.store.commit_log.mapped_files.mapped) < count:
        rig.workers.prepare.run_all()
        rig.put(body=bytes(20_000))


def test_an_exhausted_pool_is_busy_until_a_commit_gives_a_buffer_back() -> None:
    rig = pool_rig(transient_store_pool_size=3)
    pool = rig.store.commit_log.pool
    assert pool is not None
    assert (pool.available_count, rig.store.is_busy) == (2, False)
    fill_files(rig, 3)
    assert (pool.available_count, rig.store.is_busy) == (0, True)
    rig.clock.advance(0.2)
    rig.workers.run_all()
    assert (pool.available_count, rig.store.is_busy) == (2, False)


def test_a_file_without_a_buffer_is_written_on_the_plain_road_and_shown_in_order() -> None:
    rig = pool_rig(transient_store_pool_size=2)
    fill_files(rig, 3)
    log, pool = rig.store.commit_log, rig.store.commit_log.pool
    assert pool is not None and pool.borrow_failures == 1
    count = len(rig.results)
    assert rig.store.max_offset("T", 0) == 0, "not in front of what still lies in buffers"
    rig.clock.advance(0.2)
    rig.workers.run_all()
    assert rig.store.max_offset("T", 0) == count
    assert log.max_offset == log.wrote_offset
    rig.put(body=b"plain")
    assert bodies(rig, "T", 0)[-1] == b"plain", "with nothing staged it is shown at once"
    rig.stop()
    again = StoreRig(rig.files).start()
    assert len(bodies(again, "T", 0)) == count + 1


def test_fast_fail_refuses_the_file_instead() -> None:
    rig = pool_rig(transient_store_pool_size=2, fast_fail_if_no_buffer_in_store_pool=True)
    fill_files(rig, 2)
    results = rig.results
    while results[-1].status is PutMessageStatus.PUT_OK:
        rig.put(body=bytes(20_000))
    assert results[-1].status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert "create mapped file failed" in results[-1].why
    assert rig.store.state is StoreState.RUNNING
    rig.clock.advance(0.2)
    rig.workers.run_all()
    rig.put(body=bytes(20_000))
    assert results[-1].status is PutMessageStatus.PUT_OK


def test_a_failed_commit_ends_writing_and_shows_nothing_of_it() -> None:
    rig = pool_rig()
    rig.put(body=b"shown")
    rig.clock.advance(0.2)
    rig.workers.run_all()
    rig.files.fail("pwrite", path="commitlog", error=errno.EIO)
    rig.put(body=b"staged")
    rig.clock.advance(0.2)
    rig.workers.run_all()
    assert rig.store.state is StoreState.FAILED
    assert bodies(rig, "T", 0) == [b"shown"]


def test_a_stop_brings_along_what_lies_in_buffers() -> None:
    rig = pool_rig()
    fill_files(rig, 2)
    count = len(rig.results)
    rig.store.stop_writing()
    rig.store.close()  # no worker came to anything
    again = StoreRig(rig.files).start()
    assert len(bodies(again, "T", 0)) == count


def test_memory_that_can_not_be_locked_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = OSError(errno.ENOMEM, "Cannot allocate memory")
    monkeypatch.setattr(page_cache, "lock_memory", lambda _: refused)
    with caplog.at_level(logging.WARNING):
        rig = pool_rig()
    assert rig.store.state is StoreState.RUNNING
    assert f"RLIMIT_MEMLOCK (ulimit -l) to {5 * LOG_SIZE // 1024} KiB" in caplog.text


# The mapped road


def test_pages_are_warmed_ahead_of_the_write_position(monkeypatch: pytest.MonkeyPatch) -> None:
    warmed: list[tuple[int, int]] = []
    monkeypatch.setattr(page_cache, "populate", lambda _, start, stop: warmed.append((start, stop)))
    rig = rig_on("mapped, warmed", "ASYNC_FLUSH").start()
    step = 4 * 4096
    ends: list[int] = []
    while len(rig.store.commit_log.mapped_files.mapped) < 2:
        rig.put(body=bytes(2000))
        rig.workers.prepare.run_all()
        ends.append(rig.store.commit_log.wrote_offset)
        reach = max(stop for start, stop in warmed)
        if ends[-1] < LOG_SIZE:
            assert reach >= min(ends[-1] + step // 2, LOG_SIZE)
    assert all(stop - start <= step for start, stop in warmed)


def test_the_beginning_of_each_new_file_is_warm_before_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[int] = []

    def populate(target: object, start: int, stop: int) -> None:
        if start == 0:
            assert stop == 4 * 4096
            begun.append(id(target))

    monkeypatch.setattr(page_cache, "populate", populate)
    rig = rig_on("mapped, warmed", "ASYNC_FLUSH").start()
    while len(files := rig.store.commit_log.mapped_files.mapped) < 3:
        rig.put(body=bytes(30_000))
        rig.workers.prepare.run_all()
    assert begun[:3] == [id(mapped.target) for mapped in files]


def test_warming_changes_no_byte() -> None:
    view = memoryview(bytearray(page_cache.PAGE_SIZE * 3))
    view[:] = data = Random(1).randbytes(len(view))
    page_cache.populate(view, 5, len(view))
    assert view == data
    page_cache._touch(view, 0, len(view))
    assert view == data


# Flushing by the clock and by appends


def test_appends_ask_for_flushes_unless_they_are_timed() -> None:
    rig = StoreRig(flush_commit_log_timed=False).start()
    rig.put()
    rig.workers.flush.run_all()
    assert rig.store.commit_log.flushed_offset == rig.store.commit_log.max_offset
    timed = StoreRig(flush_commit_log_timed=True).start()
    timed.put()
    timed.workers.flush.run_all()
    assert timed.store.commit_log.flushed_offset == 0


@pytest.mark.parametrize("timed", [True, False])
def test_few_dirty_pages_wait_for_the_thorough_flush(timed: bool) -> None:
    rig = StoreRig(
        flush_commit_log_timed=timed,
        flush_commit_log_least_pages=4,
        flush_commit_log_thorough_interval=2000,
    ).start()
    log = rig.store.commit_log

    def after(seconds: float) -> int:
        rig.clock.advance(seconds)
        rig.workers.flush.run_all()
        return log.flushed_offset

    rig.put(body=bytes(9_000))
    assert after(1.0) == 0
    rig.put(body=bytes(9_000))
    assert after(0.5) == log.max_offset, "more than four pages"
    flushed = log.flushed_offset
    rig.put(body=b"little")
    assert after(0.1) == flushed
    assert after(1.0) == log.max_offset > flushed
