"""Crashes that once broke the recovery, or that chance finds too seldom, each made by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.support.amounts import slow
from tests.support.crash_disk import CrashDisk
from tests.support.crash_explorer import check_machine
from tests.support.crash_states import CrashState, Keep, Names
from tests.support.invariants import Promise
from tests.support.store_machine import StoreMachine
from tests.support.store_shape import Shape

KILL = CrashState(Keep.KILL)
NOTHING = CrashState(Keep.NONE, names=Keep.NONE)
QUEUE = "consumequeue/orders/0"
BODY = bytes(100)  # some 70 records fill a log file of 16 KiB


def _machine(*, sync: bool = True, queue_file_size: int = 400) -> StoreMachine:
    shape = Shape(sync, 16384, queue_file_size, Names.STRICT, 1)
    machine = StoreMachine(shape, Random(7))
    machine.boot(watch=False)
    return machine


def _settled(machine: StoreMachine, count: int) -> None:
    """Send messages, the last one a minute behind the others, and checkpoint them all."""
    machine.send("orders", 0, count - 1, BODY)
    for more in (1, 0):
        machine.workers.run_all()
        machine.clock.advance(70.0)
        machine.workers.run_all()
        machine.send("orders", 0, more, BODY)
    machine.workers.run_all()
    machine.clock.advance(70.0)
    machine.workers.run_all()


def _with_unsynced_units(*, synced: int, more: int, queue_file_size: int) -> StoreMachine:
    """A log file that the checkpoint covers is the last; units behind it are only in the cache."""
    machine = _machine(queue_file_size=queue_file_size)
    _settled(machine, synced)
    assert machine.store.commit_log.max_offset > 16384
    machine.send("orders", 0, more, BODY)
    machine.workers.run_all()
    machine.clock.advance(1.5)
    machine.workers.run_all()
    return machine


def _recover(machine: StoreMachine, disk: CrashDisk, *, kept: int | None = None) -> StoreMachine:
    """Boot a store on what is left, and check it."""
    start_ms = machine.clock.now_ms() + 1000
    after = StoreMachine(machine.shape, Random(8), disk, machine.log, start_ms)
    after.boot(watch=False)
    promise = machine.promise()
    shown = promise.shown if kept is None else {}
    count = len(machine.log) if kept is None else kept
    check_machine(after, Promise(promise.log, count, promise.acked, shown))
    return after


def _patch(disk: CrashDisk, name: str, change: Callable[[CrashDisk, Path], None]) -> CrashDisk:
    change(disk, disk.root / name)
    return disk


def test_a_unit_torn_at_a_sector_does_not_hide_the_ones_to_be_rebuilt() -> None:
    machine = _with_unsynced_units(synced=102, more=102, queue_file_size=4000)
    # A search by halves looks at unit 102 first.
    disk = machine.disk.crash(KILL, Random(1))
    # Unit 102 begins 8 bytes before the sector at 2048. The sector before it holds what the last
    # sync wrote, the one behind it is new.
    file = disk.open(disk.root / QUEUE / ("0" * 20))
    assert any(file.pread(8, 2040))
    file.pwrite(bytes(8), 2040)
    _recover(machine, disk)


def test_units_lost_with_their_page_are_rebuilt_whatever_lies_behind() -> None:
    machine = _with_unsynced_units(synced=100, more=160, queue_file_size=400)
    names = [name for name in machine.disk.contents() if name.startswith(QUEUE)]
    assert len(names) == 13
    for lost in names[5:]:
        disk = machine.disk.crash(KILL, Random(1))
        disk.open(disk.root / lost).pwrite(bytes(400), 0)
        _recover(machine, disk)


def test_a_queue_file_that_lost_its_size_is_not_refused() -> None:
    machine = _with_unsynced_units(synced=100, more=160, queue_file_size=400)
    names = [name for name in machine.disk.contents() if name.startswith(QUEUE)]
    for short in names[5:]:
        disk = machine.disk.crash(KILL, Random(1))
        disk.open(disk.root / short).truncate(0)
        _recover(machine, disk)


def test_a_queue_file_that_lost_its_name_is_made_again() -> None:
    machine = _with_unsynced_units(synced=100, more=160, queue_file_size=400)
    names = [name for name in machine.disk.contents() if name.startswith(QUEUE)]
    for lost in names[6:]:
        disk = machine.disk.crash(KILL, Random(1))
        disk.unlink(disk.root / lost)
        _recover(machine, disk)


def _with_units_ahead_of_the_log(*, stored: int, ahead: int) -> StoreMachine:
    """Units are synced of records that are not; the recovery will begin behind the stored ones."""
    machine = _machine(sync=False, queue_file_size=100)
    machine.send("orders", 0, stored, BODY)
    for count in (100, 1, 0):
        machine.send("payments", 0, count, BODY)
        machine.workers.run_all()
        machine.clock.advance(70.0)
    machine.workers.run_all()
    machine.send("orders", 0, ahead, BODY)
    machine.clock.advance(60.0)
    machine.workers.queues.run_all()
    return machine


@pytest.mark.parametrize("stored", [3, 5])  # 5 units fill a queue file
def test_units_that_were_cut_do_not_come_back(stored: int) -> None:
    machine = _with_units_ahead_of_the_log(stored=stored, ahead=9)
    kept = stored + 101
    after = _recover(machine, machine.disk.crash(NOTHING, Random(1)), kept=kept)
    assert after.store.recovery is not None
    assert after.store.recovery.rebuilt == 0
    assert after.store.max_offset("orders", 0) == stored
    after.recovered(machine.promise(), kept)
    after.disk.before_step = None
    for count in (120, 1, 0):  # a checkpoint that covers the file with the old places
        after.send("payments", 0, count, BODY)
        after.workers.run_all()
        after.clock.advance(70.0)
    after.workers.run_all()
    _recover(after, after.disk.crash(NOTHING, Random(1)))


def test_a_queue_that_lost_its_files_is_built_again() -> None:
    machine = _with_unsynced_units(synced=100, more=10, queue_file_size=400)
    names = [name for name in machine.disk.contents() if name.startswith(QUEUE)]
    for lost in (names[1:2], names[2:4], names[-1:], names):
        disk = machine.disk.crash(KILL, Random(1))
        for name in lost:
            disk.unlink(disk.root / name)
        _recover(machine, disk)


def test_a_stop_with_a_checkpoint_under_way_writes_what_came_since() -> None:
    machine = _machine()
    machine.send("orders", 0, 1, BODY)
    machine.workers.flush.run_all()
    machine.clock.advance(1.0)  # the queues' worker has a job
    machine.send("payments", 0, 2, BODY)
    machine.workers.flush.run_all()
    machine.clock.advance(60.0)  # and is to have another one
    machine.send("orders", 0, 1, BODY)
    machine.send("other", 0, 1, BODY)  # which the last flush of all makes durable
    machine.restart()
    machine.disk.before_step = None
    assert machine.store.recovery is not None
    assert machine.store.recovery.clean
    check_machine(machine, machine.promise())


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("without_queue", [True, False])
@pytest.mark.parametrize("stride", [21, slow(7), pytest.param(1, marks=pytest.mark.fault)])
def test_each_step_of_a_recovery_and_of_a_stop_may_be_the_last(
    sync: bool, without_queue: bool, stride: int
) -> None:
    machine = _machine(sync=sync, queue_file_size=100)
    _settled(machine, 100)
    machine.send("orders", 0, 40, BODY)
    machine.workers.flush.run_all()
    machine.clock.advance(1.5)
    machine.workers.queues.run_all()
    machine.send("payments", 0, 10, BODY)
    kept = 140 if sync else 100
    rng = Random(5)
    disk = machine.disk.crash(CrashState(Keep.RANDOM, names=Keep.RANDOM, torn=True), rng)
    if without_queue:
        for name in disk.list(disk.root / QUEUE):
            disk.unlink(disk.root / QUEUE / name)
        disk.sync_folder(disk.root / QUEUE)
    steps: list[CrashDisk] = []
    first = StoreMachine(machine.shape, rng, disk, machine.log)
    disk.before_step = lambda _op, _path: steps.append(disk.snapshot())
    first._before_step = disk.before_step  # type: ignore[method-assign]
    first.boot()
    first.workers.run_all()
    first.store.stop_writing()
    first.store.close()
    assert len(steps) > 20
    for step in steps[::stride]:
        for state in (KILL, NOTHING, CrashState(Keep.RANDOM, torn=True)):
            _recover(machine, step.crash(state, rng), kept=kept)
