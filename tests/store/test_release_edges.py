"""Waiters that store messages, fail the store or raise when they are told."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from skylarkmq.store.errors import StoreFullError
from skylarkmq.store.release_queue import Point
from skylarkmq.store.results import PutMessageResult, PutMessageStatus
from tests.store.support import LOG_SIZE, StoreRig, inner
from tests.store.test_release_queue import Rig as QueueRig
from tests.store.test_slow_disk import Rig


def test_a_waiter_that_raises_harms_only_itself() -> None:
    rig = QueueRig()
    told: list[PutMessageStatus] = []

    def fails(_: PutMessageStatus) -> None:
        raise RuntimeError("a fault of who waits")

    rig.queue.wait(Point.STORED, 100, fails, 1)
    rig.queue.wait(Point.STORED, 100, told.append, 1)
    rig.synced(100)
    assert told == [PutMessageStatus.PUT_OK]


def test_published_offset_does_not_go_back() -> None:
    rig = Rig()
    writer = rig.store.writer
    told: list[tuple[str, str]] = []

    def stores_another(_: PutMessageResult) -> None:
        writer.answer_known(lambda status: told.append(("copy of A", status.name)))
        rig.store.put_message(inner(body=b"B"), lambda r: told.append(("B", r.status.name)))

    rig.meet_slow_disk()
    rig.store.put_message(inner(body=b"A"), stores_another)
    rig.workers.commit.step()
    assert told == [("copy of A", "PUT_OK"), ("B", "PUT_OK")]
    assert writer.published_offset == rig.store.commit_log.wrote_offset


def test_what_waits_in_a_buffer_when_the_store_fails_is_refused() -> None:
    rig = Rig(transient_store_pool_enable=True, transient_store_pool_size=2)
    told: list[tuple[str, str]] = []

    def put(name: str, then: Callable[[], None] = lambda: None) -> None:
        def done(result: PutMessageResult) -> None:
            told.append((name, result.status.name))
            then()

        rig.store.put_message(inner(body=name.encode()), done)

    def both() -> None:
        put("x", lambda: rig.store.fail(OSError(errno.EIO, "the disk")))
        put("y")

    put("first", both)
    assert told == [("first", "PUT_OK"), ("x", "PUT_OK"), ("y", "SERVICE_NOT_AVAILABLE")]


@pytest.mark.parametrize("mode", ["pwrite", "mapped"])
def test_a_log_that_could_not_begin_elsewhere_is_still_empty(mode: str) -> None:
    rig = StoreRig(commit_log_write_mode=mode)
    rig.store.follows = True
    rig.store.load()
    rig.store.start()
    rig.files.fail("allocate", times=99, error=errno.ENOSPC)
    log = rig.store.commit_log
    with pytest.raises(StoreFullError):
        rig.store.take_records(3 * LOG_SIZE, b"x")
    assert (log.wrote_offset, log.max_offset, log.stored_offset) == (0, 0, 0)
