"""A power cut takes no acknowledged receipt under SYNC_FLUSH, and no message that has none (S4).

Needs root; see `tests/broker/test_power_cut.py`.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.broker.test_power_cut import Volume, stand_still
from tests.broker.test_power_cut import volume as volume  # a fixture
from tests.support.broker_process import BrokerProcess
from tests.support.pop_load import PopLoad

pytestmark = pytest.mark.fault_root

CUTS = 5
SETTINGS: dict[str, object] = {"flushDiskType": "SYNC_FLUSH"}


async def test_power_cuts_under_load_keep_what_consumers_by_pop_were_told(volume: Volume) -> None:
    rng = Random(CUTS)
    load = PopLoad(rng)
    for _ in range(CUTS):
        process = await (await BrokerProcess.spawn(volume.root / "store", SETTINGS)).ready()
        try:
            living = await load.work(process.address, rng.randrange(100, 1000))
            await stand_still(process.process.pid)
            volume.cut()
        finally:
            await process.kill()
        await living
        volume.mount_again()
        load.crashed(killed=False)
    process = await (await BrokerProcess.spawn(volume.root / "store", SETTINGS)).ready()
    try:
        living, had_to_come = await load.finish(process.address)
    finally:
        await process.kill()
    await living
    assert had_to_come
    assert load.ledger.power["consumed"] > 20 * CUTS, load.ledger.power
