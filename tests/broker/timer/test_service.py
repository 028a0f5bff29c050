"""Timed messages over a real store: never early, never lost, in order, little in memory."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Sequence
from unittest.mock import Mock

import pytest

from skylarkmq.store.message_writer import PutDone
from skylarkmq.store.read.message_reader import MessageReader
from skylarkmq.store.results import MessageInner, PutMessageResult, PutMessageStatus
from skylarkmq.store.timer import index as index_module
from tests.broker.timer.timer_rig import TOPIC, WHEEL, TimerRig
from tests.store.support import BORN, HOST, inner, refuse_bodies
from tests.support.workers import rest

GotMessages = Callable[[None, BaseException], None]


@pytest.fixture(params=["warm", "cold"], autouse=True)
def _age(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test with records taken to be in memory, and with records to be read off the loop."""
    if request.param == "cold":
        monkeypatch.setattr(MessageReader, "is_in_memory", lambda *_: False)
        monkeypatch.setattr("skylarkmq.store.read.cold_reads.ColdReads.is_cold", lambda *_: True)


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def flush(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "MEMORY_MAX", 40)
    monkeypatch.setattr(index_module, "FAN_IN", 4)


async def test_a_message_is_delivered_when_due_and_not_before(flush: str) -> None:
    rig = TimerRig(flush_disk_type=flush).start()
    rig.after(4500)
    await rig.advance(4.9)
    assert rig.bodies() == []
    await rig.advance(0.2)  # rounded up to a second
    assert rig.bodies() == [b"body"]
    await rig.advance(20)
    assert rig.bodies() == [b"body"]
    assert (rig.service.deliveries.delivered_count, rig.service.waiting_count) == (1, 0)


async def test_a_delivery_is_not_late_either() -> None:
    rig = TimerRig().start()
    rig.after(4000)
    await rig.catch_up()
    rig.clock.advance(4)
    await rig.catch_up()
    assert rig.bodies() == [b"body"]


async def test_the_copy_keeps_what_waited_and_says_when() -> None:
    rig = TimerRig().start()
    text = b"TAGS\x01TagA\x02KEYS\x01k\x02TIMER_DELAY_SEC\x013"
    rig.send(b"\x00\xff", text, flag=7, sys_flag=1, reconsume_times=3, born_timestamp=1234)
    sent_ms = rig.clock.now_ms()
    await rig.advance(3.5)
    (message,) = rig.delivered()
    assert (message.body, message.flag, message.sys_flag) == (b"\x00\xff", 7, 1)
    assert (message.reconsume_times, message.born_timestamp) == (3, 1234)
    assert (message.born_host.pack(), message.store_host.pack()) == (BORN, HOST)
    properties = dict(message.properties)
    assert sent_ms + 3000 <= int(properties.pop("TIMER_DEQUEUE_MS")) <= sent_ms + 3100
    assert properties == {
        "TAGS": "TagA", "KEYS": "k", "TIMER_DELAY_SEC": "3", "TIMER_OUT_MS": f"{sent_ms + 3000}",
        "REAL_TOPIC": TOPIC, "REAL_QID": "2", "TIMER_ENQUEUE_MS": f"{sent_ms}",
    }  # fmt: skip


async def test_nothing_ticks_while_nothing_waits() -> None:
    rig = TimerRig().start()
    await rig.advance(15)  # the store's timers have found their places
    others = rig.clock.pending_count
    rig.after(1000)
    await rig.advance(10)
    assert rig.bodies() == [b"body"]
    assert rig.clock.pending_count == others


async def test_messages_leave_by_due_time_then_by_sending(small_memory: None, flush: str) -> None:
    rig, rng = TimerRig(flush_disk_type=flush).start(), random.Random(5)
    now_ms = rig.clock.now_ms()
    sent = [(now_ms + 1000 * rng.randrange(5, 10), b"%d" % number) for number in range(700)]
    for due_ms, body in sent:
        rig.at(due_ms, body)
        if rng.random() < 0.05:
            await rig.catch_up()
    await rig.catch_up()
    assert rig.service.waiting_count == 700
    assert len(rig.service.state.messages.runs) < 10
    await rig.advance(12)
    assert rig.bodies() == [body for _, body in sorted(sent, key=lambda one: one[0])]
    assert rig.service.waiting_count == 0
    names = rig.files.list(rig.store.paths.timer)
    assert names == ["checkpoint", "checkpoint.bak"]  # spent runs are gone


async def test_a_past_time_is_no_delay() -> None:
    rig = TimerRig().start()
    rig.at(rig.clock.now_ms() - 5)
    assert rig.bodies() == [b"body"]
    assert rig.store.max_offset(WHEEL, 0) == 0


