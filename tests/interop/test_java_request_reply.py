"""RocketMQ's Java client asks, and waits for the reply that comes over its own connection."""

from __future__ import annotations

import pytest

from tests.interop.admin_tools import JavaAdmin, queues
from tests.interop.tools import JavaTools, bodies

pytestmark = pytest.mark.interop

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
TIMED_OUT = "RequestTimeoutException"


def replies_stored(admin: JavaAdmin) -> int:
    """How many replies the broker has kept."""
    table = admin.call("examineTopicStats", REPLY_TOPIC)["offsetTable"]
    return sum(queue["maxOffset"] for queue in queues(table).values())


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_each_request_gets_its_reply(
    tools: JavaTools, admin: JavaAdmin, topic: str, group: str, mode: str
) -> None:
    tools.queues(topic, create=2)
    before = replies_stored(admin)
    replier = tools.reply(topic, group)
    replies = tools.request(topic, 6, mode=mode)
    asked = replier.count("message", 6)
    replier.count("sent", 6)
    replier.finish()

    by_index = {event["index"]: event for event in replies}
    assert {index: event["body"] for index, event in by_index.items()} == {
        index: f"re: m-{index}" for index in range(6)
    }
    requests = {event["body"]: event["properties"] for event in asked}
    for index, event in by_index.items():
        mine = requests[f"m-{index}"]
        properties = event["properties"]
        assert properties["CORRELATION_ID"] == mine["CORRELATION_ID"]
        assert properties["REPLY_TO_CLIENT"] == mine["REPLY_TO_CLIENT"]
        assert properties["MSG_TYPE"] == "reply"
        assert int(properties["PUSH_REPLY_TIME"]) >= event["born_timestamp"]
        assert event["topic"] == REPLY_TOPIC
    assert {event["status"] for event in replier.named("sent")} == {"SEND_OK"}
    assert replies_stored(admin) - before == 6


def test_a_long_reply(tools: JavaTools, topic: str, group: str) -> None:
    """It is compressed on its way."""
    tools.queues(topic, create=1)
    replier = tools.reply(topic, group, size=300_000)
    (reply,) = tools.request(topic, 1)
    replier.finish()
    assert reply["body_size"] == 300_000


def test_no_reply(tools: JavaTools, topic: str, group: str) -> None:
    tools.queues(topic, create=1)
    replier = tools.reply(topic, group, silent="-0")
    error, reply = tools.request(topic, 2, mode="async", wait=4000)
    replier.finish()
    assert (error["index"], error["type"]) == (0, TIMED_OUT)
    assert reply["body"] == "re: m-1"


def test_a_reply_to_one_that_is_gone(tools: JavaTools, topic: str, group: str) -> None:
    tools.queues(topic, create=1)
    replier = tools.reply(topic, group, hold=4000)
    (error,) = tools.request(topic, 1, wait=500)
    assert error["type"] == TIMED_OUT
    refusal = replier.event("error")
    replier.finish()
    assert bodies(replier.named("message")) == ["m-0"]
    assert refusal["code"] == 1
