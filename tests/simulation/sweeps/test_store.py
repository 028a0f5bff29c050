"""A store whose machine is short of something at its n-th call, for every n: it goes on.

A refused descriptor, mapping or block loses nothing, so it ends nothing either: some messages may
be refused meanwhile, and when the machine has enough again the store takes messages as before.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.store.failing_rig import FailingRig, check_reads
from tests.support.crash_disk import CrashDisk
from tests.support.crash_states import CrashState, Keep
from tests.support.fault_sweep import (
    AMOUNTS,
    NO_BLOCKS,
    NO_DESCRIPTOR,
    NO_MAPPING,
    NO_ROOM,
    PART,
    PART_ALONE,
    Case,
    Strike,
    cases,
    sweep,
)

KILL = CrashState(Keep.KILL)
CUT = CrashState(Keep.NONE, names=Keep.NONE)
KEYS = {"properties": b"KEYS\x01all other\x02UNIQ_KEY\x01u1\x02"}
SMALL_INDEX = {"max_index_num": 40, "max_hash_slot_num": 10}


ROADS: list[dict[str, Any]] = [
    {"flush": "ASYNC_FLUSH"},
    {"flush": "SYNC_FLUSH"},
    {"flush": "SYNC_FLUSH", "commit_log_write_mode": "mapped"},
]


def _life(road: dict[str, Any]) -> Callable[[Strike], None]:
    """Use a store, one call of which is refused; then there is enough again."""

    def live(strike: Strike) -> None:
        rig = FailingRig(CrashDisk(), **road, **SMALL_INDEX)
        rig.start()
        strike.arm(rig.files.faults)
        rig.use(**KEYS)
        rig.files.faults.clear()
        if rig.store.failure is None:
            check_goes_on(rig, road)
        check_ends(rig, road)
        assert rig.store.failure is None, f"the store ended: {rig.store.failure}"

    return live


def check_goes_on(rig: FailingRig, road: dict[str, Any]) -> None:
    """It takes messages, and has all that it acknowledged, now and after a kill or a stop."""
    for _ in range(3):
        rig.clock.advance(31)
        rig.workers.run_all()
    before = len(rig.acked)
    rig.send(100)
    rig.workers.run_all()
    assert len(rig.acked) == before + 1, "the store refuses for good"
    check_reads(rig, rig.acked)
    check_ends(rig, road)
    rig.clock.advance(1.1)
    rig.stop()
    assert not rig.files.exists(rig.store.paths.abort), "the stop was not clean"
    again = FailingRig(rig.files, **road, **SMALL_INDEX)
    again.start()
    check_reads(again, rig.acked)
    again.stop()


def check_ends(rig: FailingRig, road: dict[str, Any]) -> None:
    """What was acknowledged is there when the process, or the machine, is killed now."""
    for state in (KILL, CUT) if road["flush"] == "SYNC_FLUSH" else (KILL,):
        killed = FailingRig(rig.files.crash(state, Random(1)), **road, **SMALL_INDEX)
        killed.start()
        check_reads(killed, rig.acked)


@AMOUNTS
@cases(
    Case(NO_DESCRIPTOR, "commitlog"),
    Case(NO_DESCRIPTOR, "consumequeue"),
    Case(NO_DESCRIPTOR, "index"),
    Case(NO_DESCRIPTOR, "checkpoint"),
    Case(NO_DESCRIPTOR, "skylarkmq"),
    Case(NO_MAPPING, "commitlog"),
    Case(NO_MAPPING, "index"),
    Case(PART, "consumequeue"),
    Case(PART, "checkpoint"),
    Case(PART, "skylarkmq"),
    Case(PART_ALONE, "consumequeue"),
    Case(NO_ROOM, "consumequeue"),
    Case(NO_ROOM, "checkpoint"),
    Case(NO_ROOM, "skylarkmq"),
    Case(NO_BLOCKS, "commitlog"),
    Case(NO_BLOCKS, "consumequeue"),
    Case(NO_BLOCKS, "index"),
)
def test_the_nth_call_is_refused(case: Case, whole: bool) -> None:
    sweep(case, [_life(road) for road in ROADS], whole=whole)
