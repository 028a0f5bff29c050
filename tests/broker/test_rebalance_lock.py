"""Queue locks."""

import pytest

from skylarkmq.broker.groups import rebalance_lock
from skylarkmq.broker.groups.rebalance_lock import RebalanceLockManager
from tests.support.manual_clock import ManualClock


def test_a_lock_keeps_others_out_until_it_is_freed() -> None:
    locks = RebalanceLockManager(ManualClock())
    assert locks.try_lock("g", "T", 0, "a")
    assert not locks.try_lock("g", "T", 0, "b")
    assert locks.try_lock("g", "T", 1, "b")
    assert locks.try_lock("other", "T", 0, "b")
    locks.unlock("g", "T", 0, "b")
    assert not locks.try_lock("g", "T", 0, "b")
    locks.unlock("g", "T", 0, "a")
    assert locks.try_lock("g", "T", 0, "b")


def test_a_lock_lasts_a_minute_from_its_last_renewal() -> None:
    clock = ManualClock()
    locks = RebalanceLockManager(clock)
    assert locks.try_lock("g", "T", 0, "a")
    clock.advance(40)
    assert locks.try_lock("g", "T", 0, "a")
    clock.advance(60)
    assert not locks.try_lock("g", "T", 0, "b")
    clock.advance(1)
    assert locks.try_lock("g", "T", 0, "b")


def test_locks_that_ran_out_are_forgotten() -> None:
    clock = ManualClock()
    locks = RebalanceLockManager(clock)
    locks.try_lock("g", "T", 0, "a")
    clock.advance(30)
    locks.try_lock("g", "T", 1, "a")
    clock.advance(31)
    locks.expire()
    assert len(locks) == 1
    assert not locks.try_lock("g", "T", 1, "b")


def test_who_leaves_a_group_frees_its_queues_there() -> None:
    locks = RebalanceLockManager(ManualClock())
    for group, queue_id, client_id in (("g", 0, "a"), ("g", 1, "a"), ("g", 2, "b"), ("h", 0, "a")):
        locks.try_lock(group, "T", queue_id, client_id)
    locks.release("g", "a")
    assert len(locks) == 2
    assert not locks.try_lock("g", "T", 2, "a")
    assert not locks.try_lock("h", "T", 0, "b")
    locks.release("g", "b")
    locks.release("nobody", "a")
    assert len(locks) == 1


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalance_lock, "LOCKS_MAX", 2)
    locks = RebalanceLockManager(ManualClock())
    assert [locks.try_lock("g", "T", queue, "a") for queue in range(3)] == [True, True, False]
    assert locks.try_lock("g", "T", 0, "a"), "renewing needs no room"
    locks.unlock("g", "T", 0, "a")
    assert locks.try_lock("other", "T", 0, "a"), "what was freed is room again"


def test_freeing_allocates_nothing() -> None:
    locks = RebalanceLockManager(ManualClock())
    locks.unlock("g", "T", 0, "a")
    assert len(locks) == 0
