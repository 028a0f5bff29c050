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
    RocketMQError,
    RouteNotFound,
    Sql92,
    StartFrom,
    Tag,
)
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.client.consumer.support import Group
from tests.support.cancelling import left_over
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


# Without a broker that does not answer


class Two(Peek):
    """A second broker, which is to be sick; `without` tells who was done without."""

    def __init__(self, **settings: Any) -> None:
        self.without: list[tuple[str, str, type[RocketMQError]]] = []
        settings.setdefault("without", self._note)
        super().__init__(1, 2, **settings)
        self.other = self.it.cluster.broker("broker-b", {"orders": 1})
        self.other.add("orders", 0, b"b-0", b"b-1")

    def _note(self, broker: str, address: str, error: RocketMQError) -> None:
        self.without.append((broker, address, type(error)))

    def away(self) -> None:
        self.other.connect_error = ConnectionRefusedError("down")
        self.other.lose_all()

    async def next(self) -> bytes:
        return (await self.it.wait(anext(self.reader))).body

    async def pass_a_minute(self) -> None:
        """Brokers that are there answer held pulls in time."""
        for _ in range(6):
            await self.it.pass_time(10)
            self.it.broker.release_pulls()
            self.other.release_pulls()


async def test_it_goes_on_without_a_broker_and_with_it_once_it_answers() -> None:
    two = Two()
    two.away()
    async with two:
        assert two.without == [("broker-b", two.other.address, ConnectionFailed)]
        assert [await two.next() for _ in range(2)] == [b"0-0", b"0-1"]
        two.other.connect_error = None
        assert [await two.next() for _ in range(2)] == [b"b-0", b"b-1"]
        two.away()
        two.it.broker.add("orders", 0, b"0-2")
        await two.pass_a_minute()
        assert await two.next() == b"0-2"
        assert len(two.without) > 1
        assert set(two.without) == {two.without[0]}
        two.other.connect_error = None
        two.other.add("orders", 0, b"b-2")
        assert await two.next() == b"b-2"


async def test_from_now_on_begins_where_a_broker_answers() -> None:
    two = Two(start=StartFrom.NOW)
    two.away()
    async with two:
        waiting = asyncio.create_task(two.next())
        two.other.connect_error = None
        await two.it.pass_time(4)
        two.other.add("orders", 0, b"new")
        assert await waiting == b"new"


async def test_with_an_end_it_leaves_out_who_does_not_answer() -> None:
    two = Two(stop="now")
    two.away()
    async with two:
        assert await two.rest() == [b"0-0", b"0-1"]
    later = Two(stop="now")
    later.other.refuse(PULL, *[ResponseCode.SYSTEM_BUSY] * 100)
    async with later:
        await later.pass_a_minute()
        assert await later.rest() == [b"0-0", b"0-1"]
        assert [broker for broker, _, _ in later.without] == ["broker-b"]


@pytest.mark.parametrize("code", [PULL, RequestCode.GET_MIN_OFFSET])
async def test_who_refuses_is_left_out(code: int) -> None:
    two = Two()
    two.other.refuse(code, ResponseCode.NO_PERMISSION)
    async with two:
        assert [await two.next() for _ in range(2)] == [b"0-0", b"0-1"]
        two.it.broker.add("orders", 0, b"0-2")
        await two.pass_a_minute()
        assert await two.next() == b"0-2", "nor is its queue a new one"
        assert [broker for broker, _, _ in two.without] == ["broker-b"]
        two.it.broker.refuse(PULL, ResponseCode.NO_PERMISSION)
        two.it.broker.release_pulls()
        with pytest.raises(BrokerError, match="NO_PERMISSION"):
            await two.next()


async def test_where_nobody_answers_it_does_not_begin() -> None:
    two = Two()
    two.away()
    two.it.broker.connect_error = ConnectionRefusedError("down")
    with pytest.raises(ConnectionFailed):
        await two.it.wait(two.reader.start())
    assert len(two.without) == 2
    default = Two(without=None)
    default.away()
    with pytest.raises(ConnectionFailed):
        await default.it.wait(default.reader.start())


async def test_a_filter_is_checked_by_each_broker_that_is_read() -> None:
    code = RequestCode.CHECK_CLIENT_CONFIG
    two = Two(selector=Sql92("n > 3"))
    two.away()
    async with two:
        assert await two.next() == b"0-0"
        two.other.connect_error = None
        assert [await two.next() for _ in range(3)] == [b"0-1", b"b-0", b"b-1"]
        assert [len(broker.of_code(code)) for broker in (two.it.broker, two.other)] == [1, 1]
    refused = Two(selector=Sql92("n >"))
    refused.other.refuse(code, ResponseCode.SUBSCRIPTION_PARSE_FAILED)
    with pytest.raises(FilterRefused):
        await refused.it.wait(refused.reader.start())
    named = Two(selector=Sql92("n > 3"), start={FIRST: 1})
    named.away()
    async with named:
        assert (await named.next(), named.without) == (b"0-1", [])
