"""SimpleConsumer: what it asks of brokers, and what becomes of messages that nobody waits for."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from skylarkmq.client import (
    BrokerError,
    ConnectionFailed,
    ConsumerClosed,
    IllegalState,
    NoPermission,
    NotSupported,
    ReceiptExpired,
    RouteNotFound,
    SimpleConsumer,
    Sql92,
    Tag,
)
from skylarkmq.client.config import Codec
from skylarkmq.client.consumer.pop_receiver import NOTIFY_S
from skylarkmq.client.consumer.receipts import HAND_OVER_S
from skylarkmq.protocol.codes import POLLING_FULL, RequestCode, ResponseCode
from tests.client.consumer.support import GROUP, Group

POP, NOTIFY = RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION


class Simple(Group):
    """A cluster with one consumer."""

    async def begin(self, *topics: str, **settings: Any) -> SimpleConsumer:
        consumer = SimpleConsumer(*(topics or ("orders",)), group=GROUP, **settings)
        consumer._client = self.client()
        await self.wait(consumer.start())
        self.consumer_ = consumer
        return consumer

    async def receive(self, *args: Any, **options: Any) -> list[bytes]:
        found = await self.wait(self.consumer_.receive(*args, **options))
        return [message.body for message in found]

    async def end(self) -> None:
        await self.wait(self.consumer_.stop())


async def test_it_takes_and_acknowledges() -> None:
    it = Simple()
    consumer = await it.begin(invisible_duration=timedelta(minutes=1))
    it.broker.add("orders", 2, b"a", b"b", TAGS="T")
    first, second = await it.wait(consumer.receive())
    assert (first.body, first.topic, first.tags, first.delivery_attempt) == (b"a", "orders", "T", 1)
    assert first.queue.queue_id == 2
    assert repr(first) == "<PoppedMessage U0 of orders>"
    await it.wait(consumer.ack(first))
    assert it.broker.pops.done == {(GROUP, "orders", 2, 0)}
    with pytest.raises(ReceiptExpired) as caught:
        await it.wait(consumer.ack(first))
    assert not caught.value.retryable
    await it.wait(consumer.change_invisible_duration(second, 0))
    assert it.broker.pops.changes == [((GROUP, "orders", 2, 1), 0)]
    await it.end()


async def test_it_gives_a_message_up() -> None:
    it = Simple()
    consumer = await it.begin()
    it.broker.add("orders", 2, b"a")
    (message,) = await it.wait(consumer.receive())
    await it.wait(consumer.dead_letter(message))
    (asked,) = it.broker.of_code(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert asked.ext_fields["delayLevel"] == "-1"
    assert asked.ext_fields["offset"] == str(message.commit_log_offset)
    assert it.broker.pops.done == {(GROUP, "orders", 2, 0)}
    with pytest.raises(ReceiptExpired):
        await it.wait(consumer.dead_letter(message))
    await it.end()


@pytest.mark.parametrize("codec", ["rocketmq", "json"])
async def test_every_codec_can_say_it(codec: Codec) -> None:
    """A binary header of RocketMQ's has no room for these codes."""
    it = Simple(codec=codec)
    consumer = await it.begin()
    it.broker.add("orders", 0, b"a")
    (message,) = await it.wait(consumer.receive())
    await it.wait(consumer.ack(message))
    await it.end()


async def test_a_changed_time_gives_the_message_a_new_handle() -> None:
    it = Simple()
    consumer = await it.begin()
    it.broker.add("orders", 0, b"a")
    (message,) = await it.wait(consumer.receive())
    await it.wait(consumer.change_invisible_duration(message, timedelta(seconds=90)))
    assert it.broker.pops.changes == [((GROUP, "orders", 0, 0), 90_000)]
    await it.wait(consumer.ack(message))
    await it.end()


async def test_it_waits_at_all_brokers_and_for_all_topics() -> None:
    it = Simple({"orders": 1, "bills": 1})
    other = it.cluster.broker("broker-b", {"orders": 1})
    consumer = await it.begin("orders", "bills")
    for broker, topic in ((other, "orders"), (it.broker, "bills"), (it.broker, "orders")):
        receiving = asyncio.ensure_future(consumer.receive())
        await it.pass_time(0.5)
        assert len(it.broker.pops.held) == 2
        assert len(other.pops.held) == 1
        broker.add(topic, 0, b"x")
        (message,) = await it.wait(receiving)
        assert (message.topic, message.broker_name) == (topic, broker.name)
    await it.end()


