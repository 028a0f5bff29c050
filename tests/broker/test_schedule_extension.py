"""Delayed messages whose due times lie in the extensions of their queues."""

from __future__ import annotations

import pytest

from tests.broker.schedule_rig import SCHEDULE, Rig
from tests.support.extensions import extend


@pytest.mark.parametrize("harm", [False, True])
async def test_never_early_also_when_the_extension_rots(harm: bool) -> None:
    rig = Rig().start()
    rig.park(2, b"one")  # 5 s
    await rig.advance(2)
    rig.park(2, b"two")
    await rig.advance(2)
    rig.stop()
    extend(rig.files, rig.files.root)
    clock, rig = rig.clock, Rig(rig.files)
    rig.clock.advance(clock.monotonic() - rig.clock.monotonic())
    rig.start()
    if harm:
        folder = rig.store.paths.queue_ext_folder(SCHEDULE, 1)
        rig.files.open(folder / f"{0:020d}").pwrite(bytes(20), 20)
    await rig.advance(0.8)
    assert rig.bodies() == []
    await rig.advance(2)
    assert rig.bodies() == [b"one"]
    await rig.advance(0.5)
    assert rig.bodies() == [b"one", b"two"]
