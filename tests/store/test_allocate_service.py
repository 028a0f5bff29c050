"""The next log file: ready in time, being made, refused."""

from __future__ import annotations

import errno

import pytest

from skylarkmq.store.errors import StoreFullError
from skylarkmq.store.log.allocate_service import PATIENCE_S, AllocateService
from skylarkmq.store.log.mapped_file import file_name
from tests.store.support import environment
from tests.support.crash_disk import CrashDisk
from tests.support.manual_clock import ManualClock
from tests.support.workers import manual_store_workers

pytestmark = pytest.mark.timing

SIZE = 8192


class Rig:
    """A service whose worker moves when the test says so."""

    def __init__(self) -> None:
        self.disk = CrashDisk()
        self.clock = ManualClock()
        workers = manual_store_workers()
        self.worker = workers.prepare
        env = environment(self.disk, self.clock, workers.workers, mapped_file_size_commit_log=SIZE)
        self.stats, self.folder = env.stats, env.paths.commit_log
        self.service = AllocateService(env)


def test_a_prepared_file_is_handed_over() -> None:
    rig = Rig()
    rig.service.prepare(SIZE)
    rig.service.prepare(SIZE)
    rig.worker.run_all()
    assert rig.disk.calls["create"] == 1, "asked for twice, made once"
    mapped = rig.service.take(SIZE)
    assert (mapped.start_offset, rig.stats.late_allocations) == (SIZE, 0)
    assert rig.disk.calls["create"] == 1


def test_a_file_that_nobody_prepared_is_made_by_the_worker() -> None:
    rig = Rig()
    assert rig.service.take(0).start_offset == 0
    assert rig.stats.late_allocations == 1
    rig.worker.run_all()
    assert rig.disk.calls["create"] == 1


def test_a_roll_waits_for_a_file_that_was_asked_for_a_moment_ago() -> None:
    rig = Rig()
    rig.service.prepare(SIZE)
    rig.clock.advance(PATIENCE_S / 2)
    mapped = rig.service.take(SIZE)
    assert rig.worker.waits == [PATIENCE_S / 2]
    assert (mapped.start_offset, rig.stats.late_allocations) == (SIZE, 1)


def test_a_roll_does_not_wait_for_a_file_that_takes_long() -> None:
    rig = Rig()
    rig.service.prepare(SIZE)
    rig.clock.advance(8)
    for _ in range(3):
        with pytest.raises(StoreFullError, match=r"has been making it for 8\.0 s"):
            rig.service.take(SIZE)
    assert rig.worker.waits == [0, 0, 0]
    assert rig.stats.late_allocations == 1
    rig.worker.run_all()
    assert rig.service.take(SIZE).start_offset == SIZE
    assert rig.disk.calls["create"] == 1


def test_the_start_waits_for_as_long_as_it_takes() -> None:
    rig = Rig()
    rig.service.prepare(0)
    rig.clock.advance(8)
    assert rig.service.take(0, None).start_offset == 0
    assert rig.worker.waits == [None]
    assert rig.stats.late_allocations == 0


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_asked_once_a_second(error: int, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.disk.fail("allocate", error=error, times=3)
    rig.service.prepare(SIZE)
    rig.worker.run_all()
    for _ in range(3):
        with pytest.raises(StoreFullError, match="no room"):
            rig.service.take(SIZE)
    assert rig.disk.calls["allocate"] == 1
    rig.clock.advance(1.1)
    with pytest.raises(StoreFullError):
        rig.service.take(SIZE)
    rig.clock.advance(1.1)
    with pytest.raises(StoreFullError):
        rig.service.take(SIZE)
    (told,) = caplog.messages
    assert "no room for the next log file" in told and told.endswith("free some space")
    rig.clock.advance(1.1)
    assert rig.service.take(SIZE).start_offset == SIZE
    assert rig.disk.list(rig.folder) == [file_name(SIZE)]
    assert caplog.messages[1:] == [
        f"there is room again: the log goes on in {rig.folder / file_name(SIZE)}"
    ]


def test_a_disk_that_was_full_when_the_file_was_prepared_is_asked_again() -> None:
    rig = Rig()
    rig.disk.fail("allocate", error=errno.ENOSPC)
    rig.service.prepare(SIZE)
    rig.worker.run_all()
    rig.clock.advance(3600)
    assert rig.service.take(SIZE).start_offset == SIZE, "no message is refused"


def test_another_failure_of_the_disk_is_told_as_it_is() -> None:
    rig = Rig()
    rig.disk.fail("allocate", error=errno.EIO)
    rig.service.prepare(SIZE)
    rig.worker.run_all()
    with pytest.raises(OSError) as caught:
        rig.service.take(SIZE)
    assert caught.value.errno == errno.EIO


def test_a_defect_in_the_worker_refuses_and_the_next_roll_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    rig.service.prepare(SIZE)
    with monkeypatch.context() as broken:
        broken.setattr(CrashDisk, "open", lambda *_, **__: 1 // 0)
        rig.worker.run_all()
    assert "preparing a log file failed" in caplog.text
    with pytest.raises(StoreFullError, match="ZeroDivisionError"):
        rig.service.take(SIZE)
    assert rig.service.take(SIZE).start_offset == SIZE


def test_an_unused_file_is_deleted() -> None:
    rig = Rig()
    rig.service.prepare(SIZE)
    rig.worker.run_all()
    assert rig.disk.list(rig.folder) == [file_name(SIZE)]
    rig.service.discard()
    assert rig.disk.list(rig.folder) == []
    rig.service.discard()


def test_there_is_nothing_to_delete_when_it_was_refused() -> None:
    rig = Rig()
    rig.disk.fail("allocate", error=errno.ENOSPC)
    rig.service.prepare(SIZE)
    rig.worker.run_all()
    rig.service.discard()
