"""Verdicts by unique key: found at once, after checks, after starts, with and without an index."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from skylarkmq.broker.transaction import half_keys, ledger, verdicts
from skylarkmq.broker.transaction.half_keys import HalfKeys
from skylarkmq.broker.transaction.verdicts import UnknownTransactionError
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.store.results import PutMessageResult
from tests.broker.transaction_rig import TOPIC, Half, TransactionRig
from tests.support.crash_disk import CrashDisk

KEY = "01ABC"
QUICK: dict[str, Any] = {"transaction_check_interval": 2000, "transaction_time_out": 1000}


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def flush(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["table", "index", "search"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """How a half message is found: by the table, by the index, or among all that are open."""
    if request.param != "table":
        monkeypatch.setattr(HalfKeys, "find", lambda *_: ())
        monkeypatch.setattr(HalfKeys, "is_whole", property(lambda _: False, lambda *_: None))
    yield str(request.param)


async def made(way: str = "table", files: CrashDisk | None = None, **config: Any) -> TransactionRig:
    config.setdefault("message_index_enable", way == "index")
    return await TransactionRig(files, **QUICK | config).go()


def half(rig: TransactionRig, body: bytes = b"body", key: str = KEY, topic: str = TOPIC) -> Half:
    """Store one as the gRPC protocol's sends do, and note it."""
    text = f"PGROUP\x01{topic}\x02UNIQ_KEY\x01{key}"
    stored = rig.half(body, text.encode())
    rig.ledger.keys.note(TOPIC, key, stored.queue_offset)
    return stored


async def end(
    rig: TransactionRig, *, commits: bool = True, key: str = KEY, topic: str = TOPIC
) -> PutMessageResult | None:
    task = asyncio.ensure_future(rig.verdicts.end_key(topic, key, commits=commits))
    await rig.work()
    return await task


async def test_a_commit_by_key_shows_the_message(way: str, flush: str) -> None:
    rig = await made(way, flush_disk_type=flush)
    half(rig, b"other", "other key")
    half(rig)
    assert await end(rig) is not None
    assert (rig.bodies(), rig.ops(), rig.ledger.pending_count) == ([b"body"], [b"1"], 1)


async def test_a_rollback_by_key_shows_nothing(way: str, flush: str) -> None:
    rig = await made(way, flush_disk_type=flush)
    half(rig)
    assert await end(rig, commits=False) is not None
    assert (rig.bodies(), rig.ops(), rig.ledger.pending_count) == ([], [b"0"], 0)


async def test_an_end_is_answered_when_it_is_durable() -> None:
    rig = await made(flush_disk_type="SYNC_FLUSH")
    half(rig)
    task = asyncio.ensure_future(rig.verdicts.end_key(TOPIC, KEY, commits=True))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()
    await rig.work()
    assert task.done()


async def test_the_key_counts_after_checks_have_moved_the_half_message(way: str) -> None:
    rig = await made(way)
    producer = rig.producer(group=TOPIC)
    half(rig)
    await rig.advance(5)
    assert len(producer.questions()) == 2 and len(rig.halves()) == 3
    assert await end(rig) is not None
    assert (rig.bodies(), rig.ledger.pending_count) == ([b"body"], 0)
    await rig.advance(5)
    assert producer.questions() == []


@pytest.mark.parametrize("clean", [True, False])
async def test_the_key_counts_after_a_start(way: str, *, clean: bool) -> None:
    rig = await made(way, flush_disk_type="SYNC_FLUSH")
    rig.producer(group=TOPIC)
    half(rig)
    await rig.advance(3)  # and after a check
    if clean:
        await rig.stop_all()
    files = rig.files if clean else rig.files.snapshot()
    again = await made(way, files)
    assert again.ledger.pending_count == 1
    assert await end(again) is not None
    assert (again.bodies(), again.ledger.pending_count) == ([b"body"], 0)


