"""RocketMQ's Java push consumer: tags, retries, dead letters, and groups that share queues."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.tools import (
    REBALANCE_LATE,
    JavaTools,
    bodies,
    holds_queues,
    numbered,
    share_queues,
)

pytestmark = pytest.mark.interop

QUEUES = 8


def test_tags(tools: JavaTools, topic: str, group: str) -> None:
    """One queue and one thread: what comes before the last message is all there is."""
    tools.queues(topic, create=1)
    consumer = tools.consume(topic, group, tags="A || B", threads=1)
    tools.produce(topic, "sync", 11, tags="C,A,B,D,A")
    tools.produce(topic, "sync", 1, tags="A", prefix="last")
    consumer.wait_for("the last", lambda: "last-0" in bodies(consumer.named("message")))
    consumer.finish()

    received = [(event["body"], event["tags"]) for event in consumer.named("message")]
    expected = [(f"m-{index}", "CABDA"[index % 5]) for index in range(11)]
    assert received == [row for row in expected if row[1] in "AB"] + [("last-0", "A")]


@pytest.mark.parametrize("level", [0, 1])
def test_retry(tools: JavaTools, topic: str, group: str, level: int) -> None:
    """A message that fails twice comes three times; level 0 lets the broker choose the delay."""
    consumer = tools.consume(topic, group, fail=2, level=level)
    tools.produce(topic, "sync", 2, tags="A")
    received = consumer.count("message", 6)
    consumer.finish()

    for index in range(2):
        times = [event for event in received if event["body"] == f"m-{index}"]
        assert [event["reconsume_times"] for event in times] == [0, 1, 2]
        assert len({event["msg_id"] for event in times}) == 1
        first, *again = times
        assert "RETRY_TOPIC" not in first["properties"]
        for before, after in zip(times, again, strict=False):
            assert after["store_timestamp"] - before["store_timestamp"] >= 1000
            assert after["born_timestamp"] == first["born_timestamp"]
            assert after["topic"] == topic  # the client puts it back
            assert after["tags"] == "A"
            assert after["flag"] == first["flag"]
            assert after["properties"]["RETRY_TOPIC"] == topic
            assert after["properties"]["REAL_TOPIC"] == f"%RETRY%{group}"
            assert after["properties"]["row"] == str(index)
        origins = {event["properties"]["ORIGIN_MESSAGE_ID"] for event in again}
        assert len(origins) == 1


def test_dead_letter(tools: JavaTools, topic: str, group: str) -> None:
    consumer = tools.consume(topic, group, fail=99, max=1)
    tools.produce(topic, "sync", 2)
    dead = tools.received(f"%DLQ%{group}", f"{group}_dead", 2)
    consumer.finish()

    received = consumer.named("message")
    assert sorted(event["reconsume_times"] for event in received) == [0, 0, 1, 1]
    assert bodies(dead) == numbered("m", 2)
    for event in dead:
        assert event["topic"] == f"%DLQ%{group}"
        assert event["reconsume_times"] == 2
        assert event["properties"]["RETRY_TOPIC"] == topic
        assert event["properties"]["row"] == event["body"].removeprefix("m-")


def test_two_consumers_share_the_queues(tools: JavaTools, topic: str, group: str) -> None:
    """Each learns of the other from the broker: they would not look for ten minutes."""
    tools.queues(topic, create=QUEUES)
    pair = [tools.consume(topic, group, REBALANCE_LATE) for _ in range(2)]
    held = share_queues(pair, QUEUES)
    assert [len(queues) for queues in held] == [QUEUES // 2] * 2

    tools.produce(topic, "sync", 40)
    pair[0].wait_for("its half", lambda: len(pair[0].named("message")) >= 20)
    pair[1].wait_for("its half", lambda: len(pair[1].named("message")) >= 20)
    for consumer in pair:
        consumer.finish()
    received = [consumer.named("message") for consumer in pair]
    assert bodies(received[0] + received[1]) == numbered("m", 40)
    for queues, events in zip(held, received, strict=True):
        assert {event["queue_id"] for event in events} <= queues


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_queues_of_a_gone_consumer_are_taken_over(
    tools: JavaTools, topic: str, group: str, how: str
) -> None:
    tools.queues(topic, create=QUEUES)
    gone, staying = (tools.consume(topic, group, REBALANCE_LATE) for _ in range(2))
    holds_queues(gone, QUEUES // 2)
    holds_queues(staying, QUEUES // 2)
    tools.produce(topic, "sync", 16, prefix="before")
    gone.count("message", 8)
    staying.count("message", 8)

    if how == "killed":
        gone.kill()
    else:
        gone.finish()
    assert holds_queues(staying, QUEUES) == set(range(QUEUES))
    tools.produce(topic, "sync", 16, prefix="after")
    staying.wait_for(
        "all that came later",
        lambda: {*numbered("after", 16)} <= {*bodies(staying.named("message"))},
    )
    staying.finish()
    again = {*bodies(staying.named("message"))} & {*bodies(gone.named("message"))}
    # What was not committed when a consumer was killed comes again; after a clean stop nothing.
    assert again <= {*numbered("before", 16)}
    assert how == "killed" or not again


def test_offsets_outlive_a_consumer(tools: JavaTools, topic: str, group: str) -> None:
    tools.produce(topic, "sync", 10, prefix="first")
    assert bodies(tools.received(topic, group, 10)) == numbered("first", 10)
    tools.produce(topic, "sync", 10, prefix="second")
    assert bodies(tools.received(topic, group, 10)) == numbered("second", 10)


def test_broadcast(tools: JavaTools, topic: str, group: str) -> None:
    tools.queues(topic, create=4)
    pair = [tools.consume(topic, group, model="BROADCASTING") for _ in range(2)]
    for consumer in pair:
        holds_queues(consumer, 4)
    tools.produce(topic, "sync", 12)
    for consumer in pair:
        consumer.count("message", 12)
        consumer.finish()
        assert bodies(consumer.named("message")) == numbered("m", 12)


def test_a_topic_that_comes_later(tools: JavaTools, topic: str, group: str) -> None:
    consumer = tools.consume(topic, group)
    consumer.event("started")
    tools.produce(topic, "sync", 4)
    consumer.count("message", 4)
    consumer.finish()
    assert bodies(consumer.named("message")) == numbered("m", 4)


def test_where_a_new_group_begins(tools: JavaTools, topic: str, group: str) -> None:
    """On a topic whose beginning is still at hand all begin there, whatever they ask for."""
    tools.queues(topic, create=1)
    tools.produce(topic, "sync", 3)
    for start in ("CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_LAST_OFFSET"):
        consumer = tools.consume(topic, f"{group}_{start}", **{"from": start})
        assert bodies(consumer.count("message", 3)) == numbered("m", 3)
        consumer.finish()


def test_a_broadcast_goes_on_where_it_was(
    tools: JavaTools, topic: str, group: str, tmp_path: Path
) -> None:
    """Each client keeps its own place, in a file."""
    tools.queues(topic, create=2)
    place = f"-Drocketmq.client.localOffsetStoreDir={tmp_path}/its-place"
    for prefix in ("first", "second"):
        consumer = tools.consume(topic, group, place, model="BROADCASTING")
        tools.produce(topic, "sync", 4, prefix=prefix)
        consumer.count("message", 4)
        consumer.finish()
        assert bodies(consumer.named("message")) == numbered(prefix, 4)
