"""A broker with a bit of everything, which the tests of pages share: they change nothing of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from skylarkmq.client import Consumer, Message, Producer, StartFrom
from skylarkmq.testing import RunningBroker, run_broker
from tests.support.patience import LIMIT_S

ORDERS = 12
DEAD = 2
REASON = "no such customer"


@asynccontextmanager
async def filled() -> AsyncIterator[RunningBroker]:
    """A broker with orders, a group that lags and has dead letters, and messages that wait."""
    settings = {"traceTopicEnable": True}
    async with run_broker(settings=settings) as broker, broker.client() as client:
        await broker.create_topic("orders")
        async with Producer(client=client, group="shop", trace=True) as producer:
            for number in range(ORDERS):
                body = json.dumps({"order": number, "to": "<b>Ada</b>"})
                await producer.send(Message("orders", body, keys=f"A-{number}", tags="new"))
            await producer.send(Message("blobs", bytes(range(200)), keys="raw"))
            await producer.send(Message("blobs", "x" * 9000, keys="long"))  # compressed
            await producer.send(Message("orders", "by level", delay_level=16))
            await producer.send(Message("orders", "by time", delay=timedelta(hours=5)))
            async with Consumer(
                "orders", client=client, group="billing", start_from=StartFrom.FIRST, ack="manual"
            ) as member:
                for number in range(8):
                    message = await member.getone(LIMIT_S)
                    await (message.dead_letter(REASON) if number < DEAD else message.ack())
                await member.commit()
        yield broker
