"""Timed messages through power cuts, and through the loss of what is derived from their queue."""

from __future__ import annotations

import errno
import random

import pytest

from skylarkmq.store.timer import index as index_module
from skylarkmq.store.timer.run_file import run_path
from tests.broker.timer.timer_rig import WHEEL, TimerRig
from tests.support.crash_disk import CrashDisk
from tests.support.workers import rest


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def flush(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def _small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "MEMORY_MAX", 20)
    monkeypatch.setattr(index_module, "FAN_IN", 3)


def reopened(disk: CrashDisk, flush: str = "ASYNC_FLUSH", later_s: float = 60.0) -> TimerRig:
    rig = TimerRig(disk, flush_disk_type=flush)
    rig.clock.step_wall(later_s)
    return rig


async def test_after_any_crash_every_durable_message_is_delivered(flush: str) -> None:
    """Late or twice, never not at all; what was taken back stays so; nothing is early."""
    rng = random.Random(7)
    rig = TimerRig(flush_disk_type=flush, timer_flush_interval_ms=100).start()
    start_ms = rig.clock.now_ms()
    bodies: set[bytes] = set()
    cancelled: set[bytes] = set()
    for number in range(150):
        due_ms = start_ms + 1000 * rng.randrange(1, 40)
        body = b"%d" % number
        rig.at(due_ms, body, b"\x02UNIQ_KEY\x01K%d" % number)
        if due_ms > start_ms + 25_000 and number % 5 == 0:
            rig.cancel(due_ms, b"K%d" % number)
            cancelled.add(body)
        else:
            bodies.add(body)
        if number % 10 == 0:
            await rig.advance(1)
    await rig.advance(1)  # all is synced
    for _ in range(10):  # deliveries go on and tables are written; the log is not synced
        rig.clock.advance(0.7)
        await rest(rig.workers.timer)
        await rest(rig.workers.tables)
        await rest(rig.workers.reads)
    assert 0 < len(rig.delivered()) < len(bodies)
    for state in rig.files.crash_states(rng, 14):
        after = rig.files.crash(state, rng)
        again = reopened(after, flush, later_s=10.0).start()
        delivered_before = len(again.delivered())
        before_ms = again.clock.now_ms()
        await again.catch_up()
        for message in again.delivered()[delivered_before:]:
            assert int(message.properties.get("TIMER_OUT_MS", 0)) <= before_ms
        await again.advance(50, step_s=0.5)
        assert set(again.bodies()) == bodies, state
        assert again.service.waiting_count == 0
        assert again.service.messages.skipped_count == 0


@pytest.mark.parametrize("step", range(12))
async def test_a_crash_at_any_step_of_the_disk(step: int) -> None:
    """Runs are written, merged and removed, checkpoints replaced: wherever that ends."""
    rng = random.Random(step)
    rig = TimerRig(timer_flush_interval_ms=100).start()
    seen: list[CrashDisk] = []
    countdown = [rng.randrange(1, 400)]

    def before(_op: str, path: object) -> None:
        if "skylarkmq/timer" in str(path) or "commitlog" in str(path):
            countdown[0] -= 1
            if countdown[0] == 0:
                seen.append(rig.files.snapshot())

    start_ms = rig.clock.now_ms()
    rig.files.before_step = before
    sent = 0
    while not seen and sent < 600:
        rig.at(start_ms + 1000 * rng.randrange(1, 30), b"%d" % sent)
        sent += 1
        if rng.random() < 0.2:
            await rig.advance(0.3)
    acked = {b"%d" % number for number in range(sent)}
    if not seen:
        return
    killed = reopened(seen[0]).start()  # a kill of the process: the disk has what was written
    await killed.advance(3)
    found = killed.bodies()
    assert set(found) >= {body for body in acked if body != b"%d" % (sent - 1)}
    # Twice is only what was delivered since the last checkpoint: two seconds of the clock here.
    assert len(found) - len(set(found)) < 80


async def test_lost_files_are_built_again_from_the_queue(flush: str) -> None:
    rig = TimerRig(flush_disk_type=flush).start()
    for number in range(100):
        rig.after(2000 + 50_000 * (number % 2), b"%d" % number)
    await rig.advance(5)
    assert len(rig.bodies()) == 50
    await rig.stop_all()
    folder = rig.store.paths.timer
    (run,) = [name for name in rig.files.list(folder) if name.isdigit()][-1:]
    rig.files.unlink(folder / run)
    again = reopened(rig.files, flush, later_s=5.0).start()
    await again.advance(1)
    assert len(again.bodies()) == 50  # nothing is repeated: the checkpoint tells
    assert again.service.waiting_count == 50
    await again.advance(55, step_s=0.5)
    assert sorted(again.bodies(), key=int) == [b"%d" % number for number in range(100)]


