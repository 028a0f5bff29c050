"""kill -9 under load takes no acknowledged receipt, and no message that has none (S1)."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from tests.support.amounts import slow
from tests.support.broker_process import BrokerProcess
from tests.support.pop_load import PopLoad

ACKS_MIN, ACKS_MAX = 100, 600  # answers of a life
CASES = [
    slow("SYNC_FLUSH", 2),
    slow("ASYNC_FLUSH", 2),
    pytest.param("SYNC_FLUSH", 12, marks=pytest.mark.fault),
    pytest.param("ASYNC_FLUSH", 12, marks=pytest.mark.fault),
]


@pytest.mark.parametrize(("mode", "kills"), CASES)
async def test_kills_under_load_keep_what_consumers_by_pop_were_told(
    tmp_path: Path, mode: str, kills: int
) -> None:
    rng = Random(int(os.environ.get("SKYLARKMQ_SEED", "1")))
    load = PopLoad(rng)
    settings: dict[str, object] = {"flushDiskType": mode}
    for _ in range(kills):
        process = await (await BrokerProcess.spawn(tmp_path, settings)).ready()
        try:
            living = await load.work(process.address, rng.randrange(ACKS_MIN, ACKS_MAX))
        finally:
            await process.kill()
        await living
        load.crashed(killed=True)
    process = await (await BrokerProcess.spawn(tmp_path, settings)).ready()
    try:
        living, had_to_come = await load.finish(process.address)
    finally:
        await process.kill()
    await living
    assert had_to_come
    power = load.ledger.power
    assert power["consumed"] > 20 * kills, power
    assert power["attempt 2"], power