async def test_sources_take_turns() -> None:
    it = Simple({"orders": 1, "bills": 1})
    it.broker.add("orders", 0, *(b"o" for _ in range(4)))
    it.broker.add("bills", 0, *(b"b" for _ in range(4)))
    await it.begin("orders", "bills")
    assert [await it.receive(1) for _ in range(4)] == [[b"o"], [b"b"], [b"o"], [b"b"]]
    await it.end()


async def test_nothing_comes_within_the_time() -> None:
    it = Simple()
    await it.begin(await_duration=2 * NOTIFY_S)
    before_s = it.clock.monotonic()
    assert await it.receive() == []
    assert it.clock.monotonic() - before_s >= 2 * NOTIFY_S
    assert await it.receive(timeout=0) == []
    await it.end()


async def test_receives_that_give_up_early_leave_one_request_behind() -> None:
    it = Simple()
    await it.begin()
    for _ in range(20):
        assert await it.receive(timeout=0.1) == []
    assert len(it.broker.pops.held) == 1
    await it.end()


@pytest.mark.parametrize(("selector", "sent"), [
    (None, ("TAG", "*")),
    (Tag("A", "B"), ("TAG", "A || B")),
    (Sql92("n > 1"), ("SQL92", "n > 1")),
])  # fmt: skip
async def test_each_request_says_what_is_wanted(selector: Any, sent: tuple[str, str]) -> None:
    it = Simple()
    await it.begin(selector=selector)
    assert await it.receive(timeout=0) == []
    assert it.broker.pops.filters == [sent]
    await it.end()


async def test_a_message_with_another_tag_of_the_same_hash_is_done_and_not_given() -> None:
    it = Simple()
    await it.begin(selector=Tag("Aa"))
    it.broker.add("orders", 0, b"other", TAGS="BB")
    it.broker.add("orders", 0, b"mine", TAGS="Aa")
    assert await it.receive() == [b"mine"]
    assert it.broker.pops.done == {(GROUP, "orders", 0, 0)}
    await it.end()


async def test_what_a_cancelled_receive_took_goes_to_the_next_one_or_back() -> None:
    it = Simple()
    consumer = await it.begin()
    it.broker.add("orders", 0, b"a")
    for _ in range(2):
        receiving = asyncio.ensure_future(consumer.receive())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        await it.pass_time(HAND_OVER_S / 2)
        assert consumer._receiver.receipts.ready
        assert len(it.broker.pops.in_hand) == 1
        assert await it.receive() == [b"a"]
        (place,) = it.broker.pops.in_hand
        del it.broker.pops.in_hand[place]  # its time is over
    receiving = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    receiving.cancel()
    await it.pass_time(2 * HAND_OVER_S)
    assert it.broker.pops.in_hand == {}, "nobody came for it"
    assert it.broker.pops.changes == [((GROUP, "orders", 0, 0), 0)]
    await it.end()


async def test_a_stop_gives_back_what_nobody_got_and_ends_receives() -> None:
    it = Simple()
    consumer = await it.begin()
    waiting = asyncio.ensure_future(consumer.receive())
    await it.pass_time(0.1)
    it.broker.add("orders", 0, b"a")
    (message,) = await it.wait(waiting)
    waiting = asyncio.ensure_future(consumer.receive())
    await it.pass_time(0.1)
    consumer._take_back([message])
    await it.end()
    with pytest.raises(ConsumerClosed):
        await it.wait(waiting)
    assert it.broker.pops.in_hand == {}
    with pytest.raises(ConsumerClosed):
        await consumer.ack(message)
    await it.end()


async def test_a_broker_that_is_away_is_passed_over() -> None:
    it = Simple()
    other = it.cluster.broker("broker-b", {"orders": 1})
    await it.begin()
    it.broker.connect_error = ConnectionRefusedError("down")
    it.broker.lose_all()
    other.add("orders", 0, b"b")
    assert await it.receive() == [b"b"]
    assert await it.receive(timeout=2) == []
    await it.end()


