"""Delayed messages whose due times lie in the extensions of their queues."""

from __future__ import annotations

import pytest

from tests.broker.test_schedule_service import SCHEDULE, Rig


@pytest.mark.parametrize("harm", [False, True])
async def test_never_early_also_when_the_extension_rots(harm: bool) -> None:
    rig = Rig(enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=104).start()
    rig.park(2, b"one")  # 5 s
    await rig.advance(2)
    rig.park(2, b"two")
    await rig.advance(2)  # both units are in the files
    if harm:
        folder = rig.store.paths.queue_ext_folder(SCHEDULE, 1)
        rig.files.open(folder / f"{0:020d}").pwrite(bytes(20), 20)
        rig.store.queues.open(SCHEDULE, 1).drop_tail()
    await rig.advance(0.8)
    assert rig.bodies() == []
    await rig.advance(2)
    assert rig.bodies() == [b"one"]
    await rig.advance(0.5)
    assert rig.bodies() == [b"one", b"two"]
