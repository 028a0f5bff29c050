"""What becomes of a message on a real broker: FastStream's policies in RocketMQ's terms."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("faststream", reason="the extra `faststream` is not installed")

from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from faststream import AckPolicy
from faststream.exceptions import NackMessage, RejectMessage, SetupError, SkipMessage, StopConsume
from faststream.security import BaseSecurity, SASLPlaintext, SASLScram256
from faststream.specification import AsyncAPI

from skylarkmq.client import Message, Producer, ReplyTimeout
from skylarkmq.integrations.faststream import RocketMQBroker, StartFrom, TestRocketMQBroker
from skylarkmq.integrations.faststream.annotations import RocketMQMessage
from skylarkmq.integrations.faststream.fastapi import RocketMQRouter
from skylarkmq.testing import Account, RunningBroker
from tests.support.patience import LIMIT_S, until

FIRST = StartFrom.FIRST
GROUP = "billing"
DEAD = f"%DLQ%{GROUP}"

pytestmark = [pytest.mark.timing]


def made(server: RunningBroker, **options: Any) -> RocketMQBroker:
    return RocketMQBroker(server.namesrv_addr, logger=None, **options)


async def settled(server: RunningBroker) -> None:
    """Stop was called: what was acknowledged is committed."""
    await server.wait_lag(GROUP, 0)


async def test_an_error_is_retried_and_then_dead(skylarkmq_broker: RunningBroker) -> None:
    await skylarkmq_broker.create_topic("orders", 1)
    broker, tries = made(skylarkmq_broker), []

    @broker.subscriber("orders", group=GROUP, start_from=FIRST, max_reconsume=1)
    async def handle(body: str, message: RocketMQMessage) -> None:
        tries.append(message.raw_message.reconsume_times)
        raise ValueError("no such customer")

    async with broker:
        await broker.start()
        await broker.publish("o-1", "orders")
        await until(lambda: len(tries) == 1)
        await skylarkmq_broker.advance(11)
        await until(lambda: len(tries) == 2)
        await until(lambda: skylarkmq_broker.messages(DEAD))
    await settled(skylarkmq_broker)
    assert tries == [0, 1]


@pytest.mark.parametrize(
    ("policy", "error", "dead"),
    [
        (AckPolicy.REJECT_ON_ERROR, ValueError(), 1),
        (AckPolicy.ACK, ValueError(), 0),
        (AckPolicy.ACK_FIRST, ValueError(), 0),
        (AckPolicy.NACK_ON_ERROR, RejectMessage(), 1),
    ],
)
async def test_a_policy_decides(
    skylarkmq_broker: RunningBroker, policy: AckPolicy, error: Exception, dead: int
) -> None:
    await skylarkmq_broker.create_topic("orders", 1)
    broker, seen = made(skylarkmq_broker, ack_policy=policy), []

    @broker.subscriber("orders", group=GROUP, start_from=FIRST)
    async def handle(body: str) -> None:
        seen.append(body)
        if body == "bad":
            raise error

    async with broker:
        await broker.start()
        await broker.publish("bad", "orders")
        await broker.publish("good", "orders")
        await until(lambda: len(seen) == 2)
    await settled(skylarkmq_broker)
    assert [message.body for message in await skylarkmq_broker.messages(DEAD)] == [b"bad"] * dead


async def test_a_handler_says_when_it_wants_it_again(skylarkmq_broker: RunningBroker) -> None:
    await skylarkmq_broker.create_topic("orders", 1)
    broker, tries = made(skylarkmq_broker), []

    @broker.subscriber("orders", group=GROUP, start_from=FIRST)
    async def handle(body: str) -> None:
        tries.append(body)
        if len(tries) == 1:
            raise NackMessage(delay=timedelta(minutes=5))

    async with broker:
        await broker.start()
        await broker.publish("o-1", "orders")
        await until(lambda: len(tries) == 1)
        await skylarkmq_broker.advance(290)
        assert len(tries) == 1
        await skylarkmq_broker.advance(11)
        await until(lambda: len(tries) == 2)
    await settled(skylarkmq_broker)


async def test_manual_leaves_it_to_the_handler(skylarkmq_broker: RunningBroker) -> None:
    await skylarkmq_broker.create_topic("orders", 1)
    broker, seen = made(skylarkmq_broker), []

    @broker.subscriber("orders", group=GROUP, start_from=FIRST, ack_policy=AckPolicy.MANUAL)
    async def handle(body: str, message: RocketMQMessage) -> None:
        seen.append(body)
        if body == "done":
            await message.ack()

    async with broker:
        await broker.start()
        await broker.publish("done", "orders")
        await broker.publish("open", "orders")
        await until(lambda: len(seen) == 2)
    assert await skylarkmq_broker.lag(GROUP) == 1


async def test_an_orderly_subscriber_holds_its_queue(skylarkmq_broker: RunningBroker) -> None:
    await skylarkmq_broker.create_topic("orders", 1)
    broker, seen = made(skylarkmq_broker), []

    @broker.subscriber("orders", group=GROUP, start_from=FIRST, orderly=True, max_workers=4)
    async def handle(body: str) -> None:
        seen.append(body)
        if seen == ["1"]:
            raise NackMessage(delay=timedelta(0))

    async with broker:
        await broker.start()
        await broker.publish_batch("1", "2", topic="orders", sharding_key="customer")
        await until(lambda: len(seen) == 3)
    assert seen == ["1", "1", "2"]


async def test_a_broadcast_reaches_every_process(
    skylarkmq_broker: RunningBroker, tmp_path: Any
) -> None:
    await skylarkmq_broker.create_topic("orders", 1)
    seen: list[tuple[int, str]] = []

    def process(number: int) -> RocketMQBroker:
        broker = made(skylarkmq_broker)

        @broker.subscriber(
            "orders",
            group=GROUP,
            broadcasting=True,
            start_from=FIRST,
            consumer={"offsets_folder": tmp_path / str(number)},
        )
        async def handle(body: str) -> None:
            seen.append((number, body))

        return broker

    async with process(1) as one, process(2) as two:
        await one.start()
        await two.start()
        await one.publish("hello", "orders")
        await until(lambda: len(seen) == 2)
    assert sorted(seen) == [(1, "hello"), (2, "hello")]


async def test_stop_waits_for_the_handlers_and_commits(skylarkmq_broker: RunningBroker) -> None:
    await skylarkmq_broker.create_topic("orders", 1)
    broker, begun, go_on = made(skylarkmq_broker), asyncio.Event(), asyncio.Event()

    @broker.subscriber("orders", group=GROUP, start_from=FIRST)
    async def handle(body: str) -> None:
        begun.set()
        await go_on.wait()

    await broker.start()
    await broker.publish("o-1", "orders")
    await begun.wait()
    stopping = asyncio.create_task(broker.stop())
    await asyncio.sleep(0)
    go_on.set()
    await stopping
    assert await skylarkmq_broker.lag(GROUP) == 0


async def test_a_handler_ends_its_subscriber(skylarkmq_broker: RunningBroker) -> None:
    await skylarkmq_broker.create_topic("orders", 1)
    broker, seen = made(skylarkmq_broker, ack_policy=AckPolicy.ACK), []

    @broker.subscriber("orders", group=GROUP, start_from=FIRST)
    async def handle(body: str) -> None:
        seen.append(body)
        raise StopConsume

    async with broker:
        await broker.publish_batch("1", "2", topic="orders")
        await broker.start()
        await skylarkmq_broker.wait_lag(GROUP, 1)
    assert seen == ["1"]
    assert await skylarkmq_broker.lag(GROUP) == 1


@pytest.mark.parametrize("batch", [False, True])
async def test_what_nobody_settled_does_not_hold_its_queue(
    skylarkmq_broker: RunningBroker, batch: bool
) -> None:
    await skylarkmq_broker.create_topic("orders", 1)
    broker = made(skylarkmq_broker)

    @broker.subscriber("orders", group=GROUP, start_from=FIRST, max_reconsume=0, batch=batch)
    async def handle(body: Any) -> None:
        raise SkipMessage

    async with broker:
        await broker.start()
        await broker.publish_batch("1", "2", topic="orders")
        await until(lambda: skylarkmq_broker.messages(DEAD))
    await settled(skylarkmq_broker)
    assert len(await skylarkmq_broker.messages(DEAD)) == 2


async def test_a_broker_starts_again(skylarkmq_broker: RunningBroker) -> None:
    await skylarkmq_broker.create_topic("orders", 1)
    broker, seen = made(skylarkmq_broker), []

    @broker.subscriber("orders", group=GROUP, start_from=FIRST)
    async def handle(body: str) -> None:
        seen.append(body)

    for body in ("1", "2"):
        await broker.start()
        await broker.publish(body, "orders")
        await until(lambda: seen[-1:] == [body])  # noqa: B023
        await broker.stop()
    await settled(skylarkmq_broker)
    assert seen == ["1", "2"]


async def test_messages_one_by_one(skylarkmq_broker: RunningBroker) -> None:
    await skylarkmq_broker.create_topic("orders", 1)
    broker = made(skylarkmq_broker)
    subscriber = broker.subscriber("orders", group=GROUP, start_from=FIRST)
    async with broker:
        await broker.start()
        assert await subscriber.get_one(timeout=timedelta(milliseconds=10)) is None
        await broker.publish_batch(1, 2, topic="orders")
        first = await subscriber.get_one(timeout=300)
        assert first is not None and await first.decode() == 1
        await first.ack()
        async for message in subscriber:
            assert await message.decode() == 2
            await message.ack()
            break
    assert await skylarkmq_broker.lag(GROUP) == 0


async def test_an_answer_that_nobody_waits_for_is_no_failure(
    skylarkmq_broker: RunningBroker,
) -> None:
    await skylarkmq_broker.create_topic("orders", 1)
    broker, go_on = made(skylarkmq_broker), asyncio.Event()

    @broker.subscriber("orders", group=GROUP, start_from=FIRST)
    async def handle(body: str) -> str:
        await go_on.wait()
        return body

    async with broker:
        await broker.start()
        async with Producer(namesrv_addr=skylarkmq_broker.namesrv_addr) as asking:
            with pytest.raises(ReplyTimeout):
                await asking.request(Message("orders", b"hello"), timeout=0.5)
        go_on.set()
    await settled(skylarkmq_broker)
    assert "waiting: 0 delayed" in await skylarkmq_broker.dump(), "it is not tried again"


async def test_ping_tells_whether_it_is_connected(skylarkmq_broker: RunningBroker) -> None:
    broker = made(skylarkmq_broker)
    assert not await broker.ping()
    async with broker:
        assert await broker.ping(timedelta(minutes=5))
    assert not await broker.ping()


@pytest.mark.skylarkmq(accounts=[Account("shop-key", "shop-secret", admin=True)])
async def test_an_account_comes_as_faststreams_security(skylarkmq_broker: RunningBroker) -> None:
    await skylarkmq_broker.create_topic("orders", 1)
    async with made(skylarkmq_broker, security=SASLPlaintext("shop-key", "shop-secret")) as broker:
        await broker.publish("hello", "orders")
    assert len(await skylarkmq_broker.messages("orders")) == 1


def test_other_security_is_refused_or_means_tls() -> None:
    with pytest.raises(SetupError, match="SASLPlaintext"):
        RocketMQBroker(security=SASLScram256("a", "b"))
    assert RocketMQBroker(security=BaseSecurity(use_ssl=True))._connection_kwargs["client"] == {
        "ssl": True
    }


def test_asyncapi_has_the_channels() -> None:
    broker = RocketMQBroker("mq:9876", group="shop")

    @broker.subscriber("orders", description="New orders.")
    @broker.publisher("bills")
    async def handle(number: int) -> str:
        return str(number)

    told = AsyncAPI(broker).to_specification().to_jsonable()
    assert told["servers"]["development"]["protocol"] == "rocketmq"
    assert {each["address"] for each in told["channels"].values()} == {"orders", "bills"}
    assert told["channels"]["orders:Handle"]["description"] == "New orders."


async def test_a_router_of_fastapi(skylarkmq_broker: RunningBroker) -> None:
    await skylarkmq_broker.create_topic("orders", 1)
    router = RocketMQRouter(skylarkmq_broker.namesrv_addr, group="shop", logger=None)
    seen: list[tuple[str, int]] = []
    done = threading.Event()

    def price() -> int:
        return 3

    @router.subscriber("orders", group=GROUP, start_from=FIRST)
    async def handle(body: str, each: int = Depends(price)) -> None:
        seen.append((body, each))
        done.set()

    @router.post("/orders/{name}", status_code=202)
    async def order(name: str) -> None:
        await router.broker.publish(name, "orders")

    application = FastAPI()
    application.include_router(router)

    def visit() -> None:
        with TestClient(application) as web:
            assert web.post("/orders/tea").status_code == 202
            assert web.get("/asyncapi").status_code == 200
            done.wait(LIMIT_S)

    await asyncio.to_thread(visit)
    async with TestRocketMQBroker(router.broker) as broker:
        await broker.publish("cake", "orders")
    assert seen == [("tea", 3), ("cake", 3)]
    await settled(skylarkmq_broker)
