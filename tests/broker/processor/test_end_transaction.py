"""The ends of transactions: what consumers see, what is refused, and that one end is enough."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from skylarkmq.common.refusal import refusal
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.tags_code import tags_code
from tests.broker.group_rig import ask, begin, request
from tests.broker.transaction_rig import (
    COMMIT,
    GROUP,
    QUEUE_ID,
    ROLLBACK,
    TOPIC,
    UNKNOWN,
    Half,
    TransactionRig,
)
from tests.store.support import BORN, HOST, confirm_alone
from tests.support.manual_clock import settle

ERROR = ResponseCode.SYSTEM_ERROR


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def flush(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.usefixtures("age_of_records")
async def test_a_commit_shows_the_message_and_notes_its_end(flush: str) -> None:
    rig = await TransactionRig(flush_disk_type=flush).go()
    half = rig.half(b"paid", b"TAGS\x01TagX\x02odd\x01\xff", flag=7, sys_flag=1, reconsume_times=2)
    assert rig.bodies() == []
    answer = await rig.end(half)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    (message,), (stored,) = rig.seen(), rig.halves()
    assert (message.body, message.flag, message.reconsume_times) == (b"paid", 7, 2)
    assert (message.sys_flag, message.prepared_transaction_offset) == (9, half.physical_offset)
    assert message.properties == stored.properties
    assert message.born_timestamp == stored.born_timestamp
    assert (message.born_host.pack(), message.store_host.pack()) == (BORN, HOST)
    (unit,) = rig.store.queue_units(TOPIC, QUEUE_ID, 0, 1)
    assert unit.tags_code == tags_code("TagX")
    assert rig.ops() == [b"0"]


@pytest.mark.usefixtures("age_of_records")
async def test_a_rollback_notes_the_end_and_shows_nothing(flush: str) -> None:
    rig = await TransactionRig(flush_disk_type=flush).go()
    rig.half(b"other")
    assert (await rig.end(rig.half(), ROLLBACK)).code == ResponseCode.SUCCESS
    assert (rig.bodies(), rig.ops()) == ([], [b"1"])
    assert rig.ledger.pending_count == 1
    assert (rig.ledger.stats.committed, rig.ledger.stats.rolled_back) == (0, 1)


async def test_an_op_message_is_that_of_rocketmq() -> None:
    rig = await TransactionRig().go()
    await rig.end(rig.half(), ROLLBACK)
    (op,) = rig.seen("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0)
    assert op.properties == {"WAIT": "true", "TAGS": "d"}
    assert (op.sys_flag, op.store_size, op.born_host.pack()) == (0, 135, HOST)
    assert "RMQ_SYS_TRANS_OP_HALF_TOPIC" not in rig.topics.table
    assert rig.topics.table["RMQ_SYS_TRANS_HALF_TOPIC"].read_queue_nums == 1


@pytest.mark.parametrize("verdict", [UNKNOWN, 4, 99])
async def test_no_verdict_is_no_answer(verdict: int) -> None:
    rig = await TransactionRig().go()
    half = rig.half()
    assert begin(rig.processor, rig.connection, rig.ending(half, verdict)) is None
    assert rig.ledger.pending_count == 1


@pytest.mark.parametrize(
    ("half", "changes", "why"),
    [
        (Half(0, 0), {"producerGroup": "others"}, "The producer group wrong"),
        (Half(0, 0), {"producerGroup": "a/b"}, "illegal characters"),
        (Half(9, 0), {}, "The transaction state table offset wrong"),
        (Half(-1, 0), {}, "The transaction state table offset wrong"),
        (Half(1 << 62, 0), {}, "The transaction state table offset wrong"),
        (Half(1, 0), {}, "The commit log offset wrong"),
        (Half(0, 1), {}, "The commit log offset wrong"),
        (Half(0, 1 << 62), {}, "The commit log offset wrong"),
        (Half(0, 0), {"commitLogOffset": "x"}, "commitLogOffset"),
    ],
)
async def test_a_verdict_names_both_offsets_and_the_group(
    half: Half, changes: dict[str, Any], why: str
) -> None:
    rig = await TransactionRig().go()
    rig.half()
    rig.half()
    answer = await rig.end(half, **changes)
    assert (answer.code, rig.bodies(), rig.ops()) == (ERROR, [], [])
    assert why in (answer.remark or "")
    assert rig.ledger.pending_count == 2


async def test_without_any_half_message_a_verdict_allocates_nothing() -> None:
    rig = await TransactionRig().go()
    assert (await rig.end(Half(0, 0))).code == ERROR
    assert not rig.store.queues.queues
    assert not rig.topics.table.keys() & {"RMQ_SYS_TRANS_HALF_TOPIC"}


async def test_a_place_that_is_no_half_message_is_none() -> None:
    """Who knows the offset of somebody's message can not publish it elsewhere."""
    rig = await TransactionRig().go()
    text = b"PGROUP\x01" + GROUP.encode() + b"\x02REAL_TOPIC\x01stolen\x02REAL_QID\x010"
    placed = rig.put("secret", 0, properties=text)
    rig.half()
    assert placed is not None
    answer = await rig.end(Half(0, placed.physical_offset))
    assert (answer.code, rig.seen("stolen", 0)) == (ERROR, [])


