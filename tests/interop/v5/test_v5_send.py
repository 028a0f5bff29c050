"""Sending by RocketMQ's clients of the gRPC protocol: the four types of messages, and recall."""

from __future__ import annotations

import pytest

from tests.interop.servers import Broker
from tests.interop.v5.brokers import SkylarkGrpcBroker, make_group, make_topic
from tests.interop.v5.programs import CallFailedError, Program

pytestmark = pytest.mark.interop

DELAY_MS = 3000
RECALLED_MS = 5000
MISSING_TOPIC = 40402


def test_what_is_sent_is_received(program: Program, broker: Broker, topic: str, group: str) -> None:
    make_topic(broker, topic)
    producer = program.producer(topic)
    sent = producer.send("Grüße", tag="A", key="k1", properties={"stadt": "Zürich"})
    plain = producer.send("plain")
    assert len(sent["message_id"]) == 34
    consumer = program.push(topic, group)
    found = {one["body"]: one for one in consumer.until("Grüße", "plain")}
    full, bare = found["Grüße"], found["plain"]
    assert full["message_id"] == sent["message_id"]
    assert bare["message_id"] == plain["message_id"]
    assert (full["topic"], full["tag"], full["keys"]) == (topic, "A", ["k1"])
    assert full["properties"] == {"stadt": "Zürich"}
    assert (bare["tag"], bare["keys"], bare["properties"]) == ("", [], {})
    assert {full["attempt"], bare["attempt"]} == {1}
    assert 0 <= full["now_ms"] - full["born_ms"] < 3_600_000


def test_a_large_body(program: Program, broker: Broker, topic: str, group: str) -> None:
    """RocketMQ's limit is 4 MiB, as is the default one of gRPC, by which Node and Go receive."""
    make_topic(broker, topic)
    size = 4_000_000 if program.language in ("node", "go") else (4 << 20) - 16
    body = ("0123456789abcdef" * (1 << 18))[:size]
    program.producer(topic).send(body)
    consumer = program.simple(topic, group)
    (message,) = consumer.received(1)
    consumer.ack(message)
    assert message["body"] == body


def test_a_missing_topic(program: Program, topic: str) -> None:
    """Most clients look at the route when they start; Java's says no more than that it failed."""
    with pytest.raises(CallFailedError) as raised:
        program.producer(topic).send("lost")
    assert raised.value.code in {0, MISSING_TOPIC}


def test_messages_of_a_group_keep_their_order(
    program: Program, broker: Broker, topic: str, group: str
) -> None:
    make_topic(broker, topic, "FIFO", queues=4)
    make_group(broker, group, orderly=True)
    producer = program.producer(topic)
    bodies = [f"{name}-{number}" for number in range(6) for name in "abc"]
    for body in bodies:
        producer.send(body, message_group=body[0])
    consumer = program.push(topic, group)
    found = consumer.until(*bodies)
    for name in "abc":
        of_group = [one for one in found if one["message_group"] == name]
        assert [one["body"] for one in of_group] == [f"{name}-{number}" for number in range(6)]


def test_the_highest_priority_comes_first(
    program: Program, broker: Broker, topic: str, group: str
) -> None:
    if program.language == "go":
        pytest.skip("this release of the Go client knows no priorities")
    if not isinstance(broker, SkylarkGrpcBroker):
        pytest.skip("priorities are of RocketMQ 5.4")
    make_topic(broker, topic, "PRIORITY", queues=4)
    make_group(broker, group)
    producer = program.producer(topic)
    for priority in (1, 3, 2, 9):
        producer.send(str(priority), priority=priority)
    if program.language != "node":  # to which 0 is none
        producer.send("0", priority=0)
    with pytest.raises(CallFailedError):
        producer.send("none")
    with pytest.raises(CallFailedError):
        producer.send("both", priority=1, message_group="g")
    consumer = program.simple(topic, group)
    found = consumer.received(4 if program.language == "node" else 5)
    assert [one["body"] for one in found][:4] == ["3", "9", "2", "1"]
    assert [one["priority"] for one in found][:4] == [3, 9, 2, 1]
    for one in found:
        consumer.ack(one)


def test_a_delayed_message_comes_when_it_is_due(
    program: Program, broker: Broker, topic: str, group: str
) -> None:
    make_topic(broker, topic, "DELAY")
    consumer = program.push(topic, group)
    program.producer(topic).send("later", delay_ms=DELAY_MS)
    (message,) = consumer.until("later")
    # A second less: RocketMQ delivers up to that much early.
    assert message["now_ms"] - message["born_ms"] >= DELAY_MS - 1000


def test_a_recalled_message_never_comes(
    program: Program, broker: Broker, topic: str, group: str
) -> None:
    if program.language == "go":
        pytest.skip("the Go client does not recall")
    make_topic(broker, topic, "DELAY")
    consumer = program.push(topic, group)
    producer = program.producer(topic)
    recalled = producer.send("recalled", delay_ms=RECALLED_MS)
    answer = producer.recall(recalled["recall_handle"])
    assert answer["message_id"] == recalled["message_id"]
    producer.send("last", delay_ms=RECALLED_MS + 3000)
    assert [one["body"] for one in consumer.until("last")] == ["last"]


def test_transactions(program: Program, broker: Broker, topic: str, group: str) -> None:
    """Committed, rolled back, and left open: then the server asks."""
    make_topic(broker, topic, "TRANSACTION")
    consumer = program.push(topic, group)
    producer = program.producer(topic, check="commit")
    producer.send("rolled back", transaction="rollback")
    producer.send("committed", transaction="commit", tag="A")
    asked = producer.send("asked", transaction="none", key="k", properties={"row": "7"})
    found = {one["body"]: one for one in consumer.until("committed", "asked")}
    assert set(found) == {"committed", "asked"}
    checks = [one for one in producer.checks(1) if one["body"] == "asked"]
    assert {one["message_id"] for one in checks} == {asked["message_id"]}
    assert (checks[0]["topic"], checks[0]["keys"]) == (topic, ["k"])
    assert checks[0]["properties"]["row"] == "7"
    assert found["asked"]["message_id"] == asked["message_id"]
    assert found["committed"]["tag"] == "A"


def test_a_check_that_is_answered_by_a_rollback(
    program: Program, broker: Broker, topic: str, group: str
) -> None:
    make_topic(broker, topic, "TRANSACTION")
    consumer = program.push(topic, group)
    producer = program.producer(topic, check="rollback")
    producer.send("asked", transaction="none")
    producer.checks(1)
    producer.send("last", transaction="commit")
    assert [one["body"] for one in consumer.until("last")] == ["last"]


def test_another_producer_of_the_topic_is_asked(
    program: Program, broker: Broker, topic: str, group: str
) -> None:
    """The one that sent the message is gone."""
    make_topic(broker, topic, "TRANSACTION")
    consumer = program.push(topic, group)
    gone = program.producer(topic, check="unknown")
    gone.send("orphan", transaction="none")
    gone.close()
    other = program.producer(topic, check="commit")
    consumer.until("orphan")
    assert {one["body"] for one in other.checks(1)} == {"orphan"}