async def test_a_broker_that_comes_back_within_the_time_is_no_error() -> None:
    it = Simple()
    consumer = await it.begin()
    it.broker.connect_error = ConnectionRefusedError("down")
    it.broker.lose_all()
    with pytest.raises(ConnectionFailed):
        await it.receive(timeout=1)
    receiving = asyncio.ensure_future(consumer.receive())
    await it.pass_time(1)
    it.broker.connect_error = None
    it.broker.add("orders", 0, b"a")
    (message,) = await it.wait(receiving)
    assert message.body == b"a"
    await it.end()


async def test_a_broker_without_pop_consumption_is_named() -> None:
    it = Simple()
    await it.begin()
    it.broker.refuse(POP, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    with pytest.raises(NotSupported, match=r"broker-a:10911 has no pop consumption.*since 5\.0"):
        await it.receive()
    await it.end()


async def test_refusals() -> None:
    it = Simple()
    await it.begin()
    it.broker.refuse(POP, *[ResponseCode.NO_PERMISSION] * 2)
    before_s = it.clock.monotonic()
    with pytest.raises(NoPermission):
        await it.receive()
    assert it.clock.monotonic() - before_s < 1, "nothing is tried again"
    it.broker.refusals.clear()
    it.broker.refuse(POP, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
    with pytest.raises(BrokerError):
        await it.receive()
    it.broker.refuse(POP, POLLING_FULL)
    it.broker.refuse(NOTIFY, POLLING_FULL)
    it.broker.add("orders", 0, b"a")
    assert await it.receive() == [b"a"], "a broker that is full is asked again"
    await it.end()


async def test_word_of_messages_that_are_not_there_costs_ever_longer_waits() -> None:
    """An ordered group waits for its batch: there is something, and nobody gets it."""
    it = Simple()
    consumer = await it.begin()
    receiving = asyncio.ensure_future(consumer.receive(timeout=10))
    asked = 0
    for _ in range(100):
        it.broker.pops.serve(told=True)
        await it.pass_time(0.1)
        asked = len(it.broker.pops.filters)
    assert await it.wait(receiving) == []
    assert asked < 20
    await it.end()


async def test_an_ordered_consumer_repeats_its_attempt_until_it_is_answered() -> None:
    it = Simple()
    await it.begin(orderly=True)
    it.broker.add("orders", 0, b"a")
    it.broker.refuse(POP, ResponseCode.SYSTEM_BUSY)
    assert await it.receive() == [b"a"]
    (place,) = it.broker.pops.in_hand
    del it.broker.pops.in_hand[place]
    (again,) = await it.wait(it.consumer_.receive())
    assert again.delivery_attempt == 2
    first, second = it.broker.pops.attempts
    assert first != second
    await it.end()


async def test_no_topic_no_route() -> None:
    it = Simple()
    await it.begin("nothing")
    with pytest.raises(RouteNotFound):
        await it.receive(timeout=0)
    await it.wait(it.consumer_.unsubscribe("nothing"))
    with pytest.raises(IllegalState, match="no topics"):
        await it.receive(timeout=0)
    await it.wait(it.consumer_.subscribe("orders"))
    it.broker.add("orders", 0, b"a")
    assert await it.receive() == [b"a"]
    await it.end()


async def test_brokers_know_it_as_a_pop_consumer() -> None:
    it = Simple()
    await it.begin(selector=Tag("A"))
    (data,) = it.broker.heartbeats[-1].consumer_data_set
    assert (data.group_name, data.consume_type) == (GROUP, "CONSUME_POP")
    assert [each.topic for each in data.subscription_data_set] == ["orders"]
    await it.end()
    assert it.broker.clients[GROUP] == {}


@pytest.mark.parametrize("settings", [
    {"invisible_duration": 0},
    {"invisible_duration": 50_000.0},
    {"await_duration": -1},
    {"group": "no group"},
])  # fmt: skip
def test_settings_that_cannot_be_used(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\d|group"):
        wanted: dict[str, Any] = {"group": GROUP, **settings}
        SimpleConsumer("orders", **wanted)


async def test_what_must_be_started_or_is_over() -> None:
    it = Simple()
    consumer = SimpleConsumer("orders", group=GROUP)
    consumer._client = it.client()
    with pytest.raises(IllegalState, match="not started"):
        await consumer.receive()
    with pytest.raises(ValueError, match="1 to 32"):
        await consumer.receive(33)
    await it.wait(consumer.stop())
    with pytest.raises(ConsumerClosed):
        await it.wait(consumer.start())