async def test_a_damaged_page_is_built_again_while_serving() -> None:
    rig = TimerRig().start()
    for number in range(200):
        rig.after(2000 + 1000 * (number % 20), b"%d" % number)
    await rig.stop_all()
    folder = rig.store.paths.timer
    for name in rig.files.list(folder):
        if name.isdigit():
            file = rig.files.open(folder / name)
            file.pwrite(b"\xff\xff", 200)
    again = reopened(rig.files, later_s=5.0).start()
    await again.advance(40, step_s=0.5)
    assert sorted(again.bodies(), key=int) == [b"%d" % number for number in range(200)]


async def test_a_damaged_checkpoint_gives_way_to_the_one_before() -> None:
    rig = TimerRig().start()
    for number in range(100):
        rig.after(2000 + 50_000 * (number % 2), b"%d" % number)
    await rig.advance(8)
    await rig.stop_all()
    path = rig.store.paths.timer / "checkpoint"
    rig.files.replace(path, b"SKMQ nonsense", backup=False)
    again = reopened(rig.files, later_s=5.0).start()
    await again.advance(1)
    assert len(again.bodies()) <= 100
    await again.advance(55, step_s=0.5)
    assert {int(body) for body in again.bodies()} == set(range(100))


@pytest.mark.parametrize("content", [b"", b"x" * 50])
async def test_without_any_checkpoint_all_is_delivered_again(content: bytes) -> None:
    rig = TimerRig().start()
    rig.after(1000, b"a")
    rig.after(60_000, b"b")
    await rig.advance(3)
    await rig.stop_all()
    for name in rig.files.list(rig.store.paths.timer):
        if content:
            rig.files.replace(rig.store.paths.timer / name, content, backup=False)
        else:
            rig.files.unlink(rig.store.paths.timer / name)
    again = reopened(rig.files, later_s=5.0).start()
    await again.advance(1)
    assert again.bodies() == [b"a", b"a"]
    await again.advance(60, step_s=0.5)
    assert again.bodies() == [b"a", b"a", b"b"]


async def test_the_checkpoint_never_passes_what_is_not_synced() -> None:
    rig = TimerRig(flush_interval_commit_log=60_000).start()
    rig.after(1000)
    for _ in range(50):
        rig.clock.advance(0.1)
        await rest(rig.workers)
    assert rig.bodies() == [b"body"]
    assert not rig.files.exists(rig.store.paths.timer / "checkpoint")
    await rig.advance(60)
    assert rig.files.exists(rig.store.paths.timer / "checkpoint")


async def test_a_log_that_lost_its_end_makes_no_new_message_an_old_one() -> None:
    """A disk that lies about its syncs: fewer messages than the checkpoint knows."""
    rig = TimerRig().start()
    for number in range(30):
        rig.after(1000, b"old%d" % number)
    await rig.advance(4)
    checkpoint = rig.files.read_all(rig.store.paths.timer / "checkpoint")
    other = TimerRig()
    other.files.make_folder(other.store.paths.timer)
    other.files.replace(other.store.paths.timer / "checkpoint", checkpoint, backup=False)
    other.start()
    other.after(1000, b"new")
    await other.advance(3)
    assert other.bodies() == [b"new"]


async def test_a_full_disk_keeps_runs_in_memory_for_a_while() -> None:
    rig = TimerRig().start()
    rig.files.fail("pwrite", times=1000, error=errno.ENOSPC, path="skylarkmq/timer")
    for number in range(200):
        rig.after(2000, b"%d" % number)
        await rig.catch_up()
    await rig.advance(3)
    assert rig.store.failure is None
    rig.files.faults = type(rig.files.faults)()
    await rig.advance(30)
    assert sorted(rig.bodies(), key=int) == [b"%d" % number for number in range(200)]


async def test_a_disk_that_fails_to_write_ends_the_stores_writing() -> None:
    rig = TimerRig().start()
    rig.files.fail("datasync", path="skylarkmq/timer")
    for number in range(50):
        rig.after(60_000, b"%d" % number)
    await rig.advance(2)
    assert rig.store.failure is not None


