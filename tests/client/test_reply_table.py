"""Requests that wait for replies: each ends once, by its reply, its time, or its caller."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skylarkmq.client.errors import ReplyTimeout
from skylarkmq.client.producer import reply_table
from skylarkmq.client.producer.reply_table import ReplyTable
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.compression import CompressionKind, compress, compression_flags
from skylarkmq.protocol.properties import encode_properties
from skylarkmq.protocol.remoting_command import RemotingCommand
from tests.support.manual_clock import ManualClock


class FakeConnection:
    """Whoever pushed."""

    address = "192.0.2.1:10911"


CONNECTION: Any = FakeConnection()


def push_of(correlation_id: str, body: bytes = b"answer", **changes: str) -> RemotingCommand:
    """A reply as a broker pushes it."""
    properties = {"CORRELATION_ID": correlation_id, "MSG_TYPE": "reply", "TAGS": "T", "KEYS": "a b"}
    fields = {
        "producerGroup": "P",
        "topic": "shop%DefaultCluster_REPLY_TOPIC",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1700000000001",
        "flag": "5",
        "properties": encode_properties(properties),
        "unitMode": "false",
        "bornHost": "/192.0.2.7:4711",
        "storeHost": "192.0.2.1:10911",
        "storeTimestamp": "1700000000002",
        **changes,
    }
    return RemotingCommand.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, body)


def table_of(clock: ManualClock) -> ReplyTable:
    return ReplyTable(clock, lambda topic: topic.removeprefix("shop%"))


async def test_a_reply_finds_its_request() -> None:
    clock = ManualClock()
    table = table_of(clock)
    first, second = table.add("c1", "T", 3.0), table.add("c2", "T", 3.0)
    answer = table.take(CONNECTION, push_of("c2"))
    assert answer.code == ResponseCode.SUCCESS
    reply = await second.future
    assert (reply.body, reply.tags, reply.keys, reply.flag) == (b"answer", "T", "a b", 5)
    assert (reply.topic, reply.correlation_id) == ("DefaultCluster_REPLY_TOPIC", "c2")
    assert (str(reply.born_host), str(reply.store_host)) == ("192.0.2.7:4711", "192.0.2.1:10911")
    assert reply.stored_at > reply.born_at
    assert not first.future.done()
    table.drop(first)
    assert len(table) == clock.pending_count == 0


async def test_a_compressed_reply_is_opened() -> None:
    table = table_of(ManualClock())
    waiting = table.add("c", "T", 3.0)
    flags = compression_flags(CompressionKind.ZLIB)
    table.take(CONNECTION, push_of("c", compress(b"long " * 1000), sysFlag=str(flags)))
    assert (await waiting.future).body == b"long " * 1000


async def test_each_request_has_a_time_of_its_own() -> None:
    clock = ManualClock()
    table = table_of(clock)
    long, short, longest = (table.add(str(s), "T", s) for s in (2.0, 1.0, 3.0))
    clock.advance(1.0)
    with pytest.raises(ReplyTimeout, match=r"topic T within 1 s"):
        await short.future
    table.take(CONNECTION, push_of("2.0"))
    assert (await long.future).body == b"answer"
    clock.advance(1.9)
    assert not longest.future.done()
    clock.advance(0.2)
    with pytest.raises(ReplyTimeout):
        await longest.future
    assert len(table) == clock.pending_count == 0


async def test_late_and_unreadable_replies_harm_nobody() -> None:
    table = table_of(ManualClock())
    waiting = table.add("c", "T", 3.0)
    assert table.take(CONNECTION, push_of("unknown")).code == ResponseCode.SUCCESS
    assert table.late_count == 1
    bad = push_of("c", queueId="many")
    assert table.take(CONNECTION, bad).code == ResponseCode.SYSTEM_ERROR
    assert not waiting.future.done()
    assert table.take(CONNECTION, push_of("c")).code == ResponseCode.SUCCESS
    assert table.take(CONNECTION, push_of("c")).code == ResponseCode.SUCCESS
    assert table.late_count == 2


async def test_room_is_made_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_table, "REQUESTS_MAX", 2)
    clock = ManualClock()
    table = table_of(clock)
    requests = [table.add(str(number), "T", 5.0) for number in range(2)]
    waiters = [asyncio.create_task(table.room()) for _ in range(3)]
    await asyncio.sleep(0)
    table.drop(requests[0])
    waiters[0].cancel()  # already woken: the next one takes its place
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [waiter.done() for waiter in waiters] == [True, True, False]
    table.drop(requests[1])
    await asyncio.gather(*waiters, return_exceptions=True)


async def test_deadlines_of_ended_requests_do_not_pile_up() -> None:
    clock = ManualClock()
    table = table_of(clock)
    staying = table.add("stays", "T", 600.0)
    for number in range(5000):
        table.drop(table.add(str(number), "T", 600.0))
    assert len(table._deadlines) < 1100
    assert clock.pending_count == 1
    clock.advance(601)
    with pytest.raises(ReplyTimeout):
        await staying.future
