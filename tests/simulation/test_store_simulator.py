"""Any crash at any step of any run leaves a store that keeps its promises (fault test S3)."""

from __future__ import annotations

from collections import Counter

import pytest

from skylarkmq.store import message_writer
from tests.support.amounts import check_power, slow
from tests.support.crash_explorer import explore, seeds

STATES = 12

# What one hundred seeds show at least; a run that shows less proves nothing.
POWER_PER_100_SEEDS = {
    "states": 2000,
    "acks": 600,
    "rolls": 400,
    "torn tails": 40,
    "recoveries": 2000,
    "clean starts": 100,
    "crashes in a recovery": 100,
    "second lives": 50,
    "units rebuilt": 10_000,
    "shortened walks": 200,
    "tables acked": 40,
    "disk failures": 10,
    "log files removed": 20,
    "damage refused": 30,
}


@pytest.mark.parametrize(
    ("count", "states"),
    [(6, 6), slow(50, STATES), pytest.param(200, STATES, marks=pytest.mark.fault)],
)
def test_every_crash_of_every_run_keeps_the_promises(count: int, states: int) -> None:
    power: Counter[str] = Counter()
    chosen = seeds(count)
    for seed in chosen:
        power.update(explore(seed, states=states, failing=seed % 4 == 3))
    if len(chosen) > 1:
        check_power(power, POWER_PER_100_SEEDS, len(chosen) * states / STATES, 100)


@pytest.mark.parametrize("count", [2, slow(20), pytest.param(200, marks=pytest.mark.fault)])
def test_the_same_with_every_append_off_the_loop(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here each append counts as slow, so batches never come back to the loop."""
    monkeypatch.setattr(message_writer, "SLOW_APPEND_S", -1.0)
    power: Counter[str] = Counter()
    for seed in seeds(count):
        power.update(explore(seed, failing=seed % 4 == 3))
    assert power["acks"] and power["rolls"] and power["recoveries"]
