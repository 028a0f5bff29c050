"""RocketMQ's Java producer asks for a delay: its levels, and with our broker any time."""

from __future__ import annotations

import time

import pytest

from tests.interop.children import Event
from tests.interop.servers import Broker
from tests.interop.tools import JavaTools, bodies, numbered, receives

pytestmark = pytest.mark.interop

# The second level is still to come when the broker has started again: a clean stop takes RocketMQ's
# ten seconds, and clients start slowly where much else runs.
SLOW_S = 12
SLOW_LEVELS = f"1s {SLOW_S}s"


def waited_ms(event: Event) -> int:
    waited: int = event["store_timestamp"] - event["born_timestamp"]
    return waited


def test_levels(tools: JavaTools, broker: Broker, topic: str, group: str) -> None:
    """Never early, each in the order of its level; a level above the last is the last."""
    tools.queues(topic, create=1)
    consumer = tools.consume(topic, group, threads=1)
    tools.produce(topic, "sync", 6, props="DELAY:2|1|99|1|2|0", tags="A")
    received = consumer.count("message", 6)
    consumer.finish()
    by_body = {event["body"]: event for event in received}
    assert sorted(by_body) == numbered("m", 6)
    assert received[0]["body"] == "m-5"  # level 0 is none
    for body, seconds in (("m-0", 2), ("m-1", 1), ("m-2", 1), ("m-3", 1), ("m-4", 2)):
        event = by_body[body]
        assert waited_ms(event) >= seconds * 1000
        assert event["topic"] == topic
        assert event["tags"] == "A"
        assert event["properties"]["REAL_TOPIC"] == topic
        assert event["properties"]["REAL_QID"] == "0"
    for first, second in (("m-1", "m-3"), ("m-0", "m-4")):
        assert by_body[first]["queue_offset"] < by_body[second]["queue_offset"]


@pytest.mark.parametrize("own_broker", [{"messageDelayLevel": SLOW_LEVELS}], indirect=True)
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_delayed_messages_outlive_the_broker(
    own_broker: Broker, own_tools: JavaTools, topic: str, group: str, how: str
) -> None:
    own_tools.queues(topic, create=1)
    own_tools.produce(topic, "sync", 3, props="DELAY:2")
    own_tools.produce(topic, "sync", 1, props="DELAY:1", prefix="early")
    assert bodies(own_tools.received(topic, group, 1)) == ["early-0"]
    if how == "stopped":
        own_broker.stop()
    else:
        own_broker.kill()
    own_broker.start()
    consumer = own_tools.consume(topic, f"{group}_2")
    consumer.wait_for(
        "the late ones",
        lambda: {*numbered("m", 3)} <= {*bodies(consumer.named("message"))},
    )
    consumer.finish()
    late = [event for event in consumer.named("message") if event["body"].startswith("m-")]
    assert bodies(late) == numbered("m", 3)
    assert all(waited_ms(event) >= SLOW_S * 1000 for event in late)


def test_any_delay(tools: JavaTools, broker: Broker, topic: str, group: str) -> None:
    if broker.kind == "apache":
        pytest.skip("RocketMQ 4.9 delivers such messages at once")
    tools.queues(topic, create=1)
    consumer = tools.consume(topic, group, threads=1)
    tools.produce(topic, "sync", 1, prefix="past", props="TIMER_DELIVER_MS:1")
    at = int(time.time() * 1000) + 5000
    (by_ms,) = tools.produce(topic, "sync", 1, prefix="ms", props="TIMER_DELAY_MS:2500")
    (by_s,) = tools.produce(topic, "sync", 1, prefix="s", props="TIMER_DELAY_SEC:3")
    (by_time,) = tools.produce(topic, "sync", 1, prefix="at", props=f"TIMER_DELIVER_MS:{at}")
    assert {ack["status"] for ack in (by_ms, by_s, by_time)} == {"SEND_OK"}
    received = consumer.count("message", 4)
    consumer.finish()
    by_body = {event["body"]: event for event in received}
    assert received[0]["body"] == "past-0"
    assert waited_ms(by_body["ms-0"]) >= 2500
    assert waited_ms(by_body["s-0"]) >= 3000
    assert by_body["at-0"]["store_timestamp"] >= at
    assert by_body["at-0"]["msg_id"] == by_time["msg_id"]


def test_any_delay_has_bounds(tools: JavaTools, broker: Broker, topic: str) -> None:
    if broker.kind == "apache":
        pytest.skip("RocketMQ 4.9 delivers such messages at once")
    tools.queues(topic, create=1)
    four_days = 4 * 86_400
    for value in (four_days, "soon"):
        (error,) = tools.produce(topic, "sync", 1, props=f"TIMER_DELAY_SEC:{value}")
        assert error["code"] == 13


def test_a_delay_is_taken_back(tools: JavaTools, broker: Broker, topic: str, group: str) -> None:
    if broker.kind == "apache":
        pytest.skip("RocketMQ 4.9 delivers such messages at once")
    tools.queues(topic, create=1)
    at = int(time.time() * 1000) + 8000
    sent = tools.produce(topic, "sync", 2, props=f"TIMER_DELIVER_MS:{at}")
    key = sent[0]["msg_id"]
    tools.produce(
        topic,
        "sync",
        1,
        prefix="cancel",
        props=f"TIMER_DELIVER_MS:{at};TIMER_DEL_UNIQKEY:{key}",
    )
    consumer = tools.consume(topic, group)
    tools.produce(topic, "sync", 1, prefix="after", props=f"TIMER_DELIVER_MS:{at + 2000}")
    receives(consumer, "after-0")
    consumer.finish()
    assert bodies(consumer.named("message")) == ["after-0", "m-1"]
