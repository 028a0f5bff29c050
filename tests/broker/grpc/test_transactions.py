"""Transactions of clients of RocketMQ 5: sent, ended, asked about."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.record import decode_message
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from tests.broker.grpc.sending_rig import (
    ID,
    TOPIC,
    TRANSACTION_ID,
    SendingRig,
    half,
    message,
    sending_rig,
)
from tests.broker.transaction_rig import Producer
from tests.support.crash_disk import CrashDisk
from tests.support.manual_clock import settle

OK = (Code.OK, "OK")
QUICK: dict[str, Any] = {"transaction_check_interval": 2000, "transaction_time_out": 1000}


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def flush(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[True, False], ids=["index", "no index"])
def index(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def rig_with_topic(files: CrashDisk | None = None, **config: Any) -> SendingRig:
    rig = await sending_rig(files, **QUICK | config)
    if TOPIC not in rig.topics.table:
        rig.add_topic()
    return rig


def bodies(rig: SendingRig) -> list[bytes]:
    return sorted(found.body for found in rig.all_seen())


async def test_half_a_message_is_seen_when_it_is_committed(flush: str) -> None:
    rig = await rig_with_topic(flush_disk_type=flush)
    entry = await rig.send_one(half(b"paid", tag="red", message_group="g"))
    assert (entry.message_id, entry.transaction_id, entry.recall_handle) == (
        ID,
        TRANSACTION_ID,
        "",
    )
    assert bodies(rig) == []
    assert rig.counts.topic_in(TOPIC, "transaction").count == 1
    code, _ = await rig.end_key(f"{ID}@another")
    assert code == Code.INVALID_TRANSACTION_ID
    assert await rig.end_key(entry.transaction_id) == OK
    (seen,) = rig.all_seen()
    assert (seen.body, seen.sys_flag, seen.properties["UNIQ_KEY"]) == (b"paid", 8, ID)
    assert seen.properties["PGROUP"] == TOPIC and seen.tags == "red"
    assert rig.counts.transactions_of(TOPIC).committed == 1


async def test_what_is_rolled_back_is_never_seen(flush: str) -> None:
    rig = await rig_with_topic(flush_disk_type=flush)
    await rig.send_one(half())
    assert await rig.end_key(commits=False) == OK
    assert (bodies(rig), rig.ledger.pending_count) == ([], 0)
    assert (await rig.end_key())[0] == Code.INVALID_TRANSACTION_ID


async def test_an_end_is_answered_when_it_is_durable() -> None:
    rig = await rig_with_topic(flush_disk_type="SYNC_FLUSH")
    await rig.send_one(half())
    request = schema_pb2.EndTransactionRequest(
        topic={"name": TOPIC}, transaction_id=ID, resolution=schema_pb2.COMMIT
    )
    task = rig.begin("EndTransaction", request)
    await settle(20)
    assert not task.done() and bodies(rig) == []
    await rig.work()
    assert task.result().status.code == Code.OK and bodies(rig) == [b"body"]


async def test_a_verdict_counts_minutes_checks_and_a_start_later(
    flush: str, *, index: bool
) -> None:
    rig = await rig_with_topic(flush_disk_type=flush, message_index_enable=index)
    producer = rig.producer(group=TOPIC)
    await rig.send_one(half(b"1", "id-1"))
    await rig.send_one(half(b"2", "id-2"))
    await rig.send_one(half(b"3", "id-3"))
    await rig.advance(11)
    assert len(producer.questions()) == 15
    assert await rig.end_key("id-1") == OK
    await rig.stop_all()
    again = await rig_with_topic(rig.files, flush_disk_type=flush, message_index_enable=index)
    again.producer(group=TOPIC)
    await again.advance(3)
    assert await again.end_key("id-2") == OK
    assert await again.end_key("id-3", commits=False) == OK
    assert (bodies(again), again.ledger.pending_count) == ([b"1", b"2"], 0)


@pytest.mark.parametrize("commits", [True, False])
async def test_a_verdict_may_be_repeated_and_not_changed(*, commits: bool) -> None:
    rig = await rig_with_topic()
    await rig.send_one(half())
    for _ in range(3):
        assert await rig.end_key(commits=commits) == OK
    code, why = await rig.end_key(commits=not commits)
    assert code == Code.INVALID_TRANSACTION_ID and "already" in why
    assert bodies(rig) == [b"body"] * commits


async def test_without_a_verdict_nothing_happens() -> None:
    rig = await rig_with_topic()
    await rig.send_one(half())
    for resolution in (0, 7):
        assert await rig.end_key(resolution=resolution) == OK
    assert (bodies(rig), rig.ledger.pending_count) == ([], 1)


@pytest.mark.parametrize("message_id", ["", "  ", "x" * 1025, "nobody's", "a\0b", "日本"])
async def test_an_id_that_is_none_is_refused(message_id: str) -> None:
    rig = await rig_with_topic()
    await rig.send_one(half())
    assert (await rig.end_key(message_id))[0] == Code.INVALID_TRANSACTION_ID
    assert rig.ledger.pending_count == 1


async def test_a_transaction_is_found_by_its_own_topic_alone() -> None:
    rig = await rig_with_topic()
    rig.add_topic("others")
    await rig.send_one(half())
    assert (await rig.end_key(topic="others"))[0] == Code.INVALID_TRANSACTION_ID
    assert (await rig.end_key(topic="TBW102"))[0] == Code.ILLEGAL_TOPIC
    assert rig.ledger.pending_count == 1


async def test_an_ordinary_message_has_no_transaction_to_end() -> None:
    rig = await rig_with_topic()
    await rig.send_one(message())
    assert (await rig.end_key())[0] == Code.INVALID_TRANSACTION_ID


async def test_a_failed_disk_is_an_answer() -> None:
    rig = await rig_with_topic()
    await rig.send_one(half())
    rig.store.fail(OSError(5, "the disk is gone"))
    code, why = await rig.end_key()
    assert code == Code.INTERNAL_SERVER_ERROR and "the disk is gone" in why


async def test_a_broker_that_takes_no_transactions_says_so() -> None:
    rig = await rig_with_topic(reject_transaction_message=True)
    code, why = await rig.refused(half())
    assert code == Code.FORBIDDEN and "rejectTransactionMessage" in why
    await rig.send_one(message())


# Checks


def asked(producer: Producer) -> list[str]:
    """The ids of the transactions that a producer was asked about."""
    pushes, producer.pushes = producer.pushes, []
    assert all(push.code == RequestCode.CHECK_TRANSACTION_STATE for push in pushes)
    assert all(decode_message(push.body).topic == TOPIC for push in pushes)
    return [push.ext_fields["transactionId"] for push in pushes]


async def test_a_producer_of_the_topic_is_asked_and_its_answer_ends_it() -> None:
    rig = await rig_with_topic()
    others, producer = rig.producer("192.0.2.2:2", "others"), rig.producer(group=TOPIC)
    await rig.send_one(half())
    await rig.advance(4)
    assert (asked(producer), asked(others)) == ([ID, ID], [])
    assert await rig.end_key(source=schema_pb2.SOURCE_SERVER_CHECK) == OK
    await rig.advance(4)
    assert (asked(producer), bodies(rig)) == ([], [b"body"])


async def test_nobody_is_asked_before_the_time_that_the_message_names() -> None:
    rig = await rig_with_topic()
    producer = rig.producer(group=TOPIC)
    await rig.send_one(half(recovery_s=10))
    await rig.advance(9)
    assert asked(producer) == []
    await rig.advance(2)
    assert asked(producer) == [ID]
    assert await rig.end_key() == OK
    assert bodies(rig) == [b"body"]


async def test_after_a_crash_the_producer_is_asked_and_heard(flush: str) -> None:
    rig = await rig_with_topic(flush_disk_type=flush)
    await rig.send_one(half())
    again = await rig_with_topic(rig.files.snapshot(), flush_disk_type=flush)
    producer = again.producer(group=TOPIC)
    await again.advance(3)
    assert asked(producer) == [ID]
    assert await again.end_key() == OK
    assert bodies(again) == [b"body"]


async def test_many_verdicts_at_a_time_end_each_its_own() -> None:
    rig = await rig_with_topic(flush_disk_type="SYNC_FLUSH")
    await rig.send_all([half(b"%d" % number, f"id-{number}") for number in range(100)])
    codes = await asyncio.gather(
        *[rig.end_key(f"id-{number}", commits=number % 2 == 0) for number in range(100)]
    )
    assert codes == [OK] * 100
    assert bodies(rig) == sorted(b"%d" % number for number in range(0, 100, 2))
