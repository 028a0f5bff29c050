"""A disk that fails at its n-th call, for every n: the policy after a failed write or sync.

After any error of a sync, write, allocation or name of the store's files:

    - whoever waits is refused, nobody is acknowledged afterwards;
    - nothing is written any more, no sync is tried again, the checkpoint stays as it is;
    - `abort` stays, so that the next start recovers in full;
    - what was acknowledged can be read, now and after that start.
"""

from __future__ import annotations

import errno
from collections import Counter
from random import Random

import pytest

from skylarkmq.store.message_store import StoreState
from skylarkmq.store.results import PutMessageResult, PutMessageStatus
from tests.store.failing_rig import BODY, FailingRig, check_reads
from tests.store.support import LOG_SIZE, StoreRig
from tests.support.crash_disk import CrashDisk
from tests.support.crash_states import CrashState, Keep

STEPS = 40
KILL = CrashState(Keep.KILL)
CUT = CrashState(Keep.NONE, names=Keep.NONE)


def _changes(disk: CrashDisk) -> Counter[str]:
    """How often each operation that changes the disk was called."""
    return Counter(disk.calls)


def _check_at_rest(rig: FailingRig) -> None:
    """The store has failed: it refuses, changes nothing, and still reads."""
    assert rig.store.state is StoreState.FAILED
    before = _changes(rig.files)
    result = rig.put("orders", 0, b"late")
    assert result is not None
    assert result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert "restart" in result.why
    for _ in range(3):
        rig.clock.advance(61)
        rig.workers.run_all()
    assert _changes(rig.files) == before, "something was written after the failure"
    assert rig.store.writer.waiting == 0
    check_reads(rig, rig.acked)


def _check_after(rig: FailingRig, durable: dict[bytes, PutMessageResult]) -> None:
    """The process ends; what it had promised is there at the next start."""
    rig.store.stop_writing()
    for worker in rig.workers.all():
        worker.stop()
        while worker.deliver():
            pass
    rig.files.faults.clear()
    rig.store.close()
    assert rig.files.exists(rig.store.paths.abort)
    for state, kept in ((KILL, rig.acked), (CUT, durable)):
        after = StoreRig(
            rig.files.crash(state, Random(1)),
            flush_disk_type=rig.store.config.flush_disk_type,
            mapped_file_size_consume_queue=400,
        ).start()
        check_reads(after, kept)


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize(
    ("op", "path", "short"),
    [
        ("datasync", "commitlog", None),
        ("datasync", "consumequeue", None),
        ("datasync", "checkpoint", None),
        ("pwrite", "commitlog", None),
        ("pwrite", "commitlog", 5),
        ("pwrite", "consumequeue", None),
        ("pwrite", "checkpoint", 3),
        ("allocate", "commitlog", None),
        ("allocate", "consumequeue", None),
        ("create", "commitlog", None),
        ("create", "consumequeue", None),
        ("open", "consumequeue", None),
        ("truncate", "consumequeue", None),
        ("sync_folder", "commitlog", None),
        ("sync_folder", "consumequeue", None),
    ],
)
def test_the_nth_call_fails(op: str, path: str, short: int | None, flush: str) -> None:
    seen = 0
    for number in range(1, STEPS + 1):
        rig = FailingRig(CrashDisk(), flush)
        rig.start()
        rig.files.fail(op, at=number, path=path, short=short, error=errno.EIO)
        rig.use()
        if not rig.files.faults.raised:
            break  # there were fewer calls than that
        seen += 1
        if rig.store.failure is None:
            # The file was being made ahead of need: its absence shows at the next roll.
            assert path == "commitlog"
            assert op != "pwrite"
            continue
        _check_at_rest(rig)
        _check_after(rig, rig.acked if flush == "SYNC_FLUSH" else {})
    assert seen, "the operation was never called"


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize(
    "op", ["create", "pwrite", "datasync", "allocate", "rename", "sync_folder"]
)
def test_the_nth_call_of_a_start_fails(op: str, used: bool) -> None:
    acked: dict[bytes, PutMessageResult] = {}
    image = CrashDisk()
    if used:
        before = FailingRig(image, "SYNC_FLUSH")
        before.start()
        before.use()
        acked = before.acked
    seen = 0
    for number in range(1, STEPS + 1):
        disk = image.crash(KILL, Random(1))
        disk.fail(op, at=number, error=errno.EIO)
        try:
            FailingRig(disk, "SYNC_FLUSH").start()
        except OSError:
            seen += 1
        if not disk.faults.raised:
            break
        again = FailingRig(disk.crash(KILL, Random(1)), "SYNC_FLUSH")
        again.start()
        check_reads(again, acked)
    assert seen or (used and op in ("rename", "create", "sync_folder", "allocate"))


def test_a_late_sync_changes_nothing_after_a_failed_write() -> None:
    rig = FailingRig(CrashDisk(), "SYNC_FLUSH")
    rig.start()
    rig.send(0)
    assert rig.workers.flush.run_job()  # synced, but the loop does not know yet
    rig.files.fail("pwrite", path="commitlog")
    rig.send(1)
    assert rig.store.failure is not None
    assert rig.refused == 2
    rig.known = True
    rig.workers.run_all()
    assert not rig.acked


def test_a_wanted_checkpoint_is_dropped_when_the_disk_fails() -> None:
    rig = FailingRig(CrashDisk(), "SYNC_FLUSH")
    rig.start()
    rig.send(0)
    rig.workers.run_all()
    rig.clock.advance(1)  # a write of the queues is under way
    rig.send(1)
    rig.clock.advance(60)  # and a checkpoint is wanted behind it
    before = rig.files.calls["datasync"]
    rig.files.fail("datasync", path="commitlog")
    rig.workers.flush.run_all()
    assert rig.store.failure is not None
    marks = rig.files.read_all(rig.store.paths.checkpoint)
    rig.workers.run_all()
    assert rig.files.calls["datasync"] == before + 1
    assert rig.files.read_all(rig.store.paths.checkpoint) == marks


def test_a_file_made_ahead_that_failed_ends_writing_at_the_roll() -> None:
    rig = StoreRig().start()
    rig.files.fail("datasync", path=f"{LOG_SIZE:020d}")
    rig.workers.prepare.run_all()
    statuses = [rig.put("orders", 0, BODY) for _ in range(40)]
    assert statuses[0] is not None
    assert statuses[0].status is PutMessageStatus.PUT_OK
    assert statuses[-1] is not None
    assert statuses[-1].status is PutMessageStatus.SERVICE_NOT_AVAILABLE
    assert rig.store.state is StoreState.FAILED


def test_a_failed_store_lets_go_though_the_disk_refuses_to_delete() -> None:
    rig = FailingRig(CrashDisk(), "ASYNC_FLUSH")
    rig.start()
    rig.workers.prepare.run_all()
    rig.files.fail("pwrite", path="commitlog")
    rig.send(0)
    rig.files.fail("unlink", times=9)
    rig.stop()
    assert rig.files.exists(rig.store.paths.abort)
    rig.files.faults.clear()
    FailingRig(rig.files, "ASYNC_FLUSH").start()  # the lock is free


def test_a_clean_stop_that_cannot_sync_is_not_clean() -> None:
    rig = FailingRig(CrashDisk(), "ASYNC_FLUSH")
    rig.start()
    rig.send(0)
    rig.store.stop_writing()
    rig.files.fail("datasync", path="commitlog")
    rig.store.close()
    assert rig.files.exists(rig.store.paths.abort)
    assert rig.store.state is StoreState.FAILED
