"""Producer: where messages go, what comes back, and what happens when something fails."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from random import Random
from typing import Any

import pytest

from skylarkmq.client import (
    Client,
    ConnectionFailed,
    IllegalState,
    Message,
    MessageIllegal,
    MessageQueue,
    MessageTooLarge,
    NotDurableError,
    Producer,
    RequestTimeout,
    RouteNotFound,
    SendStatus,
    SystemBusy,
    TooManyInFlight,
)
from skylarkmq.client.config import Codec
from skylarkmq.client.producer import _properties_text
from skylarkmq.client.queue_selector import by_hash
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.properties import decode_properties
from tests.support.fake_cluster import FakeCluster
from tests.support.manual_clock import ManualClock, advance_async, settle

SEND = RequestCode.SEND_MESSAGE_V2


class Setting:
    """A cluster, a clock, and a started producer."""

    def __init__(self, *, codec: Codec = "json", **settings: Any) -> None:
        self.cluster = FakeCluster()
        self.clock = ManualClock()
        self.client = Client(
            self.cluster.namesrv,
            network=self.cluster.network,
            clock=self.clock,
            random=Random(3),
            codec=codec,
        )
        self.producer = Producer(self.client, **settings)

    async def __aenter__(self) -> Setting:
        await self.producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        stopping = asyncio.create_task(self.producer.stop(timeout=1))
        await advance_async(self.clock, 60)
        await stopping
        await self.client.close()
        assert self.clock.pending_count == 0, "timers are left over"


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


async def test_sends_of_one_turn_leave_in_one_write_in_order() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        await it.producer.send(Message("orders", b"first"))
        (stream,) = broker.streams
        before = len(stream.writes)
        futures = [it.producer.send_nowait(Message("orders", b"%d" % n)) for n in range(100)]
        await asyncio.gather(*futures)
        assert len(stream.writes) == before + 1
        assert broker.bodies("orders")[1:] == [b"%d" % n for n in range(100)]


async def test_sends_before_the_route_is_known_keep_their_order_too() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        futures = [it.producer.send_nowait(Message("orders", b"%d" % n)) for n in range(50)]
        while it.client.services.remoting.ready(broker.address) is None:
            futures.append(it.producer.send_nowait(Message("orders", b"%d" % len(futures))))
            await asyncio.sleep(0)
        futures.append(it.producer.send_nowait(Message("orders", b"%d" % len(futures))))
        await asyncio.gather(*futures)
        assert broker.bodies("orders") == [b"%d" % n for n in range(len(futures))]


async def test_a_new_topic_borrows_the_default_topic_and_gets_its_own_route_later() -> None:
    async with Setting(default_topic_queues=2) as it:
        broker = it.cluster.broker("broker-a", {"TBW102": 8})
        result = await it.producer.send(Message("fresh", b"x"))
        assert result.queue.queue_id < 2
        request = broker.of_code(SEND)[0]
        assert (request.ext_fields["c"], request.ext_fields["d"]) == ("TBW102", "2")
        route = it.client.services.routes.known("fresh")
        assert route is not None
        assert route.borrowed
        await advance_async(it.clock, 6)
        route = it.client.services.routes.known("fresh")
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
        with pytest.raises(RouteNotFound) as caught:
            await it.producer.send(Message("absent", b"x"))
        assert caught.value.reason == "no_broker"
        assert it.cluster.namesrv in str(caught.value)


async def test_equal_keys_share_a_queue() -> None:
    async with Setting() as it:
        it.cluster.broker("broker-a", {"orders": 8})
        by_key: dict[str, set[int]] = {}
        for number in range(40):
            key = f"customer-{number % 10}"
            result = await it.producer.send(Message("orders", b"x"), key=key)
            by_key.setdefault(key, set()).add(result.queue.queue_id)
            again = await it.producer.send(Message("orders", b"x", sharding_key=key))
            by_key[key].add(again.queue.queue_id)
        assert all(len(queue_ids) == 1 for queue_ids in by_key.values())
        assert len(set.union(*by_key.values())) > 1


def test_the_hash_selector_takes_java_s_queue() -> None:
    queues = [MessageQueue("t", "b", n) for n in range(10)]
    # "polygenelubricants".hashCode() is the least 32-bit integer; Java: abs(hash % 10) = 8.
    assert by_hash(queues, "polygenelubricants").queue_id == 8
    assert by_hash(queues, "a").queue_id == 97 % 10


async def test_a_queue_or_a_selector_decides() -> None:
    async with Setting() as it:
        it.cluster.broker("broker-a", {"orders": 4})
        queues = await it.producer.queues("orders")
        assert queues == [MessageQueue("orders", "broker-a", n) for n in range(4)]
        result = await it.producer.send(Message("orders", b"x"), queue=queues[2])
        assert result.queue == queues[2]
        result = await it.producer.send(Message("orders", b"x"), selector=lambda all, _: all[-1])
        assert result.queue == queues[3]
        for selector in (lambda *_: MessageQueue("orders", "broker-z", 0), lambda *_: 1 // 0):
            with pytest.raises(IllegalState, match="selector"):
                await it.producer.send(Message("orders", b"x"), selector=selector)
        with pytest.raises(IllegalState, match="no queue of topic"):
            await it.producer.send(Message("other", b"x"), queue=queues[0])
        assert it.producer.in_flight_count == 0


async def test_a_refusal_in_the_retry_set_goes_to_another_broker() -> None:
    async with Setting() as it:
        brokers = [it.cluster.broker(name, {"orders": 2}) for name in ("broker-a", "broker-b")]
        await it.producer.send(Message("orders", b"warm up"))
        for code in (1, 14, 16, 17, 204, 205):
            for broker in brokers:
                broker.refusals.clear()
            victim = brokers[code % 2]
            victim.refuse(SEND, *[code] * 10)
            results = [await it.producer.send(Message("orders", b"x")) for _ in range(4)]
            assert all(result.queue.broker_name != victim.name for result in results)
            assert all(result.unknown_tries == 0 for result in results), "a refusal is no doubt"
        assert it.producer.stats.retry_count > 0
        assert it.producer.stats.unknown_retry_count == 0


async def test_busy_is_tried_again_after_a_pause_and_given_up_after_the_retries() -> None:
    async with Setting(retries=2) as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        broker.refuse(SEND, ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_BUSY)
        send = asyncio.create_task(it.producer.send(Message("orders", b"x")))
        await settle()
        assert len(broker.of_code(SEND)) == 1, "no second try without a pause"
        await advance_async(it.clock, 1)
        assert (await send).status is SendStatus.SEND_OK

        broker.refuse(SEND, *[ResponseCode.SYSTEM_BUSY] * 3)
        send = asyncio.create_task(it.producer.send(Message("orders", b"x")))
        await advance_async(it.clock, 2.5)
        with pytest.raises(SystemBusy) as caught:
            await send
        assert caught.value.retryable
        assert caught.value.remark == "refused by the test"
        assert len(broker.of_code(SEND)) == 6


async def test_another_refusal_fails_at_once() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        broker.refuse(SEND, ResponseCode.MESSAGE_ILLEGAL)
        with pytest.raises(MessageIllegal) as caught:
            await it.producer.send(Message("orders", b"x"))
        assert caught.value.broker_addr == broker.address
        assert len(broker.of_code(SEND)) == 1
        assert it.producer.stats.failed_count == 1


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


async def test_no_answer_is_a_time_out() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        await it.producer.send(Message("orders", b"x"))
        broker.silent = True
        send = asyncio.create_task(it.producer.send(Message("orders", b"y"), timeout=1.5))
        await advance_async(it.clock, 1.4)
        assert not send.done()
        await advance_async(it.clock, 0.1)
        with pytest.raises(RequestTimeout):
            await send


async def test_a_lost_connection_is_retried_and_counted_as_a_doubt() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        await it.producer.send(Message("orders", b"first"))
        broker.silent = True
        futures = [it.producer.send_nowait(Message("orders", b"%d" % n)) for n in range(20)]
        await settle()
        broker.silent = False
        broker.lose_all()
        await advance_async(it.clock, 2)
        results = await asyncio.gather(*futures)
        assert all(result.unknown_tries == 1 for result in results)
        assert it.producer.stats.unknown_retry_count == 20
        assert sorted(broker.bodies("orders")[1:]) == sorted(b"%d" % n for n in range(20))


async def test_a_broker_that_is_down_is_waited_for_until_the_time_is_up() -> None:
    async with Setting(send_timeout=10, retries=0) as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        await it.producer.send(Message("orders", b"x"))
        broker.connect_error = ConnectionRefusedError("down")
        broker.lose_all()
        await settle()
        waiting = [asyncio.create_task(it.producer.send(Message("orders", b"y"))) for _ in "ab"]
        await advance_async(it.clock, 5)
        assert not any(send.done() for send in waiting)
        broker.connect_error = None
        await advance_async(it.clock, 5)
        results = [await send for send in waiting]
        assert [result.unknown_tries for result in results] == [0, 0], "nothing had left"

        broker.connect_error = ConnectionRefusedError("down for good")
        broker.lose_all()
        await settle()
        lost = asyncio.create_task(it.producer.send(Message("orders", b"z")))
        await advance_async(it.clock, 10.1)
        with pytest.raises(RouteNotFound) as caught:
            await lost
        assert caught.value.reason == "address_unreachable"
        assert "down for good" in str(caught.value)
        assert isinstance(caught.value.__cause__, ConnectionFailed)


async def test_room_is_bounded_by_count_and_send_waits_for_it() -> None:
    async with Setting(max_in_flight=3) as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        await it.producer.send(Message("orders", b"x"))
        broker.silent = True
        futures = [it.producer.send_nowait(Message("orders", b"y")) for _ in range(3)]
        with pytest.raises(TooManyInFlight):
            it.producer.send_nowait(Message("orders", b"z"))
        waiting = [asyncio.create_task(it.producer.send(Message("orders", b"w"))) for _ in range(5)]
        impatient = asyncio.create_task(it.producer.room())
        await settle()
        impatient.cancel()
        assert it.producer.in_flight_count == 3
        broker.silent = False
        for request in broker.of_code(SEND)[-3:]:
            for answer in [broker.respond(request, broker.streams[0])]:
                assert not isinstance(answer, list)
                broker.streams[0].say(answer)
        await asyncio.gather(*futures, *waiting)
        assert it.producer.in_flight_count == 0


async def test_room_is_bounded_by_bytes() -> None:
    async with Setting(max_in_flight_bytes=1000, max_message_size=1000, compress_over=5000) as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        await it.producer.send(Message("orders", b"x"))
        broker.silent = True
        future = it.producer.send_nowait(Message("orders", bytes(900)))
        with pytest.raises(TooManyInFlight):
            it.producer.send_nowait(Message("orders", bytes(101)))
        it.producer.send_nowait(Message("orders", bytes(100))).add_done_callback(_seen)
        future.add_done_callback(_seen)
        with pytest.raises(MessageTooLarge):
            it.producer.send_nowait(Message("orders", bytes(1001)))


def _seen(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


async def test_a_cancelled_send_leaves_nothing_behind() -> None:
    async with Setting() as it:
        broker = it.cluster.broker("broker-a", {"orders": 1})
        await it.producer.send(Message("orders", b"x"))
        broker.silent = True
        on_the_wire = asyncio.create_task(it.producer.send(Message("orders", b"y")))
        await settle()
        broker.connect_error = ConnectionRefusedError("down")
        parked = asyncio.create_task(it.producer.send(Message("elsewhere", b"z")))
        await asyncio.sleep(0)
        for task in (on_the_wire, parked):
            task.cancel()
        await settle()
        assert it.producer.in_flight_count == 0
        connection = it.client.services.remoting.ready(broker.address)
        assert connection is not None
        assert connection.pending_count == 0


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
    await it.client.close()
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


async def test_an_unreachable_name_server_says_so_at_start() -> None:
    cluster = FakeCluster()
    producer = Producer(
        Client("nowhere:1;also-nowhere:2", network=cluster.network, clock=ManualClock())
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
    assert decode_properties(_properties_text(message, "ID")) == expected
