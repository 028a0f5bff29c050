"""ali-ons, the RocketMQ client of the Node world: it sends, receives, asks for messages again.

It speaks as an old Java client: header values that are numbers, an old version, signed requests.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.interop.children import Child, Children, Event
from tests.interop.servers import Broker
from tests.interop.tools import JavaTools, bodies, numbered

pytestmark = pytest.mark.interop

HERE = Path(__file__).resolve().parent / "node"
COUNT = 12
INSTALL_S = 300


@pytest.fixture(scope="session")
def client() -> list[str]:
    """The command, its package installed."""
    absent = [name for name in ("node", "npm") if shutil.which(name) is None]
    if absent:
        pytest.skip(f"not installed: {', '.join(absent)}")
    stamp = HERE / "node_modules" / ".package-lock.json"
    lock = HERE / "package-lock.json"
    if not stamp.exists() or stamp.stat().st_mtime < lock.stat().st_mtime:
        result = subprocess.run(
            ["npm", "ci"], cwd=HERE, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
    return ["node", str(HERE / "client.js")]


class NodeTools:
    """The program of tests/interop/node against one broker."""

    def __init__(self, command: list[str], children: Children, broker: Broker) -> None:
        self._command = command
        self._children = children
        self._namesrv = broker.namesrv

    def create(self, topic: str, queues: int) -> None:
        child = self._start("create", topic, queues)
        child.event("done")
        child.finish()

    def send(self, topic: str, count: int, prefix: str = "n", level: int = 0) -> list[Event]:
        child = self._start("send", topic, count, prefix, level)
        child.event("done")
        child.finish()
        return child.named("sent")

    def consume(
        self, topic: str, group: str, tags: str = "*", fail: int = 0, model: str = "CLUSTERING"
    ) -> Child:
        return self._start("consume", topic, group, tags, fail, model)

    def _start(self, mode: str, topic: str, *args: str | int) -> Child:
        words = [mode, self._namesrv, topic, *map(str, args)]
        return self._children.start(f"node-{mode}", [*self._command, *words])


@pytest.fixture
def node(client: list[str], children: Children, broker: Broker, topic: str) -> NodeTools:
    tools = NodeTools(client, children, broker)
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
