"""RocketMQ's administration tool moves groups to another place: with consumers, and without."""

from __future__ import annotations

import pytest

from tests.interop.admin_tools import JavaAdmin, queues
from tests.interop.children import Child, Event
from tests.interop.tools import JavaTools, bodies, numbered

pytestmark = pytest.mark.interop

QUEUES = 2
OFFLINE = 206


def two_parts(tools: JavaTools, topic: str) -> None:
    """Old messages in all queues, and some that are newer by more than a second."""
    tools.queues(topic, create=QUEUES)
    tools.produce(topic, "sync", 6, prefix="old")
    tools.produce(topic, "sync", 6, prefix="new")


def boundary(events: list[Event]) -> int:
    """The store time of the first newer message."""
    newer = (event for event in events if event["body"].startswith("new"))
    return int(min(event["store_timestamp"] for event in newer))


def taken(consumer: Child, before: int, count: int) -> list[str]:
    """The bodies of the messages after the first `before` ones, when there are `count`."""
    return bodies(consumer.count("message", before + count)[before:])


def test_by_time_with_consumers(tools: JavaTools, admin: JavaAdmin, topic: str, group: str) -> None:
    two_parts(tools, topic)
    consumer = tools.consume(topic, group)
    at = boundary(consumer.count("message", 12))
    admin.until("all is read", lambda: {*admin.left_to_read(group, topic).values()} == {0})
    offsets = queues(admin.call("resetOffsetByTimestamp", topic, group, at, True))
    assert offsets == {("broker-a", 0): 3, ("broker-a", 1): 3}
    assert taken(consumer, 12, 6) == numbered("new", 6)
    tools.produce(topic, "sync", 2, prefix="later")
    assert taken(consumer, 18, 2) == numbered("later", 2)
    consumer.finish()


def test_skip_what_has_accumulated(
    tools: JavaTools, admin: JavaAdmin, topic: str, group: str
) -> None:
    """The consumer is stuck at messages that it cannot handle."""
    tools.queues(topic, create=QUEUES)
    tools.produce(topic, "sync", 4, prefix="first")
    tools.received(topic, group, 4)
    tools.produce(topic, "sync", 8)
    consumer = tools.consume(topic, group, listener="orderly", fail=10_000)
    consumer.count("message", QUEUES)
    assert {*admin.left_to_read(group, topic).values()} == {4}
    text = admin.run("skipAccumulatedMessage", "-g", group, "-t", topic)
    assert text.count("broker-a") == QUEUES, text
    admin.until("nothing is left", lambda: {*admin.left_to_read(group, topic).values()} == {0})
    consumer.kill()
    after = tools.consume(topic, group)
    tools.produce(topic, "sync", 2, prefix="later")
    assert taken(after, 0, 2) == numbered("later", 2)
    after.finish()


def test_without_consumers(tools: JavaTools, admin: JavaAdmin, topic: str, group: str) -> None:
    """The broker says that nobody is there, and the tool writes the offsets itself."""
    two_parts(tools, topic)
    at = boundary(tools.received(topic, group, 12))
    refusal = admin.refused("resetOffsetByTimestamp", topic, group, at, True)
    assert refusal["code"] == OFFLINE
    text = admin.run("resetOffsetByTime", "-g", group, "-t", topic, "-s", str(at), "-f", "true")
    assert "broker-a" in text
    assert bodies(tools.received(topic, group, 6)) == numbered("new", 6)


def test_only_backwards_unless_forced(
    tools: JavaTools, admin: JavaAdmin, topic: str, group: str
) -> None:
    two_parts(tools, topic)
    tools.received(topic, group, 12)
    admin.call("resetOffsetByTimestampOld", group, topic, 0, True)
    assert {*admin.left_to_read(group, topic).values()} == {6}
    admin.call("resetOffsetByTimestampOld", group, topic, -1, False)
    assert {*admin.left_to_read(group, topic).values()} == {6}
    admin.call("resetOffsetByTimestampOld", group, topic, -1, True)
    assert {*admin.left_to_read(group, topic).values()} == {0}


def test_a_group_that_does_not_exist(admin: JavaAdmin, tools: JavaTools, topic: str) -> None:
    tools.queues(topic, create=1)
    refusal = admin.refused("resetOffsetByTimestamp", topic, "G_nobody", -1, True)
    assert refusal["code"] in {1, OFFLINE}


def test_what_consumers_say_of_their_place(
    tools: JavaTools, admin: JavaAdmin, topic: str, group: str
) -> None:
    two_parts(tools, topic)
    consumer = tools.consume(topic, group)
    consumer.count("message", 12)
    admin.until("all is read", lambda: {*admin.left_to_read(group, topic).values()} == {0})
    clients = admin.call("examineConsumerConnectionInfo", group)["connectionSet"]
    (client,) = [row["clientId"] for row in clients]
    status = admin.call("getConsumeStatus", topic, group, client)
    assert queues(status[client]) == {("broker-a", 0): 6, ("broker-a", 1): 6}
    consumer.finish()


@pytest.mark.parametrize("offline", [True, False])
def test_clone(tools: JavaTools, admin: JavaAdmin, topic: str, group: str, offline: bool) -> None:
    two_parts(tools, topic)
    tools.received(topic, group, 12)
    admin.call("cloneGroupOffset", group, f"{group}_2", topic, offline)
    tools.produce(topic, "sync", 2, prefix="later")
    assert bodies(tools.received(topic, f"{group}_2", 2)) == numbered("later", 2)


def test_times_that_are_waited_for(
    tools: JavaTools, admin: JavaAdmin, topic: str, group: str
) -> None:
    """How far a group is behind, in time."""
    two_parts(tools, topic)
    read = tools.received(topic, group, 12)
    tools.produce(topic, "sync", 2, prefix="later")
    spans = admin.call("queryConsumeTimeSpan", topic, group)
    assert sorted(span["messageQueue"]["queueId"] for span in spans) == [0, 1]
    for span in spans:
        mine = [
            event["store_timestamp"]
            for event in read
            if event["queue_id"] == span["messageQueue"]["queueId"]
        ]
        assert span["minTimeStamp"] == min(mine)
        assert span["maxTimeStamp"] > max(mine)
        assert span["consumeTimeStamp"] == max(mine)
