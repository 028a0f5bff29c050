"""Messages of one key: one queue, one order, and where both end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import structs

from skylarkmq.client import (
    IllegalState,
    Message,
    RequestTimeout,
    RouteNotFound,
    SendResult,
    SystemBusy,
)
from skylarkmq.protocol.bodies.route import TopicRouteData
from skylarkmq.protocol.bodies.text import decode_body, encode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.tags_code import java_string_hash
from tests.client.support import Setting
from tests.support.fake_cluster import FakeCluster
from tests.support.manual_clock import advance_async, settle

SEND = RequestCode.SEND_MESSAGE_V2
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


async def test_awaited_one_by_one_a_key_keeps_its_order_through_every_failure() -> None:
    async with Setting(retries=5, send_timeout=60) as it:
        broker = it.cluster.broker("broker-a", {"orders": 4})
        it.cluster.broker("broker-b", {"orders": 4})

        async def send_all() -> list[SendResult]:
            return [
                await it.producer.send(Message("orders", b"%d" % n), key="customer-1")
                for n in range(20)
            ]

        sending = asyncio.create_task(send_all())
        for step in range(40):
            if step % 5 == 0:
                broker.refuse(SEND, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR)
            if step in (7, 23):
                broker.lose_all()
            await advance_async(it.clock, 0.3)
        results = await sending
        assert len({result.queue for result in results}) == 1, "a retry stays on its queue"
        offsets = [result.queue_offset for result in results]
        assert offsets == sorted(offsets)


async def test_pipelined_a_key_keeps_its_order_unless_a_try_is_repeated() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"orders": 4})
        await it.producer.send(Message("orders", b"warm up"), key="k")
        futures = [it.producer.send_nowait(Message("orders", b"%d" % n), key="k") for n in range(9)]
        await asyncio.gather(*futures)
        assert broker.bodies("orders")[1:] == [b"%d" % n for n in range(9)]
        broker.refuse(SEND, ResponseCode.SYSTEM_BUSY)
        first, second = (
            it.producer.send_nowait(Message("orders", b), key="k") for b in (b"1", b"2")
        )
        await advance_async(it.clock, 1)
        assert first.result().queue_offset > second.result().queue_offset, "as documented"


async def test_with_strict_order_a_repeated_try_is_not_overtaken() -> None:
    async with Setting(strict_order=True, retries=5, send_timeout=60) as it:
        broker = it.cluster.broker("broker-a", {"orders": 4})
        keys = ("customer-1", "customer-2")
        futures = [
            it.producer.send_nowait(Message("orders", f"{key} {n}".encode()), key=key)
            for n in range(30)
            for key in keys
        ]
        for step in range(80):
            if step % 5 == 0:
                broker.refuse(SEND, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR)
            if step in (7, 23):
                broker.lose_all()
            await advance_async(it.clock, 0.3)
        await asyncio.gather(*futures)
        assert it.producer.stats.retry_count > 0
        for key in keys:
            stored = [body for body in broker.bodies("orders") if body.startswith(key.encode())]
            firsts = list(dict.fromkeys(stored))  # a lost answer may have stored one twice
            assert firsts == [f"{key} {n}".encode() for n in range(30)]


async def test_with_strict_order_other_queues_and_free_messages_do_not_wait() -> None:
    async with Setting(strict_order=True) as it:
        broker = it.cluster.broker("broker-a", {"orders": 4})
        first = (await it.producer.send(Message("orders", b"x"), key="k")).queue
        queues = [first._replace(queue_id=number) for number in range(4)]
        broker.refuse(SEND, ResponseCode.SYSTEM_BUSY)
        held = [it.producer.send_nowait(Message("orders", b"h"), queue=queues[0]) for _ in range(3)]
        await settle()
        others = [it.producer.send_nowait(Message("orders", b"o"), queue=queues[1])]
        others.append(it.producer.send_nowait(Message("orders", b"free")))
        await asyncio.gather(*others)
        assert not any(future.done() for future in held)
        await advance_async(it.clock, 1)
        offsets = [future.result().queue_offset for future in held]
        assert offsets == sorted(offsets)


async def test_with_strict_order_the_line_goes_on_after_what_ends_in_it() -> None:
    async with Setting(strict_order=True, retries=0) as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        await it.producer.send(Message("orders", b"warm up"), key="k")
        broker.refuse(SEND, ResponseCode.SYSTEM_BUSY)
        sends = [it.producer.send_nowait(Message("orders", b"%d" % n), key="k") for n in range(5)]
        sends[2].cancel()
        await settle()
        assert isinstance(sends[0].exception(), SystemBusy), "it is given up, the next one goes on"
        assert broker.bodies("orders")[1:] == [b"1", b"3", b"4"]


async def test_with_strict_order_time_ends_those_that_wait_too() -> None:
    async with Setting(strict_order=True, send_timeout=2) as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        await it.producer.send(Message("orders", b"warm up"), key="k")
        broker.silent = True
        sends = [it.producer.send_nowait(Message("orders", b"%d" % n), key="k") for n in range(3)]
        await advance_async(it.clock, 2)
        errors = [send.exception() for send in sends]
        assert all(isinstance(error, RequestTimeout) for error in errors)
        assert "the sends before it to its queue" in str(errors[2])


async def test_when_queues_are_added_a_key_moves_as_in_java() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"orders": 4})
        keys = [f"customer-{n}" for n in range(20)]
        for count in (4, 6):
            topic = broker.topics["orders"]
            topic.queues += [[] for _ in range(count - len(topic.queues))]
            await advance_async(it.clock, 40)
            for key in keys:
                result = await it.producer.send(Message("orders", b"x"), key=key)
                assert result.queue.queue_id == abs(java_string_hash(key)) % count


def with_order_conf(cluster: FakeCluster, conf: str, missing: set[str]) -> None:
    """Let the name server tell where an order topic's queues are, whoever is there."""
    plain = cluster._route

    def route(request: Any) -> Any:
        answer = plain(request)
        if answer.code == 0:
            data = decode_body(TopicRouteData, answer.body)
            there = [b for b in data.broker_datas if b.broker_name not in missing]
            changed = structs.replace(data, order_topic_conf=conf, broker_datas=there)
            answer.body = encode_body(changed)
        return answer

    cluster.name_server.on(ROUTE, route)


