"""What a receipt is good for after its message was acknowledged, on a real broker."""

from __future__ import annotations

import pytest

from skylarkmq.client import Message, PoppedMessage, Producer, ReceiptExpired, SimpleConsumer
from skylarkmq.testing import run_broker


async def test_a_message_is_acknowledged_once() -> None:
    async with run_broker() as broker, broker.client() as client:
        await broker.create_topic("orders", 1)
        async with Producer(client=client) as producer:
            await producer.send(Message("orders", b"m"))
        async with SimpleConsumer("orders", group="billing", client=client) as consumer:
            messages: list[PoppedMessage] = await consumer.receive()
            await consumer.ack(messages[0])
            with pytest.raises(ReceiptExpired, match="acknowledged before"):
                await consumer.ack(messages[0])
            with pytest.raises(ReceiptExpired):
                await consumer.change_invisible_duration(messages[0], 10)
