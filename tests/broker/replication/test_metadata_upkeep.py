"""Deletions at replicas; snapshots that outlive log files; a master that steps down and returns."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from skylarkmq.broker.replication.metadata import metadata_log, metadata_queue, metadata_snapshots
from skylarkmq.broker.replication.metadata.metadata_record import REMOVED
from skylarkmq.common.errors import StoreError
from skylarkmq.protocol.flags import SYS_METADATA_TOPIC
from tests.broker.replication.metadata_rig import Replica, copy
from tests.store.clean_rig import RARE_TIMERS
from tests.store.support import HOST, LOG_SIZE, inner
from tests.support.manual_clock import ManualClock, settle

EXPIRING: dict[str, Any] = {
    **RARE_TIMERS,
    "file_reserved_time": 1,
    "clean_resource_interval": 30_000,
    "delete_when": ";".join(f"{hour:02d}" for hour in range(24)),
    "flush_consume_queue_thorough_interval": 5000,
}


SLOWER: dict[str, Any] = {
    **EXPIRING,
    "timer_flush_interval_ms": 30_000,
    "flush_interval_commit_log": 30_000,
    "flush_interval_consume_queue": 30_000,
    "flush_consume_queue_thorough_interval": 30_000,
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def pair(clock: ManualClock, **config: Any) -> tuple[Replica, Replica]:
    master, follower = Replica(clock, **config), Replica(clock, **config)
    for replica in (master, follower):
        replica.disk.now_ms = clock.now_ms
        replica.start()
    return await master.lead(), follower


async def test_queues_go_when_the_deletion_is_in_the_log(clock: ManualClock) -> None:
    master, follower = await pair(clock, flush_disk_type="SYNC_FLUSH")
    master.topic("T")
    master.put("T", 0, b"old")
    await master.rest()
    deleting = master.parts.deletion.delete("T")
    await settle(5)  # the record is not on the disk yet
    assert "T" not in master.parts.topics.table
    assert master.bodies("T") == [b"old"]
    await master.rest()
    assert await deleting is None
    assert master.bodies("T") == []
    copy(master, follower)
    await follower.rest()
    assert follower.bodies("T") == []
    assert "T" in follower.store.removal.topics.entries
    assert not follower.store.queues.held


async def test_a_successor_finishes_a_deletion(clock: ManualClock) -> None:
    master, follower = await pair(clock)
    master.topic("T")
    master.put("T", 0, b"old")
    await master.rest()
    master.parts.deletion.delete("T")
    await settle(1)
    record = next(
        message
        for message in master.messages(SYS_METADATA_TOPIC)
        if b'"deleting","T"' in message.body
    )
    copy(master, follower, upto=record.physical_offset + record.store_size)
    assert follower.parts.deletion.begun == {"T"}
    assert follower.bodies("T") == [b"old"]
    await follower.lead(2)
    assert follower.bodies("T") == []
    assert not follower.parts.deletion.begun
    assert [row.key for one in follower.records() for row in one.rows if row.table == REMOVED]
    follower.topic("T")
    follower.put("T", 0, b"new")
    await follower.rest()
    assert follower.bodies("T") == [b"new"]


async def test_deleted_and_made_again_in_one_piece_of_the_log(clock: ManualClock) -> None:
    master, follower = await pair(clock)
    for life in range(4):
        master.topic("T")
        for number in range(life + 1):
            master.put("T", 0, b"%d of %d" % (number, life))
        await master.rest()
        if life < 3:
            deleting = master.parts.deletion.delete("T")
            await master.rest()
            assert await deleting is None
    log = master.store.commit_log
    follower.store.take_records(0, bytes(log.part(0, 1 << 30)))
    await follower.rest()
    assert follower.bodies("T") == master.bodies("T") == [b"%d of 3" % n for n in range(4)]
    assert not follower.store.queues.held
    assert follower.store.received.left_out == 0
    again = Replica(clock, await follower.stop())
    assert again.start().cut_to is None
    await again.rest()
    assert again.bodies("T") == master.bodies("T")


async def test_a_crash_before_the_queues_went_is_told(clock: ManualClock) -> None:
    master, follower = await pair(clock)
    master.topic("T")
    for number in range(3):
        master.put("T", 0, b"%d" % number)
    await master.rest()
    deleting = master.parts.deletion.delete("T")
    await master.rest()
    assert await deleting is None
    copy(master, follower)
    disk = follower.disk.snapshot()  # killed: its threads have done nothing yet
    crashed = Replica(clock, disk)
    folded = crashed.start()
    record = next(
        message
        for message in master.messages(SYS_METADATA_TOPIC)
        if b'"removed","T"' in message.body
    )
    assert folded.cut_to == record.physical_offset
    assert crashed.bodies("T")
    await crashed.lead(2)
    assert crashed.bodies("T") == []
    assert not crashed.store.queues.held


async def test_queues_of_two_lives_are_not_led(clock: ManualClock) -> None:
    master, follower = await pair(clock)
    for life in range(2):
        master.topic("T")
        master.put("T", 0, b"body")
        await master.rest()
        if life == 0:
            deleting = master.parts.deletion.delete("T")
            await master.rest()
            assert await deleting is None
    copy(master, follower)
    crashed = Replica(clock, follower.disk.snapshot())
    assert crashed.start().cut_to is not None
    assert "T" in crashed.parts.topics.table
    with pytest.raises(StoreError, match="let another replica lead"):
        await crashed.parts.metadata.start_as_master(2, HOST)


async def fill(replica: Replica, files: int) -> None:
    log = replica.store.commit_log
    end = log.wrote_offset + files * LOG_SIZE
    while log.wrote_offset < end:
        replica.put("T", 0, bytes(20_000))
        await replica.rest()


@pytest.mark.parametrize("share", [metadata_snapshots.SNAPSHOT_SHARE, 1 << 40])
async def test_the_newest_snapshot_outlives_its_log_file(
    clock: ManualClock, share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_snapshots, "SNAPSHOT_SHARE", share)
    master, follower = await pair(clock, **EXPIRING)
    master.topic("T")
    master.group("cg", retry_max_times=5)
    await master.rest()
    removed = 0
    for _ in range(6):
        before = master.store.commit_log.min_offset
        await fill(master, 2)
        copy(master, follower)
        await master.advance(3700, step_s=50)
        removed += master.store.commit_log.min_offset > before
        copy(master, follower)
        await follower.advance(100, step_s=10)
        assert follower.parts.metadata.fold().is_whole
        assert follower.tables() == master.tables()
        assert follower.store.commit_log.min_offset <= master.store.commit_log.min_offset
    assert removed >= 3
    assert follower.store.commit_log.min_offset > 0  # it has followed in that, too
    late = Replica(clock)
    late.start()
    copy(master, late)
    await late.rest()
    assert late.store.commit_log.min_offset == master.store.commit_log.min_offset
    assert late.tables() == master.tables()


async def test_what_was_stored_again_is_delivered_once(clock: ManualClock) -> None:
    """Timed messages wait for longer than log files are kept."""
    master, follower = await pair(clock, **SLOWER, timer_max_delay_sec=30 * 86_400)
    master.topic("T")
    for number in range(20):
        delayed = inner("T", 1, b"%d" % number, properties=b"TIMER_DELAY_SEC\x0110800")
        master.store.put_message(master.store.timer_rules.redirect(delayed), master.results.append)
    for _ in range(2):
        await fill(master, 2)
        copy(master, follower)
        await master.advance(3700, step_s=50)
        copy(master, follower)
        await follower.advance(60, step_s=20)
    assert master.parts.timer.rolling.rolled_count >= 20
    assert follower.store.commit_log.min_offset > 0
    copy(master, follower)
    master.parts.metadata.stop_as_master()
    await follower.lead(2)
    await follower.advance(7200, step_s=50)
    assert sorted(map(int, follower.bodies("T", 1))) == list(range(20))


async def test_a_follower_keeps_what_its_master_keeps(clock: ManualClock) -> None:
    master, follower = Replica(clock), Replica(clock, **EXPIRING)
    for replica in (master, follower):
        replica.disk.now_ms = clock.now_ms
        replica.start()
    await master.lead()
    master.topic("T")
    await fill(master, 4)
    await master.advance(2)
    copy(master, follower)
    assert follower.parts.metadata.is_whole
    for _ in range(2):
        await follower.advance(3700, step_s=50)
    assert follower.store.commit_log.min_offset == 0


async def test_queues_are_let_go_after_the_last_of_several_removals(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, follower = await pair(clock)
    for _ in range(3):
        master.topic("T")
        master.put("T", 0, b"body")
        await master.rest()
        deleting = master.parts.deletion.delete("T")
        await master.rest()
        assert await deleting is None
    removal, queues, events = follower.store.removal, follower.store.queues, list[str]()
    release, forget_read = removal.release, queues.forget_read
    monkeypatch.setattr(
        removal, "release", lambda topic, done: (events.append("release"), release(topic, done))
    )
    monkeypatch.setattr(
        queues, "forget_read", lambda paths: (events.append("files"), forget_read(paths))
    )
    records = master.messages(SYS_METADATA_TOPIC)
    first = next(one for one in records if b'"removed","T"' in one.body)
    copy(master, follower, upto=first.physical_offset + first.store_size)
    while not events:
        await settle(1)
        follower.workers.queues.step()
        follower.workers.tables.step()
    copy(master, follower)
    for _ in range(50):  # the thread that removes files stands still
        await settle(2)
        follower.workers.tables.step()
        follower.workers.flush.step()
    assert events == ["files"]
    await follower.rest()
    assert events == ["files", "files", "files", "release"]
    assert not queues.held


async def test_many_rows_are_many_records_of_a_bounded_size(clock: ManualClock) -> None:
    master = Replica(clock)
    master.start()
    for number in range(3000):
        master.topic(f"T{number}")
    await master.lead()
    snapshot = [record for record in master.records() if record.kind == "snapshot"]
    assert len(snapshot) > 5
    assert [record.part for record in snapshot] == list(range(len(snapshot)))
    assert all(len(one.body) < LOG_SIZE // 3 for one in master.messages(SYS_METADATA_TOPIC))
    follower = Replica(clock)
    follower.start()
    copy(master, follower)
    assert follower.tables() == master.tables()


async def test_changes_between_the_parts_of_a_snapshot_win(clock: ManualClock) -> None:
    master = Replica(clock, flush_disk_type="SYNC_FLUSH")
    master.start()
    for number in range(3000):
        master.topic(f"T{number}")
    await master.lead()
    assert not all([keeper(1 << 40) for keeper in master.store.cleaning.keepers])
    master.clock.advance(1)  # another is wanted, and begins
    for number in range(40):
        await settle(4)
        master.topic(f"T{number}", queues=9)
        master.parts.topics.delete(f"T{2000 + number}")
        for worker in master.workers.all():
            worker.step()
    await master.rest()
    records = master.records()
    last = max(n for n, record in enumerate(records) if record.is_last)
    assert any(record.kind == "change" for record in records[records[last].begin : last])
    late = Replica(clock)
    late.start()
    copy(master, late)
    late.parts.metadata.fold()
    assert late.tables() == master.tables()


async def test_who_waits_is_told_when_the_master_is_deposed(clock: ManualClock) -> None:
    master, _ = await pair(clock, flush_disk_type="SYNC_FLUSH")
    master.topic("T")
    waiting = asyncio.ensure_future(master.parts.metadata.written())
    await settle(3)
    assert not waiting.done()
    master.parts.metadata.stop_as_master()
    with pytest.raises(StoreError, match="no longer the master"):
        await waiting
    await master.rest()
    before = master.store.commit_log.wrote_offset
    master.topic("U")
    await master.advance(10)
    assert master.store.commit_log.wrote_offset == before
    await master.parts.metadata.start_as_master(3, HOST)
    master.topic("V")
    await master.rest()
    assert {record.term for record in master.records()} == {1, 3}


async def test_nothing_is_led_by_tables_that_could_not_be_read(clock: ManualClock) -> None:
    master, follower = await pair(clock)
    master.put(SYS_METADATA_TOPIC, 0, b'{"kind":"change","version":2,"term":1}')
    copy(master, follower)
    assert follower.parts.metadata.failure is not None
    with pytest.raises(StoreError, match="update this one"):
        await follower.parts.metadata.start_as_master(2, HOST)
    with pytest.raises(StoreError, match="update this one"):
        follower.parts.metadata.fold()


async def hand_over(one: Replica, other: Replica, term: int) -> None:
    """Let the other one lead, in the order of a planned switch-over."""
    parts = one.parts
    for stopping in (parts.schedule.stop(), parts.timer.stop(), parts.transactions.stop()):
        task = asyncio.ensure_future(stopping)
        await one.advance(2)
        await task
    written = asyncio.ensure_future(parts.metadata.written())
    await one.rest()
    await written
    copy(one, other, Random(term))
    await other.rest()
    parts.metadata.stop_as_master()
    parts.metadata.fold()
    parts.metadata.follow()
    await other.lead(term)


async def test_two_masters_in_turn(clock: ManualClock) -> None:
    """Each follows while the other leads; nothing is forgotten, nothing is done twice."""
    one, other = await pair(clock)
    rng, sent = Random(1), 0
    for term in range(2, 8):
        one.topic("T")
        for number in range(5):
            one.topic(f"T{rng.randint(0, 20)}", queues=1 + rng.randint(0, 7))
            one.put(f"T{number}", 0, b"x" * 9000)
            for properties in (b"TIMER_DELAY_MS\x01%d", b"DELAY\x01%d"):
                level = 1 + number % 3
                delay = level * 2000 if properties.startswith(b"TIMER") else level
                delayed = inner("T", 1, b"%d" % sent, properties=properties % delay)
                parked = one.store.timer_rules.redirect(delayed)
                if parked is delayed:
                    parked = one.store.delay_levels.redirect(delayed, level)
                one.store.put_message(parked, one.results.append)
                sent += 1
        await one.advance(rng.choice((0.25, 1, 6)))
        await hand_over(one, other, term)
        assert other.tables() == one.tables()
        one, other = other, one
    await one.advance(15)
    assert sorted(map(int, one.bodies("T", 1))) == list(range(sent))


async def test_a_snapshot_is_written_when_changes_are_many(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_snapshots, "CHANGES_MAX", 20_000)
    master, _ = await pair(clock)
    before = sum(record.is_last for record in master.records())
    for number in range(600):
        master.group("cg", retry_max_times=number % 9)
        await master.rest()
    await master.advance(2)
    assert sum(record.is_last for record in master.records()) > before


async def test_a_snapshot_that_failed_is_written_again(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, _ = await pair(clock)
    encode, tries = metadata_queue.encode_metadata, iter([ValueError("a row is none")])

    def fails_once(record: metadata_queue.MetadataRecord) -> bytes:
        if record.kind == "snapshot":
            for error in tries:
                raise error
        return encode(record)

    before = master.parts.metadata._queue.newest
    master.parts.metadata._snapshots._is_wanted = True
    monkeypatch.setattr(metadata_queue, "encode_metadata", fails_once)
    await master.advance(metadata_log.CHECK_S)
    assert master.parts.metadata._queue.newest == before
    await master.advance(metadata_log.CHECK_S)
    assert master.parts.metadata._queue.newest.base > before.base
