"""What a start finds out about transactions: after a clean stop, and on a Java broker's store."""

from __future__ import annotations

import json

import pytest

from skylarkmq.broker.transaction import ledger as ledger_module
from skylarkmq.broker.transaction.half_reader import PAGE_COUNT
from skylarkmq.broker.transaction.messages import HALF_TOPIC, OP_TOPIC, op_of
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.store.read.message_reader import MessageReader
from tests.broker.transaction_rig import ROLLBACK, Half, TransactionRig
from tests.store.support import HOST
from tests.support.manual_clock import settle


def op(rig: TransactionRig, body: bytes) -> None:
    """Store an op message as another broker would."""
    inner = op_of(0, HOST, rig.clock.now_ms())
    inner.body = body
    rig.store.put_message(inner, rig.results.append)


async def test_a_clean_stop_leaves_the_offsets_that_another_broker_needs() -> None:
    rig = await TransactionRig().go()
    halves = [rig.half(b"%d" % number) for number in range(4)]
    for half in (halves[0], halves[2]):
        await rig.end(half)
    await rig.stop_all()
    assert rig.file() == {
        f"{HALF_TOPIC}@CID_RMQ_SYS_TRANS": {"0": 1},
        f"{OP_TOPIC}@CID_RMQ_SYS_TRANS": {"0": 0},
    }
    again = await TransactionRig(rig.files).go()
    assert again.ledger.pending_count == 2
    for half in halves:
        await again.end(half, ROLLBACK)
    assert again.bodies() == [b"0", b"2"]
    await again.stop_all()
    assert again.file() == {
        f"{HALF_TOPIC}@CID_RMQ_SYS_TRANS": {"0": 4},
        f"{OP_TOPIC}@CID_RMQ_SYS_TRANS": {"0": 4},
    }
    text = again.files.read_all(again.store.paths.config / "topics.json")
    assert HALF_TOPIC in json.loads(text)["topicConfigTable"]
    assert OP_TOPIC not in json.loads(text)["topicConfigTable"]


@pytest.mark.usefixtures("age_of_records")
async def test_op_messages_are_read_page_by_page() -> None:
    rig = await TransactionRig().go()
    count = 3 * PAGE_COUNT
    halves = [rig.half(b"%d" % number) for number in range(count)]
    for half in halves[:0:-1]:
        await rig.end(half)
    await rig.stop_all()
    again = await TransactionRig(rig.files).go()
    assert again.ledger.pending_count == 1
    assert again.ledger.table.start == 0
    await again.end(halves[0])
    await again.advance(6)
    assert again.saved == (count, count)


async def test_half_messages_of_a_java_broker() -> None:
    """Its consumer offsets, several ends in one op message as 5.x writes, a missing place."""
    rig = await TransactionRig().go()
    halves = [rig.half(b"%d" % number) for number in range(8)]
    for body in (b"0", b"2,3", b"99", b"junk", b"5"):
        op(rig, body)
    rig.offsets.keep("", "CID_RMQ_SYS_TRANS", HALF_TOPIC, 0, 1)
    rig.offsets.keep("", "CID_RMQ_SYS_TRANS", OP_TOPIC, 0, 1)
    rig.workers.run_all()
    rig.ledger.start()
    await rig.work()
    assert rig.ledger.pending_count == 4  # 1, 4, 6, 7
    for number in (0, 2, 3, 5):
        assert (await rig.end(halves[number])).code == ResponseCode.SYSTEM_ERROR
    for number in (7, 1, 4, 6):
        assert (await rig.end(halves[number])).code == ResponseCode.SUCCESS
    assert rig.bodies() == [b"7", b"1", b"4", b"6"]
    assert rig.ledger.pending_count == 0


@pytest.mark.parametrize(("half_at", "op_at"), [(-1, -1), (50, 70)])
async def test_offsets_outside_of_the_queues_are_taken_to_their_bounds(
    half_at: int, op_at: int
) -> None:
    rig = await TransactionRig().go()
    rig.half()
    rig.half()
    await rig.end(rig.half())
    if half_at >= 0:
        rig.offsets.keep("", "CID_RMQ_SYS_TRANS", HALF_TOPIC, 0, half_at)
        rig.offsets.keep("", "CID_RMQ_SYS_TRANS", OP_TOPIC, 0, op_at)
    rig.ledger.start()
    await rig.work()
    assert rig.ledger.table.start == min(max(half_at, 0), 3)
    assert rig.ledger.pending_count == (2 if half_at < 0 else 0)


