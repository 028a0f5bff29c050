"""RocketMQ's C++ client: it sends, receives, asks again; its users see what keys they lack."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.accounts import (
    ALICE,
    FOREIGN_GROUP,
    GROUP,
    OPEN,
    READ_ONLY,
    REASONS,
    UNKNOWN,
    WRONG,
    Keys,
    create_topics,
    logged,
    refusal,
    secured_broker,
)  # fmt: skip
from tests.interop.children import Children
from tests.interop.cpp_tools import RELEASES, CppTools
from tests.interop.servers import Broker
from tests.interop.tools import JavaTools, bodies, numbered

pytestmark = [pytest.mark.interop, pytest.mark.parametrize("release", RELEASES)]
COUNT = 12


@pytest.fixture
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One for each test: this client asks so often that the log of a shared one is full."""
    with secured_broker(tmp_path_factory.mktemp("acl")) as broker:
        create_topics(broker, OPEN, READ_ONLY)
        yield broker


def test_send_and_receive(
    children: Children, broker: Broker, topic: str, group: str, release: str
) -> None:
    client = CppTools(children, broker, release)
    sent = client.send(topic, COUNT)
    assert {event["event"] for event in sent} == {"sent"}, sent
    assert {event["status"] for event in sent} == {"OK"}
    consumer = client.consume(topic, group)
    received = consumer.count("message", COUNT)
    consumer.finish()
    assert bodies(received) == numbered("n", COUNT)
    for event in received:
        index = int(event["body"].removeprefix("n-"))
        assert (event["tags"], event["keys"]) == ("ABC"[index % 3], f"n-key-{index}")
        assert event["stadt"] == "Zürich"


def test_a_message_asked_for_again(
    children: Children, broker: Broker, topic: str, group: str, release: str
) -> None:
    client = CppTools(children, broker, release)
    client.send(topic, 1)
    consumer = client.consume(topic, group, fail=1)
    first, again = consumer.count("message", 2)
    consumer.finish()
    assert (first["reconsume_times"], again["reconsume_times"]) == (0, 1)
    assert again["body"] == "n-0"


def test_from_java(
    children: Children, broker: Broker, tools: JavaTools, topic: str, group: str, release: str
) -> None:
    CppTools(children, broker, release).send(topic, COUNT)
    assert bodies(tools.received(topic, group, COUNT)) == numbered("n", COUNT)


def test_the_right_keys_send_and_receive(children: Children, secured: Broker, release: str) -> None:
    client = CppTools(children, secured, release, ALICE)
    sent = client.send(OPEN, 6)
    assert {event["event"] for event in sent} == {"sent"}, sent
    consumer = client.consume(OPEN, GROUP, fail=1)  # so that messages are handed back, too
    consumer.wait_for(
        "each message twice",
        lambda: (
            {event["body"] for event in consumer.named("message") if event["reconsume_times"]}
            >= set(numbered("n", 6))
        ),
    )
    consumer.finish()


@pytest.mark.parametrize(("who", "keys"), [("wrong", WRONG), ("unknown", UNKNOWN), ("none", None)])
def test_other_keys_get_nowhere(
    children: Children, secured: Broker, release: str, who: str, keys: Keys | None
) -> None:
    """The name server refuses first, of which the client tells no more than "no route"."""
    client = CppTools(children, secured, release, keys)
    assert "No route info of this topic" in refusal(client.send(OPEN, 1))
    logged(secured, REASONS[who])


def test_a_topic_without_the_right(children: Children, secured: Broker, release: str) -> None:
    """The client tries again and tells no reason; the broker's log has it."""
    client = CppTools(children, secured, release, ALICE)
    assert "No route info of this topic" in refusal(client.send(READ_ONLY, 1))
    logged(secured, REASONS["forbidden"])


def test_a_group_without_the_right(children: Children, secured: Broker, release: str) -> None:
    client = CppTools(children, secured, release, ALICE)
    client.send(OPEN, 1)
    consumer = client.consume(OPEN, FOREIGN_GROUP)
    logged(secured, f"No default permission for group:{FOREIGN_GROUP}")
    assert consumer.named("message") == []
    consumer.kill()
