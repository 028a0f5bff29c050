"""The cases that FastStream's own brokers share, each in memory and on a real broker.

FastStream does not ship its shared cases, so these are of the same kinds: consume, publish,
request, parser and decoder, middlewares, router, test client, connection.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

pytest.importorskip("faststream", reason="the extra `faststream` is not installed")

from faststream import BaseMiddleware, Context, Depends, FastStream, TestApp
from faststream.exceptions import SetupError
from pydantic import BaseModel

from skylarkmq.integrations.faststream import (
    RocketMQBroker,
    RocketMQMessage,
    RocketMQPublisher,
    RocketMQResponse,
    RocketMQRoute,
    RocketMQRouter,
    Sql92,
    StartFrom,
    Tag,
    TestRocketMQBroker,
)
from skylarkmq.integrations.faststream.annotations import RocketMQMessage as InContext
from skylarkmq.testing import RunningBroker

LIMIT_S = 30.0
numbers = count()

pytestmark = [pytest.mark.timing]


@dataclass
class Setting:
    """Where a case runs: in memory, or on a broker whose topics it makes first."""

    real: RunningBroker | None

    def broker(self, **options: Any) -> RocketMQBroker:
        address = "127.0.0.1:1" if self.real is None else self.real.namesrv_addr
        options.setdefault("group", f"g{next(numbers)}")
        return RocketMQBroker(address, logger=None, **options)

    async def topic(self) -> str:
        name = f"faststream-{next(numbers)}"
        if self.real is not None:
            await self.real.create_topic(name, 1)
        return name

    def run(self, broker: RocketMQBroker) -> Any:
        return broker if self.real is not None else TestRocketMQBroker(broker)


@pytest.fixture(params=["memory", "real"])
def setting(request: pytest.FixtureRequest) -> Setting:
    if request.param == "memory":
        return Setting(None)
    return Setting(request.getfixturevalue("skylarkmq_broker_session"))


class Seen(asyncio.Queue[Any]):
    """What handlers saw."""

    async def next(self) -> Any:
        return await asyncio.wait_for(self.get(), LIMIT_S)

    async def first(self, number: int) -> list[Any]:
        return [await self.next() for _ in range(number)]


class Order(BaseModel):
    number: int


# Consume


async def test_a_handler_gets_what_was_published(setting: Setting) -> None:
    broker, topic, seen = setting.broker(), await setting.topic(), Seen()

    @broker.subscriber(topic, start_from=StartFrom.FIRST)
    async def handle(body: Order, message: InContext, number: int = Context("answer")) -> None:
        seen.put_nowait((body.number, message.headers["region"], message.raw_message.tags, number))

    broker.context.set_global("answer", 42)
    async with setting.run(broker) as running:
        await running.start()
        sent = {"tags": "paid", "keys": ["o-1", "o-2"], "headers": {"region": "EU"}}
        await running.publish(Order(number=7), topic, **sent)
        assert await seen.next() == (7, "EU", "paid", 42)


async def test_each_group_gets_a_message_once(setting: Setting) -> None:
    broker, topic, seen = setting.broker(), await setting.topic(), Seen()

    def take(group: str) -> Callable[[str], None]:
        def handle(body: str) -> None:
            seen.put_nowait((group, body))

        return handle

    for group in ("a", "b"):
        name = f"{group}{next(numbers)}"
        broker.subscriber(topic, group=name, start_from=StartFrom.FIRST)(take(group))
    async with setting.run(broker) as running:
        await running.start()
        await running.publish("hello", topic)
        assert sorted(await seen.first(2)) == [("a", "hello"), ("b", "hello")]
    assert seen.empty()


async def test_a_filter_chooses_the_handler(setting: Setting) -> None:
    broker, topic, seen = setting.broker(), await setting.topic(), Seen()
    subscriber = broker.subscriber(topic, start_from=StartFrom.FIRST)

    @subscriber(filter=lambda message: message.content_type == "application/json")
    async def of_json(body: Any) -> None:
        seen.put_nowait(("json", body))

    @subscriber
    async def of_text(body: str) -> None:
        seen.put_nowait(("text", body))

    async with setting.run(broker) as running:
        await running.start()
        await running.publish({"a": 1}, topic)
        await running.publish("b", topic)
        assert await seen.first(2) == [("json", {"a": 1}), ("text", "b")]


@pytest.mark.parametrize("selector", ["red || blue", Tag("red", "blue"), Sql92("weight > 3")])
async def test_a_selector_decides(setting: Setting, selector: Any) -> None:
    if setting.real is not None and isinstance(selector, Sql92):
        pytest.skip("the session's broker does not filter by properties")
    broker, topic, seen = setting.broker(), await setting.topic(), Seen()

    @broker.subscriber(topic, selector=selector, start_from=StartFrom.FIRST)
    async def handle(body: str) -> None:
        seen.put_nowait(body)

    async with setting.run(broker) as running:
        await running.start()
        for colour, weight in (("green", "1"), ("red", "4"), ("blue", "5")):
            await running.publish(colour, topic, tags=colour, headers={"weight": weight})
        assert await seen.first(2) == ["red", "blue"]
    assert seen.empty()


async def test_a_batch_comes_as_a_list(setting: Setting) -> None:
    broker, topic, seen = setting.broker(), await setting.topic(), Seen()

    @broker.subscriber(topic, batch=True, max_batch=10, start_from=StartFrom.FIRST)
    async def handle(bodies: list[int], message: InContext) -> None:
        for body, headers in zip(bodies, message.batch_headers, strict=True):
            seen.put_nowait((body, headers["h"]))

    async with setting.run(broker) as running:
        await running.start()
        await running.publish_batch(1, 2, 3, topic=topic, headers={"h": "x"})
        await running.publish(4, topic, headers={"h": "y"})
        assert await seen.first(4) == [(1, "x"), (2, "x"), (3, "x"), (4, "y")]


async def test_a_subscriber_may_start_late(setting: Setting) -> None:
    broker, topic, seen = setting.broker(), await setting.topic(), Seen()
    async with setting.run(broker) as running:
        await running.start()
        late = running.subscriber(topic, start_from=StartFrom.FIRST)

        @late
        async def handle(body: str) -> None:
            seen.put_nowait(body)

        await late.start()
        await running.publish("hello", topic)
        assert await seen.next() == "hello"
        await late.stop()


# Publish


async def test_the_result_goes_on(setting: Setting) -> None:
    broker, seen = setting.broker(), Seen()
    topic, bills = await setting.topic(), await setting.topic()

    @broker.subscriber(topic, start_from=StartFrom.FIRST)
    @broker.publisher(bills, headers={"from": "test"}, tags="bill")
    async def handle(body: Order) -> Order:
        return Order(number=body.number + 1)

    @broker.subscriber(bills, start_from=StartFrom.FIRST)
    async def bill(body: Order, message: InContext) -> None:
        raw = message.raw_message
        seen.put_nowait((body.number, raw.tags, message.headers["from"], message.correlation_id))

    async with setting.run(broker) as running:
        await running.start()
        await running.publish(Order(number=1), topic, correlation_id="c-1")
        assert await seen.next() == (2, "bill", "test", "c-1")


async def test_a_response_says_more_than_its_body(setting: Setting) -> None:
    broker, seen = setting.broker(), Seen()
    topic, bills = await setting.topic(), await setting.topic()

    @broker.subscriber(topic, start_from=StartFrom.FIRST)
    @broker.publisher(bills, tags="bill")
    async def handle(body: str) -> RocketMQResponse:
        return RocketMQResponse(body, headers={"a": "b"}, tags="other", keys=body)

    @broker.subscriber(bills, start_from=StartFrom.FIRST)
    async def bill(body: str, message: InContext) -> None:
        raw = message.raw_message
        seen.put_nowait((body, raw.tags, raw.keys, message.headers["a"]))

    async with setting.run(broker) as running:
        await running.start()
        await running.publish("o-1", topic)
        assert await seen.next() == ("o-1", "other", "o-1", "b")


async def test_reply_to_names_a_topic(setting: Setting) -> None:
    broker, seen = setting.broker(), Seen()
    topic, back = await setting.topic(), await setting.topic()

    @broker.subscriber(topic, start_from=StartFrom.FIRST)
    async def handle(body: str) -> str:
        return body.upper()

    @broker.subscriber(back, start_from=StartFrom.FIRST)
    async def answered(body: str) -> None:
        seen.put_nowait(body)

    async with setting.run(broker) as running:
        await running.start()
        await running.publish("hello", topic, reply_to=back)
        assert await seen.next() == "HELLO"


async def test_a_request_is_answered(setting: Setting) -> None:
    broker, topic = setting.broker(), await setting.topic()
    publisher = broker.publisher(topic)

    @broker.subscriber(topic, start_from=StartFrom.FIRST)
    async def handle(body: Order) -> Order:
        return Order(number=-body.number)

    async with setting.run(broker) as running:
        await running.start()
        reply = await running.request(Order(number=1), topic, correlation_id="c", timeout=LIMIT_S)
        assert (await reply.decode(), reply.correlation_id) == ({"number": -1}, "c")
        reply = await publisher.request(Order(number=2), timeout=LIMIT_S)
        assert await reply.decode() == {"number": -2}


# Parser, decoder, middlewares, dependencies, router


async def test_parser_and_decoder_are_the_users(setting: Setting) -> None:
    async def parser(raw: Any, default: Callable[[Any], Any]) -> RocketMQMessage:
        message: RocketMQMessage = await default(raw)
        message.headers["seen"] = raw.topic
        return message

    async def decoder(message: RocketMQMessage, default: Callable[[Any], Any]) -> Any:
        return message.headers["seen"], await default(message)

    broker = setting.broker(parser=parser, apply_types=False)
    topic, seen = await setting.topic(), Seen()

    @broker.subscriber(topic, decoder=decoder, start_from=StartFrom.FIRST)
    async def handle(body: Any) -> None:
        seen.put_nowait(body)

    async with setting.run(broker) as running:
        await running.start()
        await running.publish("hello", topic)
        assert await seen.next() == (topic, "hello")


async def test_middlewares_stand_around_consuming_and_publishing(setting: Setting) -> None:
    seen = Seen()

    class Traced(BaseMiddleware):
        async def consume_scope(self, call_next: Any, msg: Any) -> Any:
            seen.put_nowait("consume")
            try:
                return await call_next(msg)
            finally:
                seen.put_nowait("consumed")

        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            cmd.headers["traced"] = "yes"
            return await call_next(cmd)

    broker, topic = setting.broker(middlewares=[Traced]), await setting.topic()

    @broker.subscriber(topic, start_from=StartFrom.FIRST)
    async def handle(body: str, message: InContext) -> None:
        seen.put_nowait((body, message.headers["traced"]))

    async with setting.run(broker) as running:
        await running.start()
        await running.publish("hello", topic)
        assert await seen.first(3) == ["consume", ("hello", "yes"), "consumed"]


async def test_a_router_has_a_prefix_and_routes(setting: Setting) -> None:
    broker, seen = setting.broker(), Seen()
    orders, bills, more = await setting.topic(), await setting.topic(), await setting.topic()
    prefix = orders[:4]

    def dependency() -> str:
        return "given"

    async def handle(body: str, given: str = Depends(dependency)) -> str:
        return f"{body} {given}"

    out = RocketMQPublisher(bills[4:])
    first = StartFrom.FIRST
    router = RocketMQRouter(
        prefix, [RocketMQRoute(handle, orders[4:], publishers=[out], start_from=first)]
    )

    @router.subscriber(bills[4:], start_from=StartFrom.FIRST)
    @router.publisher(more[4:])
    async def bill(body: str) -> str:
        return body.title()

    @broker.subscriber(more, start_from=StartFrom.FIRST)
    async def last(body: str) -> None:
        seen.put_nowait(body)

    broker.include_router(router)
    async with setting.run(broker) as running:
        await running.start()
        await running.publish("it was", orders)
        assert await seen.next() == "It Was Given"


async def test_an_application_starts_and_stops_it(setting: Setting) -> None:
    broker, topic, seen = setting.broker(), await setting.topic(), Seen()

    @broker.subscriber(topic, start_from=StartFrom.FIRST)
    async def handle(body: str) -> None:
        seen.put_nowait(body)

    application = FastStream(broker)

    @application.after_startup
    async def begin() -> None:
        await broker.publish("hello", topic)

    async with setting.run(broker), TestApp(application):
        assert await seen.next() == "hello"


# The test broker


async def test_the_test_broker_has_mocks_of_handlers_and_publishers() -> None:
    broker = RocketMQBroker(group="test")

    @broker.subscriber("orders")
    @broker.publisher("bills")
    async def handle(body: Order) -> str:
        return f"bill {body.number}"

    publisher = broker.publisher("bills")

    @broker.subscriber("wrong")
    async def wrong(body: str) -> None:
        raise ValueError(body)

    async with TestRocketMQBroker(broker) as running:
        await running.publish({"number": 1}, "orders", headers={"a": "b"})
        handle.mock.assert_called_once_with({"number": 1})
        publisher.mock.assert_called_once_with("bill 1")
        with pytest.raises(ValueError, match="it failed"):
            await running.publish("it failed", "wrong")
    assert len(broker.subscribers) == 2, "no made-up subscriber is left"
    with pytest.raises(SetupError):
        handle.mock.assert_not_called()


async def test_the_test_broker_runs_on_a_real_one(skylarkmq_broker_session: RunningBroker) -> None:
    setting = Setting(skylarkmq_broker_session)
    topic, bills = await setting.topic(), await setting.topic()
    broker = setting.broker()

    @broker.subscriber(topic, start_from=StartFrom.FIRST)
    @broker.publisher(bills)
    async def handle(body: str) -> str:
        return body.upper()

    publisher = broker.publisher(bills)
    async with TestRocketMQBroker(broker, with_real=True) as running:
        await running.publish("hello", topic)
        await handle.wait_call(LIMIT_S)
        handle.mock.assert_called_once_with("hello")
        while not publisher.mock.called:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        publisher.mock.assert_called_once_with("HELLO")


# What cannot be


def test_a_subscriber_without_a_group_says_what_to_write() -> None:
    subscriber = RocketMQBroker().subscriber("orders")
    with pytest.raises(SetupError, match=r"group='shop'"):
        _ = subscriber.group
    assert RocketMQBroker(group="shop").subscriber("orders").group == "shop-orders"
    assert RocketMQBroker(group="shop").subscriber("orders", group="bills").group == "bills"


@pytest.mark.parametrize(
    "wrong",
    [
        {"consumer": {"prefetsch": 1}},
        {"consumer": {"ack": "auto"}},
        {"no_replay": True},
        {"max_workers": 0},
        {"max_reconsume": -1},
        {"group": "a b"},
        {"start_from": "first"},
    ],
)
def test_a_setting_that_cannot_be_is_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError, SetupError)):
        RocketMQBroker(group="g").subscriber("orders", **wrong)


def test_a_topic_that_cannot_be_is_refused_at_once() -> None:
    broker = RocketMQBroker(group="g")
    for register in (broker.subscriber, broker.publisher):
        with pytest.raises((ValueError, SetupError), match="illegal characters"):
            register("orders.new")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda it: RocketMQBroker(grupp="g"), "RocketMQBroker has no setting 'grupp'; group?"),
        (lambda it: it.subscriber("t", orderli=True), "subscriber has no setting 'orderli'; order"),
        (lambda it: it.publisher("t", tag="a"), "publisher has no setting 'tag'; tags?"),
        (lambda it: RocketMQRouter(middleware=()), "RocketMQRouter has no setting 'middleware'; m"),
    ],
)
def test_an_unknown_setting_is_told_with_the_nearest_one(wrong: Any, text: str) -> None:
    with pytest.raises(TypeError, match=re.escape(text)):
        wrong(RocketMQBroker(group="g"))


async def test_an_unknown_part_of_a_message_is_told_with_the_nearest_one() -> None:
    broker = RocketMQBroker(group="g")
    async with TestRocketMQBroker(broker):
        with pytest.raises(TypeError, match=r"a message has no setting 'tag'; tags\?"):
            await broker.publish("tea", "orders", tag="a")  # type: ignore[call-arg]


async def test_times_are_seconds_or_timedeltas() -> None:
    second = timedelta(seconds=1)
    broker = RocketMQBroker(group="g", graceful_timeout=second)
    assert broker.config.graceful_timeout == 1

    @broker.subscriber("orders")
    async def order(body: str) -> str:
        return body

    async with TestRocketMQBroker(broker):
        publisher = broker.publisher("orders")
        for reply in (
            await broker.request("tea", "orders", timeout=second),
            await publisher.request("tea", timeout=second),
        ):
            assert await reply.decode() == "tea"
