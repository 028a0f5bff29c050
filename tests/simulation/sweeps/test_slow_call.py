"""One call of the disk takes long among quick ones, the n-th for every n, and the loop goes on.

While a thread is in that call, messages are sent, time passes and the other threads work. A sync
covers what was written before it began; who is told that a message is durable was told the truth.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from skylarkmq.store.log.flush_service import SLOW_SYNC_S
from skylarkmq.store.results import PutMessageResult
from tests.broker.pop.test_journal_crash import Machine, check
from tests.store.failing_rig import FailingRig, check_reads
from tests.support.crash_disk import CrashDisk
from tests.support.crash_states import CrashState, Keep
from tests.support.fault_sweep import (
    AMOUNTS,
    SLOW_BLOCKS,
    SLOW_NAMES,
    SLOW_SYNC,
    SLOW_WRITE,
    Case,
    Strike,
    cases,
    sweep,
    sweep_async,
)

KILL = CrashState(Keep.KILL)
CUT = CrashState(Keep.NONE, names=Keep.NONE)
CALL_S = 3.0
POINTS = 6  # steps of the disk, from the slow call on, at which the machine may die
KEYS = {"properties": b"KEYS\x01all other\x02UNIQ_KEY\x01u1\x02"}
SMALL_INDEX: dict[str, Any] = {"max_index_num": 40, "max_hash_slot_num": 10}
ROADS: list[dict[str, Any]] = [
    {"flush": "SYNC_FLUSH"},
    {"flush": "ASYNC_FLUSH"},
    {"flush": "SYNC_FLUSH", "commit_log_write_mode": "mapped"},
]


def _life(road: dict[str, Any]) -> Callable[[Strike], None]:
    def live(strike: Strike) -> None:
        rig = FailingRig(CrashDisk(), **road, **SMALL_INDEX)
        rig.store.writer._flush.slow_sync_s = SLOW_SYNC_S
        rig.start()
        numbers = itertools.count(100)
        points: list[tuple[CrashDisk, dict[bytes, PutMessageResult]]] = []

        def before_step(_op: str, _path: object) -> None:
            if strike.has_hit and len(points) < POINTS:
                points.append((rig.files.snapshot(), dict(rig.acked)))

        def meanwhile() -> None:
            if not any(worker.is_busy for worker in rig.workers.all()):
                rig.clock.pass_time(CALL_S)  # the loop itself is in the call
                return
            for _ in range(4):
                rig.send(next(numbers), **KEYS)
                rig.clock.advance(CALL_S / 4)
                for worker in rig.workers.all():
                    worker.step()

        strike.slow_down(rig.files.faults, meanwhile)
        rig.files.before_step = before_step
        rig.use(**KEYS)
        rig.files.before_step = None
        rig.files.faults.clear()
        rig.clock.advance(1.1)
        rig.workers.run_all()
        assert rig.store.failure is None
        assert len(rig.acked) == 50 + 4 * (next(numbers) > 100), "a send was not answered well"
        check_reads(rig, rig.acked)
        points.append((rig.files, rig.acked))
        for disk, acked in points:
            for state in (KILL, CUT) if road["flush"] == "SYNC_FLUSH" else (KILL,):
                after = FailingRig(disk.crash(state, Random(1)), **road, **SMALL_INDEX)
                after.start()
                check_reads(after, acked)

    return live


@AMOUNTS
@cases(
    Case(SLOW_SYNC, "commitlog"),
    Case(SLOW_SYNC, "consumequeue"),
    Case(SLOW_SYNC, "checkpoint"),
    Case(SLOW_SYNC, "skylarkmq"),
    Case(SLOW_NAMES, ""),
    Case(SLOW_WRITE, ""),
    Case(SLOW_BLOCKS, ""),
)
def test_a_store_goes_on_beside_the_nth_call(case: Case, whole: bool) -> None:
    sweep(case, [_life(road) for road in ROADS], whole=whole, sample=(1, 2, 3, 7, 12))


def _journal(*, sync: bool) -> Callable[[Strike], Awaitable[None]]:
    async def live(strike: Strike) -> None:
        rng = Random(strike.number)
        machine = Machine(rng, CrashDisk(), sync=sync)
        machine.begin()

        def meanwhile() -> None:
            if not machine.worker.is_busy:
                machine.clock.pass_time(CALL_S)
                return
            machine.note(*(machine.record() for _ in range(3)))
            machine.ask()
            machine.clock.advance(CALL_S)

        assert isinstance(machine.files, CrashDisk)
        strike.slow_down(machine.files.faults, meanwhile)
        await machine.run(60)
        for point in machine.points:
            for state in (KILL, CUT):
                check(point, state, rng)

    return live


@AMOUNTS
@cases(Case(SLOW_SYNC, ""), Case(SLOW_WRITE, ""), Case(SLOW_BLOCKS, ""), Case(SLOW_NAMES, ""))
async def test_the_journal_of_pop_goes_on_beside_the_nth_call(case: Case, whole: bool) -> None:
    lives = [_journal(sync=sync) for sync in (True, False)]
    await sweep_async(case, lives, whole=whole, sample=(1, 2, 5))
