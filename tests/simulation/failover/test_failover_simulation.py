"""Any course of faults leaves a cluster that keeps what it acknowledged (fault test S16)."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.failover.schedule import FAULTS, RULES, run, run_late_swap, run_stop, seeds
from tests.support.amounts import check_power, slow

# What one hundred seeds show at least; a run that shows less proves nothing.
POWER_PER_100_SEEDS = {
    "acknowledged": 10_000,
    "shown": 10_000,
    "terms": 100,
    "joined": 200,
    "left": 60,
    "records cut": 5,
    "records lost": 10,
    "messages lost": 500,
    "swaps unknown": 30,
    "swaps refused": 3,
    **{fault.__name__: 3 for fault in FAULTS},
}


@pytest.mark.parametrize("count", [16, slow(100), pytest.param(100_000, marks=pytest.mark.soak)])
def test_every_course_of_faults_keeps_what_was_acknowledged(count: int) -> None:
    power: Counter[str] = Counter()
    chosen = seeds(count)
    for seed in chosen:
        power.update(run(seed))
    if len(chosen) > 1:
        check_power(power, POWER_PER_100_SEEDS, len(chosen), 100)


@pytest.mark.parametrize("count", [8, slow(20), pytest.param(2000, marks=pytest.mark.soak)])
def test_a_swap_that_comes_late_takes_nothing_away(count: int) -> None:
    for seed in range(count):
        run_late_swap(seed)


@pytest.mark.parametrize("leads", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_replica_that_is_stopped_holds_up_sends_for_one_change_of_the_set(
    seed: int, leads: bool
) -> None:
    """What is taken while it leaves waits for messages and the engine, and for no time-out."""
    assert run_stop(seed, leads=leads) < RULES.silent_s / 4


def test_a_seed_replays() -> None:
    assert run(3) == run(3)
