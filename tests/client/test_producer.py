"""Producer: what travels, what comes back, batches, codecs, start and stop."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from skylarkmq.client import (
    Client,
    ConnectionFailed,
    IllegalState,
    Message,
    MessageTooLarge,
    NotDurableError,
    Producer,
    RouteNotFound,
    SendStatus,
)
from skylarkmq.client.config import Codec
from skylarkmq.client.instance import services_of
from skylarkmq.client.producer.outgoing import properties_text
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.properties import decode_properties
from tests.client.support import Setting
from tests.support.fake_cluster import FakeCluster
from tests.support.manual_clock import ManualClock, advance_async, settle

SEND = RequestCode.SEND_MESSAGE_V2


async def test_messages_take_the_queues_in_turn_and_the_result_says_where_they_are() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"orders": 4})
        results = [await it.producer.send(Message("orders", b"%d" % n)) for n in range(8)]
        assert {result.status for result in results} == {SendStatus.SEND_OK}
        assert Counter(result.queue.queue_id for result in results) == dict.fromkeys(range(4), 2)
        for number, result in enumerate(results):
            stored = broker.topics["orders"].queues[result.queue.queue_id][result.queue_offset]
            assert stored.body == b"%d" % number
            assert stored.properties["UNIQ_KEY"] == result.msg_id
        assert len({result.msg_id for result in results}) == 8
        assert it.producer.stats.sent_count == 8
        assert it.producer.in_flight_count == 0


async def test_everything_of_a_message_travels() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        message = Message(
            "orders", "häuser", tags="A", keys=["k1", "k2"], properties={"a%d": "100 %\n"},
            delay_level=3, wait_store_ok=False, flag=7,
        )  # fmt: skip
        await it.producer.send(message)
        (stored,) = broker.topics["orders"].queues[0]
        assert stored.body == "häuser".encode()
        assert stored.flag == 7
        assert stored.born_timestamp == it.clock.now_ms()
        unique_id = stored.properties.pop("UNIQ_KEY")
        assert len(unique_id) == 32
        assert stored.properties == {
            "TAGS": "A", "KEYS": "k1 k2", "a%d": "100 %\n", "DELAY": "3", "WAIT": "false",
        }  # fmt: skip


async def test_a_new_topic_borrows_the_default_topic_and_gets_its_own_route_later() -> None:
    async with Setting(default_topic_queues=2) as it:
        broker = it.cluster.broker("broker-a", {"TBW102": 8})
        result = await it.producer.send(Message("fresh", b"x"))
        assert result.queue.queue_id < 2
        request = broker.of_code(SEND)[0]
        assert (request.ext_fields["c"], request.ext_fields["d"]) == ("TBW102", "2")
        route = services_of(it.client).routes.known("fresh")
        assert route is not None
        assert route.borrowed
        await advance_async(it.clock, 6)
        route = services_of(it.client).routes.known("fresh")
        assert route is not None
        assert not route.borrowed


async def test_no_topic_and_none_made_on_demand() -> None:
    async with Setting() as it:
        it.cluster.broker("broker-a", {"other": 1})
        with pytest.raises(RouteNotFound) as caught:
            await it.producer.send(Message("absent", b"x"))
        assert caught.value.reason == "auto_create_off"
        assert "autoCreateTopicEnable" in str(caught.value)


async def test_no_broker_at_all() -> None:
    async with Setting() as it:
        send = it.producer.send_nowait(Message("absent", b"x"))
        await advance_async(it.clock, 4)  # one may come within its time
        with pytest.raises(RouteNotFound) as caught:
            await send
        assert caught.value.reason == "no_broker"
        assert it.cluster.namesrv in str(caught.value)


async def test_stored_without_confirmation_is_a_result_or_an_error_if_strict() -> None:
    for strict in (False, True):
        async with Setting(strict=strict) as it:
            broker = it.cluster.broker("broker-a", {"orders": 1})
            await it.producer.send(Message("orders", b"x"))
            request = broker.of_code(SEND)[0]
            stored = {"msgId": "0" * 32, "queueId": "0", "queueOffset": "5"}

            def answer(code: int) -> None:
                late = request.reply(code, "flush late", stored)  # noqa: B023
                late.opaque = request.opaque + 1  # noqa: B023
                broker.script.append(late)  # noqa: B023

            answer(ResponseCode.FLUSH_DISK_TIMEOUT)
            if strict:
                with pytest.raises(NotDurableError, match="FLUSH_DISK_TIMEOUT"):
                    await it.producer.send(Message("orders", b"x"))
            else:
                result = await it.producer.send(Message("orders", b"x"))
                assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
                assert result.queue_offset == 5


async def test_flush_waits_for_all_and_stop_gives_up_after_its_time() -> None:
    it = Setting()
    await it.producer.start()
    broker = it.cluster.broker("broker-a", {"orders": 1})
    futures = [it.producer.send_nowait(Message("orders", b"x")) for _ in range(5)]
    await it.producer.flush()
    assert all(future.done() for future in futures)
    broker.silent = True
    lost = it.producer.send_nowait(Message("orders", b"y"), timeout=60)
    stopping = asyncio.create_task(it.producer.stop(timeout=2))
    await advance_async(it.clock, 10)
    await stopping
    with pytest.raises(IllegalState, match="stopped"):
        await it.producer.send(Message("orders", b"z"))
    await it.client.stop()
    with pytest.raises(ConnectionFailed):
        await lost


async def test_large_bodies_are_compressed_when_that_helps() -> None:
    async with Setting(compress_over=100) as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        noise = Random(1).randbytes(200)
        for body in (b"a" * 99, b"a" * 100, noise):
            await it.producer.send(Message("orders", body))
        small, packed, incompressible = broker.topics["orders"].queues[0]
        assert (small.body, small.sys_flag) == (b"a" * 99, 0)
        assert (zlib.decompress(packed.body), packed.sys_flag) == (b"a" * 100, 0x301)
        assert (incompressible.body, incompressible.sys_flag) == (noise, 0)


async def test_one_way_gets_no_answer_and_is_sent_once() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        await it.producer.send_oneway(Message("orders", b"x", tags="A"))
        await settle()
        assert broker.bodies("orders") == [b"x"]
        (request,) = broker.of_code(SEND)
        assert request.is_oneway


async def test_a_key_that_is_no_text_is_refused_and_holds_no_room() -> None:
    async with Setting() as it:
        it.cluster.broker("broker-a", {"orders": 4})
        wrong: Any = 7
        for _ in range(2):  # without the topic's route, and with it
            with pytest.raises(TypeError, match="key is text, not int"):
                await it.producer.send(Message("orders", b"x"), key=wrong)
            await it.producer.send(Message("orders", b"x"), key="7")
        assert it.producer.in_flight_count == 0


async def test_a_batch_is_one_request_with_a_result_for_each() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"orders": 2})
        messages = [Message("orders", b"%d" % n, tags="T", keys=f"k{n}") for n in range(5)]
        results = await it.producer.send_batch(messages)
        (request,) = broker.of_code(RequestCode.SEND_BATCH_MESSAGE)
        assert request.ext_fields["m"] == "true"
        (queue,) = {result.queue for result in results}
        stored = broker.topics["orders"].queues[queue.queue_id]
        assert [item.body for item in stored] == [b"%d" % n for n in range(5)]
        assert [item.properties["UNIQ_KEY"] for item in stored] == [r.msg_id for r in results]
        assert [result.queue_offset for result in results] == list(range(5))
        assert len({result.offset_msg_id for result in results}) == 5


async def test_batches_that_cannot_be() -> None:
    async with Setting(max_message_size=1000) as it:
        it.cluster.broker("broker-a", {"orders": 1})
        for messages in (
            [],
            [Message("a", b"x"), Message("b", b"x")],
            [Message("a", b"x", delay_level=1)],
            [Message("a", b"x", delay=timedelta(seconds=1))],
            [Message("a", b"x"), Message("a", b"x", wait_store_ok=False)],
            [Message("%RETRY%g", b"x")],
        ):
            with pytest.raises(IllegalState):
                await it.producer.send_batch(messages)
        with pytest.raises(MessageTooLarge):
            await it.producer.send_batch([Message("a", bytes(600))] * 2)


@pytest.mark.parametrize("topic", ["", " ", "a b", "ü", "x" * 128, "a/../b"])
async def test_illegal_topics_never_leave(topic: str) -> None:
    async with Setting() as it:
        with pytest.raises(ValueError, match="topic"):
            it.producer.send_nowait(Message(topic, b"x"))


@pytest.mark.parametrize("codec", ["auto", "msgpack", "json", "rocketmq"])
async def test_every_codec_carries_the_same_message(codec: Codec) -> None:
    async with Setting(codec=codec) as it:
        it.cluster.name_server.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, _echoing(it.cluster))
        broker = it.cluster.broker("broker-a", {"orders": 1})
        broker.echo_codec = True
        for number in range(3):
            await it.producer.send(Message("orders", b"%d" % number, keys='a"\\é', flag=-5))
        stored = broker.topics["orders"].queues[0]
        assert [item.properties["KEYS"] for item in stored] == ['a"\\é'] * 3
        assert [item.flag for item in stored] == [-5] * 3
        kinds = {"auto": 0x4D, "msgpack": 0x4D, "json": 0, "rocketmq": 1}
        seen = [request.serialize_type for request in broker.of_code(SEND)]
        assert seen[1:] == [kinds[codec]] * 2, "at the latest after the first answer"


def _echoing(cluster: FakeCluster) -> Any:
    def route(request: Any) -> Any:
        answer = cluster._route(request)
        if "skylarkmq.codec" in request.ext_fields:
            answer.ext_fields["skylarkmq.codec"] = request.ext_fields["skylarkmq.codec"]
        return answer

    return route


async def test_a_java_broker_gets_json_for_ever() -> None:
    async with Setting(codec="auto") as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        for _ in range(5):
            await it.producer.send(Message("orders", b"x"))
        assert {request.serialize_type for request in broker.requests} == {SerializeType.JSON}
        offers = [r for r in broker.requests if "skylarkmq.codec" in r.ext_fields]
        assert len(offers) == 1


async def test_the_producer_group_stands_in_heartbeats_and_says_good_bye() -> None:
    async with Setting(group="pg") as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        await it.producer.send(Message("orders", b"x"))
        await advance_async(it.clock, 31)
        assert [group.group_name for group in broker.heartbeats[-1].producer_data_set] == ["pg"]
        assert broker.heartbeats[-1].client_id == it.client.client_id
        assert it.client.client_id.startswith("192.0.2.1@")
    (farewell,) = broker.of_code(RequestCode.UNREGISTER_CLIENT)
    assert farewell.ext_fields["producerGroup"] == "pg"


async def test_a_name_server_that_goes_away_is_not_taken_for_a_broker() -> None:
    async with Setting() as it:
        it.cluster.broker("broker-a", {"orders": 4})
        it.cluster.name_server.connect_error = ConnectionRefusedError("gone")
        it.cluster.name_server.lose_all()
        await settle()
        lost = asyncio.create_task(it.producer.send(Message("orders", b"x")))
        await advance_async(it.clock, 10.1)
        with pytest.raises(ConnectionFailed, match="gone"):
            await lost


async def test_an_unreachable_name_server_says_so_at_start() -> None:
    cluster = FakeCluster()
    producer = Producer(
        client=Client("nowhere:1;also-nowhere:2", network=cluster.network, clock=ManualClock())
    )
    with pytest.raises(ConnectionFailed, match=r"nowhere:1.*NAMESRV_ADDR"):
        await producer.start()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tags": "T"},
        {"keys": ["a", "b"]},
        {"tags": "T", "keys": "k", "properties": {"p": "v"}, "delay_level": 2},
        {"sharding_key": "s", "wait_store_ok": False},
    ],
)
def test_the_property_text_is_the_message_s_own_and_its_id(settings: dict[str, Any]) -> None:
    message = Message("t", b"", **settings)
    expected = {"UNIQ_KEY": "ID", **message.to_properties()}
    assert decode_properties(properties_text(message, "ID")) == expected
