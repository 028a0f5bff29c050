"""RocketMQ's Java client looks messages up by key and by id."""

from __future__ import annotations

import pytest

from tests.interop.children import Event
from tests.interop.tools import BINARY_HEADERS, JavaTools, bodies

pytestmark = pytest.mark.interop


def found(events: list[Event]) -> list[str]:
    assert not [event for event in events if event["event"] == "error"], events
    return bodies(events)


def test_messages_are_found_by_key_by_unique_key_and_by_place(
    tools: JavaTools, topic: str, group: str
) -> None:
    tools.queues(topic, create=1)
    sent = tools.produce(topic, "sync", 5, prefix="one")
    tools.produce(topic, "sync", 2, prefix="other")

    assert found(tools.find(topic, key="one-key-3")) == ["one-3"]
    both = tools.find(
        topic, unique=sent[1]["msg_id"], place=sent[4]["offset_msg_id"], key="other-key-1"
    )
    assert found(both) == ["one-1", "one-4", "other-1"]
    stored = {event["body"]: event for event in tools.received(topic, group, 7)}
    for event in both:
        mine = stored[event["body"]]
        for name in ("queue_offset", "commit_log_offset", "store_timestamp", "msg_id"):
            assert event[name] == mine[name], name


def test_times_and_counts_bound_a_query(tools: JavaTools, topic: str, group: str) -> None:
    tools.queues(topic, create=1)
    for _ in range(3):  # the same key, once each
        tools.produce(topic, "sync", 1, prefix="same")
    stored = tools.received(topic, group, 3)
    times = sorted(event["store_timestamp"] for event in stored)
    assert len(found(tools.find(topic, key="same-key-0"))) == 3
    assert len(found(tools.find(topic, key="same-key-0", max=2))) == 2
    # Index items tell whole seconds, so bounds are kept two seconds away.
    around = tools.find(topic, key="same-key-0", begin=times[0] - 2000, end=times[-1] + 2000)
    assert sorted(event["store_timestamp"] for event in around) == times
    for begin, end in ((0, times[0] - 2000), (times[-1] + 2000, times[-1] + 60_000)):
        (error,) = tools.find(topic, key="same-key-0", begin=begin, end=end)
        assert error["type"] == "MQClientException"


def test_what_is_not_there_is_no_message(tools: JavaTools, topic: str) -> None:
    tools.queues(topic, create=1)
    (sent,) = tools.produce(topic, "sync", 1, BINARY_HEADERS, prefix="one")
    (error,) = tools.find(topic, key="nothing")
    assert error["type"] == "MQClientException"
    wrong = sent["offset_msg_id"][:-2] + "01"
    (error,) = tools.find(topic, place=wrong)
    assert error["code"] == 1
    assert "can not find message by the offset" in error["message"]
