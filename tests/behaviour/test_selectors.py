"""SQL92: messages that the broker selects by their properties."""

from __future__ import annotations

import pytest

from skylarkmq.client import Client, Consumer, FilterRefused, Message, Producer, Sql92
from tests.behaviour.support import bodies, received


async def test_sql92(producer: Producer, client: Client, topic: str, group: str) -> None:
    rows = [("EU", "1"), ("EU", "5"), ("US", "5"), ("EU", "9"), (None, "5")]
    for number, (region, weight) in enumerate(rows):
        properties = {"weight": weight, **({"region": region} if region else {})}
        await producer.send(Message(topic, f"m-{number}", tags="A", properties=properties))
    selector = Sql92("region = 'EU' AND weight BETWEEN 2 AND 9")
    got = await received(client, topic, group, 2, selector=selector)
    assert bodies(got) == ["m-1", "m-3"]
    got = await received(client, topic, f"{group}_2", 1, selector=Sql92("region IS NULL"))
    assert bodies(got) == ["m-4"]
    got = await received(client, topic, f"{group}_3", 5, selector=Sql92("TAGS = 'A'"))
    assert len(got) == 5


async def test_an_expression_that_cannot_be_read(client: Client, topic: str, group: str) -> None:
    consumer = Consumer(topic, client=client, group=group, selector=Sql92("region = = 'EU'"))
    with pytest.raises(FilterRefused):
        await consumer.start()
    await consumer.stop()
