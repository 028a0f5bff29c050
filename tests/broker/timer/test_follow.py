"""A slave keeps how far its master has delivered, so that it goes on there when it is promoted."""

from __future__ import annotations

import pytest

from skylarkmq.store.log_history import LogHistory
from skylarkmq.store.timer.checkpoint import encode_progress
from tests.broker.timer.timer_rig import TimerRig


class Slave(TimerRig):
    """A store that takes another one's log; its service does not deliver."""

    def __init__(self) -> None:
        super().__init__(broker_role="SLAVE")
        self.store.load()
        self.service.load()
        self.store.start()

    def take_log_of(self, master: TimerRig) -> None:
        source = master.store.commit_log
        while part := source.part(self.store.received.next_offset, 1 << 20):
            self.store.take_records(self.store.received.next_offset, bytes(part))
            self.workers.run_all()


def _promoted(slave: Slave, master: TimerRig) -> TimerRig:
    again = TimerRig(slave.files)
    again.clock.advance(master.clock.monotonic())
    return again.start()


async def test_a_promoted_slave_delivers_what_its_master_has_not() -> None:
    master, slave = TimerRig().start(), Slave()
    for number in range(6):
        master.after(1000 * (1 + number), b"%d" % number)
    master.at(master.clock.now_ms() + 5000, b"taken back", b"\x02UNIQ_KEY\x01K")
    master.cancel(master.clock.now_ms() + 5000, b"K")
    await master.advance(3.5)
    assert master.bodies() == [b"0", b"1", b"2"]
    progress = master.service.progress()
    assert progress is not None
    slave.take_log_of(master)
    slave.service.file.keep_progress(progress)
    await slave.advance(2)
    assert slave.bodies() == [b"0", b"1", b"2"], "of its master's log"
    await slave.stop_all()

    again = _promoted(slave, master)
    await again.advance(10)
    assert again.bodies() == [b"%d" % number for number in range(6)]
    assert again.service.waiting_count == 0


async def test_one_that_never_heard_of_it_repeats_all() -> None:
    master, slave = TimerRig().start(), Slave()
    master.after(1000, b"a")
    master.after(5000, b"b")
    await master.advance(3)
    slave.take_log_of(master)
    await slave.stop_all()
    again = _promoted(slave, master)
    await again.advance(10)
    assert again.bodies() == [b"a", b"a", b"b"]


async def test_who_does_not_deliver_tells_nothing_and_who_reads_again_what_it_knew() -> None:
    assert Slave().service.progress() is None
    rig = TimerRig().start()
    rig.after(60_000)
    await rig.advance(1)
    before = rig.service.progress()
    assert before is not None and before.queue_offset == 1
    rig.service._rebuild(OSError("a run is damaged"))
    assert rig.service.progress() == before
    await rig.advance(1)
    assert rig.service.progress() == before


async def test_a_cancellation_goes_over_where_the_clock_went_back() -> None:
    """What was taken back counts as not delivered, for a message of an earlier time came."""
    master, slave = TimerRig().start(), Slave()
    master.at(master.clock.now_ms() + 10_000, b"taken back", b"\x02UNIQ_KEY\x01K")
    master.cancel(master.clock.now_ms() + 10_000, b"K")
    await master.advance(12)
    master.clock.step_wall(-12)
    master.at(master.clock.now_ms() + 5000, b"earlier")
    await master.advance(1)
    progress = master.service.progress()
    assert progress is not None
    slave.take_log_of(master)
    slave.service.file.keep_progress(progress)
    await slave.advance(2)
    await slave.stop_all()

    again = _promoted(slave, master)
    await again.advance(10)
    assert again.bodies() == [b"earlier"]


@pytest.mark.parametrize("way", ["a start", "in place"])
async def test_a_successor_whose_clock_goes_back_keeps_it_through_a_kill(way: str) -> None:
    """How far the master had come is all that it knows of what was forgotten there."""
    master = TimerRig().start()
    master.at(master.clock.now_ms() + 10_000, b"taken back", b"\x02UNIQ_KEY\x01K")
    master.cancel(master.clock.now_ms() + 10_000, b"K")
    await master.advance(12)
    progress = master.service.progress()
    assert progress is not None

    again = TimerRig(master.files.snapshot())  # its clock is where the master's began
    if way == "a start":
        path = again.store.paths.timer / "checkpoint"
        again.files.replace(path, encode_progress(progress, LogHistory()), backup=False)
        again.start()
    else:
        again.store.load()
        again.service.load()
        again.service.take_over(progress)
        again.store.start()
        again.service.start()
    again.at(again.clock.now_ms() + 5000, b"earlier")
    await again.advance(3)
    killed = TimerRig(again.files.snapshot())
    killed.clock.step_wall(60)
    killed.start()
    await killed.advance(2)
    assert killed.bodies() == [b"earlier"]
