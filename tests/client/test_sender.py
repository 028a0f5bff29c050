"""What all sends share: delays and the brokers that keep them, hooks, namespaces, libraries."""

from __future__ import annotations

import asyncio
import importlib
import re
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from skylarkmq.client import (
    Client,
    Message,
    MessageIllegal,
    MessageQueue,
    MessageTooLarge,
    NotSupported,
    Producer,
    RocketMQError,
    SendResult,
)
from skylarkmq.client.instance import services_of
from skylarkmq.client.observe.hooks import ClientHook, SendContext
from skylarkmq.common.extras import how_to_install
from skylarkmq.protocol.codes import MQVersion, RequestCode, ResponseCode
from skylarkmq.protocol.remoting_command import RemotingCommand
from tests.client.support import Setting
from tests.support.fake_cluster import FakeBroker, FakeCluster
from tests.support.manual_clock import ManualClock, advance_async, settle

SEND = RequestCode.SEND_MESSAGE_V2
DELAY: dict[str, Any] = {"delay": timedelta(seconds=10)}
AT: dict[str, Any] = {"deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}


# Delays


class Broker5(FakeBroker):
    """Says that it is of release 5."""

    def respond(self, request: RemotingCommand, stream: Any) -> Any:
        answer = super().respond(request, stream)
        if isinstance(answer, RemotingCommand):
            answer.version = MQVersion.V5_0_0 + 20
        return answer


def broker_of(it: Setting, kind: str) -> FakeBroker:
    if kind == "5":
        five = Broker5(it.cluster, "broker-a", {"orders": 1})
        it.cluster.network.listen(five.address, five)
        it.cluster.brokers.append(five)
        return five
    broker = it.cluster.broker("broker-a", {"orders": 1})
    broker.echo_codec = kind == "ours"
    return broker


@pytest.mark.parametrize("codec", ["auto", "json"])
@pytest.mark.parametrize("kind", ["ours", "5"])
@pytest.mark.parametrize("when", [DELAY, AT])
async def test_brokers_with_timers_get_a_time(kind: str, codec: Any, when: dict[str, Any]) -> None:
    async with Setting(codec=codec) as it:
        broker = broker_of(it, kind)
        await it.producer.send(Message("orders", b"first", **when))
        it.producer.send_nowait(Message("orders", b"second", **when))
        await it.producer.send_oneway(Message("orders", b"third", **when))
        await it.producer.flush()
        await settle()
        queue = broker.topics["orders"].queues[0]
        assert sorted(item.body for item in queue) == [b"first", b"second", b"third"]
        for item in queue:
            if when is DELAY:
                assert item.properties["TIMER_DELAY_MS"] == "10000"
            else:
                assert item.properties["TIMER_DELIVER_MS"] == "1893456000000"


@pytest.mark.parametrize("codec", ["auto", "json"])
@pytest.mark.parametrize("when", [DELAY, AT, {"delay": timedelta(seconds=1)}])
async def test_a_broker_without_timers_gets_none_because_it_would_not_wait(
    codec: Any, when: dict[str, Any]
) -> None:
    async with Setting(codec=codec) as it:
        broker = broker_of(it, "4.9")
        message = Message("orders", b"too early", **when)
        for _ in range(2):
            with pytest.raises(NotSupported, match=r"RocketMQ 4\.9.*delay_level"):
                await it.producer.send(message)
            with pytest.raises(NotSupported, match="delay_level"):
                await it.producer.send_oneway(message)
        (outcome,) = await it.producer.send_many([message])
        assert isinstance(outcome, NotSupported)
        assert not outcome.retryable
        assert broker.bodies("orders") == []
        await it.producer.send(Message("orders", b"level", delay_level=3))
        await it.producer.send(Message("orders", b"no delay", delay=timedelta()))
        assert broker.bodies("orders") == [b"level", b"no delay"]


async def test_a_broker_that_was_replaced_is_asked_again() -> None:
    async with Setting() as it:
        broker = broker_of(it, "ours")
        await it.producer.send(Message("orders", b"x", **DELAY))
        broker.echo_codec = False
        broker.lose_all()
        await settle()
        with pytest.raises(NotSupported):
            await it.producer.send(Message("orders", b"x", **DELAY))


async def test_a_broker_that_does_not_say_what_it_is_costs_a_time_out() -> None:
    async with Setting(send_timeout=2) as it:
        broker = broker_of(it, "ours")
        broker.silent = True
        lost = it.producer.send_nowait(Message("orders", b"x", **DELAY))
        await advance_async(it.clock, 2.1)
        assert isinstance(lost.exception(), RocketMQError)
        assert it.producer.in_flight_count == 0


# Hooks


class Watch(ClientHook):
    def __init__(self) -> None:
        self.began: list[SendContext] = []
        self.ended: list[tuple[SendContext, SendResult | None, BaseException | None]] = []
        self.retries: list[tuple[str, str]] = []

    def before_send(self, context: SendContext) -> None:
        context.properties["trace"] = "t-1"
        self.began.append(context)

    def after_send(
        self, context: SendContext, result: SendResult | None, error: BaseException | None
    ) -> None:
        self.ended.append((context, result, error))

    def send_retried(self, topic: str, reason: str) -> None:
        self.retries.append((topic, reason))


async def test_hooks_see_every_kind_of_send_from_its_call_to_its_end() -> None:
    async with Setting(group="g", compress_over=100) as it:
        watch = Watch()
        services_of(it.client).hooks.append(watch)
        broker = it.cluster.broker("broker-a", {"orders": 1})
        await it.producer.send(Message("orders", bytes(500), properties={"trace": "own"}))
        await it.producer.send(Message("orders", b"later", delay_level=2))
        await it.producer.send_oneway(Message("orders", b"oneway"))
        await it.producer.send_batch([Message("orders", b"b1"), Message("orders", b"b2")])
        assert [context.kind for context in watch.began] == ["normal", "delayed", "oneway", "batch"]
        first = watch.began[0]
        assert (first.group, first.topic, first.body_size) == ("g", "orders", 500)
        assert (first.queue, first.broker_addr) == (
            MessageQueue("orders", "broker-a", 0),
            broker.address,
        )
        ids = [context.unique_ids for context in watch.began]
        assert [len(each) for each in ids] == [1, 1, 1, 2]
        queue = broker.topics["orders"].queues[0]
        assert [item.properties["UNIQ_KEY"] for item in queue] == [i for each in ids for i in each]
        assert [item.properties["trace"] for item in queue] == ["own", *["t-1"] * 4]
        assert [context for context, _, _ in watch.ended] == watch.began
        results = [result for _, result, _ in watch.ended]
        assert [result is None for result in results] == [False, False, True, False]
        assert all(error is None for _, _, error in watch.ended)


async def test_hooks_see_failures_retries_and_cancellations_once() -> None:
    async with Setting(max_message_size=1000) as it:
        watch = Watch()
        services_of(it.client).hooks.append(watch)
        broker = it.cluster.broker("broker-a", {"orders": 1})
        broker.refuse(SEND, ResponseCode.SYSTEM_BUSY, ResponseCode.MESSAGE_ILLEGAL)
        failed = it.producer.send_nowait(Message("orders", b"x"))
        await advance_async(it.clock, 1)
        assert isinstance(failed.exception(), MessageIllegal)
        assert watch.retries == [("orders", "SystemBusy")]
        with pytest.raises(MessageTooLarge):
            await it.producer.send(Message("orders", bytes(1001)))
        with pytest.raises(ValueError, match="topic"):
            await it.producer.send_oneway(Message("a b", b"x"))
        broker.silent = True
        for call in (it.producer.send, lambda m: it.producer.send_batch([m])):
            cancelled = asyncio.create_task(call(Message("orders", b"y")))
            await settle()
            cancelled.cancel()
            await asyncio.gather(cancelled, return_exceptions=True)
        broker.silent = False
        errors = [type(error) for _, _, error in watch.ended]
        wanted = [MessageIllegal, ValueError, *[asyncio.CancelledError] * 2]
        assert [kind for kind in errors if kind is not MessageTooLarge] == wanted
        assert len(watch.began) == len(watch.ended)


# Namespaces, libraries


async def test_a_namespace_is_on_the_wire_and_nowhere_else() -> None:
    cluster, clock = FakeCluster(), ManualClock()
    broker = cluster.broker("broker-a", {"shop%orders": 4})
    client = Client(
        cluster.namesrv, network=cluster.network, clock=clock, random=Random(1), namespace="shop"
    )
    async with client, Producer(client=client, group="g") as producer:
        queues = await producer.queues("orders")
        assert queues == [MessageQueue("orders", "broker-a", n) for n in range(4)]
        results = [
            await producer.send(Message("orders", b"1")),
            await producer.send(Message("orders", b"2"), queue=queues[1]),
            await producer.send(Message("orders", b"3"), selector=lambda all_of, _: all_of[2]),
            *await producer.send_batch([Message("orders", b"4")] * 2),
            *await producer.send_many([Message("orders", b"5", sharding_key="k")] * 2),
        ]
        for result in results:
            assert isinstance(result, SendResult)
            assert result.queue.topic == "orders"
        assert results[1].queue == queues[1]  # type: ignore[union-attr]
        assert results[2].queue == queues[2]  # type: ignore[union-attr]
        requests = [*broker.of_code(SEND), *broker.of_code(RequestCode.SEND_BATCH_MESSAGE)]
        assert {(r.ext_fields["a"], r.ext_fields["b"]) for r in requests} == {
            ("shop%g", "shop%orders")
        }
        stored = [item for queue in broker.topics["shop%orders"].queues for item in queue]
        assert {item.properties["INSTANCE_ID"] for item in stored} == {"shop"}
        await services_of(client).send_heartbeats()
        (group,) = broker.heartbeats[-1].producer_data_set
        assert group.group_name == "shop%g"


@pytest.mark.parametrize("kind", ["lz4", "zstd"])
def test_a_compression_without_its_library_says_what_to_install(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(NotSupported, match=re.escape(how_to_install("compression"))):
        Producer(namesrv_addr="nowhere:1", compression=kind)
    with pytest.raises(ValueError, match="zlib, lz4, zstd"):
        Producer(namesrv_addr="nowhere:1", compression="rar")  # type: ignore[arg-type]