async def test_places_of_renewed_messages_are_known_after_a_restart() -> None:
    rig = await TransactionRig(transaction_check_interval=10_000).go()
    producer = rig.producer()
    half = rig.half()
    await rig.advance(20.5)
    former, now = (place for place, _ in producer.questions())
    await rig.stop_all()
    again = await TransactionRig(rig.files).go()
    assert again.ledger.pending_count == 1
    assert (await again.end(former)).code == ResponseCode.SUCCESS
    for place in (half, former, now):
        assert (await again.end(place)).code == ResponseCode.SYSTEM_ERROR
    assert again.bodies() == [b"body"]


async def test_one_that_was_renewed_without_its_op_message_is_open_once() -> None:
    """A crash came between the two records."""
    rig = await TransactionRig().go()
    half = rig.half()
    (stored,) = rig.halves()
    text = "\x02".join(f"{name}\x01{value}" for name, value in stored.properties.items())
    for number in (1, 2):
        more = f"\x02TRANSACTION_CHECK_TIMES\x01{number}\x02TRAN_PREPARED_QUEUE_OFFSET\x010"
        rig.put(HALF_TOPIC, 0, properties=(text + more).encode())
    rig.ledger.start()
    await rig.work()
    assert rig.ledger.pending_count == 1
    assert (await rig.end(half)).code == ResponseCode.SUCCESS
    assert (rig.bodies(), rig.ops()) == ([b"body"], [b"0", b"1", b"2"])
    assert rig.ledger.pending_count == 0


async def test_a_place_that_a_crash_left_open_stays_left_at_later_starts() -> None:
    """Though the message that names it has ended then, and an older transaction is still open."""
    rig = await TransactionRig().go()
    rig.half(b"older")
    rig.half(b"body")
    stored = rig.halves()[1]
    text = "\x02".join(f"{name}\x01{value}" for name, value in stored.properties.items())
    more = "\x02TRANSACTION_CHECK_TIMES\x011\x02TRAN_PREPARED_QUEUE_OFFSET\x011"
    rig.put(HALF_TOPIC, 0, body=b"body", properties=(text + more).encode())
    placed = Half(2, rig.store.queue_units(HALF_TOPIC, 0, 2, 1)[0].commit_offset)
    await rig.stop_all()
    again = await TransactionRig(rig.files).go()
    assert (await again.end(placed)).code == ResponseCode.SUCCESS
    await again.stop_all()
    third = await TransactionRig(rig.files).go()
    assert third.ledger.pending_count == 1
    assert third.bodies() == [b"body"]


async def test_verdicts_wait_until_it_is_known_what_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MessageReader, "is_in_memory", lambda *_: False)
    rig = await TransactionRig().go()
    half, ended = rig.half(), rig.half()
    await rig.end(ended)
    await rig.stop_all()
    again = TransactionRig(rig.files)
    again.start()
    again.ledger.start()
    tasks = [again.begin_end(half), again.begin_end(ended)]
    await settle()
    assert not any(task.done() for task in tasks)
    await again.work()
    assert [task.result().code for task in tasks] == [
        ResponseCode.SUCCESS,
        ResponseCode.SYSTEM_ERROR,
    ]


async def test_a_disk_that_can_not_be_read_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = await TransactionRig().go()
    half, ended = rig.half(), rig.half()
    await rig.end(ended)
    await rig.stop_all()
    again = TransactionRig(rig.files)
    units = again.store.queue_units

    def fails(*_: object) -> list[object]:
        raise OSError("bad sector")

    monkeypatch.setattr(again.store, "queue_units", fails)
    await again.go()
    assert not again.ledger.is_ready
    monkeypatch.setattr(again.store, "queue_units", units)
    await again.advance(ledger_module.LOAD_RETRY_S)
    assert again.ledger.pending_count == 1
    assert (await again.end(ended)).code == ResponseCode.SYSTEM_ERROR
    assert (await again.end(half)).code == ResponseCode.SUCCESS


async def test_what_was_removed_with_its_log_file_is_passed_by() -> None:
    rig = await TransactionRig(transaction_check_interval=10_000).go()
    producer = rig.producer()
    lost = [rig.half(bytes(2000)) for _ in range(3)]
    queue = rig.store.queues.get(HALF_TOPIC, 0)
    assert queue is not None
    queue.min_offset = 2
    await rig.advance(10.5)
    ((place, _),) = producer.questions()
    assert (rig.ledger.table.start, rig.ledger.pending_count) == (3, 1)
    assert (await rig.end(lost[1])).code == ResponseCode.SYSTEM_ERROR
    assert (await rig.end(lost[2])).code == ResponseCode.SUCCESS
    assert (await rig.end(Half(*place))).code == ResponseCode.SYSTEM_ERROR
