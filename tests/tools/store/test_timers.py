"""`store info` counts the timed messages that a broker of RocketMQ 4.9 would not deliver."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from skylarkmq.store.stopped.reader import StoppedStore
from skylarkmq.store.timer import index as index_module
from skylarkmq.tools.store import info
from tests.broker.timer.timer_rig import TimerRig


def _counted(rig: TimerRig, root: Path) -> int:
    """What the tool says of a copy of the rig's store as it stands."""
    for name, data in rig.files.contents().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    found = info.gather(StoppedStore(root))
    count: int = found["timed_messages"]
    assert any("would not deliver" in line for line in info.lines(found)) == (count > 0)
    return count


@pytest.mark.parametrize("stop", ["clean", "killed", "no checkpoint"])
async def test_waiting_messages_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: str
) -> None:
    monkeypatch.setattr(index_module, "MEMORY_MAX", 20)
    rig, rng = TimerRig().start(), random.Random(3)
    rig.cancel(rig.clock.now_ms() + 500_000, b"K")
    for number in range(120):
        rig.after(1000 * rng.choice([1, 100 + number]), b"%d" % number)
    await rig.advance(3)
    waiting = rig.service.waiting_count
    assert waiting == 120 - len(rig.delivered())
    if stop == "clean":
        await rig.stop_all()
    elif stop == "no checkpoint":
        waiting = 120
        for name in rig.files.list(rig.store.paths.timer):
            rig.files.unlink(rig.store.paths.timer / name)
    assert _counted(rig, tmp_path) == waiting


async def test_a_store_without_timers_says_nothing_of_them(tmp_path: Path) -> None:
    rig = TimerRig().start()
    rig.put("T", 0, b"x")
    rig.workers.run_all()
    assert _counted(rig, tmp_path) == 0
