"""RocketMQ's Java lite pull consumer, as a member of a group and on queues of its choice."""

from __future__ import annotations

import pytest

from tests.interop.tools import JavaTools, bodies, holds_queues, numbered

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


@pytest.mark.parametrize("place", ["begin", "end", "time"])
def test_places_to_begin_at(tools: JavaTools, topic: str, group: str, place: str) -> None:
    tools.queues(topic, create=2)
    tools.produce(topic, "ordered", 4, orders=2, prefix="old")
    tools.produce(topic, "ordered", 4, orders=2, prefix="new")
    expected = {
        "begin": numbered("new", 4) + numbered("old", 4) + numbered("now", 4),
        "end": numbered("now", 4),
        "time": numbered("new", 4) + numbered("now", 4),
    }[place]
    if place == "time":
        stored = tools.received(topic, f"{group}_all", 8)
        times = [event["store_timestamp"] for event in stored if event["body"].startswith("new")]
        place = f"@{min(times)}"
    child = tools.start_lite_pull(topic, group, mode="assign", seek=place, count=len(expected))
    child.event("placed")
    tools.produce(topic, "ordered", 4, orders=2, prefix="now")
    child.event("done")
    child.finish()
    assert bodies(child.named("message")) == sorted(expected)
    ends = {event["queue_id"]: event["offset"] for event in child.named("committed")}
    assert ends == {0: 6, 1: 6}


def test_a_queue_that_rests(tools: JavaTools, topic: str, group: str) -> None:
    tools.queues(topic, create=2)
    tools.produce(topic, "ordered", 8, orders=2)
    received = tools.lite_pull(topic, group, 8, mode="assign", pause=0, first=4)
    assert {event["queue_id"] for event in received[:4]} == {1}
    assert {event["queue_id"] for event in received[4:]} == {0}


def test_commits_by_itself(tools: JavaTools, topic: str, group: str) -> None:
    tools.produce(topic, "sync", 6, prefix="first")
    tools.lite_pull(topic, group, 6, auto="true")
    tools.produce(topic, "sync", 4, prefix="second")
    assert bodies(tools.lite_pull(topic, group, 4)) == numbered("second", 4)


def test_two_members_share_the_queues(tools: JavaTools, topic: str, group: str) -> None:
    tools.queues(topic, create=4)
    pair = [tools.start_lite_pull(topic, group, count=8) for _ in range(2)]
    for member in pair:
        holds_queues(member, 2)
    tools.produce(topic, "ordered", 16, orders=4)
    for member in pair:
        member.event("done")
        member.finish()
    received = [member.named("message") for member in pair]
    assert bodies(received[0] + received[1]) == numbered("m", 16)
    assert [len({event["queue_id"] for event in events}) for events in received] == [2, 2]
