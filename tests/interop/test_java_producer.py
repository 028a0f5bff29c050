"""RocketMQ's Java producer: every way of sending, read back by its push consumer."""

from __future__ import annotations

import pytest

from skylarkmq.protocol.message_id import decode_offset_message_id
from tests.interop.children import Event
from tests.interop.servers import Broker
from tests.interop.tools import BINARY_HEADERS, FAST_PORT, LONG_NAMES, JavaTools, bodies, numbered

pytestmark = pytest.mark.interop

COUNT = 20


@pytest.mark.parametrize("mode", ["sync", "async", "ordered"])
def test_each_message_arrives_as_acked(
    tools: JavaTools, broker: Broker, topic: str, group: str, mode: str
) -> None:
    sent = tools.produce(topic, mode, COUNT, tags="A,B")
    received = tools.received(topic, group, COUNT)

    assert {event["status"] for event in sent} == {"SEND_OK"}
    assert bodies(received) == numbered("m", COUNT)
    by_body = {event["body"]: event for event in received}
    for ack in sent:
        assert_same(ack, by_body[f"m-{ack['index']}"], broker)


@pytest.mark.parametrize("option", [BINARY_HEADERS, LONG_NAMES, FAST_PORT])
def test_other_ways_on_the_wire(
    tools: JavaTools, broker: Broker, topic: str, group: str, option: str
) -> None:
    consumer = tools.consume(topic, group, option)
    sent = tools.produce(topic, "sync", COUNT, option)
    by_body = {event["body"]: event for event in consumer.count("message", COUNT)}
    consumer.finish()

    assert sorted(by_body) == numbered("m", COUNT)
    for ack in sent:
        assert_same(ack, by_body[f"m-{ack['index']}"], broker)


def test_oneway(tools: JavaTools, topic: str, group: str) -> None:
    assert tools.produce(topic, "oneway", COUNT) == []
    assert bodies(tools.received(topic, group, COUNT)) == numbered("m", COUNT)


def test_batch(tools: JavaTools, broker: Broker, topic: str, group: str) -> None:
    (ack,) = tools.produce(topic, "batch", COUNT)
    received = tools.received(topic, group, COUNT)

    assert ack["status"] == "SEND_OK"
    assert bodies(received) == numbered("m", COUNT)
    assert {event["queue_id"] for event in received} == {ack["queue_id"]}
    offset_ids = ack["offset_msg_id"].split(",")
    assert len(offset_ids) == COUNT
    for index, event in enumerate(sorted(received, key=lambda event: event["queue_offset"])):
        assert event["body"] == f"m-{index}"
        assert event["queue_offset"] == ack["queue_offset"] + index
        assert event["flag"] == index
        assert event["msg_id"] == ack["msg_id"].split(",")[index]
        assert_offset_id(offset_ids[index], event, broker)


def test_batch_of_megabytes(tools: JavaTools, topic: str, group: str) -> None:
    (ack,) = tools.produce(topic, "batch", 4, size=900_000)
    received = tools.received(topic, group, 4)

    assert ack["status"] == "SEND_OK"
    assert {event["body_size"] for event in received} == {900_000}


def test_compressed_bodies(tools: JavaTools, topic: str, group: str) -> None:
    tools.produce(topic, "sync", 3, size=200_000)
    received = tools.received(topic, group, 3)
    assert {event["body_size"] for event in received} == {200_000}


def test_delayed(tools: JavaTools, topic: str, group: str) -> None:
    """Level 2 is two seconds here. The ack speaks of the waiting message, not of the later one."""
    sent = tools.produce(topic, "sync", 3, delay=2)
    received = tools.received(topic, group, 3)

    assert {event["status"] for event in sent} == {"SEND_OK"}
    assert bodies(received) == numbered("m", 3)
    for event in received:
        assert event["store_timestamp"] - event["born_timestamp"] >= 2000
        assert event["topic"] == topic
        assert event["properties"]["REAL_TOPIC"] == topic
        assert event["properties"]["DELAY"] == "2"


def test_messages_of_an_order_stay_in_order(tools: JavaTools, topic: str, group: str) -> None:
    sent = tools.produce(topic, "ordered", COUNT, orders=3)
    queues = {ack["index"] % 3: ack["queue_id"] for ack in sent}
    assert all(ack["queue_id"] == queues[ack["index"] % 3] for ack in sent)

    received = tools.received(topic, group, COUNT)
    for order in range(3):
        mine = [event for event in received if event["properties"]["order"] == str(order)]
        mine.sort(key=lambda event: event["queue_offset"])
        assert [int(event["properties"]["row"]) for event in mine] == [*range(order, COUNT, 3)]


def test_too_big_is_refused_by_the_broker(tools: JavaTools, topic: str) -> None:
    (error,) = tools.produce(topic, "batch", 2, "-Xmx512m", size=2_100_000, max=10_000_000)
    assert error["type"] == "MQBrokerException"
    assert error["code"] == 13


def assert_same(ack: Event, event: Event, broker: Broker) -> None:
    """A message is what its ack said, and what was sent."""
    index = ack["index"]
    assert ack["broker_name"] == event["broker_name"] == "broker-a"
    assert ack["region_id"] == "DefaultRegion"
    assert ack["trace_on"] is True
    for name in ("msg_id", "queue_id", "queue_offset"):
        assert ack[name] == event[name], name
    assert_offset_id(ack["offset_msg_id"], event, broker)
    assert event["keys"] == f"m-key-{index}"
    assert event["flag"] == index
    assert event["reconsume_times"] == 0
    properties = event["properties"]
    assert properties["row"] == str(index)
    assert properties["stadt"] == "Zürich"
    assert properties["CLUSTER"] == "DefaultCluster"
    assert "WAIT" not in properties


def assert_offset_id(offset_id: str, event: Event, broker: Broker) -> None:
    """An offset id names the broker and the message's place in its log."""
    host, physical_offset = decode_offset_message_id(offset_id)
    assert (host.ip, host.port) == ("127.0.0.1", broker.port)
    assert physical_offset == event["commit_log_offset"]
