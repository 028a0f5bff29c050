"""ali-ons, the RocketMQ client of the Node world: it sends, receives, asks for messages again.

It speaks as an old Java client: header values that are numbers, an old version, signed requests.
"""

from __future__ import annotations

import pytest

from tests.interop.children import Children
from tests.interop.node_tools import NodeTools
from tests.interop.servers import Broker
from tests.interop.tools import JavaTools, bodies, numbered

pytestmark = pytest.mark.interop

COUNT = 12


@pytest.fixture
def node(children: Children, broker: Broker, topic: str) -> NodeTools:
    tools = NodeTools(children, broker)
    tools.create(topic, 4)
    return tools


def test_send_and_receive(node: NodeTools, topic: str, group: str) -> None:
    sent = node.send(topic, COUNT)
    consumer = node.consume(topic, group)
    received = consumer.count("message", COUNT)
    consumer.finish()

    assert {event["status"] for event in sent} == {"SEND_OK"}
    assert bodies(received) == numbered("n", COUNT)
    for event in received:
        index = int(event["body"].removeprefix("n-"))
        assert event["tags"] == "ABC"[index % 3]
        assert event["keys"] == f"n-key-{index}"
        assert event["properties"]["stadt"] == "Zürich"


def test_tags(node: NodeTools, topic: str, group: str) -> None:
    node.send(topic, COUNT)
    consumer = node.consume(topic, group, tags="A || C")
    received = consumer.count("message", COUNT * 2 // 3)
    consumer.finish()
    assert {event["tags"] for event in received} == {"A", "C"}


def test_a_message_asked_for_again(node: NodeTools, topic: str, group: str) -> None:
    node.send(topic, 1)
    consumer = node.consume(topic, group, fail=1)
    first, again = consumer.count("message", 2)
    consumer.finish()
    assert (first["reconsume_times"], again["reconsume_times"]) == (0, 1)
    assert again["body"] == "n-0"
    assert again["properties"]["RETRY_TOPIC"] == topic


def test_a_delay(node: NodeTools, topic: str, group: str) -> None:
    node.send(topic, 2, level=2)
    consumer = node.consume(topic, group)
    received = consumer.count("message", 2)
    consumer.finish()
    assert bodies(received) == numbered("n", 2)
    for event in received:
        assert event["store_timestamp"] - event["born_timestamp"] >= 2000
        assert event["properties"]["REAL_TOPIC"] == topic


def test_broadcast(node: NodeTools, topic: str, group: str) -> None:
    pair = [node.consume(topic, group, model="BROADCASTING") for _ in range(2)]
    for consumer in pair:
        consumer.event("started")
    node.send(topic, COUNT)
    for consumer in pair:
        consumer.count("message", COUNT)
        consumer.finish()
        assert bodies(consumer.named("message")) == numbered("n", COUNT)


def test_offsets_outlive_a_consumer(node: NodeTools, topic: str, group: str) -> None:
    for prefix in ("first", "second"):
        node.send(topic, COUNT, prefix)
        consumer = node.consume(topic, group)
        consumer.count("message", COUNT)
        consumer.finish()
        assert bodies(consumer.named("message")) == numbered(prefix, COUNT)


def test_between_node_and_java(node: NodeTools, tools: JavaTools, topic: str, group: str) -> None:
    node.send(topic, COUNT)
    assert bodies(tools.received(topic, group, COUNT)) == numbered("n", COUNT)

    consumer = node.consume(topic, group)  # the same group goes on where Java stopped
    tools.produce(topic, "sync", COUNT)
    consumer.count("message", COUNT)
    consumer.finish()
    assert bodies(consumer.named("message")) == numbered("m", COUNT)
