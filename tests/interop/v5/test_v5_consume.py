"""Consuming by RocketMQ's clients of the gRPC protocol: push and simple, filters, what fails."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.interop.servers import Broker
from tests.interop.v5.brokers import ApacheProxy, dead_letters, make_group, make_topic
from tests.interop.v5.programs import CallFailedError, Program, SimpleConsumer
from tests.support.patience import until_sync

pytestmark = pytest.mark.interop

EXPIRED = 40013
WRONG_FILTER = 40010
INTERNAL = 50001


def attempts(found: list[dict[str, object]], body: str) -> list[object]:
    return [one["attempt"] for one in found if one["body"] == body]


def test_what_fails_comes_again(program: Program, broker: Broker, topic: str, group: str) -> None:
    make_topic(broker, topic)
    make_group(broker, group)
    consumer = program.push(topic, group, fail=2)
    sent = program.producer(topic).send("m", tag="A", key="k", properties={"row": "1"})
    found = consumer.count(3)
    assert attempts(found, "m") == [1, 2, 3]
    assert {one["message_id"] for one in found} == {sent["message_id"]}
    assert {(one["topic"], one["tag"], *one["keys"]) for one in found} == {(topic, "A", "k")}
    assert all(one["properties"] == {"row": "1"} for one in found)


def test_what_fails_for_ever_is_a_dead_letter(
    program: Program, broker: Broker, topic: str, group: str
) -> None:
    make_topic(broker, topic)
    make_group(broker, group, max_retries=2)
    consumer = program.push(topic, group, fail=99)
    program.producer(topic).send("poison")
    until_sync(lambda: dead_letters(broker, group) == 1, "the dead letter")
    assert attempts(consumer.messages, "poison") == [1, 2, 3]


def test_an_orderly_group_waits_for_what_fails(
    program: Program, broker: Broker, topic: str, group: str
) -> None:
    make_topic(broker, topic, "FIFO", queues=1)
    make_group(broker, group, orderly=True)
    producer = program.producer(topic)
    bodies = [f"m-{number}" for number in range(4)]
    for body in bodies:
        producer.send(body, message_group="one")
    found = program.push(topic, group, fail=1).count(8)
    assert Counter(one["body"] for one in found) == dict.fromkeys(bodies, 2)
    if program.language != "go":  # it goes on with the next one while the first waits
        assert [one["body"] for one in found] == sorted([*bodies, *bodies])
    if program.language != "python":  # which leaves the number of the attempt as it is
        assert sorted(one["attempt"] for one in found) == [1, 1, 1, 1, 2, 2, 2, 2]


def test_dead_letters_of_an_orderly_group(
    program: Program, broker: Broker, topic: str, group: str
) -> None:
    make_topic(broker, topic, "FIFO", queues=1)
    make_group(broker, group, orderly=True, max_retries=1)
    producer = program.producer(topic)
    for body in ("first", "second"):
        producer.send(body, message_group="one")
    consumer = program.push(topic, group, fail=99)
    until_sync(lambda: dead_letters(broker, group) >= 2, "the dead letters")
    for body in ("first", "second"):
        times = len(attempts(consumer.messages, body))
        assert times == 2 or program.language == "python"  # whose number is always 17


def test_what_is_not_acknowledged_comes_again(
    program: Program, broker: Broker, topic: str, group: str
) -> None:
    make_topic(broker, topic)
    make_group(broker, group)
    producer = program.producer(topic)
    for body in ("kept", "done"):
        producer.send(body)
    consumer = program.simple(topic, group)
    first = {one["body"]: one for one in consumer.received(2)}
    assert {one["attempt"] for one in first.values()} == {1}
    consumer.ack(first["done"])
    (again,) = consumer.received(1)
    assert (again["body"], again["attempt"]) == ("kept", 2)
    assert again["message_id"] == first["kept"]["message_id"]
    refused(program, consumer, first["kept"])
    consumer.ack(again)
    assert consumer.receive() == []


def refused(program: Program, consumer: SimpleConsumer, message: dict[str, object]) -> None:
    """Acknowledge by a handle whose time is over; the Go client does not tell."""
    if program.language == "go":
        consumer.ack(message)
        return
    with pytest.raises(CallFailedError) as raised:
        consumer.ack(message)
    assert raised.value.code == EXPIRED


def test_a_changed_invisible_time(program: Program, broker: Broker, topic: str, group: str) -> None:
    """It ends sooner or later than was asked for at first."""
    make_topic(broker, topic)
    make_group(broker, group)
    producer = program.producer(topic)
    consumer = program.simple(topic, group)
    producer.send("m")
    (message,) = consumer.received(1, invisible_ms=3_600_000)
    consumer.change(message, 1000)
    (again,) = consumer.received(1, invisible_ms=10_000)
    assert (again["body"], again["attempt"]) == ("m", 2)
    consumer.change(again, 3_600_000)
    consumer.ack(again)
    producer.send("last")
    assert [one["body"] for one in consumer.received(1)] == ["last"]


def test_tags(program: Program, broker: Broker, topic: str, group: str) -> None:
    make_topic(broker, topic)
    producer = program.producer(topic)
    for tag in ("A", "B", "C", ""):
        producer.send(f"of-{tag}", tag=tag)
    producer.send("last", tag="C")
    consumer = program.push(topic, group, tag="A || C")
    found = consumer.until("of-A", "of-C", "last")
    assert sorted(one["body"] for one in found) == ["last", "of-A", "of-C"]


def test_sql92(program: Program, broker: Broker, topic: str, group: str) -> None:
    make_topic(broker, topic)
    producer = program.producer(topic)
    for price in (5, 6, 7):
        for city in ("Zürich", "Bern"):
            producer.send(f"{price}-{city}", properties={"price": str(price), "city": city})
    producer.send("last", properties={"price": "9", "city": "Zürich"})
    consumer = program.simple(topic, group, sql="price > 5 AND city = 'Zürich'")
    found = consumer.received(3)
    for message in found:
        consumer.ack(message)
    assert sorted(one["body"] for one in found) == ["6-Zürich", "7-Zürich", "last"]


def test_a_filter_that_is_none(program: Program, broker: Broker, topic: str, group: str) -> None:
    make_topic(broker, topic)
    with pytest.raises(CallFailedError) as raised:
        program.simple(topic, group, sql="price >").receive()
    expected = INTERNAL if isinstance(broker, ApacheProxy) else WRONG_FILTER
    assert raised.value.code == expected


def test_two_consumers_share_a_group(
    program: Program, broker: Broker, topic: str, group: str
) -> None:
    """Each message comes to one of them."""
    make_topic(broker, topic, queues=4)
    consumers = [program.push(topic, group) for _ in range(2)]
    producer = program.producer(topic)
    bodies = [f"m-{number}" for number in range(40)]
    for body in bodies:
        producer.send(body)

    def all_found() -> list[str]:
        return sorted(one["body"] for each in consumers for one in each.messages)

    until_sync(lambda: len(all_found()) >= len(bodies), "all messages")
    assert all_found() == sorted(bodies)