async def test_an_order_topic_keeps_its_queues_while_a_broker_is_away() -> None:
    async with Setting(send_timeout=2) as it:
        missing: set[str] = set()
        for name in ("broker-a", "broker-b"):
            it.cluster.broker(name, {"orders": 2})
        with_order_conf(it.cluster, "broker-a:2;broker-b:2", missing)
        keys = ["a", "b", "c", "d"]
        before = {k: (await it.producer.send(Message("orders", b"x"), key=k)).queue for k in keys}
        assert {queue.broker_name for queue in before.values()} == {"broker-a", "broker-b"}
        missing.add("broker-b")
        await advance_async(it.clock, 40)
        await settle()
        for key, queue in before.items():
            if queue.broker_name == "broker-b":
                send = it.producer.send_nowait(Message("orders", b"x"), key=key)
                await advance_async(it.clock, 3)  # its master may come back within its time
                with pytest.raises(RouteNotFound, match="no master"):
                    await send
            else:
                again = await it.producer.send(Message("orders", b"x"), key=key)
                assert again.queue == queue
        results = [await it.producer.send(Message("orders", b"x")) for _ in range(8)]
        assert {result.queue.broker_name for result in results} == {"broker-a"}, "without a key"
        assert {result.queue.queue_id for result in results} == {0, 1}


async def test_a_batch_with_a_key_goes_to_the_queue_of_the_key_and_has_no_second_one() -> None:
    async with Setting() as it:
        it.cluster.broker("broker-a", {"orders": 8})
        alone = await it.producer.send(Message("orders", b"x", sharding_key="k"))
        plain, keyed = Message("orders", b"x"), Message("orders", b"x", sharding_key="k")
        other = Message("orders", b"x", sharding_key="another")
        for batch in ([keyed, keyed], [plain, keyed]):
            results = await it.producer.send_batch(batch)
            assert {result.queue for result in results} == {alone.queue}
        with pytest.raises(IllegalState, match="send_many"):
            await it.producer.send_batch([keyed, other])
        results = await it.producer.send_batch([keyed, other], queue=alone.queue)
        assert {result.queue for result in results} == {alone.queue}
