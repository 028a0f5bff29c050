"""PeekReader: everything is seen, nothing is changed; where it begins, where it ends."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from skylarkmq.client import (
    BrokerError,
    ConnectionFailed,
    ConsumerClosed,
    FilterRefused,
    IllegalState,
    MessageQueue,
    PeekReader,
    RouteNotFound,
    Sql92,
    StartFrom,
    Tag,
)
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.client.consumer.support import Group
from tests.client.test_cancellation import left_over
from tests.support.fake_cluster import STORE_MS
from tests.support.fake_queues import Stored
from tests.support.manual_clock import settle

PULL = RequestCode.PULL_MESSAGE
FIRST = MessageQueue("orders", "broker-a", 0)


class Peek:
    """A cluster with messages, and a reader with a client of its own."""

    def __init__(self, queues: int = 2, count: int = 70, **settings: Any) -> None:
        self.it = Group({"orders": queues})
        for queue_id in range(queues):
            bodies = [b"%d-%d" % (queue_id, n) for n in range(count)]
            self.it.broker.add("orders", queue_id, *bodies)
        self.reader = PeekReader(settings.pop("topic", "orders"), **settings)
        self.reader._client = self.it.client()

    async def __aenter__(self) -> Peek:
        await self.it.wait(self.reader.start())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.it.wait(self.reader.stop())
        assert left_over() == []
        assert self.it.clock.pending_count == 0

    async def rest(self) -> list[bytes]:
        async def read() -> list[bytes]:
            return [message.body async for message in self.reader]

        return await self.it.wait(read())


async def test_all_there_is_once_in_the_order_of_each_queue_and_nobody_notices() -> None:
    async with Peek(stop="now") as peek:
        peek.it.broker.add("orders", 0, b"too late")
        bodies = await peek.rest()
        for queue_id in (0, 1):
            mine = [body for body in bodies if body.startswith(b"%d-" % queue_id)]
            assert mine == [b"%d-%d" % (queue_id, n) for n in range(70)]
        assert len(bodies) == 140
        assert await peek.rest() == [], "the end stays the end"
        broker = peek.it.broker
        assert broker.heartbeats == []
        assert broker.offsets == {}
        assert {each.ext_fields["consumerGroup"] for each in broker.of_code(PULL)} == {
            "TOOLS_CONSUMER"
        }


async def test_without_an_end_it_waits_for_what_comes_and_for_new_queues() -> None:
    async with Peek(queues=1, count=0) as peek:
        waiting = asyncio.create_task(anext(peek.reader))
        await settle()
        peek.it.broker.add("orders", 0, b"a")
        assert (await peek.it.wait(waiting)).body == b"a"
        peek.it.broker.topics["orders"].queues.append([Stored(b"b", {})])
        await peek.it.pass_time(40)
        peek.it.broker.release_pulls()
        message = await peek.it.wait(anext(peek.reader))
        assert (message.body, message.queue.queue_id, message.queue_offset) == (b"b", 1, 0)


async def test_where_it_begins_and_ends_by_time() -> None:
    at = datetime.fromtimestamp(STORE_MS / 1000, UTC)
    start = StartFrom.timestamp(at + timedelta(milliseconds=5))
    async with Peek(1, 20, start=start, stop=at + timedelta(milliseconds=8)) as peek:
        assert await peek.rest() == [b"0-5", b"0-6", b"0-7"]


async def test_where_it_begins_and_ends_by_offsets() -> None:
    async with Peek(2, 20, start={FIRST: 3}, stop={FIRST: 5}) as peek:
        assert await peek.rest() == [b"0-3", b"0-4"]
    async with Peek(1, 20, start=StartFrom.LAST, stop="now") as peek:
        assert await peek.rest() == []


async def test_tags_are_looked_at_again_and_expressions_travel_along() -> None:
    tagged = Peek(1, 0, stop="now", selector=Tag("mine"))
    tagged.it.broker.add("orders", 0, b"no", TAGS="other")
    tagged.it.broker.add("orders", 0, b"yes", TAGS="mine")
    async with tagged as peek:
        assert await peek.rest() == [b"yes"]
    async with Peek(1, 1, stop="now", selector=Sql92("n > 3")) as peek:
        assert await peek.rest() == [b"0-0"]
        fields = peek.it.broker.of_code(PULL)[0].ext_fields
        assert (fields["subscription"], fields["expressionType"]) == ("n > 3", "SQL92")
    refused = Peek(1, 1, stop="now", selector=Sql92("n >"))
    code = RequestCode.CHECK_CLIENT_CONFIG
    refused.it.broker.refuse(code, ResponseCode.SUBSCRIPTION_PARSE_FAILED)
    with pytest.raises(FilterRefused, match="Correct the expression"):
        await refused.it.wait(refused.reader.start())
    assert not refused.it.broker.of_code(PULL), "an Apache broker would answer with all there is"


async def test_a_batch_ahead_and_no_more() -> None:
    async with Peek(1, 500) as peek:
        await peek.it.pass_time(60)
        assert len(peek.it.broker.of_code(PULL)) == 1
        for _ in range(16):
            await peek.it.wait(anext(peek.reader))
        await peek.it.pass_time(1)
        assert len(peek.it.broker.of_code(PULL)) == 2


async def test_a_broker_that_is_away_is_waited_for_but_not_for_ever() -> None:
    async with Peek(1, 1, stop={FIRST: 1}) as peek:
        assert await peek.rest() == [b"0-0"]
    lost = Peek(1, 1)
    async with lost:
        await lost.it.wait(anext(lost.reader))
        lost.it.broker.connect_error = ConnectionRefusedError("down")
        lost.it.broker.lose_all()
        await lost.it.pass_time(10)
        lost.it.broker.connect_error = None
        lost.it.broker.add("orders", 0, b"after")
        assert (await lost.it.wait(anext(lost.reader))).body == b"after"
        lost.it.broker.connect_error = ConnectionRefusedError("down")
        lost.it.broker.lose_all()
        with pytest.raises(ConnectionFailed):
            await lost.it.wait(anext(lost.reader), 40)


async def test_a_refusal_ends_it_with_its_cause() -> None:
    peek = Peek(1, 1)
    peek.it.broker.refuse(PULL, ResponseCode.SYSTEM_BUSY, ResponseCode.NO_PERMISSION)
    async with peek:
        with pytest.raises(BrokerError, match="NO_PERMISSION"):
            await peek.it.wait(anext(peek.reader), 2)
        with pytest.raises(BrokerError, match="NO_PERMISSION"):
            await anext(peek.reader)


async def test_messages_that_are_gone_are_passed_over() -> None:
    peek = Peek(1, 20, start={FIRST: 0}, stop="now")
    peek.it.broker.topics["orders"].min_offset[0] = 18
    async with peek:
        assert await peek.rest() == [b"0-18", b"0-19"]
    cut = Peek(1, 20, stop={FIRST: 30})
    async with cut:
        assert len(await cut.rest()) == 20, "the end lies behind what there is"


async def test_its_states() -> None:
    peek = Peek(1, 1, topic="nowhere")
    with pytest.raises(IllegalState, match="not started"):
        await anext(peek.reader)
    with pytest.raises(RouteNotFound, match="topic_missing"):
        await peek.it.wait(peek.reader.start())
    async with Peek(1, 0) as ended:
        waiting = asyncio.create_task(anext(ended.reader, None))
        await settle()
        await ended.it.wait(ended.reader.stop())
        assert await waiting is None
        with pytest.raises(ConsumerClosed):
            await ended.reader.start()


async def test_cancelled_waiting_loses_no_message() -> None:
    async with Peek(1, 0) as peek:
        for n in range(20):
            waiting = asyncio.create_task(anext(peek.reader))
            for _ in range(n):
                await asyncio.sleep(0)
            waiting.cancel()
            peek.it.broker.add("orders", 0, b"%d" % n)
            await asyncio.gather(waiting, return_exceptions=True)
            if waiting.cancelled():
                assert (await peek.it.wait(anext(peek.reader))).body == b"%d" % n
