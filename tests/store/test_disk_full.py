"""A full disk: what cannot grow is refused, what can be read is read, and space heals it all."""

from __future__ import annotations

import errno
import json
import os
from random import Random

import pytest

from skylarkmq.common.table_file import TableWriter
from skylarkmq.store.message_store import StoreState
from skylarkmq.store.results import PutMessageResult, PutMessageStatus
from tests.store.support import LOG_SIZE, MESSAGE_MAX, StoreRig
from tests.support.crash_disk import CrashDisk
from tests.support.crash_states import CrashState, Keep

OK = PutMessageStatus.PUT_OK
REFUSED = PutMessageStatus.SERVICE_NOT_AVAILABLE
KILL = CrashState(Keep.KILL)


def _put(rig: StoreRig, queue_id: int = 0, body: bytes = b"body") -> PutMessageResult:
    result = rig.put("orders", queue_id, body)
    assert result is not None
    return result


def _readable(rig: StoreRig) -> int:
    """Messages that can be read in queue 0, every one of them."""
    offset = 0
    while offset < rig.store.max_offset("orders", 0):
        result = rig.store.get_message("orders", 0, offset, 32)
        assert result.count > 0
        offset = result.next_begin_offset
    return offset


def _check_recovers(rig: StoreRig) -> None:
    """What was acknowledged survives the process, wherever the space ran out."""
    stored = rig.store.max_offset("orders", 0)
    after = StoreRig(rig.files.crash(KILL, Random(1)))
    after.files.free = None
    after.start()
    assert _readable(after) == stored


def test_no_room_for_the_log() -> None:
    rig = StoreRig().start()
    rig.workers.run_all()
    rig.files.free = LOG_SIZE // 2  # of the next file but one half can be allocated
    body = bytes(MESSAGE_MAX)
    results = [_put(rig, body=body) for _ in range(12)]
    stored = sum(result.status is OK for result in results)
    assert 3 < stored < 9
    assert [result.status for result in results] == [OK] * stored + [REFUSED] * (12 - stored)
    assert "no room" in results[-1].why
    assert rig.files.free == LOG_SIZE // 2, "what was allocated of the file is given back"
    assert _readable(rig) == stored
    rig.clock.advance(30)
    rig.workers.run_all()
    assert _put(rig, body=body).status is REFUSED
    _check_recovers(rig)
    rig.files.free = 4 * LOG_SIZE
    rig.clock.advance(1.1)
    result = _put(rig, body=body)
    assert (result.status, result.queue_offset) == (OK, stored)
    assert rig.store.state is StoreState.RUNNING


def test_a_small_message_does_not_pass_a_refused_big_one() -> None:
    """Order: what does not fit is refused, and the log goes on only in the next file."""
    rig = StoreRig().start()
    rig.workers.run_all()
    rig.files.free = 0
    while _put(rig, body=bytes(MESSAGE_MAX)).status is OK:
        pass
    offset = rig.store.max_offset("orders", 0)
    result = _put(rig, body=b"small")  # may fit into what is left of the file
    assert result.status in (OK, REFUSED)
    assert rig.store.max_offset("orders", 0) == offset + (result.status is OK)
    _check_recovers(rig)


def test_no_room_for_the_queues() -> None:
    rig = StoreRig().start()
    rig.workers.run_all()
    assert _put(rig).status is OK
    rig.files.free = 0
    rig.clock.advance(1.1)
    rig.workers.run_all()
    refused = _put(rig)
    assert refused.status is REFUSED
    assert "full" in refused.why
    assert _readable(rig) == 1
    _check_recovers(rig)
    for _ in range(3):
        rig.clock.advance(1.1)
        rig.workers.run_all()
    assert _put(rig).status is REFUSED
    rig.files.free = None
    rig.clock.advance(1.1)
    rig.workers.run_all()
    result = _put(rig)
    assert (result.status, result.queue_offset) == (OK, 1)
    _check_recovers(rig)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_for_a_queue_file_to_be_made(code: int) -> None:
    rig = StoreRig().start()
    rig.workers.run_all()
    assert _put(rig).status is OK
    rig.files.fail("create", path="consumequeue", error=code)
    rig.clock.advance(1.1)
    rig.workers.run_all()
    assert _put(rig).status is REFUSED
    rig.clock.advance(1.1)
    rig.workers.run_all()
    assert _put(rig).status is OK


def test_no_room_to_size_a_queue_file() -> None:
    rig = StoreRig().start()
    rig.workers.run_all()
    assert _put(rig).status is OK
    rig.files.fail("truncate", path="consumequeue", error=errno.ENOSPC)
    rig.clock.advance(1.1)
    rig.workers.run_all()
    assert _put(rig).status is REFUSED
    rig.clock.advance(1.1)
    rig.workers.run_all()
    assert _put(rig).status is OK
    rig.clock.advance(1.1)
    rig.stop()
    again = StoreRig(rig.files).start()
    assert _readable(again) == 2


