"""Slow appends make producers wait, for a while."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylarkmq.store.busy import SLOW_PAUSE_MAX_S
from tests.store.support import StoreRig
from tests.support.crash_disk import CrashDisk
from tests.support.manual_clock import ManualClock


class SlowDisk(CrashDisk):
    """A disk whose writes to the log take time."""

    def __init__(self) -> None:
        super().__init__()
        self.clock: ManualClock
        self.write_s = 0.0

    def _step(self, op: str, path: Path) -> None:
        super()._step(op, path)
        if op == "pwrite" and "commitlog" in str(path):
            self.clock.pass_time(self.write_s)


@pytest.fixture
def disk() -> SlowDisk:
    return SlowDisk()


def started(disk: SlowDisk, **config: object) -> StoreRig:
    rig = StoreRig(disk, **config)
    disk.clock = rig.clock
    return rig.start()


def test_an_append_within_the_limit_holds_nobody_back(disk: SlowDisk) -> None:
    rig = started(disk)
    disk.write_s = 1.0
    rig.put()
    assert (rig.store.is_busy, rig.store.why_busy()) == (False, None)


@pytest.mark.parametrize(("write_s", "pause_s"), [(1.25, SLOW_PAUSE_MAX_S), (60, SLOW_PAUSE_MAX_S)])
def test_after_a_slow_append_producers_wait(disk: SlowDisk, write_s: float, pause_s: float) -> None:
    rig = started(disk)
    disk.write_s = write_s
    rig.put()
    busy = rig.store.why_busy()
    assert busy is not None
    assert busy.cause == "page_cache_busy"
    limit = "osPageCacheBusyTimeOutMills=1000"
    assert busy.figures == f"an append took {int(write_s * 1000)} ms; {limit}"
    rig.clock.advance(pause_s - 0.01)
    assert rig.store.is_busy
    rig.clock.advance(0.02)
    assert not rig.store.is_busy


def test_producers_wait_no_longer_than_the_append_took(disk: SlowDisk) -> None:
    rig = started(disk, os_page_cache_busy_time_out_mills=100)
    disk.write_s = 0.25
    rig.put()
    assert rig.store.is_busy
    rig.clock.advance(0.26)
    assert not rig.store.is_busy
    disk.write_s = 0.0
    rig.put()
    assert not rig.store.is_busy
