"""Requests and their replies."""

from __future__ import annotations

import asyncio

import pytest

from skylarkmq.client import Client, Message, Producer, ReceivedMessage, ReplyTimeout
from tests.behaviour.cluster import Cluster
from tests.behaviour.support import consuming
from tests.support.patience import LIMIT_S


async def test_each_request_gets_its_reply(
    cluster: Cluster, client: Client, topic: str, group: str
) -> None:
    """Asker and replier are strangers to each other; a long reply is compressed on its way."""
    async with cluster.client() as far, Producer(client=far) as replier:

        async def answer(message: ReceivedMessage) -> None:
            text = message.body.decode()
            size = 20_000 if text == "m-0" else 1
            await replier.reply(message, f"re: {text}" * size, properties={"name": "value"})

        async with consuming(far, topic, group, answer), Producer(client=client) as producer:
            replies = await asyncio.gather(
                *(producer.request(Message(topic, f"m-{n}"), LIMIT_S) for n in range(20))
            )
    assert [reply.body.decode() for reply in replies] == [
        "re: m-0" * 20_000,
        *(f"re: m-{n}" for n in range(1, 20)),
    ]
    assert {reply.properties["name"] for reply in replies} == {"value"}


async def test_nobody_replies(producer: Producer, topic: str) -> None:
    with pytest.raises(ReplyTimeout):
        await producer.request(Message(topic, "anybody?"), 0.2)
