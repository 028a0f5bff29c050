"""Any crash of a whole broker leaves what it owes: delays, transactions, offsets, tables."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from copy import deepcopy
from random import Random

import pytest

from skylarkmq.broker.delay.delay_offsets import FILE_NAME as DELAYS_FILE
from skylarkmq.broker.groups.consumer_offset import OFFSETS_FILE
from skylarkmq.protocol.flags import RMQ_SYS_SCHEDULE_TOPIC
from skylarkmq.store.delay_levels import schedule_queue_id
from tests.support.amounts import check_power, slow
from tests.support.broker_applications import QUEUES, TOPIC
from tests.support.broker_ledger import Fact
from tests.support.broker_machine import BrokerMachine, CrashPoint
from tests.support.crash_disk import CrashDisk
from tests.support.crash_explorer import CrashFailure, seeds
from tests.support.crash_states import CrashState, Keep

OPERATIONS, STATES = 55, 6
AFTER_S = 30.0  # everything that was to come has come by then
DOWN_MS = (10, 3000, 60_000)

# What ten seeds show at least; a run that shows less proves nothing.
POWER_PER_10_SEEDS = {
    "states": 60,
    "plain": 40,
    "delayed": 70,
    "timed": 70,
    "cancelled": 2,
    "commit": 25,
    "rollback": 10,
    "none": 40,
    "checked": 300,
    "half ended": 5,
    "tables acked": 8,
    "offsets kept": 1,
}


async def explore(seed: int, count: int = STATES) -> Counter[str]:
    """One seed: a run, a crash at one of its disk steps, several ways for it to end."""
    rng = Random(seed)
    machine = BrokerMachine(sync=rng.random() < 0.6, rng=rng)
    await machine.boot()
    await machine.run(OPERATIONS)
    point = machine.crash_point
    machine.close()
    assert point is not None
    power = Counter(point.ledger.power)
    states = Random(seed + 1)
    for number, state in enumerate(point.disk.crash_states(states, count)):
        try:
            power.update(await recover(machine.sync, point, state, Random(states.random())))
        except Exception as error:
            raise CrashFailure(
                f"{error!r}\nreplay with SKYLARKMQ_SEED={seed}: crash state {number}, {state}, "
                f"{'SYNC' if machine.sync else 'ASYNC'}_FLUSH"
            ) from error
        power["states"] += 1
    return power


async def recover(sync: bool, point: CrashPoint, state: CrashState, rng: Random) -> Counter[str]:
    """Start on what the crash left, wait for what is to come, and check all of it."""
    killed = state.keep is Keep.KILL
    disk = point.disk.crash(state, rng)
    start_ms = point.now_ms + rng.choice(DOWN_MS)
    ledger = deepcopy(point.ledger)
    machine = BrokerMachine(sync=sync, rng=rng, disk=disk, ledger=ledger, start_ms=start_ms)
    asked = sum(entry.checks for entry in ledger.entries)
    written = written_offsets(disk)
    await machine.boot(watch=False)
    try:
        check_tables(machine, written)
        await machine.pump(AFTER_S)
        seen = ledger.check_messages(machine.messages(TOPIC, QUEUES), killed=killed)
        seen["checked"] = sum(entry.checks for entry in ledger.entries) - asked
        for entry in point.ledger.undecided():
            if point.ledger.owes(entry, Fact.SENT, killed=killed):
                assert ledger.entries[entry.number].checks, f"nobody asked about {entry}"
    finally:
        machine.close()
    return seen


def written_offsets(disk: CrashDisk) -> dict[tuple[str, int], int]:
    """The greatest offset that consumer and delay offsets on a disk say of each queue."""
    found: Counter[tuple[str, int]] = Counter()
    tables = {
        name: json.loads(disk.read_all(path))["offsetTable"] if disk.exists(path) else {}
        for name in (OFFSETS_FILE, DELAYS_FILE)
        for path in [disk.root / "config" / name]
    }
    for key, offsets in tables[OFFSETS_FILE].items():
        for queue_id, offset in offsets.items():
            queue = key.partition("@")[0], int(queue_id)
            found[queue] = max(found[queue], offset)
    for level, offset in tables[DELAYS_FILE].items():
        found[RMQ_SYS_SCHEDULE_TOPIC, schedule_queue_id(int(level))] = offset
    return found


def check_tables(machine: BrokerMachine, written: dict[tuple[str, int], int]) -> None:
    """I7, I8: what was acknowledged of groups, topics and offsets is there right after a start."""
    parts, ledger = machine.parts, machine.ledger
    ledger.check_written_offsets(written, {key: parts.store.max_offset(*key) for key in written})
    assert ledger.groups.keys() <= parts.groups.table.keys(), "I8: a group is lost"
    assert ledger.topics.keys() <= parts.topics.table.keys(), "I8: a topic is lost"
    ledger.check_offsets(
        {
            (group, queue_id): max(0, parts.offsets.query(group, TOPIC, queue_id))
            for group, queue_id in ledger.offsets
        }
    )


@pytest.mark.parametrize(
    ("count", "states"),
    [(4, 2), slow(20, STATES), pytest.param(200, STATES, marks=pytest.mark.fault)],
)
def test_every_crash_of_a_broker_keeps_the_promises(count: int, states: int) -> None:
    power: Counter[str] = Counter()
    chosen = seeds(count)
    for seed in chosen:
        power.update(asyncio.run(explore(seed, states)))
    if len(chosen) > 1:
        check_power(power, POWER_PER_10_SEEDS, len(chosen) * states / STATES, 10)
