"""RocketMQ's pull consumer of old, which keeps its place itself."""

from __future__ import annotations

import pytest

from tests.interop.tools import JavaTools, bodies

pytestmark = pytest.mark.interop


def test_tags_and_offsets(tools: JavaTools, topic: str, group: str) -> None:
    tools.queues(topic, create=2)
    tools.produce(topic, "sync", 12, tags="A,B,C")
    events = tools.pull(topic, group, tags=["*", "A || C", "none"], commit=4)
    found = {event["expression"]: event["bodies"] for event in events if "expression" in event}
    assert len(found["*"]) == 12
    assert sorted(found["A || C"]) == sorted(f"m-{row}" for row in range(12) if row % 3 != 1)
    assert found["none"] == []
    kept = {event["queue_id"]: event["offset"] for event in events if "offset" in event}
    assert kept == {0: 4, 1: 4}
    # A push consumer of the group goes on from there.
    assert len(tools.received(topic, group, 4)) == 4


def test_a_message_sent_back(tools: JavaTools, topic: str, group: str) -> None:
    tools.queues(topic, create=1)
    tools.produce(topic, "sync", 2)
    tools.pull(topic, group, tags=["*"], back="true", commit=2)
    received = tools.received(topic, group, 2)
    assert bodies(received) == ["m-0", "m-1"]
    assert {event["reconsume_times"] for event in received} == {1}
    assert {event["properties"]["RETRY_TOPIC"] for event in received} == {topic}
