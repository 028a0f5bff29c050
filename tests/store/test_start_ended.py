"""A start that is ended at any step leaves a store that the next start takes as it was."""

from __future__ import annotations

import pytest

from skylarkmq.store.progress import StartEnded
from tests.store.support import StoreRig


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
