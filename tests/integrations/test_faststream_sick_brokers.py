"""FastStream where one broker of three, or all, refuse, and where a start has failed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

pytest.importorskip("faststream", reason="the extra `faststream` is not installed")

from faststream import AckPolicy
from faststream.exceptions import NackMessage, RejectMessage

from skylarkmq.client import FilterRefused
from skylarkmq.client.refusals import REFUSED_S
from skylarkmq.integrations.faststream import RocketMQBroker, Sql92, StartFrom
from skylarkmq.integrations.faststream.annotations import RocketMQMessage
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.client.three_brokers import ThreeBrokers

LONG_S = 15 * REFUSED_S


class Application(ThreeBrokers):
    """A subscriber to the topic on three brokers, in the test's time."""

    def __init__(self, handler: Callable[..., Any] | None = None, **wants: Any) -> None:
        super().__init__()
        settings = {"network": self.cluster.network, "clock": self.clock, "random": Random(1)}
        self.app = RocketMQBroker(self.cluster.namesrv, group="g", logger=None, client=settings)
        self.seen: set[bytes] = set()

        self.subscriber = self.app.subscriber("orders", start_from=StartFrom.FIRST, **wants)

        async def note(body: bytes) -> None:
            self.seen.add(body)

        self.subscriber(handler or note)


async def test_a_subscriber_goes_on_with_the_open_brokers() -> None:
    it = Application()
    await it.wait(it.app.start())
    it.sick.refuses_all = True
    it.put(b"early")
    await it.pass_time(LONG_S)
    it.put(b"late")
    await it.pass_time(1)
    await it.wait(it.app.stop())
    assert it.seen == it.expected(b"early", b"late")


async def test_a_subscriber_that_all_brokers_refuse_says_so_and_goes_on_afterwards() -> None:
    it = Application()
    await it.wait(it.app.start())
    for broker in (it.sick, *it.well):
        broker.refuses_all = True
    await it.pass_time(LONG_S)
    assert not await it.wait(it.app.ping())
    for broker in (it.sick, *it.well):
        broker.refuses_all = False
    it.put(b"m")
    await it.pass_time(LONG_S)
    assert await it.wait(it.app.ping())
    await it.wait(it.app.stop())
    assert it.seen == it.expected(b"m")


async def test_a_start_after_one_that_failed_consumes_or_fails() -> None:
    it = Application(selector=Sql92("a = 1"))
    it.sick.refuse(RequestCode.CHECK_CLIENT_CONFIG, ResponseCode.SUBSCRIPTION_PARSE_FAILED)
    with pytest.raises(FilterRefused):
        await it.wait(it.app.start())
    try:
        await it.wait(it.app.start())
        it.put(b"m")
        await it.pass_time(LONG_S)
        assert it.seen == it.expected(b"m")
    finally:
        await it.wait(it.app.stop())


@pytest.mark.parametrize("policy", AckPolicy)
@pytest.mark.parametrize("wish", ["nack", "reject"])
@pytest.mark.parametrize("batch", [False, True])
async def test_what_no_broker_could_be_told_is_not_held_for_ever(
    policy: AckPolicy, wish: str, batch: bool
) -> None:
    tried: set[bytes] = set()

    async def handle(message: RocketMQMessage) -> None:
        raw = message.raw_message
        bodies = {each.body for each in (raw if batch else [raw])}
        if bodies <= tried:
            await message.ack()
            return
        tried.update(bodies)
        if policy is AckPolicy.MANUAL:
            await getattr(message, wish)()
        raise NackMessage if wish == "nack" else RejectMessage

    it = Application(handle, ack_policy=policy, batch=batch)
    broker = it.well[0]
    for code in (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2):
        for each in (it.sick, *it.well):
            each.refuse(code, *[ResponseCode.SYSTEM_ERROR] * 20)
    broker.add("orders", 1, b"m", b"n")
    await it.wait(it.app.start())
    await it.pass_time(LONG_S)
    await it.wait(it.app.stop())
    assert tried == {b"m", b"n"}
    assert broker.offsets["g-orders", "orders", 1] == 2
