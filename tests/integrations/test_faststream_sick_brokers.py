"""FastStream where one broker of three, or all, refuse, and where a start has failed."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

pytest.importorskip("faststream", reason="the extra `faststream` is not installed")

from skylarkmq.client import FilterRefused
from skylarkmq.client.refusals import REFUSED_S
from skylarkmq.integrations.faststream import RocketMQBroker, Sql92, StartFrom
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.client.three_brokers import ThreeBrokers

LONG_S = 15 * REFUSED_S


class Application(ThreeBrokers):
    """A subscriber to the topic on three brokers, in the test's time."""

    def __init__(self, **wants: Any) -> None:
        super().__init__()
        settings = {"network": self.cluster.network, "clock": self.clock, "random": Random(1)}
        self.app = RocketMQBroker(self.cluster.namesrv, group="g", logger=None, client=settings)
        self.seen: set[bytes] = set()

        self.subscriber = self.app.subscriber("orders", start_from=StartFrom.FIRST, **wants)

        @self.subscriber
        async def handle(body: bytes) -> None:
            self.seen.add(body)


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