@pytest.mark.parametrize("second", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
async def test_only_the_first_verdict_counts(first: int, second: int, flush: str) -> None:
    rig = await TransactionRig(flush_disk_type=flush).go()
    half = rig.half()
    tasks = [rig.begin_end(half, verdict) for verdict in (first, second)]
    await rig.work()
    late = await rig.end(half, second)
    assert [task.result().code for task in tasks] == [ResponseCode.SUCCESS, ERROR]
    assert late.code == ERROR and "ended already" in (late.remark or "")
    assert rig.bodies() == [b"body"] * (first == COMMIT)
    assert rig.ops() == [b"0"]


async def test_the_answer_waits_for_the_disk_under_sync_flush() -> None:
    rig = await TransactionRig(flush_disk_type="SYNC_FLUSH").go()
    task = rig.begin_end(rig.half())
    await settle()
    assert not task.done() and rig.bodies() == []
    await rig.work()
    assert task.result().code == ResponseCode.SUCCESS
    assert rig.bodies() == [b"body"]


@pytest.mark.parametrize("verdict", [COMMIT, ROLLBACK])
async def test_behind_a_gate_an_end_that_is_not_confirmed_is_no_success(verdict: int) -> None:
    rig = TransactionRig()
    rig.store.gate()
    await rig.go()
    end = confirm_alone(rig.store)
    half = rig.half()
    end()
    task = rig.begin_end(half, verdict)
    await rig.work()
    assert not task.done() and rig.bodies() == []
    rig.clock.advance(3)
    await rig.work()
    assert task.result().code == ResponseCode.SERVICE_NOT_AVAILABLE
    again = await rig.end(half, verdict)
    assert again.code == ERROR and "ended already" in (again.remark or "")
    assert rig.bodies() == []


async def test_a_half_message_that_is_not_visible_yet_is_waited_for() -> None:
    """WAIT=false is acknowledged before the flush; its end may come before, too."""
    rig = await TransactionRig(flush_disk_type="SYNC_FLUSH").go()
    half = rig.half(wait_store_ok=False)
    task = rig.begin_end(half)
    await settle()
    assert not task.done()
    await rig.work()
    assert task.result().code == ResponseCode.SUCCESS
    assert rig.bodies() == [b"body"]


async def test_ends_are_refused_while_the_store_is_and_taken_afterwards() -> None:
    rig = await TransactionRig().go()
    half = rig.half()
    rig.store.queues.flusher.refused = refusal(OSError(errno.ENOSPC, "full"))
    answer = await rig.end(half)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "the disk is full" in (answer.remark or "")
    rig.store.queues.flusher.refused = None
    assert (await rig.end(half)).code == ResponseCode.SUCCESS
    assert rig.bodies() == [b"body"]


async def test_a_failed_sync_is_no_end() -> None:
    rig = await TransactionRig(flush_disk_type="SYNC_FLUSH").go()
    half, hidden = rig.half(), rig.half(wait_store_ok=False)
    tasks = [rig.begin_end(half), rig.begin_end(hidden)]
    await settle()
    rig.store.fail(OSError("gone"))
    await rig.work()
    assert tasks[0].result().code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert tasks[1].result().code != ResponseCode.SUCCESS
    assert rig.bodies() == []


async def test_with_the_last_end_the_offsets_move_to_the_end(flush: str) -> None:
    rig = await TransactionRig(flush_disk_type=flush).go()
    halves = [rig.half() for _ in range(3)]
    for half in (halves[1], halves[2]):
        await rig.end(half)
    await rig.advance(6)
    assert rig.saved == (0, 0)
    await rig.end(halves[0])
    await rig.advance(6)
    assert rig.saved == (3, 3)


async def test_offsets_wait_for_the_disk() -> None:
    """Else a power cut takes an end whose half message nobody would ask about again."""
    rig = await TransactionRig().go()
    await rig.end(rig.half())
    for _ in range(100):
        rig.clock.advance(0.1)
        await settle(4)
        rig.workers.tables.run_all()  # tables are written, the log is not synced
    assert rig.saved == (1, 1)
    assert rig.file() == {}
    await rig.advance(2)
    assert [list(row.values()) for row in rig.file().values()] == [[1], [1]]


# 323


async def test_an_open_half_message_can_be_resumed_and_ended_at_its_old_place() -> None:
    rig = await TransactionRig().go()
    half = rig.half()
    assert (await rig.resume(half.physical_offset)).code == ResponseCode.SUCCESS
    assert (rig.ledger.pending_count, rig.ops()) == (1, [b"0"])
    assert (await rig.end(half)).code == ResponseCode.SUCCESS
    assert (rig.bodies(), rig.ops()) == ([b"body"], [b"0", b"1"])
    assert (await rig.resume(half.physical_offset)).code == ERROR


async def test_what_is_no_half_message_is_not_resumed() -> None:
    rig = await TransactionRig().go()
    plain = rig.put()
    assert plain is not None
    for text in ("", "x", "00" * 15):
        command = request(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": text})
        answer = await ask(rig, rig.processor, rig.connection, command)
        assert answer.code == ERROR and answer.remark
    for physical_offset in (plain.physical_offset, 3, 1 << 40):
        assert (await rig.resume(physical_offset)).code == ERROR
    assert not rig.store.queues.get("RMQ_SYS_TRANS_HALF_TOPIC", 0)
