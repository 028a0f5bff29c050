"""Many messages at once: how they are grouped, and what becomes of each."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skylarkmq.client import (
    Message,
    MessageIllegal,
    MessageQueue,
    MessageTooLarge,
    RequestTimeout,
    RouteNotFound,
    SendResult,
)
from skylarkmq.client.producer.sender import BATCH_COUNT_MAX, BATCH_SIZE_MAX
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.client.support import Setting
from tests.support.fake_cluster import FakeBroker
from tests.support.manual_clock import advance_async, settle

SEND = RequestCode.SEND_MESSAGE_V2
BATCH = RequestCode.SEND_BATCH_MESSAGE


def stored(broker: FakeBroker, outcome: Any) -> bytes:
    """The body that stands where the outcome says."""
    assert isinstance(outcome, SendResult), outcome
    queue = broker.topics[outcome.queue.topic].queues[outcome.queue.queue_id]
    found = queue[outcome.queue_offset]
    assert found.properties["UNIQ_KEY"] == outcome.msg_id
    return found.body


async def test_topics_are_grouped_and_outcomes_stand_in_the_order_of_the_messages() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"a": 2, "b": 2})
        messages = [Message("ab"[n % 2], b"%d" % n, tags="T") for n in range(20)]
        outcomes = await it.producer.send_many(iter(messages))
        assert [stored(broker, outcome) for outcome in outcomes] == [m.body for m in messages]
        assert len(broker.of_code(BATCH)) == 2
        assert not broker.of_code(SEND)
        assert await it.producer.send_many([]) == []


async def test_a_batch_is_cut_by_count_and_by_size() -> None:
    async with Setting(compress_over=1 << 20) as it:
        broker = it.cluster.broker("broker-a", {"a": 4})
        small = [Message("a", b"%d" % n) for n in range(2 * BATCH_COUNT_MAX + 1)]
        large = [Message("a", bytes(BATCH_SIZE_MAX // 3)) for _ in range(5)]
        outcomes = await it.producer.send_many([*small, *large])
        assert [len(stored(broker, outcome)) for outcome in outcomes] == [
            len(message.body) for message in [*small, *large]
        ]
        batches = broker.of_code(BATCH)
        assert all(len(request.body) <= BATCH_SIZE_MAX for request in batches)
        assert len(batches) == 4, "256, 256, 1 and two large ones, two; the last goes alone"
        assert len(broker.of_code(SEND)) == 1
        assert len({request.ext_fields["e"] for request in batches}) == 4, "spread over queues"


async def test_keyed_messages_share_the_batch_of_their_queue_and_keep_their_order() -> None:
    async with Setting(compress_over=500) as it:
        broker = it.cluster.broker("broker-a", {"a": 4})
        keys = ["x", "y", "z", "w", "v"]
        messages = [
            Message("a", b"%d" % n, sharding_key=keys[n % 5], wait_store_ok=n % 7 != 0)
            for n in range(50)
        ]
        # One that must go alone stands between two others of its key.
        messages[20] = Message("a", b"20" + bytes(600), sharding_key=keys[0])
        outcomes = await it.producer.send_many(messages)
        places: dict[str, list[SendResult]] = {}
        for message, outcome in zip(messages, outcomes, strict=True):
            assert isinstance(outcome, SendResult)
            places.setdefault(message.sharding_key or "", []).append(outcome)
            expected = await it.producer.send(message)
            assert outcome.queue == expected.queue
        for results in places.values():
            offsets = [result.queue_offset for result in results]
            assert offsets == sorted(offsets)
        assert len(broker.of_code(BATCH)) <= 14


async def test_a_selector_decides() -> None:
    async with Setting() as it:
        it.cluster.broker("broker-a", {"a": 4})
        messages = [Message("a", b"%d" % n) for n in range(8)]
        outcomes = await it.producer.send_many(
            messages, selector=lambda queues, message: queues[int(message.body) % 2]
        )
        queues = [outcome.queue for outcome in outcomes if isinstance(outcome, SendResult)]
        assert queues == [MessageQueue("a", "broker-a", n % 2) for n in range(8)]


async def test_what_no_batch_takes_goes_alone_and_one_s_fault_is_its_own() -> None:
    async with Setting(max_message_size=10_000) as it:
        broker = it.cluster.broker("broker-a", {"a": 1, "%RETRY%g": 1})
        messages = [
            Message("a", b"1"),
            Message("a", b"later", delay_level=3),
            Message("a", bytes(5000)),
            Message("%RETRY%g", b"retry"),
            Message("a", bytes(10_001)),
            Message("absent", b"no route"),
            Message("a", b"2"),
            Message("a", b"p", properties={"p": "x" * 40_000}),
        ]
        outcomes = await it.producer.send_many(messages)
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds[:4] == [SendResult] * 4
        assert kinds[4:] == [MessageTooLarge, RouteNotFound, SendResult, MessageTooLarge]
        assert len(broker.of_code(BATCH)) == 1
        assert len(broker.of_code(SEND)) == 3
        packed = next(item for item in broker.topics["a"].queues[0] if item.sys_flag)
        assert len(packed.body) < 100


async def test_a_batch_that_fails_fails_for_all_of_it_and_for_no_other() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"a": 1, "b": 1})
        broker.refuse(BATCH, ResponseCode.MESSAGE_ILLEGAL)
        messages = [Message("ab"[n % 2], b"%d" % n) for n in range(6)]
        outcomes = await it.producer.send_many(messages)
        assert [type(outcome) for outcome in outcomes] == [MessageIllegal, SendResult] * 3


async def test_an_illegal_topic_is_the_caller_s_fault() -> None:
    async with Setting() as it:
        it.cluster.broker("broker-a", {"a": 1})
        with pytest.raises(ValueError, match="topic"):
            await it.producer.send_many([Message("a", b"1"), Message("a b", b"2")])
        await it.producer.flush()
        assert it.producer.in_flight_count == 0


async def test_it_waits_for_room_and_leaves_nothing_when_cancelled() -> None:
    async with Setting(max_in_flight=1, compress_over=1 << 20) as it:
        broker = it.cluster.broker("broker-a", {"a": 1})
        await it.producer.send(Message("a", b"x"))
        broker.silent = True
        messages = [Message("a", bytes(BATCH_SIZE_MAX // 2)) for _ in range(9)]
        many = asyncio.create_task(it.producer.send_many(messages))
        await settle()
        assert it.producer.in_flight_count == 1
        many.cancel()
        await asyncio.gather(many, return_exceptions=True)
        assert it.producer.in_flight_count == 0
        broker.silent = False
        outcomes = asyncio.create_task(it.producer.send_many(messages))
        await advance_async(it.clock, 1)
        assert all(isinstance(outcome, SendResult) for outcome in await outcomes)


async def test_an_illegal_topic_in_a_list_sends_nothing_of_it() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"a": 1})
        await it.producer.send(Message("a", b"warm up"))
        good = [Message("a", bytes(5000)) for _ in range(3)]
        with pytest.raises(ValueError, match="topic"):
            await it.producer.send_many([*good, Message("no topic", b"")])
        await settle()
        assert broker.bodies("a") == [b"warm up"]


async def test_a_silent_name_server_costs_one_time_out_and_not_one_for_each_key() -> None:
    async with Setting() as it:
        it.cluster.broker("broker-a", {"a": 1})
        it.cluster.name_server.silent = True
        messages = [Message("a", b"x", sharding_key=f"{n}") for n in range(20)]
        sending = asyncio.create_task(it.producer.send_many(messages, timeout=2))
        await advance_async(it.clock, 2.1)
        outcomes = await sending
        assert [type(outcome) for outcome in outcomes] == [RequestTimeout] * 20
