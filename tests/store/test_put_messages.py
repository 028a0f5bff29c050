"""Several messages stored as one batch: one write, results in order, nothing behind a refusal."""

from __future__ import annotations

import errno

import pytest

from skylarkmq.store.results import PutMessageResult, PutMessageStatus
from tests.store.support import LOG_SIZE, StoreRig, inner

OK, REFUSED = PutMessageStatus.PUT_OK, PutMessageStatus.MESSAGE_ILLEGAL
UNAVAILABLE = PutMessageStatus.SERVICE_NOT_AVAILABLE


def _put(rig: StoreRig, *bodies: bytes) -> list[PutMessageResult]:
    results: list[PutMessageResult] = []
    rig.store.put_messages(
        [inner("T", n % 2, body) for n, body in enumerate(bodies)], results.extend
    )
    return results


def test_a_batch_is_one_write() -> None:
    rig = StoreRig().start()
    writes = rig.files.calls["pwrite"]
    results = _put(rig, b"a", b"b", b"c")
    assert rig.files.calls["pwrite"] == writes + 1
    assert [(result.status, result.queue_offset) for result in results] == [
        (OK, 0), (OK, 0), (OK, 1)
    ]  # fmt: skip
    assert results[0].physical_offset < results[1].physical_offset < results[2].physical_offset
    assert (rig.store.max_offset("T", 0), rig.store.max_offset("T", 1)) == (2, 1)


def test_an_empty_batch_writes_nothing() -> None:
    rig = StoreRig().start()
    writes = rig.files.calls["pwrite"]
    done: list[list[PutMessageResult]] = []
    rig.store.put_messages([], done.append)
    assert done == [[]]
    assert rig.files.calls["pwrite"] == writes


def test_what_follows_a_refused_message_is_not_stored() -> None:
    rig = StoreRig(max_message_size=1000).start()
    results = _put(rig, b"a", b"x" * 1001, b"c")
    assert [result.status for result in results] == [OK, REFUSED, REFUSED]
    assert (rig.store.max_offset("T", 0), rig.store.max_offset("T", 1)) == (1, 0)


def test_a_number_that_fits_no_field_takes_no_place() -> None:
    rig = StoreRig().start()
    results: list[PutMessageResult] = []
    wrong = inner("T", 0, b"wrong", born_timestamp=2**63)
    rig.store.put_messages([inner("T", 0, b"a"), wrong], results.extend)
    assert [result.status for result in results] == [OK, REFUSED]
    assert "does not fit its field" in results[1].why
    following = rig.put("T", 0, b"b")
    assert following is not None
    assert (following.status, following.queue_offset) == (OK, 1)


def test_without_another_log_file_the_first_ones_are_stored() -> None:
    rig = StoreRig().start()
    rig.workers.prepare.run_all()
    rig.files.fail("allocate", times=1000, error=errno.ENOSPC)
    results = _put(rig, *[b"x" * 30_000] * (3 * LOG_SIZE // 30_000))
    stored = sum(result.status is OK for result in results)
    assert 0 < stored < len(results)
    assert {result.status for result in results[stored:]} == {UNAVAILABLE}
    assert rig.store.max_offset("T", 0) + rig.store.max_offset("T", 1) == stored
    assert rig.store.failure is None


def test_a_batch_waits_for_the_sync_as_a_whole() -> None:
    rig = StoreRig(flush_disk_type="SYNC_FLUSH").start()
    results = _put(rig, b"a", b"b")
    assert results == []
    assert rig.store.max_offset("T", 0) == 0
    rig.workers.run_all()
    assert [result.status for result in results] == [OK, OK]
    assert rig.store.max_offset("T", 0) == 1


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_failing_disk_fails_the_whole_batch(flush: str) -> None:
    rig = StoreRig(flush_disk_type=flush).start()
    rig.files.fail("pwrite", path="commitlog")
    results = _put(rig, b"a", b"b")
    assert [result.status for result in results] == [UNAVAILABLE, UNAVAILABLE]
    assert rig.store.failure is not None


@pytest.mark.parametrize(
    ("waiting", "is_told"), [((True, True), False), ((True, False), False), ((False, False), True)]
)
def test_one_message_that_waits_for_the_sync_lets_the_whole_batch_wait(
    waiting: tuple[bool, bool], is_told: bool
) -> None:
    rig = StoreRig(flush_disk_type="SYNC_FLUSH").start()
    results: list[PutMessageResult] = []
    rig.store.put_messages([inner(wait_store_ok=each) for each in waiting], results.extend)
    assert bool(results) == is_told
    rig.workers.run_all()
    assert [result.status for result in results] == [OK, OK]
