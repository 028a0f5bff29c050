"""Batches leave the loop while the disk is slow, and come back in order; the test owns time."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.protocol.record import decode_messages
from skylarkmq.store import message_writer as busy
from skylarkmq.store.log.flush_service import SLOW_SYNC_S
from skylarkmq.store.message_store import StoreState
from skylarkmq.store.message_writer import SLOW_APPEND_S
from skylarkmq.store.results import PutMessageResult, PutMessageStatus
from tests.store.support import LOG_SIZE, StoreRig, inner
from tests.support.crash_disk import CrashDisk
from tests.support.manual_clock import ManualClock

OK = PutMessageStatus.PUT_OK
ROADS: list[dict[str, Any]] = [
    {},
    {"commit_log_write_mode": "mapped"},
    {"flush_disk_type": "SYNC_FLUSH"},
    {"flush_disk_type": "SYNC_FLUSH", "commit_log_write_mode": "mapped"},
]


class SlowDisk(CrashDisk):
    """A disk whose writes to the log take time."""

    def __init__(self) -> None:
        super().__init__()
        self.clock: ManualClock
        self.write_s = 0.0

    def _step(self, op: str, path: Path) -> None:
        super()._step(op, path)
        if op == "pwrite" and "commitlog" in str(path):
            self.clock.pass_time(self.write_s)


class Rig(StoreRig):
    """A store on such a disk."""

    def __init__(self, **config: Any) -> None:
        self.disk = SlowDisk()
        super().__init__(self.disk, **config)
        self.disk.clock = self.clock
        self.store.writer._flush.slow_sync_s = SLOW_SYNC_S
        self.start()

    def meet_slow_disk(self) -> None:
        """Leave behind what a slow append does."""
        self.store.writer._slow = True

    def bodies(self) -> list[bytes]:
        """What readers see."""
        found: list[bytes] = []
        while views := self.store.get_message("T", 0, len(found), 32).views:
            found += [message.body for message in decode_messages(b"".join(views))]
        return found

    def answers(self) -> list[tuple[PutMessageStatus, int]]:
        return [(result.status, result.queue_offset) for result in self.results]


def test_after_a_slow_append_the_next_ones_leave_the_loop() -> None:
    rig = Rig()
    rig.disk.write_s = SLOW_APPEND_S / 2
    assert rig.put(body=b"0") is not None
    rig.disk.write_s = SLOW_APPEND_S * 2
    assert rig.put(body=b"1") is not None, "the first one that meets it waits"
    writes = rig.disk.calls["pwrite"]
    assert [rig.put(body=b"2"), rig.put(body=b"3")] == [None, None]
    assert rig.disk.calls["pwrite"] == writes
    assert rig.bodies() == [b"0", b"1"]
    rig.workers.commit.step()
    assert rig.answers() == [(OK, 0), (OK, 1), (OK, 2)], "still slow: the rest waits for a write"
    rig.disk.write_s = 0.0
    rig.workers.commit.step()
    assert rig.bodies() == [b"0", b"1", b"2", b"3"]
    assert rig.put(body=b"4") is not None, "quick again: back on the loop"
    assert rig.workers.commit.idle


@pytest.mark.parametrize("config", ROADS)
def test_what_left_the_loop_keeps_its_order_and_is_answered_when_it_is_written(
    config: dict[str, Any],
) -> None:
    rig = Rig(**config)
    rig.put(body=b"0")
    rig.workers.run_all()
    rig.meet_slow_disk()
    log = rig.store.commit_log
    end = log.max_offset
    for number in range(1, 4):
        assert rig.put(body=b"%d" % number) is None
    assert (log.max_offset, log.wrote_offset > end) == (end, True)
    assert rig.bodies() == [b"0"]
    rig.workers.flush.run_all()
    assert log.flushed_offset <= end
    assert rig.workers.commit.run_job()
    assert rig.put(body=b"4") is None, "what comes while a write is under way queues up behind it"
    rig.workers.run_all()
    assert rig.answers() == [(OK, number) for number in range(5)]
    assert rig.bodies() == [b"%d" % number for number in range(5)]
    assert log.max_offset == log.wrote_offset
    rig.stop()
    again = StoreRig(rig.disk, **config).start()
    assert again.store.recovery is not None and again.store.recovery.clean
    assert again.store.max_offset("T", 0) == 5


def test_a_slow_sync_sends_the_next_append_off_the_loop() -> None:
    rig = Rig()
    rig.put(body=b"0")
    rig.clock.advance(0.5)  # the timed sync begins
    rig.clock.advance(SLOW_SYNC_S / 2)
    assert rig.put(body=b"1") is not None
    rig.clock.advance(SLOW_SYNC_S)
    assert rig.put(body=b"2") is None
    rig.workers.flush.run_all()
    rig.workers.commit.run_all()
    assert rig.answers() == [(OK, 0), (OK, 1), (OK, 2)]
    assert rig.put(body=b"3") is not None


@pytest.mark.parametrize("config", ROADS)
def test_producers_wait_while_an_append_is_under_way_for_long(config: dict[str, Any]) -> None:
    rig = Rig(**config)
    rig.meet_slow_disk()
    rig.put()
    rig.clock.advance(1.0)
    assert (rig.store.is_busy, rig.store.why_busy()) == (False, None)
    rig.clock.advance(0.25)
    why = rig.store.why_busy()
    assert why is not None
    assert why.cause == "page_cache_busy"
    assert why.figures.startswith("an append has been under way for 1250 ms with ")
    assert why.figures.endswith(" bytes; osPageCacheBusyTimeOutMills=1000")
    rig.workers.run_all()
    assert not rig.store.is_busy


def test_producers_wait_when_too_much_waits_for_a_slow_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    rig.meet_slow_disk()
    rig.put(body=bytes(1000))
    assert not rig.store.is_busy
    monkeypatch.setattr(busy, "LATER_MAX_SIZE", 1500)
    rig.put(body=bytes(1000))
    assert rig.store.is_busy


@pytest.mark.parametrize("config", ROADS)
def test_a_roll_off_the_loop(config: dict[str, Any]) -> None:
    rig = Rig(**config)
    rig.workers.run_all()
    bodies = [bytes([number]) * 30_000 for number in range(6)]
    rig.put(body=bodies[0])
    rig.workers.run_all()
    rig.meet_slow_disk()
    for body in bodies[1:]:
        rig.put(body=body)
    assert rig.store.commit_log.wrote_offset > LOG_SIZE
    rig.workers.run_all()
    assert rig.bodies() == bodies
    assert rig.answers() == [(OK, number) for number in range(6)]
    again = StoreRig(rig.disk.snapshot(), **config).start()  # as a killed process leaves it
    assert again.store.max_offset("T", 0) == 6


@pytest.mark.parametrize("config", ROADS)
def test_a_failed_write_off_the_loop_fails_the_store(config: dict[str, Any]) -> None:
    rig = Rig(**config)
    rig.put(body=b"0")
    rig.workers.run_all()
    rig.meet_slow_disk()
    rig.put(body=b"1")
    rig.put(body=b"2")
    rig.disk.fail("pwrite", error=errno.EIO)
    rig.workers.run_all()
    assert rig.store.state is StoreState.FAILED
    assert [result.status for result in rig.results] == [
        OK, PutMessageStatus.SERVICE_NOT_AVAILABLE, PutMessageStatus.SERVICE_NOT_AVAILABLE,
    ]  # fmt: skip
    assert rig.bodies() == [b"0"]


@pytest.mark.parametrize("config", ROADS)
def test_who_does_not_wait_for_the_disk_waits_for_the_write(config: dict[str, Any]) -> None:
    rig = Rig(**config)
    rig.meet_slow_disk()
    assert rig.put(wait_store_ok=False) is None
    rig.workers.run_all()
    assert rig.answers() == [(OK, 0)]


@pytest.mark.parametrize("config", ROADS)
def test_settled_and_synced_cover_what_left_the_loop(config: dict[str, Any]) -> None:
    rig = Rig(**config)
    rig.meet_slow_disk()
    rig.put()
    told: list[str] = []
    rig.store.settle(lambda _: told.append("settled"))
    rig.store.writer.sync(lambda: told.append("synced"))
    rig.workers.flush.run_all()
    assert told == []
    rig.workers.run_all()
    assert sorted(told) == ["settled", "synced"]


@pytest.mark.parametrize("config", ROADS)
def test_a_stop_writes_what_left_the_loop(config: dict[str, Any]) -> None:
    rig = Rig(**config)
    rig.meet_slow_disk()
    for _ in range(3):
        rig.put()
    rig.store.stop_writing()
    for worker in rig.workers.all():  # a thread ends what it has; results come in afterwards
        worker.stop()
        worker.deliver()
    rig.store.close()
    assert rig.answers() == [(OK, 0), (OK, 1), (OK, 2)]
    again = StoreRig(rig.disk, **config).start()
    assert again.store.max_offset("T", 0) == 3


def test_what_an_answer_stores_meanwhile_is_written_once() -> None:
    rig = Rig()
    rig.meet_slow_disk()

    def answer(result: PutMessageResult) -> None:
        rig.results.append(result)
        rig.put(body=b"2")

    rig.store.put_message(inner(body=b"0"), answer)
    rig.put(body=b"1")
    rig.workers.run_all()
    assert rig.store.failure is None
    assert rig.answers() == [(OK, 0), (OK, 1), (OK, 2)]
    assert rig.bodies() == [b"0", b"1", b"2"]


def test_a_file_without_buffer_on_the_pool_s_road() -> None:
    for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
        rig = Rig(
            transient_store_pool_enable=True, transient_store_pool_size=2, flush_disk_type=flush
        )
        pool = rig.store.commit_log.pool
        assert pool is not None
        while pool.borrow() is not None:
            pass
        for number in range(6):
            rig.meet_slow_disk()
            rig.store.put_message(inner(body=bytes([number]) * 30_000), rig.results.append)
        assert rig.store.commit_log.writer.later
        rig.workers.run_all()
        assert rig.bodies() == [bytes([number]) * 30_000 for number in range(6)]
        assert rig.answers() == [(OK, number) for number in range(6)]
