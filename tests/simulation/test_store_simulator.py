"""Any crash at any step of any run leaves a store that keeps its promises (fault test S3)."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.amounts import amount
from tests.support.crash_explorer import explore, seeds

# What one hundred seeds show at least; a run that shows less proves nothing.
POWER_PER_100_SEEDS = {
    "states": 1200,
    "acks": 500,
    "rolls": 1000,
    "torn tails": 100,
    "recoveries": 1000,
    "clean starts": 50,
    "crashes in a recovery": 50,
    "second lives": 50,
    "units rebuilt": 1000,
    "shortened walks": 20,
    "tables acked": 20,
}


@pytest.mark.fault
def test_every_crash_of_every_run_keeps_the_promises(request: pytest.FixtureRequest) -> None:
    power: Counter[str] = Counter()
    chosen = seeds(amount(request.config, full=200, usual=50))
    for seed in chosen:
        power.update(explore(seed))
    if len(chosen) > 1:
        short = {
            name: (power[name], least)
            for name, least in POWER_PER_100_SEEDS.items()
            if power[name] * 100 < least * len(chosen)
        }
        assert not short, f"too little was seen: {short} of {power}"