async def test_after_a_clean_stop_nothing_is_repeated(small_memory: None, flush: str) -> None:
    rig = TimerRig(flush_disk_type=flush).start()
    for number in range(100):
        rig.after(1000 + 1000 * (number % 2), b"%d" % number)
    await rig.advance(1.5)
    assert len(rig.bodies()) == 50
    await rig.stop_all()
    again = TimerRig(rig.files, flush_disk_type=flush)
    again.clock.step_wall(3600)
    again.start()
    assert again.service.waiting_count == 50
    await again.advance(1.5)
    assert sorted(again.bodies(), key=int) == [b"%d" % number for number in range(100)]


async def test_messages_that_fall_due_while_the_broker_is_down_leave_at_the_start() -> None:
    rig = TimerRig().start()
    rig.after(60_000)
    await rig.advance(1)
    await rig.stop_all()
    again = TimerRig(rig.files)
    again.clock.step_wall(3600)
    again.start()
    await again.advance(0.3)
    assert again.bodies() == [b"body"]


async def test_a_clock_that_goes_forth_and_back_delivers_nothing_early() -> None:
    rig = TimerRig().start()
    rig.after(10_000, b"a")
    await rig.advance(1)
    rig.clock.step_wall(3600)
    await rig.advance(2)
    assert rig.bodies() == [b"a"]  # the wall clock says so
    rig.clock.step_wall(-3600)
    rig.after(10_000, b"b")
    await rig.advance(9.5)
    assert rig.bodies() == [b"a"]
    await rig.advance(2)
    assert rig.bodies() == [b"a", b"b"]


async def test_a_record_that_cannot_be_delivered_is_passed_over() -> None:
    rig = TimerRig().start()
    due_ms = rig.clock.now_ms() + 1000
    for text in (
        b"",
        b"TIMER_OUT_MS\x01%d" % due_ms,
        b"TIMER_OUT_MS\x01%d\x02REAL_QID\x010\x02REAL_TOPIC\x01../etc" % due_ms,
        b"TIMER_OUT_MS\x01%d\x02REAL_QID\x010\x02REAL_TOPIC\x01rmq_sys_wheel_timer" % due_ms,
        b"TIMER_OUT_MS\x01-9\x02REAL_QID\x01x\x02REAL_TOPIC\x01T",
    ):
        rig.store.put_message(inner(WHEEL, 0, properties=text), rig.results.append)
    rig.after(1000, b"good")
    await rig.advance(2)
    assert rig.bodies() == [b"good"]
    assert (rig.service.messages.skipped_count, rig.service.waiting_count) == (5, 0)


async def test_a_refused_put_is_tried_again_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = TimerRig().start()
    rig.after(1000, b"a")
    rig.after(1000, b"x" * 5000)
    rig.after(1000, b"b")
    await rig.advance(0.5)
    refuse_bodies(monkeypatch, 1000)
    await rig.advance(5)
    assert rig.bodies() == [b"a"]
    assert rig.service.waiting_count == 2
    assert rig.service.lag_s > 3
    refuse_bodies(monkeypatch, 10_000)
    await rig.advance(2)
    assert rig.bodies() == [b"a", b"x" * 5000, b"b"]
    assert rig.service.lag_s == 0


async def test_a_limit_that_was_lowered_holds_nothing_back() -> None:
    rig = TimerRig().start()
    rig.after(1000, b"x" * 5000)
    rig.after(1000, b"b")
    object.__setattr__(rig.store.config, "max_message_size", 1000)
    await rig.advance(3)
    assert rig.bodies() == [b"x" * 5000, b"b"]


# Taking back


