"""What RocketMQ's Java client asks beside sending and consuming."""

from __future__ import annotations

import pytest

from tests.interop.tools import JavaTools

pytestmark = pytest.mark.interop


def test_a_created_topic_has_its_queues_at_once(tools: JavaTools, topic: str) -> None:
    queues = tools.queues(topic, create=3)
    assert [queue["queue_id"] for queue in queues] == [0, 1, 2]
    for queue in queues:
        assert queue["broker_name"] == "broker-a"
        assert (queue["min_offset"], queue["max_offset"]) == (0, 0)
        assert queue["earliest"] == -1
        assert queue["offset_by_time"] == 0


def test_offsets_of_queues(tools: JavaTools, topic: str, group: str) -> None:
    tools.queues(topic, create=2)
    tools.produce(topic, "ordered", 10, orders=2)
    stored = tools.received(topic, group, 10)
    stored.sort(key=lambda event: event["queue_offset"])
    third = [event for event in stored if event["queue_id"] == 0][2]

    queues = tools.queues(topic, time=third["store_timestamp"])
    assert [queue["queue_id"] for queue in queues] == [0, 1]
    for queue in queues:
        mine = [event for event in stored if event["queue_id"] == queue["queue_id"]]
        assert (queue["min_offset"], queue["max_offset"]) == (0, 5)
        assert queue["earliest"] == mine[0]["store_timestamp"]
    times = [event["store_timestamp"] for event in stored if event["queue_id"] == 0]
    assert times[queues[0]["offset_by_time"]] == third["store_timestamp"]
