"""Turns of the delay levels: bounded in messages and bytes, one batch of the store each."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from skylarkmq.broker.delay import schedule_service
from skylarkmq.broker.delay.schedule_service import UNITS_PER_TURN
from skylarkmq.store.message_writer import PutDone
from skylarkmq.store.results import MessageInner
from tests.broker.schedule_rig import SCHEDULE, Rig
from tests.support.workers import rest

pytestmark = pytest.mark.usefixtures("age_of_records")


async def test_a_turn_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many fall due at once, other callbacks of the loop get their chance in between."""
    rig = Rig(mapped_file_size_consume_queue=20_000).start()
    counts: list[int] = []
    for number in range(5 * UNITS_PER_TURN):
        rig.park(1 + number % 2)
    put_messages = rig.store.put_messages

    def counted(inners: Sequence[MessageInner], done: PutDone) -> None:
        counts.append(len(inners))
        put_messages(inners, done)

    monkeypatch.setattr(rig.store, "put_messages", counted)
    await rig.advance(6)
    assert sum(counts) == 5 * UNITS_PER_TURN
    assert max(counts) == UNITS_PER_TURN


async def test_a_turn_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig().start()
    for number in range(6):
        rig.park(1, bytes([number]) * 30_000)
    monkeypatch.setattr(schedule_service, "BYTES_PER_TURN", 70_000)
    appended = rig.store.stats.append_duration.count
    await rig.advance(1.5)
    assert [body[0] for body in rig.bodies()] == list(range(6))
    assert rig.store.stats.append_duration.count == appended + 3


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_messages_of_a_turn_are_one_batch_of_the_store(flush: str) -> None:
    """Under SYNC_FLUSH one sync frees them all."""
    rig = Rig(flush_disk_type=flush).start()
    for number in range(100):
        rig.park(1, b"%d" % number)
    await rest(rig.workers)
    appended = rig.store.stats.append_duration.count
    await rig.advance(1.5)
    assert rig.service.delivered_count == 100
    assert rig.store.stats.append_duration.count == appended + 1


async def test_a_level_wakes_at_the_due_time_itself() -> None:
    rig = Rig().start()
    rig.clock.advance(0.25)  # what looks now and then looks at other moments
    rig.park(2)
    rig.clock.advance(4.999)
    await rest(rig.workers)
    assert rig.bodies() == []
    rig.clock.advance(0.001)
    await rest(rig.workers)
    assert rig.bodies() == [b"body"]


async def test_an_offset_whose_messages_have_expired_goes_on_with_the_first_that_is_there() -> None:
    rig = Rig().start()
    for number in range(3):
        rig.park(1, b"%d" % number)
    queue = rig.store.queues.get(SCHEDULE, 0)
    assert queue is not None
    queue.min_offset = 1  # its log file has gone
    await rig.advance(1.5)
    assert rig.bodies() == [b"1", b"2"]
    assert rig.service.pending_count(1) == 0
