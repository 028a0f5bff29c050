"""Timed messages are taken back while they wait, and only those."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from skylarkmq.client import (
    Client,
    IllegalState,
    Message,
    MessageQueue,
    NotFound,
    Producer,
    SendResult,
    SendStatus,
)
from skylarkmq.protocol.codes import MQVersion
from skylarkmq.protocol.flags import RMQ_SYS_WHEEL_TIMER_TOPIC
from skylarkmq.protocol.message_id import offset_message_id
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.testing import RunningBroker, run_broker
from tests.client.consumer.support import Group
from tests.support.fake_queues import HOST, QUEUE_SPAN, Topic
from tests.support.scripted_stream import ScriptedStream

SPAN = timedelta(seconds=60)


@pytest.mark.parametrize("way", ["delay", "deliver_at"])
@pytest.mark.parametrize("namespace", [None, "acme"])
async def test_what_is_taken_back_is_not_delivered_and_all_else_is(
    way: str, namespace: str | None
) -> None:
    async with run_broker() as broker, broker.client(namespace=namespace) as client:
        topic = "orders" if namespace is None else f"{namespace}%orders"
        await broker.create_topic(topic, 2)

        def message(body: bytes) -> Message:
            if way == "delay":
                return Message("orders", body, delay=SPAN)
            return Message("orders", body, deliver_at=at)

        at = broker.now() + SPAN
        async with Producer(client=client) as producer:
            kept, unwanted = [await producer.send(message(body)) for body in (b"kept", b"unwanted")]
            assert await producer.cancel(unwanted)
            assert await producer.cancel(unwanted), "a second time does no harm"
            await broker.advance(2 * SPAN)
            assert [one.body for one in await broker.messages(topic)] == [b"kept"]
            assert not await producer.cancel(kept), "its time has come"


async def of_another_kind(broker: RunningBroker, client: Client) -> None:
    async with Producer(client=client) as producer:
        for message in (Message("orders", b"x"), Message("orders", b"x", delay_level=3)):
            sent = await producer.send(message)
            with pytest.raises(IllegalState, match="can be taken back, others cannot"):
                await producer.cancel(sent)
        nowhere = SendResult(SendStatus.SEND_OK, "X", sent.offset_msg_id, sent.queue, 0)
        with pytest.raises(NotFound, match="X is not in the store"):
            await producer.cancel(nowhere)
        with pytest.raises(TypeError, match="takes the SendResult of a send, not 'X'"):
            await producer.cancel("X")  # type: ignore[arg-type]


async def test_what_waits_for_no_time_of_its_own_is_told() -> None:
    async with run_broker() as broker, broker.client() as client:
        await broker.create_topic("orders", 1)
        await of_another_kind(broker, client)


async def test_an_apache_broker_gets_the_time_within_the_step_that_the_message_waits_in() -> None:
    """It rounds down to the step before, and what is due is in TIMER_OUT_MS."""
    it = Group({"orders": 1, RMQ_SYS_WHEEL_TIMER_TOPIC: 1})
    it.broker.topics[RMQ_SYS_WHEEL_TIMER_TOPIC] = Topic([[]])
    it.broker.add(RMQ_SYS_WHEEL_TIMER_TOPIC, 0, b"later", TIMER_OUT_MS="9000", TIMER_DELAY_MS="1")
    answer_plainly = it.broker.respond

    def as_apache(request: RemotingCommand, stream: ScriptedStream) -> Any:
        answer = answer_plainly(request, stream)
        if isinstance(answer, RemotingCommand):
            answer.version = MQVersion.V5_3_3
        return answer

    it.broker.respond = as_apache  # type: ignore[method-assign]
    key = it.cluster.queue_key(RMQ_SYS_WHEEL_TIMER_TOPIC, 0)
    queue = MessageQueue("orders", "broker-a", 0)
    sent = SendResult(SendStatus.SEND_OK, "U0", offset_message_id(HOST, key * QUEUE_SPAN), queue, 0)
    client = it.client()
    producer = Producer(client=client)
    await it.wait(producer.start())
    assert await it.wait(producer.cancel(sent))
    (stored,) = it.broker.topics["orders"].queues[0]
    assert stored.properties["TIMER_DELIVER_MS"] == "9001"
    assert stored.properties["TIMER_DEL_UNIQKEY"] == "U0"
    await it.wait(producer.stop())
    await it.wait(client.stop())