def test_no_room_for_the_checkpoint() -> None:
    rig = StoreRig().start()
    rig.workers.run_all()
    assert _put(rig).status is OK
    before = rig.files.read_all(rig.store.paths.checkpoint)
    rig.files.fail("pwrite", path="checkpoint", error=errno.ENOSPC)
    rig.clock.advance(61)
    rig.workers.run_all()
    assert rig.files.read_all(rig.store.paths.checkpoint) == before
    assert rig.store.state is StoreState.RUNNING
    assert _readable(rig) == 1
    rig.clock.advance(61)
    rig.workers.run_all()
    assert rig.files.read_all(rig.store.paths.checkpoint) != before
    assert _put(rig).status is OK


@pytest.mark.parametrize("error", [errno.ENOMEM, errno.EMFILE])
def test_no_mapping_of_the_last_file_of_an_earlier_run(error: int) -> None:
    road = {"commit_log_write_mode": "mapped"}
    before = StoreRig(**road).start()
    _put(before)
    rig = StoreRig(before.files.crash(KILL, Random(1)), **road)
    rig.store.load()
    rig.files.fail("map", path="commitlog", error=error)
    rig.store.start()
    refused = _put(rig)
    assert refused.status is REFUSED
    assert os.strerror(error) in refused.why
    rig.clock.advance(1.1)
    assert _put(rig).status is OK
    assert rig.store.state is StoreState.RUNNING
    assert _readable(rig) == 2


def test_the_lock_that_finds_no_descriptor_is_asked_again() -> None:
    rig = StoreRig().start()
    rig.files.unlink(rig.store.paths.lock)
    rig.files.fail("open", path=rig.store.paths.lock.name, error=errno.EMFILE)
    for _ in range(2):
        rig.clock.advance(1.1)
        rig.workers.run_all()
    assert rig.store.state is StoreState.RUNNING
    assert rig.files.exists(rig.store.paths.lock)


def test_no_room_for_a_table_leaves_the_old_one() -> None:
    rig = StoreRig().start()
    path = rig.store.paths.config / "topics.json"
    writer = TableWriter(rig.files, rig.workers.tables)
    errors: list[BaseException | None] = []
    writer.write(path, lambda: json.dumps(["a"]).encode(), errors.append)
    rig.workers.run_all()
    for op in ("create", "pwrite", "datasync", "link"):
        rig.files.fail(op, path="topics.json", error=errno.ENOSPC)
        writer.write(path, lambda: json.dumps(["a", "b"] * 900).encode(), errors.append)
        rig.workers.run_all()
        error = errors[-1]
        assert isinstance(error, OSError)
        assert error.errno == errno.ENOSPC
        assert json.loads(rig.files.read_all(path)) == ["a"]
        assert rig.store.state is StoreState.RUNNING
    writer.write(path, lambda: json.dumps(["a", "b"]).encode(), errors.append)
    rig.workers.run_all()
    assert errors[-1] is None
    assert json.loads(rig.files.read_all(path)) == ["a", "b"]
    assert json.loads(rig.files.read_all(path.with_name("topics.json.bak"))) == ["a"]


def test_a_start_on_a_full_disk_reads_and_takes_writes_once_there_is_space() -> None:
    first = StoreRig().start()
    for _ in range(5):
        assert _put(first).status is OK
    first.clock.advance(0.6)
    first.workers.flush.run_all()
    disk = first.files.crash(CrashState(Keep.NONE, names=Keep.NONE), Random(1))
    disk.free = 0  # the units, which were only in memory, cannot be written
    rig = StoreRig(disk).start()
    assert _readable(rig) == 5
    assert _put(rig).status is REFUSED
    disk.free = None
    for _ in range(3):
        rig.clock.advance(1.1)
        rig.workers.run_all()
    result = _put(rig)
    assert (result.status, result.queue_offset) == (OK, 5)
    rig.stop()
    assert _readable(StoreRig(disk).start()) == 6


def test_an_empty_store_on_a_full_disk_starts_and_waits() -> None:
    disk = CrashDisk()
    StoreRig(disk).start().stop()
    for name in disk.list(disk.root / "commitlog"):
        disk.unlink(disk.root / "commitlog" / name)
    disk.free = 0
    rig = StoreRig(disk).start()
    assert _put(rig).status is REFUSED
    disk.free = None
    rig.clock.advance(1.1)
    assert _put(rig).status is OK


def test_a_last_log_file_without_blocks_is_asked_for_once_a_second() -> None:
    first = StoreRig().start()
    _put(first)
    first.stop()
    rig = StoreRig(first.files)
    rig.files.free = None
    rig.files.fail("allocate", error=errno.ENOSPC, times=2, path="commitlog")  # Java leaves holes
    rig.start()
    before = rig.files.calls["allocate"]
    assert [_put(rig).status for _ in range(3)] == [REFUSED] * 3
    assert rig.files.calls["allocate"] == before, "each message would wait for the disk"
    assert "no room" in rig.store.commit_log.no_room, "for the health check"
    rig.clock.advance(1.1)
    assert _put(rig).status is REFUSED
    rig.clock.advance(1.1)
    assert _put(rig).queue_offset == 1
    assert not rig.store.commit_log.no_room
