"""What a start waits for, and that one which is ended at any step leaves the store as it was."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from skylarkmq.store.progress import StartEnded
from tests.store.support import StoreRig
from tests.support.crash_states import CrashState, Keep


class Ending:
    """Ends the start at its `count`-th step."""

    def __init__(self, count: int) -> None:
        self.left = count

    def __call__(self, what: str, done: int, total: int) -> None:
        if not self.left:
            raise StartEnded
        self.left -= 1


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_start_that_is_ended_changes_nothing_for_the_next_one(is_clean: bool) -> None:
    rig = StoreRig().start()
    for number in range(60):
        rig.put(f"T{number % 7}", 0, b"x" * 3000)
    rig.clock.advance(1)
    rig.workers.run_all()
    if is_clean:
        rig.stop()
    for steps in range(1000):
        disk = rig.files.snapshot()
        again = StoreRig(disk)
        try:
            again.store.load(Ending(steps))
            break
        except StartEnded:
            assert disk.exists(again.store.paths.abort) is not is_clean
        last = StoreRig(disk)
        assert last.store.load().clean is is_clean, "the lock was let go"
        assert [last.store.max_offset(f"T{number}", 0) for number in range(7)] == [9] * 4 + [8] * 3
    assert steps > 8


def test_after_a_crash_the_queues_are_synced_after_the_start() -> None:
    """The units of ten thousand new queues are three syncs each: no start waits for them."""
    rig = StoreRig().start()
    for number in range(50):
        rig.put(f"T{number}")
    disk = rig.files.crash(CrashState(Keep.KILL), Random(1))
    synced: list[Path] = []
    disk.before_step = lambda op, path: synced.append(path) if "sync" in op else None
    again = StoreRig(disk)
    report = again.store.load()
    queues = again.store.paths.consume_queue
    assert (report.clean, report.rebuilt) == (False, 50)
    assert synced
    assert not [path for path in synced if path.is_relative_to(queues)]
    again.store.start()
    again.workers.run_all()
    marks = again.store.queues.flusher.checkpoint.load()
    assert marks.commit_log_offset == again.store.commit_log.max_offset
    assert (marks.queue_count, marks.unit_count) == (50, 50)
    assert {queues / f"T{number}" / "0" for number in range(50)} <= set(synced)
