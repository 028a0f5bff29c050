"""The SDK against a real broker in the same loop: what a user sees, over real sockets.

Waits end with what they wait for; LIMIT_S only bounds a run that would never end.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from skylarkmq.broker.controller import BrokerController
from skylarkmq.client import (
    Client,
    Consumer,
    IllegalState,
    Message,
    MessageQueue,
    Producer,
    ReceivedMessage,
    RouteNotFound,
    SendStatus,
    StartFrom,
    Tag,
)
from skylarkmq.client.config import Codec
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.frame import SerializeType
from tests.support.live_broker import live_broker, namesrv_of
from tests.support.patience import LIMIT_S

pytestmark = pytest.mark.timing

TOPIC = "orders"
GROUP = "billing"
QUICK_RETRIES = " ".join(["1s"] * 18)


async def collect(consumer: Consumer, count: int) -> list[ReceivedMessage]:
    """Take `count` messages, acknowledging each."""
    messages: list[ReceivedMessage] = []
    async with asyncio.timeout(LIMIT_S):
        while len(messages) < count:
            message = await consumer.getone()
            await message.ack()
            messages.append(message)
    return messages


@asynccontextmanager
async def connected(
    root: Path, *, codec: Codec = "auto", **changes: Any
) -> AsyncIterator[tuple[BrokerController, Client, Producer]]:
    async with (
        live_broker(root, **changes) as broker,
        Client(namesrv_of(broker), codec=codec) as client,
        Producer(client=client, send_timeout=LIMIT_S) as producer,
    ):
        yield broker, client, producer


def first_of(client: Client | None, *topics: str, **settings: Any) -> Consumer:
    settings.setdefault("start_from", StartFrom.FIRST)
    return Consumer(*(topics or (TOPIC,)), client=client, group=GROUP, **settings)


@pytest.mark.parametrize(
    ("codec", "kind"),
    [
        ("auto", SerializeType.MSGPACK),
        ("msgpack", SerializeType.MSGPACK),
        ("json", SerializeType.JSON),
        ("rocketmq", SerializeType.ROCKETMQ),
    ],
)
async def test_a_message_goes_around_in_every_codec(
    tmp_path: Path, codec: Codec, kind: SerializeType
) -> None:
    async with connected(tmp_path, codec=codec) as (_, client, producer):
        sent = Message(
            TOPIC, "Grüße ✓", tags="A", keys=["k1", "k2"], properties={"name": 'va"l\\ü'}, flag=-3
        )
        result = await producer.send(sent)
        assert result.status is SendStatus.SEND_OK
        async with first_of(client) as consumer:
            (got,) = await collect(consumer, 1)
        assert (got.body.decode(), got.tags, got.keys, got.flag) == ("Grüße ✓", "A", "k1 k2", -3)
        assert got.properties["name"] == 'va"l\\ü'
        assert (got.msg_id, got.offset_msg_id) == (result.msg_id, result.offset_msg_id)
        assert (got.queue, got.queue_offset) == (result.queue, result.queue_offset)
        kinds = {c.serialize_type for c in services_of(client).remoting.connections}
        assert kinds == {kind}, "name server and broker alike"


async def test_pipelined_sends_are_all_there_in_order_per_queue(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client, producer):
        await producer.send(Message(TOPIC, b"make the topic"))
        queues = await producer.queues(TOPIC)
        futures = []
        for number in range(3000):
            await producer.room()
            message = Message(TOPIC, b"%d" % number, tags="N")
            futures.append(producer.send_nowait(message, queue=queues[number % len(queues)]))
        results = await asyncio.gather(*futures)
        assert producer.stats.retry_count == 0
        async with first_of(client, selector=Tag("N"), prefetch=500) as consumer:
            got = await collect(consumer, 3000)
        by_queue: dict[MessageQueue, list[int]] = defaultdict(list)
        for message in got:
            by_queue[message.queue].append(int(message.body))
        assert len(by_queue) == len(queues)
        for numbers in by_queue.values():
            assert numbers == sorted(numbers)
        assert Counter(m.msg_id for m in got) == Counter(r.msg_id for r in results)


async def test_batches_one_way_and_large_messages_arrive(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client, producer):
        results = await producer.send_batch([Message(TOPIC, b"%d" % n) for n in range(20)])
        assert [result.queue_offset for result in results] == list(range(20))
        large = b"abcd" * 500_000
        await producer.send(Message(TOPIC, large))
        await producer.send_oneway(Message(TOPIC, b"one way"))
        async with first_of(client) as consumer:
            bodies = [message.body for message in await collect(consumer, 22)]
        assert sorted(bodies) == sorted([*(b"%d" % n for n in range(20)), large, b"one way"])


async def test_members_come_and_go_and_every_message_is_processed(tmp_path: Path) -> None:
    async with connected(tmp_path) as (broker, _, producer):
        await producer.send(Message(TOPIC, b"make the topic"))
        seen: Counter[bytes] = Counter()
        all_seen = asyncio.Event()
        total = 400

        async def handle(message: ReceivedMessage) -> None:
            seen[message.body] += 1
            if len(seen) == total + 1:
                all_seen.set()

        shared = asyncio.Event()

        async def member() -> tuple[Consumer, asyncio.Task[None]]:
            consumer = first_of(
                None, namesrv_addr=namesrv_of(broker), on_revoked=lambda _: shared.set()
            )
            await consumer.start()
            return consumer, asyncio.create_task(consumer.run(handle))

        async def send(start: int) -> None:
            for number in range(start, start + total // 4):
                await producer.send(Message(TOPIC, b"%d" % number))

        async with asyncio.timeout(LIMIT_S):
            first, first_run = await member()
            await send(0)
            second, second_run = await member()
            await send(100)
            await shared.wait()
            await send(200)
            await first.stop()
            await first_run
            await send(300)
            await all_seen.wait()
            assert len(second.assignment()) == 4
            await second.stop()
            await second_run
        assert set(seen) == {b"%d" % n for n in range(total)} | {b"make the topic"}


async def test_a_failing_message_is_retried_and_then_a_dead_letter(tmp_path: Path) -> None:
    async with connected(tmp_path, message_delay_level=QUICK_RETRIES) as (_, client, producer):
        await producer.send(Message(TOPIC, b"poison", keys="k"))
        tries: list[int] = []

        async def fail(message: ReceivedMessage) -> None:
            assert message.topic == TOPIC
            tries.append(message.reconsume_times)
            raise RuntimeError("on purpose")

        async with first_of(client, max_reconsume=1) as consumer:
            running = asyncio.create_task(consumer.run(fail))
            dead = Consumer(
                f"%DLQ%{GROUP}", client=client, group="undertaker", start_from=StartFrom.FIRST
            )
            async with dead:
                (letter,) = await collect(dead, 1)
            running.cancel()
        assert tries == [0, 1]
        assert (letter.body, letter.reconsume_times, letter.keys) == (b"poison", 2, "k")


async def test_offsets_outlive_the_consumer_and_the_broker(tmp_path: Path) -> None:
    async with connected(tmp_path) as (_, client, producer):
        queue = MessageQueue(TOPIC, "broker-a", 0)
        await producer.send(Message(TOPIC, b"make the topic"))
        for number in range(10):
            await producer.send(Message(TOPIC, b"%d" % number), queue=queue)
        consumer = first_of(client, ack="manual")
        async with consumer:
            messages = await collect(consumer, 11)
        assert len(messages) == 11
    async with connected(tmp_path) as (_, client, producer):
        await producer.send(Message(TOPIC, b"after"), queue=queue)
        async with first_of(client) as consumer:
            assert [m.body for m in await collect(consumer, 1)] == [b"after"]
            consumer.seek(queue, 0)
            again = await collect(consumer, 1)
            assert again[0].queue_offset == 0


async def test_sends_and_pulls_survive_a_restart_of_the_broker(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        ports = {
            "listen_port": broker.listen_address[1],
            "namesrv_listen_port": broker.namesrv_address[1],  # type: ignore[index]
        }
        client = Client(namesrv_of(broker))
        producer = Producer(client=client, send_timeout=LIMIT_S, retries=100)
        await producer.start()
        consumer = first_of(client)
        await consumer.start()
        await producer.send(Message(TOPIC, b"before"))
        async with asyncio.timeout(LIMIT_S):
            assert (await consumer.getone()).body == b"before"
    futures = [asyncio.create_task(producer.send(Message(TOPIC, b"%d" % n))) for n in range(50)]
    await asyncio.sleep(0)
    async with live_broker(tmp_path, **ports):
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*futures)
            bodies = {message.body for message in await collect(consumer, 50)}
        assert bodies == {b"%d" % n for n in range(50)}
        await consumer.stop()
        await producer.stop()
        await client.stop()


async def test_a_missing_topic_and_a_foreign_selector(tmp_path: Path) -> None:
    async with connected(tmp_path, auto_create_topic_enable=False) as (_, _client, producer):
        with pytest.raises(RouteNotFound) as caught:
            await producer.send(Message("absent", b"x"))
        assert caught.value.reason == "auto_create_off"
        with pytest.raises(IllegalState):
            await producer.send_batch([])


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_both_loops(tmp_path: Path, loop: str) -> None:
    async def main() -> None:
        async with connected(tmp_path) as (_, client, producer):
            await asyncio.gather(*(producer.send(Message(TOPIC, b"%d" % n)) for n in range(200)))
            async with first_of(client) as consumer:
                got = await collect(consumer, 200)
            assert {message.body for message in got} == {b"%d" % n for n in range(200)}

    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "asyncio": asyncio.new_event_loop,
        "uvloop": uvloop.new_event_loop,
    }
    work: Coroutine[Any, Any, None] = main()
    with asyncio.Runner(loop_factory=factories[loop]) as runner:
        runner.run(work)
