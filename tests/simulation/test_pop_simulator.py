"""Any crash of a whole broker leaves what it owes its consumers by pop.

What was acknowledged never comes again, whatever else does, but with a message before it in an
ordered group; what was not always does; no attempt is counted back.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from copy import deepcopy
from random import Random

import pytest

from tests.support.amounts import check_power, slow
from tests.support.broker_machine import CrashPoint
from tests.support.crash_explorer import CrashFailure, seeds
from tests.support.crash_states import CrashState, Keep
from tests.support.pop_ledger import Owed
from tests.support.pop_machine import GROUPS, PopMachine

OPERATIONS, STATES = 90, 6
OPERATIONS_AGAIN, SECOND = 8, 0.25
FRESH = 4
AFTER_S = 26.0  # everything that is in hand has lapsed by then, and was handed out and consumed
DOWN_MS = (10, 3000, 60_000, -3_600_000)

# What ten seeds show at least; a run that shows less proves nothing.
POWER_PER_10_SEEDS = {
    "states": 60,
    "attempt 1": 120,
    "attempt 2": 25,
    "attempt 3": 6,
    "consumed": 45,
    "changed": 4,
    "handle refused": 40,
    "deleted": 2,
    "had to come": 300,
    "second crashes": 7,
    "taken back": 2,
    "by priority": 5,
}


async def explore(seed: int) -> Counter[str]:
    """One seed: a run, a crash at one of its disk steps, several ways for it to end.

    Every other topic has priorities.
    """
    rng = Random(seed)
    machine = PopMachine(sync=rng.random() < 0.5, rng=rng, has_priorities=seed % 2 == 1)
    flush = "SYNC" if machine.sync else "ASYNC"
    await machine.boot()
    try:
        await machine.run(OPERATIONS)
    except Exception as error:
        raise CrashFailure(
            f"{error!r}\nreplay with SKYLARKMQ_SEED={seed}: before any crash, {flush}_FLUSH"
        ) from error
    finally:
        machine.close()
    point = machine.crash_point
    assert point is not None
    power = Counter(machine.pops.power)
    states = Random(seed + 1)
    for number, state in enumerate(point.disk.crash_states(states, STATES)):
        try:
            power.update(await recover(machine.sync, point, state, Random(states.random())))
        except Exception as error:
            raise CrashFailure(
                f"{error!r}\nreplay with SKYLARKMQ_SEED={seed}: crash state {number}, {state}, "
                f"{flush}_FLUSH"
            ) from error
        power["states"] += 1
    return power


async def recover(
    sync: bool, point: CrashPoint, state: CrashState, rng: Random, *, may_crash: bool = True
) -> Counter[str]:
    """Start on what the crash left, consume all that comes, and check it.

    Args:
        may_crash: now and then that life, too, ends by a crash, and the next one is checked.
    """
    start_ms = point.now_ms + rng.choice(DOWN_MS)
    machine = PopMachine(
        sync=sync, rng=rng, disk=point.disk.crash(state, rng),
        ledger=deepcopy(point.ledger), start_ms=start_ms,
    )  # fmt: skip
    killed = state.keep is Keep.KILL
    owed = machine.owed = Owed(deepcopy(point.ledger.pops), killed=killed, keeps_attempts=sync)
    machine.pops.begin_life(owed)
    await machine.boot(watch=False)
    try:
        for _ in range(FRESH):
            machine.send_popped()
        if may_crash and rng.random() < SECOND:
            await machine.run(OPERATIONS_AGAIN)
            machine.raise_failures()
            again = CrashPoint(
                machine.disk.snapshot(), deepcopy(machine.ledger), machine.clock.now_ms()
            )
            next_state = rng.choice(again.disk.crash_states(rng, STATES))
            power = await recover(sync, again, next_state, rng, may_crash=False)
            return power + Counter({"second crashes": 1})
        await machine.drain(AFTER_S)
        machine.raise_failures()
        had_to_come = owed.check_came(GROUPS, machine.pops.came)
        # What is sent now gets offsets that lost messages had.
        machine.pops.check_fresh(GROUPS, point.ledger.pops.sent)
    finally:
        machine.close()
    return Counter({"had to come": had_to_come})


@pytest.mark.parametrize("count", [2, slow(16), pytest.param(200, marks=pytest.mark.fault)])
def test_every_crash_keeps_the_promises_to_consumers_by_pop(count: int) -> None:
    power: Counter[str] = Counter()
    chosen = seeds(count)
    for seed in chosen:
        power.update(asyncio.run(explore(seed)))
    if len(chosen) > 1:
        check_power(power, POWER_PER_10_SEEDS, len(chosen), 10)
