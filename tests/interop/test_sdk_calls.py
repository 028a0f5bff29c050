"""Our SDK and RocketMQ's Java client call each other: requests, transactions, traces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from skylarkmq.client import (
    Client,
    Consumer,
    HalfMessage,
    Message,
    Producer,
    ReceivedMessage,
    StartFrom,
    TransactionState,
)
from tests.interop.admin_tools import JavaAdmin
from tests.interop.servers import Broker
from tests.interop.tools import JavaTools, bodies

pytestmark = pytest.mark.interop

WAIT_S = 60.0


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Client]:
    async with Client(broker.namesrv, heartbeat_interval=1.0, route_refresh=1.0) as client:
        yield client


async def test_java_replies_to_us(tools: JavaTools, client: Client, topic: str, group: str) -> None:
    await asyncio.to_thread(tools.queues, topic, create=2)
    replier = await asyncio.to_thread(tools.reply, topic, group)
    async with Producer(client=client) as producer:
        replies = await asyncio.gather(
            *(producer.request(Message(topic, f"m-{n}"), WAIT_S) for n in range(6))
        )
    await asyncio.to_thread(replier.count, "sent", 6)
    await asyncio.to_thread(replier.finish)
    assert [reply.body.decode() for reply in replies] == [f"re: m-{n}" for n in range(6)]
    assert {event["status"] for event in replier.named("sent")} == {"SEND_OK"}


async def test_we_reply_to_java(tools: JavaTools, client: Client, topic: str, group: str) -> None:
    await asyncio.to_thread(tools.queues, topic, create=2)
    async with Consumer(topic, client=client, group=group, start_from=StartFrom.FIRST) as consumer:

        async def answer(message: ReceivedMessage) -> None:
            text = message.body.decode()
            await consumer.reply(message, f"re: {text}" * (5000 if text == "m-0" else 1))

        running = asyncio.create_task(consumer.run(answer))
        replies = await asyncio.to_thread(tools.request, topic, 4)
    await running
    by_index = {event["index"]: event for event in replies}
    assert [by_index[n]["body"] for n in range(1, 4)] == [f"re: m-{n}" for n in range(1, 4)]
    assert by_index[0]["body_size"] == 5000 * len("re: m-0")
    assert {event["properties"]["MSG_TYPE"] for event in replies} == {"reply"}


async def test_we_settle_what_java_left_open(
    tools: JavaTools, client: Client, topic: str, group: str
) -> None:
    """The Java process of the group is gone; ours is asked instead."""
    asked: list[str] = []

    async def check(half: HalfMessage) -> TransactionState:
        asked.append(half.body.decode())
        assert half.topic == topic
        return TransactionState.COMMIT if half.body == b"m-0" else TransactionState.ROLLBACK

    await asyncio.to_thread(tools.queues, topic, create=1)
    java = await asyncio.to_thread(
        lambda: tools.transact(topic, f"P_{topic}", count=2, local="unknown", check="unknown")
    )
    await asyncio.to_thread(java.count, "sent", 2)
    await asyncio.to_thread(java.finish)
    async with (
        asyncio.timeout(WAIT_S),
        Producer(client=client, group=f"P_{topic}", check=check),
        Consumer(topic, client=client, group=group, start_from=StartFrom.FIRST) as consumer,
    ):
        assert (await consumer.getone()).body == b"m-0"
        while "m-1" not in asked:  # noqa: ASYNC110 - a broker's question gives no other sign
            await asyncio.sleep(0.05)
        found = await consumer.getmany(timeout=0.5)
    assert not found


async def test_java_settles_what_we_left_open(
    tools: JavaTools, client: Client, topic: str, group: str
) -> None:
    def unknown(half: HalfMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    await asyncio.to_thread(tools.queues, topic, create=1)
    java = await asyncio.to_thread(
        lambda: tools.transact(topic, f"P_{topic}", count=1, local="commit", check="commit,commit")
    )
    message = Message(topic, "ours", keys="k", properties={"row": "0"})  # what its check looks at
    async with (
        Producer(client=client, group=f"P_{topic}", check=unknown) as producer,
        producer.transaction(message) as transaction,
    ):
        await transaction.unknown()
    consumer = await asyncio.to_thread(tools.consume, topic, group)
    received = await asyncio.to_thread(consumer.count, "message", 2)
    for child in (consumer, java):
        await asyncio.to_thread(child.finish)
    assert bodies(received) == ["m-0", "ours"]
    assert transaction.transaction_id in {event["msg_id"] for event in received}


async def test_mqadmin_shows_what_we_traced(
    tools: JavaTools, admin: JavaAdmin, client: Client, topic: str, group: str
) -> None:
    await asyncio.to_thread(tools.queues, topic, create=1)
    async with Producer(client=client, group=f"P_{topic}", trace=True) as producer:
        (sent, _) = await producer.send_batch([Message(topic, "a"), Message(topic, "b")])
    done = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        done.set()

    async with Consumer(
        topic, client=client, group=group, start_from=StartFrom.FIRST, trace=True
    ) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        async with asyncio.timeout(WAIT_S):
            await done.wait()
    await running

    def shown() -> str:
        text = admin.run("queryMsgTraceById", "-i", sent.msg_id)
        return text if "Sub" in text and "Pub" in text else ""

    text = await asyncio.to_thread(admin.until, "the trace", shown)
    assert f"P_{topic}" in text
    assert group in text
    assert "success" in text
