"""A producer and a consumer on a scripted cluster, and one scenario whose every time is known."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from skylarkmq.client import Client, Consumer, Message, Producer, StartFrom
from skylarkmq.client.errors import MessageIllegal, RocketMQError
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.client.consumer.support import GROUP, Group


class Observed(Group):
    """Two messages sent, a third refused; one handled well, the other at the second try."""

    def __init__(self, topics: dict[str, int] | None = None, **settings: Any) -> None:
        super().__init__(topics or {"orders": 1})
        self._settings = settings

    def client(self) -> Client:
        made = super().client()
        made._config = replace(made._config, **self._settings)
        return made

    async def scenario(self) -> None:
        """Play it; everything is stopped afterwards."""
        client = self.client()
        producer = Producer(client=client, group="shop", retries=0)
        await self.wait(producer.start())
        good = Message("orders", b"good", tags="new", keys="k-1 k-2", sharding_key="order-1")
        await self.wait(producer.send(good))
        await self.wait(producer.send(Message("orders", b"bad", properties={"a": "b"})))
        self.broker.refuse(RequestCode.SEND_MESSAGE_V2, ResponseCode.MESSAGE_ILLEGAL)
        try:
            await self.wait(producer.send(Message("orders", b"refused")))
        except MessageIllegal:
            pass
        else:
            raise AssertionError("it was not refused")
        await self.wait(producer.stop())
        await self.wait(client.stop())
        await self.consume()

    async def consume(self) -> None:
        """Handle what there is."""
        handled: list[bytes] = []

        async def handle(message: Any) -> None:
            handled.append(message.body)
            if message.body == b"bad" and not message.reconsume_times:
                raise ValueError("cannot use it")

        consumer = Consumer("orders", group=GROUP, start_from=StartFrom.FIRST, consume_timeout=60)
        consumer._client = self.client()
        await self.wait(consumer.start())
        running = asyncio.create_task(consumer.run(handle, concurrency=1))
        for _ in range(50):
            await self.pass_time(0.1)
            if len(handled) == 3:
                break
        assert handled == [b"good", b"bad", b"bad"], "this broker retries at once"
        await self.pass_time(1)
        await self.stop(consumer)
        try:
            await self.wait(running)
        except RocketMQError as error:
            raise AssertionError("run ends well when its consumer stops") from error
