"""A start whose n-th call is refused, for every n: it ends with that error, or it serves all.

What was acknowledged is there at the start after, when the machine has enough again. A file that
could not be opened is no file that is missing, and one that could not be read is not damaged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

from skylarkmq.common.errors import StoreError
from skylarkmq.store.results import PutMessageResult
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
    PART_THEN_FAILS,
    READ_FAILS,
    SYNC_FAILS,
    WRITE_FAILS,
    Case,
    Strike,
    cases,
    sweep,
)

KILL = CrashState(Keep.KILL)
KEYS = {"properties": b"KEYS\x01all other\x02UNIQ_KEY\x01u1\x02"}
SMALL: dict[str, Any] = {"max_index_num": 40, "max_hash_slot_num": 10}
Image = tuple[CrashDisk, dict[bytes, PutMessageResult]]


def _rig(disk: CrashDisk) -> FailingRig:
    return FailingRig(disk, "ASYNC_FLUSH", **SMALL)


@cache
def stopped_cleanly() -> Image:
    rig = _rig(CrashDisk())
    rig.start()
    rig.use(**KEYS)
    rig.clock.advance(1.1)
    rig.stop()
    return rig.files, rig.acked


@cache
def killed_behind() -> Image:
    """The end of the log has no units yet, and its last file has no blocks of its own."""
    rig = _rig(CrashDisk())
    rig.start()
    rig.use(**KEYS)
    for number in range(50, 58):
        rig.send(number, **KEYS)
    return rig.files, rig.acked


@cache
def cut_off() -> Image:
    """A power cut between two syncs: what was not synced is gone, and was not promised."""
    rig = _rig(CrashDisk())
    rig.start()
    rig.use(**KEYS)
    acked = dict(rig.acked)
    for number in range(50, 58):
        rig.send(number, **KEYS)
    rig.workers.queues.run_all()
    return rig.files.crash(CrashState(Keep.NONE), Random(1)), acked


def _life(image: Callable[[], Image], *, needs_room: bool = False) -> Callable[[Strike], None]:
    def live(strike: Strike) -> None:
        before, acked = image()
        disk = before.crash(KILL, Random(1))
        rig = _rig(disk)
        strike.arm(disk.faults)
        why: BaseException | None = None
        try:
            rig.start()
        except (OSError, StoreError) as error:
            why = error
        rig.workers.run_all()
        disk.faults.clear()
        if why is None:
            check_reads(rig, acked)
        again = _rig(disk.crash(KILL, Random(1)))
        again.start()
        check_reads(again, acked)
        again.workers.run_all()
        again.clock.advance(1.1)
        again.send(100)
        again.workers.run_all()
        assert len(again.acked) == 1, "nothing is taken after the start"
        assert why is None or not needs_room, f"the start was refused: {why}"
        assert why is None or isinstance(why, OSError), f"an error of its own: {why!r}"

    return live


IMAGES = (stopped_cleanly, killed_behind, cut_off)
LIVES = [_life(image) for image in IMAGES]
LIVES_WITHOUT_ROOM = [_life(image, needs_room=True) for image in IMAGES]


@AMOUNTS
@cases(
    Case(NO_DESCRIPTOR, ""),
    Case(NO_MAPPING, ""),
    Case(SYNC_FAILS, ""),
    Case(WRITE_FAILS, ""),
    Case(PART_THEN_FAILS, ""),
    Case(READ_FAILS, ""),
)
def test_the_nth_call_of_a_start_fails(case: Case, whole: bool) -> None:
    sweep(case, LIVES, whole=whole)


@AMOUNTS
@cases(
    Case(PART, "consumequeue"),
    Case(PART, "checkpoint"),
    Case(PART, "skylarkmq"),
    Case(NO_ROOM, "consumequeue"),
    Case(NO_ROOM, "checkpoint"),
    Case(NO_ROOM, "skylarkmq"),
    Case(NO_BLOCKS, ""),
)
def test_a_start_with_little_room_serves_what_there_is(case: Case, whole: bool) -> None:
    sweep(case, LIVES_WITHOUT_ROOM, whole=whole)
