"""Brokers that are slow or fail are left alone for a while, and come back."""

from __future__ import annotations

import pytest

from skylarkmq.client import Message, MessageQueue
from skylarkmq.client.producer.lanes import BROKERS_MAX, LatencyFaults, avoided_for_s
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.client.support import Setting
from tests.support.manual_clock import advance_async, settle

SEND = RequestCode.SEND_MESSAGE_V2


@pytest.mark.parametrize(
    ("latency_ms", "seconds"),
    [
        (0, 0), (49, 0), (50, 0), (549, 0), (550, 30), (999, 30), (1000, 60), (2000, 120),
        (3000, 180), (14_999, 180), (15_000, 600), (30_000, 600),
    ],
)  # fmt: skip
def test_the_table_of_rocketmq(latency_ms: float, seconds: int) -> None:
    assert avoided_for_s(latency_ms) == seconds


def test_a_broker_is_away_for_its_time() -> None:
    faults = LatencyFaults()
    assert faults.is_available("a", 0)
    faults.ended("a", 1.0, 100, failed=False)
    assert not faults.is_available("a", 159.9)
    assert faults.is_available("a", 160)
    faults.ended("a", 0.01, 101, failed=False)
    assert faults.is_available("a", 101), "one quick answer clears it"
    faults.ended("a", 0.01, 101, failed=True)
    assert not faults.is_available("a", 700)


def test_the_least_bad_half_takes_turns() -> None:
    faults = LatencyFaults()
    for number, name in enumerate("dcba"):
        faults.ended(name, 1 + number, 0, failed=True)
    picked = {faults.least_bad("abcd", 1) for _ in range(10)}
    assert picked == {"d", "c"}
    assert faults.least_bad("xyz", 1) is None
    assert faults.least_bad("ax", 1) == "a"


def test_the_table_is_bounded() -> None:
    faults = LatencyFaults()
    for number in range(BROKERS_MAX + 10):
        faults.ended(str(number), 1, 0, failed=True)
    assert len(faults._faults) == BROKERS_MAX


async def test_messages_stay_away_from_a_broker_that_failed_one() -> None:
    async with Setting(latency_fault=True, retries=2, send_timeout=100) as it:
        bad = it.cluster.broker("broker-a", {"orders": 2})
        good = it.cluster.broker("broker-b", {"orders": 2})
        for _ in range(4):
            await it.producer.send(Message("orders", b"first"))
        bad.refuse(SEND, ResponseCode.SYSTEM_BUSY)
        for _ in range(4):
            send = it.producer.send_nowait(Message("orders", b"second"))
            await advance_async(it.clock, 2)
            send.result()
        assert not bad.refusals[SEND], "it had its turn"
        assert len(bad.bodies("orders")) <= 2 + 1
        before = len(bad.of_code(SEND))
        for _ in range(10):
            await it.producer.send(Message("orders", b"third"))
        assert len(bad.of_code(SEND)) == before
        kept = await it.producer.send(Message("orders", b"x"), queue=(await queues(it))[0])
        assert faults_of(it).is_available("broker-a", it.clock.monotonic()), "it has answered again"
        assert kept.queue.broker_name == "broker-a", "a chosen queue stays"
        faults_of(it).ended("broker-a", 1, it.clock.monotonic(), failed=True)
        await advance_async(it.clock, 601)
        for _ in range(8):
            await it.producer.send(Message("orders", b"fourth"))
        assert bad.bodies("orders").count(b"fourth") == 4
        assert good.bodies("orders").count(b"fourth") == 4


async def queues(it: Setting) -> list[MessageQueue]:
    return await it.producer.queues("orders")


def faults_of(it: Setting) -> LatencyFaults:
    faults = it.producer._running.pipeline.lanes.faults
    assert faults is not None
    return faults


async def test_a_broker_that_cannot_be_dialled_is_avoided_too() -> None:
    async with Setting(latency_fault=True) as it:
        gone = it.cluster.broker("broker-a", {"orders": 1})
        it.cluster.broker("broker-b", {"orders": 1})
        gone.connect_error = ConnectionRefusedError("down")
        for _ in range(10):
            send = it.producer.send_nowait(Message("orders", b"x"))
            await advance_async(it.clock, 1)
            assert send.result().queue.broker_name == "broker-b"
        assert it.producer.stats.retry_count == 1, "one send has tried, the others knew"


async def test_a_slow_broker_is_avoided_and_when_all_are_the_best_is_taken() -> None:
    async with Setting(latency_fault=True, send_timeout=100) as it:
        slow = it.cluster.broker("broker-a", {"orders": 1})
        other = it.cluster.broker("broker-b", {"orders": 1})
        for broker, seconds in ((slow, 2.5), (other, 0.6)):
            while not broker.bodies("orders"):
                await it.producer.send(Message("orders", b"warm up"))
            queue = next(q for q in await queues(it) if q.broker_name == broker.name)
            broker.silent = True
            send = it.producer.send_nowait(Message("orders", b"slow"), queue=queue)
            await settle()
            await advance_async(it.clock, seconds)
            broker.silent = False
            request = broker.of_code(SEND)[-1]
            answer = broker.respond(request, broker.streams[0])
            assert not isinstance(answer, list)
            broker.streams[0].say(answer)
            await send
        results = [await it.producer.send(Message("orders", b"x")) for _ in range(4)]
        assert {result.queue.broker_name for result in results} == {"broker-b"}


async def test_a_try_that_takes_too_long_leaves_time_for_another_broker() -> None:
    async with Setting(try_timeout=1, send_timeout=5) as it:
        brokers = [it.cluster.broker(name, {"orders": 1}) for name in ("broker-a", "broker-b")]
        for _ in range(2):
            await it.producer.send(Message("orders", b"warm up"))
        brokers[0].silent = True
        sends = [it.producer.send_nowait(Message("orders", b"x")) for _ in range(2)]
        await advance_async(it.clock, 1.1)
        results = [send.result() for send in sends]
        assert {result.queue.broker_name for result in results} == {"broker-b"}
        assert sorted(result.unknown_tries for result in results) == [0, 1]