async def test_runs_of_an_earlier_life_are_removed() -> None:
    rig = TimerRig()
    rig.files.make_folder(rig.store.paths.timer)
    for number in (3, 9):
        rig.files.replace(run_path(rig.store.paths.timer, number), b"left over", backup=False)
    rig.start()
    await rest(rig.workers)
    assert [name for name in rig.files.list(rig.store.paths.timer) if name.isdigit()] == []
    for number in range(50):
        rig.after(60_000, b"%d" % number)
    await rig.advance(1)
    names = [name for name in rig.files.list(rig.store.paths.timer) if name.isdigit()]
    assert names
    assert int(names[0]) >= 10
    assert rig.store.max_offset(WHEEL, 0) == 50


async def test_a_checkpoint_counts_on_no_run_that_is_still_being_written() -> None:
    rig = TimerRig().start()
    for number in range(60):
        rig.after(60_000, b"%d" % number)
    for _ in range(40):
        rig.clock.advance(0.1)
        for worker in (rig.workers.flush, rig.workers.queues, rig.workers.tables):
            await rest(worker)
    assert rig.files.exists(rig.store.paths.timer / "checkpoint")
    killed = reopened(rig.files.snapshot()).start()
    await killed.advance(2)
    assert killed.bodies() == [b"%d" % number for number in range(60)]


async def test_what_takes_back_keeps_no_message_from_waiting_once() -> None:
    """It may wait in memory while the messages around it are in runs long since."""
    rig = TimerRig().start()
    rig.cancel(rig.clock.now_ms() + 90_000, b"K")
    for number in range(60):
        rig.after(60_000, b"%d" % number)
    await rig.advance(5)
    state = rig.service.state
    assert state.cancels.base < state.messages.base
    killed = reopened(rig.files.snapshot()).start()
    await killed.advance(2)
    assert killed.bodies() == [b"%d" % number for number in range(60)]


async def test_a_clock_that_went_back_does_not_undo_a_cancellation(flush: str) -> None:
    """A message that is due earlier than one that was taken back already, and then a kill."""
    rig = await taken_back_and_clock_back(flush)
    killed = reopened(rig.files.snapshot(), flush).start()
    await killed.advance(2)
    assert killed.bodies() == [b"earlier"]


async def test_nor_does_it_where_the_runs_are_lost(flush: str) -> None:
    rig = await taken_back_and_clock_back(flush)
    rig.service._rebuild(OSError("a run is damaged"))
    await rig.advance(12)
    assert rig.bodies() == [b"earlier"]


@pytest.mark.parametrize("number", range(3))
async def test_nor_does_one_kill_after_another(number: int) -> None:
    rig = await taken_back_and_clock_back("ASYNC_FLUSH")
    for _ in range(number):
        now_ms, rig = rig.clock.now_ms(), TimerRig(rig.files.snapshot())
        rig.clock.step_wall((now_ms - rig.clock.now_ms()) / 1000)
        rig.start()
        await rig.advance(1)
        rig.at(rig.clock.now_ms() + 2000, b"earlier")
        await rig.advance(1)
    killed = reopened(rig.files.snapshot()).start()
    await killed.advance(2)
    assert set(killed.bodies()) == {b"earlier"}


async def test_what_was_forgotten_long_since_makes_nobody_read_again() -> None:
    """A clean stop has everything in runs, whatever the clock did before."""
    rig = await taken_back_and_clock_back("ASYNC_FLUSH")
    await rig.stop_all()
    again = reopened(rig.files, later_s=0.0).start()
    await again.catch_up()
    assert again.service.reading.count == 0
    await again.advance(30)
    assert again.bodies() == [b"earlier"]


async def taken_back_and_clock_back(flush: str) -> TimerRig:
    """A rig that has forgotten what took a message back, and has a message of before that time."""
    rig = TimerRig(flush_disk_type=flush, timer_flush_interval_ms=100).start()
    rig.at(rig.clock.now_ms() + 10_000, b"taken back", b"\x02UNIQ_KEY\x01K")
    rig.cancel(rig.clock.now_ms() + 10_000, b"K")
    await rig.advance(12)
    assert (rig.bodies(), rig.service.messages.cancelled_count) == ([], 1)
    rig.clock.step_wall(-12)
    rig.at(rig.clock.now_ms() + 5000, b"earlier")
    await rig.advance(1.5)
    return rig
