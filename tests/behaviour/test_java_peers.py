"""Our SDK and RocketMQ's Java client and tools deal with each other's messages and questions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from skylarkmq.client import (
    Admin,
    Client,
    Message,
    Producer,
    ReceivedMessage,
    TransactionState,
)
from skylarkmq.client.admin.traces import MessageTrace
from tests.behaviour.cluster import QUEUES, Cluster
from tests.behaviour.support import bodies, consuming, numbered, received, send_numbered
from tests.interop.admin_tools import JavaAdmin
from tests.interop.tools import JavaTools
from tests.interop.tools import bodies as java_bodies
from tests.support.patience import LIMIT_S, until

pytestmark = pytest.mark.interop

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


async def test_messages_and_offsets(
    client: Client, java: JavaTools, topic: str, group: str
) -> None:
    """One group: each side goes on where the other has stopped."""
    await in_thread(lambda: java.produce(topic, "batch", 10))
    got = await received(client, topic, group, 10)
    assert bodies(got) == numbered("m", 10)
    assert {message.properties["stadt"] for message in got} == {"Zürich"}
    async with Producer(client=client, compress_over=1) as producer:
        await producer.send_batch([Message(topic, f"s-{number}") for number in range(5)])
        for number in range(5, 10):
            await producer.send(Message(topic, f"s-{number}"))
    later = await in_thread(lambda: java.received(topic, group, 10))
    assert java_bodies(later) == numbered("s", 10)


async def test_transactions(
    cluster: Cluster, client: Client, java: JavaTools, topic: str, group: str
) -> None:
    """Each side answers for the other's, whose process is gone."""
    theirs, mine = cluster.unique("P_theirs"), cluster.unique("P_mine")
    begun = await in_thread(lambda: java.transact(topic, theirs, count=2, local="unknown"))
    await in_thread(begun.kill)
    async with (
        cluster.client() as gone,
        Producer(client=gone, group=mine, check=lambda _: TransactionState.UNKNOWN) as producer,
    ):
        for row in range(2):
            message = Message(topic, f"s-{row}", properties={"row": str(row)})
            async with producer.transaction(message) as transaction:
                await transaction.unknown()

    def check(half: object) -> TransactionState:
        body = half.body  # type: ignore[attr-defined]
        return TransactionState.COMMIT if body == b"m-0" else TransactionState.ROLLBACK

    answering = await in_thread(
        lambda: java.transact(topic, mine, count=0, check="rollback,commit")
    )
    async with Producer(client=client, group=theirs, check=check):
        got = await received(client, topic, group, 2)
    await in_thread(lambda: answering.count("check", 2))
    await in_thread(answering.finish)
    assert bodies(got) == ["m-0", "s-1"]


async def test_they_ask_and_we_reply(
    client: Client, java: JavaTools, producer: Producer, topic: str, group: str
) -> None:
    async def answer(message: ReceivedMessage) -> None:
        size = 20_000 if message.body == b"m-0" else 1
        await producer.reply(message, f"re: {message.body.decode()} " * size)

    async with consuming(client, topic, group, answer):
        replies = await in_thread(lambda: java.request(topic, 3, mode="async"))
    assert {event["index"]: event["body_size"] for event in replies} == {0: 160_000, 1: 8, 2: 8}
    assert {event["body"] for event in replies if event["index"]} == {"re: m-1 ", "re: m-2 "}


async def test_we_ask_and_they_reply(
    java: JavaTools, producer: Producer, topic: str, group: str
) -> None:
    replier = await in_thread(lambda: java.reply(topic, group, size=9000))
    replies = await asyncio.gather(
        *(producer.request(Message(topic, f"m-{n}"), LIMIT_S) for n in range(5))
    )
    await in_thread(replier.finish)
    for number, reply in enumerate(replies):
        assert reply.body.startswith(f"re: m-{number}".encode())
        assert len(reply.body) == 9000


async def test_mqadmin_reads_our_trace(
    client: Client, mqadmin: JavaAdmin, topic: str, group: str
) -> None:
    async with Producer(client=client, trace=True) as producer:
        sent = await producer.send(Message(topic, "abc", tags="A", keys="k"))
    async with consuming(client, topic, group, trace=True) as inbox:
        await inbox.count(1)

    def shown() -> str:
        text = mqadmin.run("queryMsgTraceById", "-i", sent.msg_id)
        return text if "Pub" in text and "Sub" in text else ""

    text = await in_thread(lambda: mqadmin.until("the trace", shown))
    assert group in text
    assert "success" in text


async def test_we_read_their_trace(
    cluster: Cluster, client: Client, java: JavaTools, topic: str, group: str
) -> None:
    """Of clients that live on: one that ends soon loses what it has not told yet."""
    name = cluster.unique("P")
    producer = await in_thread(lambda: java.transact(topic, name, count=1, tags="A", trace="true"))
    (sent,) = producer.named("sent")
    consumer = await in_thread(lambda: java.consume(topic, group, trace="true"))
    await in_thread(lambda: consumer.count("message", 1))
    async with Admin(client=client) as admin:

        async def told() -> MessageTrace | None:
            trace = await admin.trace(sent["msg_id"])
            return trace if trace.sends and trace.ends and trace.deliveries else None

        trace = await until(told, "the trace")
    await in_thread(consumer.finish)
    await in_thread(producer.finish)
    assert trace is not None
    (send,), (delivery,), (end,) = trace.sends, trace.deliveries, trace.ends
    assert (send.group, send.topic, send.tags, send.keys) == (name, topic, "A", "m-key-0")
    assert (send.size, send.kind) == (3, "half")
    assert (end.state, end.from_check) == ("COMMIT_MESSAGE", False)
    assert (delivery.group, delivery.success) == (group, True)


async def test_mqadmin_asks_our_member(
    client: Client, mqadmin: JavaAdmin, producer: Producer, topic: str, group: str
) -> None:
    """What it is doing; to consume one message now; to begin again."""
    for queue in await producer.queues(topic):
        await producer.send(Message(topic, f"m-{queue.queue_id}"), queue=queue)
    async with consuming(client, topic, group, commit_interval=0.1) as inbox:
        await inbox.count(QUEUES)
        info = await in_thread(
            lambda: mqadmin.call("getConsumerRunningInfo", group, client.client_id, False)
        )
        assert topic in {each["topic"] for each in info["subscriptionSet"]}
        assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        text = await in_thread(
            lambda: mqadmin.run("consumerStatus", "-g", group, "-i", client.client_id)
        )
        assert topic in text
        assert "CONSUME_PASSIVELY" in text

        place = inbox.messages[0].offset_msg_id
        told = await in_thread(
            lambda: mqadmin.call("consumeMessageDirectly", group, client.client_id, place)
        )
        assert told["consumeResult"] == "CR_SUCCESS"
        await inbox.count(QUEUES + 1)

        def committed() -> bool:
            rows = mqadmin.call("examineConsumeStats", group, topic)["offsetTable"].values()
            return sum(row["consumerOffset"] for row in rows) == QUEUES

        await in_thread(lambda: mqadmin.until("the commit", committed))
        await in_thread(lambda: mqadmin.call("resetOffsetByTimestamp", topic, group, 0, True))
        await inbox.count(2 * QUEUES + 1)
    assert {*inbox.bodies} == {*numbered("m", QUEUES)}
    await send_numbered(producer, topic, "late", 2)
    assert bodies(await received(client, topic, group, 2)) == numbered("late", 2)
