"""Access control with ali-ons: right keys, wrong ones, none, and a topic that is not for them."""

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
from tests.interop.children import ChildFailedError, Children
from tests.interop.node_tools import NodeTools
from tests.interop.servers import Broker
from tests.interop.tools import bodies, numbered

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with secured_broker(tmp_path_factory.mktemp("acl")) as broker:
        create_topics(broker, OPEN, READ_ONLY)
        yield broker


def test_the_right_keys_send_and_receive(children: Children, secured: Broker) -> None:
    node = NodeTools(children, secured, ALICE)
    assert {event["event"] for event in node.send(OPEN, 6)} == {"sent"}
    consumer = node.consume(OPEN, GROUP, fail=1)  # so that messages are handed back, too
    consumer.count("message", 12)
    consumer.finish()
    received = consumer.named("message")
    assert {event["body"] for event in received} == set(numbered("n", 6))
    assert len(bodies(received)) >= 12


@pytest.mark.parametrize(("who", "keys"), [("wrong", WRONG), ("unknown", UNKNOWN), ("none", None)])
def test_other_keys_are_told_why(
    children: Children, secured: Broker, who: str, keys: Keys | None
) -> None:
    """By the name server, which is asked first."""
    (event,) = NodeTools(children, secured, keys).send(OPEN, 1)
    assert (event["event"], event["code"]) == ("error", 1)
    assert f"AclException: {REASONS[who]}, " in event["message"]


def test_a_topic_without_the_right(children: Children, secured: Broker) -> None:
    """The client tries again and tells no reason; the broker's log has it."""
    node = NodeTools(children, secured, ALICE)
    assert "still failed" in refusal(node.send(READ_ONLY, 1))
    logged(secured, REASONS["forbidden"])


def test_a_group_without_the_right(children: Children, secured: Broker) -> None:
    node = NodeTools(children, secured, ALICE)
    assert {event["event"] for event in node.send(OPEN, 1)} == {"sent"}
    consumer = node.consume(OPEN, FOREIGN_GROUP)
    with pytest.raises(ChildFailedError) as ended:
        consumer.event("started")
    assert f"AclException: No default permission for group:{FOREIGN_GROUP}" in str(ended.value)
    assert "code: 1" in str(ended.value)
    assert consumer.named("message") == []
