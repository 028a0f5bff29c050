"""The removal of a topic when its n-th call of the disk is refused, for every n.

It may be refused, and is done when it is asked for again. The rest of the store goes on meanwhile:
its checkpoint follows the log up to the first message that is put into the topic, without which no
log file may be removed.
"""

from __future__ import annotations

from random import Random

from skylarkmq.store.results import PutMessageStatus
from tests.store.support import StoreRig
from tests.store.test_topic_removal import bodies, checkpoint, fill, remove
from tests.support.crash_states import CrashState, Keep
from tests.support.fault_sweep import (
    AMOUNTS,
    NO_DESCRIPTOR,
    NO_ROOM,
    PART,
    Case,
    Strike,
    cases,
    sweep,
)

KILL = CrashState(Keep.KILL)
KEPT = [b"old-U-0", b"old-U-2"]


def live(strike: Strike) -> None:
    rig = StoreRig().start()
    fill(rig, "T", 150)
    fill(rig, "U", 4)
    checkpoint(rig)
    strike.arm(rig.files.faults)
    was_refused = remove(rig, "T") != [None, None]
    before = rig.store.queues.flusher.covered
    kept = list(KEPT)
    fill(rig, "U", 1, "new")
    if rig.results[-1].status is PutMessageStatus.PUT_OK:
        kept.append(b"new-U-0")
    if was_refused:
        rig.clock.advance(2)
        fill(rig, "T", 1, "new")  # by a service that does not ask the topic table
    for _ in range(3):  # with what is left of the fault
        checkpoint(rig)
    rig.files.faults.clear()
    why = "" if rig.store.failure is None else f"the store ended: {rig.store.failure}"
    assert bodies(StoreRig(rig.files.crash(KILL, Random(1))).start(), "U") == kept
    if not why:
        for _ in range(3):
            checkpoint(rig)
        if rig.store.queues.flusher.covered == before:
            why = "the checkpoint stands still"
        assert not was_refused or remove(rig, "T") == [None, None], "it cannot be removed again"
        assert bodies(rig, "U") == kept
        after = StoreRig(rig.files.crash(KILL, Random(1))).start()
        assert (bodies(after, "T"), bodies(after, "U")) == ([], kept)
    assert not why, why


@AMOUNTS
@cases(
    Case(NO_DESCRIPTOR, "removed-topics"),
    Case(NO_DESCRIPTOR, "consumequeue"),
    Case(PART, "removed-topics"),
    Case(NO_ROOM, "removed-topics"),
    Case(NO_ROOM, "checkpoint"),
)
def test_the_nth_call_of_a_removal_is_refused(case: Case, whole: bool) -> None:
    sweep(case, [live], whole=whole)
