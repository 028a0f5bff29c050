"""A broker whose disk fails at the n-th sync or write of its stop, for every n: the stop ends.

It says that it was not clean, and the next start has what was acknowledged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from copy import deepcopy
from random import Random

from tests.simulation import test_pop_simulator
from tests.support.broker_machine import CrashPoint
from tests.support.call_limit import call_limit
from tests.support.crash_states import CrashState, Keep
from tests.support.fault_sweep import (
    AMOUNTS,
    NO_ROOM,
    PART_THEN_FAILS,
    SYNC_FAILS,
    WRITE_FAILS,
    Case,
    Strike,
    cases,
    sweep_async,
)
from tests.support.pop_machine import LOOSE, PopMachine

KILL = CrashState(Keep.KILL)
SEED = 5
TURNS = 300  # a stop takes about 30
CALLS = 200_000  # of which a stop makes 7,000


async def _used(*, sync: bool) -> PopMachine:
    """A broker about to stop: messages have left for their retries, the log's sync stands still."""
    machine = PopMachine(sync=sync, rng=Random(SEED))
    await machine.boot(watch=False)
    for _ in range(4):
        machine.send_popped()
        machine.send_plain()
        machine.send_timed()
    await machine.pump(1.0)
    machine.begin_pop(LOOSE, 0.0, 5)
    await machine.pump(0.3)
    machine.ack()
    for _ in range(4):
        await machine.lag()
    return machine


def _life(*, sync: bool) -> Callable[[Strike], Awaitable[None]]:
    async def live(strike: Strike) -> None:
        machine = await _used(sync=sync)
        ledger = deepcopy(machine.ledger)
        strike.arm(machine.disk.faults)
        fault: AssertionError | None = None
        try:
            with call_limit(CALLS):
                await machine.stop(TURNS)
        except AssertionError as error:
            fault = error
        finally:
            machine.close()
        if strike.is_final:
            paths = machine.parts.store.paths
            assert machine.disk.exists(paths.abort), "the stop looks clean"
        point = CrashPoint(machine.disk.snapshot(), ledger, machine.clock.now_ms())
        await test_pop_simulator.recover(sync, point, KILL, Random(SEED), may_crash=False)
        if fault is not None:
            raise fault

    return live


LIVES = [_life(sync=False), _life(sync=True)]


@AMOUNTS
@cases(
    Case(SYNC_FAILS, "commitlog"),
    Case(SYNC_FAILS, "consumequeue"),
    Case(SYNC_FAILS, "config"),
    Case(SYNC_FAILS, "skylarkmq"),
    Case(SYNC_FAILS, "checkpoint"),
    Case(WRITE_FAILS, "flushed-offset"),
    Case(WRITE_FAILS, "consumequeue"),
    Case(WRITE_FAILS, "config"),
    Case(WRITE_FAILS, "checkpoint"),
    Case(PART_THEN_FAILS, "consumequeue"),
    Case(PART_THEN_FAILS, "config"),
    Case(NO_ROOM, ""),
)
async def test_the_nth_call_of_a_stop_fails(case: Case, whole: bool) -> None:
    await sweep_async(case, LIVES, whole=whole, sample=(1, 2, 4))
