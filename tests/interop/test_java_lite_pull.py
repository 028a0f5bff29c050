"""RocketMQ's Java lite pull consumer, as a member of a group and on queues of its choice."""

from __future__ import annotations

import pytest

from tests.interop.tools import JavaTools, bodies, numbered

pytestmark = pytest.mark.interop


def test_a_member_of_a_group_goes_on_where_it_committed(
    tools: JavaTools, topic: str, group: str
) -> None:
    tools.produce(topic, "sync", 12, prefix="first")
    assert bodies(tools.lite_pull(topic, group, 12)) == numbered("first", 12)
    tools.produce(topic, "sync", 5, prefix="second")
    assert bodies(tools.lite_pull(topic, group, 5)) == numbered("second", 5)


def test_seek(tools: JavaTools, topic: str, group: str) -> None:
    tools.queues(topic, create=2)
    tools.produce(topic, "ordered", 10, orders=2)
    received = tools.lite_pull(topic, group, 4, mode="assign", seek=3)
    assert bodies(received) == ["m-6", "m-7", "m-8", "m-9"]


def test_tags(tools: JavaTools, topic: str, group: str) -> None:
    tools.produce(topic, "sync", 12, tags="A,B,C")
    received = tools.lite_pull(topic, group, 8, tags="A||C")
    assert {event["tags"] for event in received} == {"A", "C"}
    assert len(received) == 8