async def test_a_verdict_may_come_twice_but_not_be_another_one(flush: str) -> None:
    rig = await made(flush_disk_type=flush)
    half(rig)
    tasks = [
        asyncio.ensure_future(rig.verdicts.end_key(TOPIC, KEY, commits=commits))
        for commits in (True, True, False)
    ]
    await rig.work()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], PutMessageResult) and results[1] is None
    assert isinstance(results[2], UnknownTransactionError)
    assert "was committed already" in str(results[2])
    assert await end(rig) is None
    assert (rig.bodies(), rig.ops()) == ([b"body"], [b"0"])
    assert rig.ledger.stats.committed == 1


@pytest.mark.parametrize("commits", [True, False])
async def test_a_verdict_may_be_repeated_after_a_start(*, commits: bool) -> None:
    rig = await made("index")
    half(rig)
    await end(rig, commits=commits)
    await rig.stop_all()
    again = await made("index", rig.files)
    assert await end(again, commits=commits) is None
    with pytest.raises(UnknownTransactionError):
        await end(again, commits=not commits)
    assert again.bodies() == [b"body"] * commits


async def test_a_send_that_was_repeated_is_shown_once(way: str) -> None:
    """The producer tried again after an answer was lost; both half messages are there."""
    rig = await made(way)
    half(rig, b"first")
    half(rig, b"second")
    assert await end(rig) is not None
    assert (rig.bodies(), rig.ops(), rig.ledger.pending_count) == ([b"second"], [b"0", b"1"], 0)


async def test_a_late_verdict_counts_for_what_was_given_up() -> None:
    rig = await made(transaction_check_max=1)
    rig.producer(group=TOPIC)
    half(rig)
    await rig.advance(7)
    assert len(rig.given_up()) == 1
    assert await end(rig) is not None
    assert rig.bodies() == [b"body"]


async def test_a_key_of_another_topic_or_producer_is_unknown(way: str) -> None:
    rig = await made(way)
    half(rig)
    stored = rig.half(b"4.x", b"UNIQ_KEY\x01" + b"of 4.x")
    rig.ledger.keys.note(TOPIC, "of 4.x", stored.queue_offset)
    for topic, key in (("others", KEY), (TOPIC, "of 4.x"), (TOPIC, "nobody's"), (TOPIC, "")):
        with pytest.raises(UnknownTransactionError, match="is open"):
            await end(rig, topic=topic, key=key)
    assert (rig.bodies(), rig.ledger.pending_count) == ([], 2)
    assert rig.ledger.stats.refused == 4


async def test_the_table_is_bounded_and_what_fell_out_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(half_keys, "KEYS_MAX", 3)
    rig = await made("search")
    for number in range(5):
        half(rig, b"%d" % number, f"key {number}")
    assert len(rig.ledger.keys) == 3 and not rig.ledger.keys.is_whole
    assert await end(rig, key="key 0") is not None
    assert (rig.bodies(), len(rig.ledger.keys)) == ([b"0"], 3)


async def test_one_search_at_a_time_and_not_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "SEARCHES_MAX", 3)
    monkeypatch.setattr(ledger, "PAGE_COUNT", 1)
    rig = await made("search")
    for number in range(9):
        half(rig, b"%d" % number, f"key {number}")
    rig.ledger.keys = HalfKeys()
    rig.ledger.keys.is_whole = False
    tasks = [
        asyncio.ensure_future(rig.verdicts.end_key(TOPIC, f"key {number}", commits=True))
        for number in range(5)
    ]
    for _ in range(30):
        await rig.work()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [result for result in results if isinstance(result, RemoteProtocolError)]
    assert [error.response_code for error in refused] == [ResponseCode.SYSTEM_BUSY] * 2
    assert sorted(rig.bodies()) == [b"0", b"1", b"2"]
    assert await end(rig, key="key 4") is not None


async def test_what_is_open_at_a_start_is_in_the_table() -> None:
    rig = await made()
    half(rig)
    rig.half(b"4.x")
    half(rig, b"ended", "ended")
    await end(rig, key="ended")
    await rig.stop_all()
    again = await made(files=rig.files)
    assert (len(again.ledger.keys), again.ledger.keys.is_whole) == (1, True)
    assert again.ledger.keys.find(TOPIC, KEY) == (0,)