def let_pass(rig: TimerRig, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next batches be stored, and refuse all that follow."""
    put, left = rig.store.put_messages, [count]

    def counted(inners: Sequence[MessageInner], done: PutDone) -> None:
        left[0] -= 1
        if left[0] >= 0:
            put(inners, done)
        else:
            done([PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE)] * len(inners))

    monkeypatch.setattr(rig.store, "put_messages", counted)


@pytest.mark.parametrize("value", [b"K1", b"TopicTest+K1"])
async def test_a_waiting_message_is_taken_back(value: bytes, flush: str) -> None:
    rig = TimerRig(flush_disk_type=flush).start()
    due_ms = rig.clock.now_ms() + 5000
    rig.at(due_ms, b"a", b"\x02UNIQ_KEY\x01K1")
    rig.at(due_ms, b"b", b"\x02UNIQ_KEY\x01K2")
    rig.at(due_ms, b"c")
    await rig.advance(2)
    rig.cancel(due_ms, value)
    await rig.advance(5)
    assert rig.bodies() == [b"b", b"c"]
    assert (rig.service.messages.cancelled_count, rig.service.waiting_count) == (1, 0)
    assert rig.service.state.cancels.waiting_count == 0


async def test_only_its_own_time_and_topic_are_taken_back() -> None:
    rig = TimerRig().start()
    due_ms = rig.clock.now_ms() + 5000
    rig.at(due_ms, b"a", b"\x02UNIQ_KEY\x01K1")
    rig.cancel(due_ms + 1000, b"K1")
    rig.cancel(due_ms, b"K1", topic="Other")
    rig.cancel(due_ms, b"TopicTest+K1", topic="Other")
    await rig.advance(8)
    assert rig.bodies() == [b"a"]
    assert rig.service.state.cancels.waiting_count == 0


async def test_taking_back_survives_a_restart_in_the_middle_of_its_time(small_memory: None) -> None:
    """What takes back is not done with before the last message of its due time has left."""
    rig = TimerRig().start()
    due_ms = rig.clock.now_ms() + 5000
    for number in range(300):
        rig.at(due_ms, b"%d" % number, b"\x02UNIQ_KEY\x01K%d" % number)
    for number in range(0, 300, 2):
        rig.cancel(due_ms, b"K%d" % number)
    await rig.advance(4.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skylarkmq.broker.timer.deliveries.DELIVER_COUNT", 10)
        let_pass(rig, 3, patch)
        await rig.advance(4)
        assert 10 < len(rig.delivered()) < 20
    await rig.stop_all()
    again = TimerRig(rig.files)
    again.clock.step_wall(60)
    again.start()
    await again.advance(2)
    assert again.bodies() == [b"%d" % number for number in range(1, 300, 2)]


async def test_all_of_a_crowd_is_taken_back(small_memory: None) -> None:
    rig = TimerRig().start()
    due_ms = rig.clock.now_ms() + 3000
    for number in range(400):
        rig.at(due_ms + 1000 * (number % 3), b"%d" % number, b"\x02UNIQ_KEY\x01K%d" % number)
    for number in range(400):
        if number % 5:
            rig.cancel(due_ms + 1000 * (number % 3), b"K%d" % number)
    await rig.advance(7)
    assert sorted(map(int, rig.bodies())) == list(range(0, 400, 5))
    assert rig.service.messages.cancelled_count == 320


@pytest.mark.parametrize("idle_count", [200, 1167])
async def test_what_takes_nothing_back_hides_nothing_that_does(idle_count: int) -> None:
    """More than a batch of them, and so many that the next one is on another page of its run."""
    rig = TimerRig().start()
    due_ms = rig.clock.now_ms() + 100_000
    for number in range(idle_count):
        rig.cancel(due_ms, b"gone%d" % number)
    rig.at(due_ms + 1000, b"a", b"\x02UNIQ_KEY\x01K1")
    rig.cancel(due_ms + 1000, b"K1")
    rig.at(due_ms + 2000, b"b", b"\x02UNIQ_KEY\x01K1")
    await rig.advance(1)
    await rig.stop_all()
    again = TimerRig(rig.files)
    again.clock.step_wall(200)
    again.start()
    await again.advance(3)
    assert again.bodies() == [b"b"]
    assert again.service.state.cancels.waiting_count == 0


async def test_what_takes_back_is_waited_for_while_runs_are_written(
    small_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start without a checkpoint: the disk is slower than the reading of a long queue."""
    monkeypatch.setattr("skylarkmq.broker.timer.service.READ_COUNT", 20)
    rig = TimerRig().start()
    due_ms = rig.clock.now_ms() + 5000
    rig.at(due_ms, b"a", b"\x02UNIQ_KEY\x01K1")
    for _ in range(400):
        rig.after(600_000)
    rig.cancel(due_ms, b"K1")
    await rig.advance(1)
    await rig.stop_all()
    for name in rig.files.list(rig.store.paths.timer):
        rig.files.unlink(rig.store.paths.timer / name)
    again = TimerRig(rig.files)
    again.clock.step_wall(60)
    again.start()
    for _ in range(100):
        again.clock.advance(0.001)
        await rest(again.workers.reads)  # and no run is written
    assert 0 < again.service.state.queue_offset < 400
    await again.advance(2)
    assert again.bodies() == []
    assert (again.service.messages.cancelled_count, again.service.waiting_count) == (1, 400)


async def test_what_takes_back_a_late_message_leaves_those_due_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same key may wait for two times."""
    rig = TimerRig().start()
    due_ms = rig.clock.now_ms() + 4000
    rig.cancel(due_ms, b"other")
    rig.at(due_ms, b"long", b"\x02UNIQ_KEY\x01K1")
    refuse_bodies(monkeypatch, 1)
    await rig.advance(6)  # what takes back is in force, what it is for is refused
    rig.clock.step_wall(-4)
    rig.cancel(due_ms - 1000, b"K1")
    rig.clock.step_wall(4)
    await rig.advance(2)
    refuse_bodies(monkeypatch, 10_000)
    await rig.advance(2)
    assert rig.bodies() == [b"long"]


async def test_a_stop_does_not_wait_for_a_read_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylarkmq.store.read.cold_reads.ColdReads.is_cold", lambda *_: True)
    rig = TimerRig().start()
    reads: list[GotMessages] = []
    monkeypatch.setattr(rig.store, "get_message_cold", lambda *call: reads.append(call[-1]))
    rig.after(60_000)
    rig.clock.advance(0.1)
    stopping = asyncio.ensure_future(rig.service.stop())
    await asyncio.sleep(0)
    reads.pop()(None, OSError("the disk"))
    for _ in range(100):
        await asyncio.sleep(0)
        rig.clock.advance(0.1)
        await rest(rig.workers)
    assert stopping.done()


async def test_units_behind_a_hole_are_read() -> None:
    """A message of the timer topic that is damaged keeps nobody else from being delivered."""
    rig = TimerRig().start()
    rig.after(1000, b"a")
    rig.after(1000, b"b")
    unit = rig.store.queue_units(WHEEL, 0, 0, 1)[0]
    mapped, position = rig.store.commit_log.locate(unit.commit_offset) or pytest.fail("gone")
    mapped.file.pwrite(b"\xff", position + 100)
    await rig.advance(2)
    assert rig.bodies() == [b"b"]


async def test_a_run_that_found_no_room_is_not_passed_by_a_later_one(
    small_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is read again from in front of it, and what comes behind must not count twice."""
    rig = TimerRig().start()
    with pytest.MonkeyPatch.context() as patch:
        full = OSError(errno.ENOSPC, "no space left")
        patch.setattr("skylarkmq.broker.timer.runs.write_run", Mock(side_effect=full))
        for number in range(40):
            rig.after(60_000, b"%d" % number)
        await rig.advance(1)
    for number in range(40, 80):
        rig.after(60_000, b"%d" % number)
    await rig.advance(1)
    assert [run.written for run in rig.service.state.messages.runs] == [False, True]
    await rig.stop_all()
    again = TimerRig(rig.files)
    again.clock.step_wall(120)
    again.start()
    await again.advance(1)
    assert again.bodies() == [b"%d" % number for number in range(80)]


async def test_a_run_that_no_descriptor_opens_is_read_later(
    small_memory: None, caplog: pytest.LogCaptureFixture
) -> None:
    rig = TimerRig().start()
    rig.files.fail("open", at=2, path=f"timer/{1:020d}", error=errno.EMFILE)  # after its writing
    for number in range(40):
        rig.after(60_000, b"%d" % number)
    await rig.advance(1)
    assert rig.files.faults.raised
    assert rig.store.failure is None
    await rig.advance(60)
    assert rig.bodies() == [b"%d" % number for number in range(40)]
    assert not any("read again" in text for text in caplog.messages), "the run is sound"


@pytest.mark.parametrize("at", range(1, 6))
async def test_what_no_memory_is_there_to_read_is_delivered_later(at: int) -> None:
    """A read that the machine refuses says nothing of the record; that of a cancellation, too."""
    rig = TimerRig().start()
    due_ms = rig.clock.now_ms() + 5000
    for number in range(4):
        rig.at(due_ms, b"%d" % number, b"\x02UNIQ_KEY\x01K%d" % number)
    rig.cancel(due_ms, b"K0")
    rig.cancel(due_ms, b"K3")
    await rig.advance(4)
    rig.files.fail("pread", at=at, error=errno.ENOMEM, path="commitlog")
    await rig.advance(30)
    assert rig.bodies() == [b"1", b"2"]
    assert (rig.service.messages.skipped_count, rig.service.waiting_count) == (0, 0)


async def test_a_sector_that_cannot_be_read_takes_its_own_message_alone(
    request: pytest.FixtureRequest,
) -> None:
    rig = TimerRig().start()
    for number in range(4):
        rig.after(5000, b"%d" % number)
    await rig.advance(4)
    rig.files.fail("pread", at=3, error=errno.EIO, path="commitlog")
    await rig.advance(30)
    lost = [] if "warm" in request.node.name else [b"1"]
    assert rig.bodies() == [each for each in (b"0", b"1", b"2", b"3") if each not in lost]
    assert rig.service.messages.skipped_count == len(lost)
