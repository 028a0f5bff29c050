"""Where a new group starts in a young topic, and how soon a topic is found that was made later."""

from __future__ import annotations

import pytest

from skylarkmq.client import Consumer, Message, Producer, StartFrom
from skylarkmq.client.instance import services_of
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.testing import run_broker
from tests.client.consumer.support import GROUP, Group
from tests.support.fake_queues import Topic


@pytest.mark.parametrize(
    ("start_from", "rule", "first"),
    [
        (StartFrom.LAST, True, b"before"),  # RocketMQ's rule
        (StartFrom.LAST, False, b"after"),
        (StartFrom.NOW, True, b"after"),
        (StartFrom.FIRST, False, b"before"),
    ],
)
async def test_a_new_group_on_a_young_topic(
    start_from: StartFrom, rule: bool, first: bytes
) -> None:
    settings = {} if rule else {"consumeYoungQueueFromFirst": False}
    async with run_broker(settings=settings) as broker, broker.client() as client:
        await broker.create_topic("orders", 1)
        async with Producer(client=client) as producer:
            await producer.send(Message("orders", b"before"))
            async with Consumer(
                "orders", client=client, group="g", start_from=start_from
            ) as consumer:
                await producer.send(Message("orders", b"after"))
                assert (await consumer.getone(30)).body == first
                await consumer.commit()
            # What is committed counts, whatever the next member asks for.
            await producer.send(Message("orders", b"last"))
            async with Consumer(
                "orders", client=client, group="g", start_from=StartFrom.NOW
            ) as consumer:
                assert (await consumer.getone(30)).body == (
                    b"last" if first == b"after" else b"after"
                )


async def test_a_topic_that_is_made_beside_its_consumer_is_found_soon() -> None:
    it = Group({"other": 1})
    consumer = await it.consumer("orders")

    def looks() -> int:
        asked = it.cluster.name_server.requests
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        return sum(each.code == code and each.ext_fields["topic"] == "orders" for each in asked)

    at_start = looks()
    await it.pass_time(0.35)
    assert looks() == at_start + 2, "after 0.1 s, and 0.2 s later"
    it.broker.topics["orders"] = Topic([[]])
    it.broker.add("orders", 0, b"first")
    began_s = it.clock.monotonic()
    assert (await it.wait(consumer.getone())).body == b"first"
    assert it.clock.monotonic() - began_s < 1
    await it.stop(consumer)


async def test_a_topic_that_never_comes_is_looked_for_often_for_a_minute_only() -> None:
    it = Group({"other": 1})
    consumer = await it.consumer("orders")

    def looks() -> int:
        return sum(
            each.ext_fields.get("topic") == "orders" for each in it.cluster.name_server.requests
        )

    for _ in range(61):
        await it.pass_time(1)
    before = looks()
    for _ in range(20):
        await it.pass_time(1)
    assert looks() - before <= 5, "each 5 s, by the client's own round"
    await it.wait(consumer.subscribe("more"))
    before = looks()
    await it.pass_time(0.35)
    assert looks() > before, "a new topic begins anew"
    await it.stop(consumer)
    assert GROUP not in it.broker.clients


async def test_a_topic_that_a_producer_of_the_client_makes_is_found_soon() -> None:
    """The route that the producer borrowed to send to it is not its own."""
    it = Group({"TBW102": 4})
    client = it.client()
    await it.wait(client.start())
    consumer = Consumer("orders", client=client, group=GROUP, start_from=StartFrom.FIRST)
    await it.wait(services_of(client).routes.for_publish("orders", 4))
    await it.wait(consumer.start())
    it.broker.topics["orders"] = Topic([[]])
    it.broker.add("orders", 0, b"first")
    began_s = it.clock.monotonic()
    assert (await it.wait(consumer.getone())).body == b"first"
    assert it.clock.monotonic() - began_s < 1
    await it.wait(consumer.stop())
    await it.wait(client.stop())
