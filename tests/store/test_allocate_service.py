"""The next log file: ready in time, being made, not begun, refused. Threads where they matter."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from skylarkmq.store import allocate_service
from skylarkmq.store.allocate_service import AllocateService
from skylarkmq.store.errors import StoreFullError
from skylarkmq.store.files import DiskFiles, StoreFile
from skylarkmq.store.mapped_file import MappedFile, file_name
from skylarkmq.store.stats import StoreStats
from skylarkmq.store.worker import ThreadWorker
from tests.support.crash_disk import CrashDisk
from tests.support.manual_clock import ManualClock
from tests.support.workers import ManualWorker

SIZE = 8192
HANG_LIMIT_S = 20.0


class Rig:
    """A service whose worker moves when the test says so."""

    def __init__(self) -> None:
        self.disk = CrashDisk()
        self.folder = self.disk.root / "commitlog"
        self.worker = ManualWorker("prepare")
        self.clock = ManualClock()
        self.stats = StoreStats()
        self.service = AllocateService(
            self.disk, self.worker, self.clock, self.stats, self.folder, SIZE
        )


def test_a_prepared_file_is_handed_over() -> None:
    rig = Rig()
    rig.service.prepare(SIZE)
    rig.service.prepare(SIZE)
    rig.worker.run_all()
    assert rig.disk.calls["create"] == 1, "asked for twice, made once"
    mapped = rig.service.take(SIZE)
    assert (mapped.start_offset, rig.stats.inline_allocations) == (SIZE, 0)
    assert rig.disk.calls["create"] == 1


def test_a_file_that_nobody_prepared_is_made_here() -> None:
    rig = Rig()
    assert rig.service.take(0).start_offset == 0
    assert rig.stats.inline_allocations == 1


def test_a_file_that_is_not_begun_is_taken_from_the_worker() -> None:
    rig = Rig()
    rig.service.prepare(SIZE)
    mapped = rig.service.take(SIZE)
    assert rig.stats.inline_allocations == 1
    mapped.file.pwrite(b"a message", 0)
    rig.disk.fail("allocate", times=9)
    rig.worker.run_all()
    assert rig.disk.list(rig.folder) == [file_name(SIZE)], "the worker passes it over"
    assert bytes(mapped.view[:9]) == b"a message"


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


def test_a_defect_in_the_worker_does_not_keep_a_roll_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    monkeypatch.setattr(allocate_service, "WAIT_S", HANG_LIMIT_S)
    rig.service.prepare(SIZE)
    with monkeypatch.context() as broken:
        broken.setattr(CrashDisk, "open", lambda *_, **__: 1 // 0)
        rig.worker.run_all()
    assert "preparing a log file failed" in caplog.text
    assert rig.service.take(SIZE).start_offset == SIZE
    assert rig.stats.inline_allocations == 1


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


class SlowFiles(DiskFiles):
    """A disk whose files open only when the test lets them."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.answer = threading.Event()

    def open(self, path: Path, *, create: bool = False) -> StoreFile:
        self.asked.set()
        assert self.answer.wait(HANG_LIMIT_S)
        return super().open(path, create=create)


class SlowRig:
    """A service with a real thread, which is making the file at SIZE until `files.answer`."""

    def __init__(self, folder: Path) -> None:
        self.files = SlowFiles()
        self.stats = StoreStats()
        self.made = threading.Event()
        self.worker = ThreadWorker("prepare", lambda done, *result: self.made.set())
        self.service = AllocateService(
            self.files, self.worker, ManualClock(), self.stats, folder, SIZE
        )
        self.service.prepare(SIZE)
        assert self.files.asked.wait(HANG_LIMIT_S)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowRig]:
    rig = SlowRig(tmp_path)
    yield rig
    rig.files.answer.set()
    rig.worker.stop()
    rig.service.discard()


def test_a_roll_waits_for_the_file_that_is_being_made(
    slow: SlowRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocate_service, "WAIT_S", HANG_LIMIT_S)
    taken: list[MappedFile] = []
    roll = threading.Thread(target=lambda: taken.append(slow.service.take(SIZE)))
    roll.start()
    assert not taken
    slow.files.answer.set()
    roll.join(HANG_LIMIT_S)
    assert [mapped.start_offset for mapped in taken] == [SIZE]
    assert slow.stats.inline_allocations == 0
    taken[0].close()


def test_a_hanging_disk_refuses_and_holds_the_loop_once(
    slow: SlowRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []
    wait = threading.Event.wait

    def counted(event: threading.Event, timeout: float | None = None) -> bool:
        waits.append(timeout)
        return wait(event, 0)

    with monkeypatch.context() as counting:
        counting.setattr(threading.Event, "wait", counted)
        for _ in range(3):
            with pytest.raises(StoreFullError, match="longer than 5 s"):
                slow.service.take(SIZE)
    assert waits == [allocate_service.WAIT_S, 0, 0]
    slow.files.answer.set()
    assert slow.made.wait(HANG_LIMIT_S)
    mapped = slow.service.take(SIZE)
    assert (mapped.start_offset, slow.stats.inline_allocations) == (SIZE, 0)
    mapped.close()
