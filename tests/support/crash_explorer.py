"""Runs a machine by a seed, stops it at some disk step, and tries every way for that to end.

Each crash state is recovered by a real store and checked; some are crashed again while they
recover, some live on and are crashed once more. A failure says how to replay it.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from random import Random

from skylarkmq.common.errors import CorruptFileError
from skylarkmq.store.checkpoint import UNKNOWN, Checkpoint
from skylarkmq.store.folder import StorePaths
from skylarkmq.store.log.mapped_file import file_name
from tests.support.crash_states import CrashState, Keep
from tests.support.invariants import (
    Promise,
    check_files,
    check_index,
    check_log,
    check_reads,
    check_same,
    check_shown,
    check_topics,
    require,
)
from tests.support.store_machine import CrashPoint, StoreMachine
from tests.support.store_shape import ITEM_COUNT, SLOT_COUNT, Shape

# From the crash to the next start by the wall clock, which may be set back meanwhile.
DOWN_MS = (10, 3000, 60_000, 60_000, -3_600_000)

MAGIC_POSITION = 4  # in a record


class CrashFailure(AssertionError):
    """An invariant does not hold. The message replays the case."""


def seeds(count: int) -> range:
    """The seeds to run: `SKYLARKMQ_SEED` alone when it is set."""
    chosen = os.environ.get("SKYLARKMQ_SEED")
    return range(count) if chosen is None else range(int(chosen), int(chosen) + 1)


def explore(
    seed: int, *, operations: int = 38, states: int = 12, failing: bool = False
) -> Counter[str]:
    """One seed: a run, a crash, its states. Returns what was seen, for tests of their own power.

    Args:
        failing: the disk fails once in the run.

    Raises:
        CrashFailure: an invariant does not hold.
    """
    rng = Random(seed)
    machine = StoreMachine(Shape.draw(rng), rng)
    try:
        machine.boot()
        if failing:
            _let_fail(machine, rng)
        machine.run(operations)
    except Exception as error:
        raise CrashFailure(f"seed {seed}, while running, {machine.shape}: {error!r}") from error
    assert machine.crash_point is not None
    power = machine.power
    power["disk failures"] += machine.disk.faults.raised
    explorer = _Explorer(seed, machine.shape, power)
    explorer.explore(machine.crash_point, states, Random(seed + 1), depth=0)
    return power


def _let_fail(machine: StoreMachine, rng: Random) -> None:
    """One of the next writes or syncs of the store's files fails."""
    op = rng.choice(("datasync", "datasync", "pwrite"))
    path = rng.choice(("commitlog", "commitlog", "consumequeue"))
    short = rng.choice((None, 100)) if op == "pwrite" else None
    machine.disk.fail(op, at=rng.randrange(1, 8), path=path, short=short)


class _Explorer:
    def __init__(self, seed: int, shape: Shape, power: Counter[str]) -> None:
        self._seed = seed
        self._shape = shape
        self._power = power

    def explore(self, point: CrashPoint, count: int, rng: Random, *, depth: int) -> None:
        """Try `count` crash states of one crash point."""
        for number, state in enumerate(point.disk.crash_states(rng, count)):
            try:
                self._recover(point, state, Random(rng.random()), depth=depth)
            except CrashFailure:
                raise
            except Exception as error:
                raise CrashFailure(
                    f"{error!r}\nreplay with SKYLARKMQ_SEED={self._seed}: crash state {number}, "
                    f"{state}, depth {depth}, {self._shape}"
                ) from error

    def _recover(self, point: CrashPoint, state: CrashState, rng: Random, *, depth: int) -> None:
        promise = point.promise
        if state.keep is Keep.KILL:
            promise = replace(promise, kept_count=point.kill_count, shown={})
        if state.keep is Keep.KILL and depth == 0:
            self._check_damage(point, state, Random(rng.random()))
        disk = point.disk.crash(state, rng)
        start_ms = point.now_ms + rng.choice(DOWN_MS)
        machine = StoreMachine(self._shape, rng, disk, promise.log, start_ms)
        machine.boot(watch=depth < 2)
        self._power.update(machine.power)
        again = machine.crash_point
        machine.disk.before_step = None
        count, rolls = check_machine(machine, promise)
        self._power["rolls"] += rolls
        self._power["states"] += 1
        if again is None:
            return
        if rng.random() < 0.25:
            self._power["crashes in a recovery"] += 1
            again = CrashPoint(again.disk, promise, promise.kept_count, again.now_ms)
            self.explore(again, 2, rng, depth=2)
        elif rng.random() < 0.2 / (1 + depth):
            self._live_on(machine, promise, count, rng, depth)

    def _check_damage(self, point: CrashPoint, state: CrashState, rng: Random) -> None:
        """I12: damage of what was on the disk is refused after the death of the process."""
        disk = point.disk.crash(state, rng)
        paths = StorePaths(disk.root)
        marks = Checkpoint(disk, paths.checkpoint, paths.recovery_point).load()
        places = [
            sent.acked_at[1] for sent in point.promise.log[: point.promise.kept_count]
            if sent.acked_at is not None
        ]  # fmt: skip
        if marks.commit_log_offset == UNKNOWN or not places:
            return  # nothing is known to have been on the disk
        place = rng.choice(places)
        path = paths.commit_log / file_name(place - place % self._shape.log_file_size)
        if not disk.exists(path):
            return  # its file was removed
        file = disk.open(path)
        file.pwrite(b"\x0f", place % self._shape.log_file_size + MAGIC_POSITION)
        file.close()
        machine = StoreMachine(self._shape, rng, disk, point.promise.log, point.now_ms)
        try:
            machine.boot(watch=False)
        except CorruptFileError as error:
            found = error.path, error.position
            require(found == (path, place % self._shape.log_file_size), "I12", str(error))
            self._power["damage refused"] += 1
            return
        raise AssertionError(f"I12: a start over the damaged record at {place}, which was durable")

    def _live_on(
        self, machine: StoreMachine, promise: Promise, count: int, rng: Random, depth: int
    ) -> None:
        machine.recovered(promise, count)
        machine.power.clear()
        machine.run(12)
        self._power.update(machine.power)
        self._power["second lives"] += 1
        if machine.crash_point is not None:
            self.explore(machine.crash_point, 3, rng, depth=depth + 1)


def check_machine(machine: StoreMachine, promise: Promise) -> tuple[int, int]:
    """Check a store that has just started, and start it once more.

    Returns:
        How many of the sent messages are left, and how many log files were rolled over.
    """
    shape, files = machine.shape, machine.disk.contents()
    log = check_files(files, shape.log_file_size, shape.queue_file_size)
    count = check_log(log, shape.log_file_size, promise)
    if shape.keyed:
        machine.catch_up()
        check_index(machine.disk.contents(), log, SLOT_COUNT, ITEM_COUNT)
    check_reads(machine.store, log.records, promise.log[:count])
    check_shown(machine.store, promise.shown)
    check_topics(files, promise.topics)
    _check_second_start(machine)
    return count, log.rolls


def _check_second_start(machine: StoreMachine) -> None:
    """I11: kill it where it stands, and start again."""
    machine.workers.prepare.run_all()
    before = machine.disk.contents()
    rng = Random(0)
    disk = machine.disk.crash(CrashState(Keep.KILL), rng)
    second = StoreMachine(machine.shape, rng, disk, machine.log)
    second.boot(watch=False)
    second.workers.prepare.run_all()
    after = second.disk.contents()
    check_same(before, after)
