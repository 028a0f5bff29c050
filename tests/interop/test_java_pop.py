"""RocketMQ 5's remoting Java client in pop mode: the broker says what it receives from and how."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator

import pytest

from skylarkmq.client import Message
from skylarkmq.client.sync import Admin, Producer, SimpleConsumer
from tests.interop import java
from tests.interop.admin_tools import JavaAdmin
from tests.interop.apache_server import ApacheBroker
from tests.interop.children import Children
from tests.interop.conftest import KINDS
from tests.interop.servers import Broker
from tests.interop.tools import JavaTools, bodies
from tests.support.patience import LIMIT_S

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(ApacheBroker.kind in KINDS, reason="4.9 has no pop consumption"),
]
QUEUES = 4
INVISIBLE_MS = 6000
Ready = Callable[[str], tuple[str, str]]


@pytest.fixture(scope="module")
def admin_5(broker: Broker) -> Iterator[JavaAdmin]:
    """RocketMQ's administration tool of 5.3."""
    if why := java.why_not(java.CLIENT, java.TOOLS_5):
        pytest.skip(why)
    admin = JavaAdmin(broker.children, broker, of_5=True)
    yield admin
    admin.finish()


@pytest.fixture
def ready(broker: Broker, admin_5: JavaAdmin) -> Ready:
    """Makes a topic, and a group whose mode in it is to pop."""

    def made(name: str) -> tuple[str, str]:
        topic, group = f"PopTopic_{name}", f"PopGroup_{name}"
        with Admin(namesrv_addr=broker.namesrv) as admin:
            admin.create_topic(topic, queues=QUEUES)
        words = ("-b", admin_5.address, "-t", topic, "-g", group, "-m", "POP", "-q", "0")
        told = admin_5.run("setConsumeMode", *words)
        assert "success" in told, told
        return topic, group

    return made


@pytest.fixture
def tools_5(children: Children, broker: Broker) -> JavaTools:
    return JavaTools(children, broker)


def send(broker: Broker, topic: str, count: int, tag: str = "") -> list[str]:
    wanted = [f"m-{number}" for number in range(count)]
    with Producer(namesrv_addr=broker.namesrv) as producer:
        producer.send_many([Message(topic, body.encode(), tags=tag or None) for body in wanted])
    return sorted(wanted)


def test_it_consumes_and_acknowledges(broker: Broker, ready: Ready, tools_5: JavaTools) -> None:
    topic, group = ready("plain")
    wanted = send(broker, topic, 100, tag="A")
    consumer = tools_5.pop(topic, group, tags="A", invisible=INVISIBLE_MS)
    consumer.count("message", 100)
    assert bodies(consumer.named("message")) == wanted
    assert {event["topic"] for event in consumer.named("message")} == {topic}
    consumer.finish()
    with SimpleConsumer(topic, group=group, namesrv_addr=broker.namesrv) as rest:
        assert rest.receive(32, timeout=2 * INVISIBLE_MS / 1000) == [], "all is acknowledged"


def test_what_fails_comes_again(broker: Broker, ready: Ready, tools_5: JavaTools) -> None:
    """After ten seconds, the client's own first wait."""
    topic, group = ready("failing")
    send(broker, topic, 2)
    consumer = tools_5.pop(topic, group, fail=1)
    consumer.count("message", 4)
    events = consumer.named("message")
    assert bodies(events) == ["m-0", "m-0", "m-1", "m-1"]
    assert sorted(event["reconsume_times"] for event in events) == [0, 0, 1, 1]
    assert {event["topic"] for event in events} == {topic}
    consumer.finish()


def test_what_a_lost_client_had_goes_to_another_one(
    broker: Broker, ready: Ready, tools_5: JavaTools
) -> None:
    topic, group = ready("lost")
    send(broker, topic, 2)
    lost = tools_5.pop(topic, group, hold="true", invisible=INVISIBLE_MS)
    lost.count("message", 2)
    lost.kill()
    found: list[str] = []
    with SimpleConsumer(
        topic, group=group, namesrv_addr=broker.namesrv, await_duration=LIMIT_S
    ) as consumer:
        while len(found) < 2:
            messages = consumer.receive()
            assert messages
            for message in messages:
                assert message.delivery_attempt == 2
                consumer.ack(message)
                found.append(message.body.decode())
    assert sorted(found) == ["m-0", "m-1"]


def test_administrators_see_what_is_in_hand(
    broker: Broker, ready: Ready, tools_5: JavaTools, admin_5: JavaAdmin
) -> None:
    topic, group = ready("in_hand")
    send(broker, topic, 3)
    consumer = tools_5.pop(topic, group, hold="true")
    consumer.count("message", 3)
    shown = admin_5.run("consumerProgress", "-n", broker.namesrv, "-g", group)
    assert "Consume Diff Total: 3" in shown
    assert "Consume Inflight Total: 3" in shown
    consumer.kill()


def test_one_that_listens_in_order_pulls_whatever_the_mode(
    broker: Broker, ready: Ready, tools_5: JavaTools
) -> None:
    """It divides and locks the queues by itself; then the group is popped again."""
    topic, group = ready("in_order")
    wanted = send(broker, topic, 40)
    consumer = tools_5.pop(topic, group, listener="orderly")
    consumer.count("message", 40)
    assert bodies(consumer.named("message")) == wanted
    consumer.finish()
    more = send(broker, topic, 50)
    popping = tools_5.pop(topic, group)
    # What was handled last may come once more: its client stopped before it committed that.
    popping.wait_for("the rest", lambda: set(more) == set(bodies(popping.named("message"))))
    popping.finish()


def test_a_timed_message_is_taken_back(broker: Broker, tools_5: JavaTools) -> None:
    topic = "RecallTopic"
    with Admin(namesrv_addr=broker.namesrv) as admin:
        admin.create_topic(topic, queues=QUEUES)
    wrong = base64.urlsafe_b64encode(f"v1 {topic} {broker.name} 1 m".encode()).decode()
    sent = tools_5.recall(topic, 4, delay=3000, wrong=wrong)
    ids = [event["msg_id"] for event in sent.named("timed")]
    taken = sent.named("recalled")
    assert [event.get("msg_id") for event in taken] == [ids[0], ids[2], None]
    assert taken[-1]["code"] == 604
    consumer = tools_5.pop(topic, "RecallGroup")
    consumer.count("message", 2)
    assert bodies(consumer.named("message")) == ["m-1", "m-3"]
    consumer.finish()


def test_it_goes_on_after_a_restart_of_the_broker(
    maven: None, own_broker: Broker, children: Children
) -> None:
    """The mode is the group's, and what was in hand before is acknowledged after."""
    admin = JavaAdmin(own_broker.children, own_broker, of_5=True)
    topic, group = "PopTopic_restart", "PopGroup_restart"
    with Admin(namesrv_addr=own_broker.namesrv) as ours:
        ours.create_topic(topic, queues=QUEUES)
    words = ("-b", admin.address, "-t", topic, "-g", group, "-m", "POP", "-q", "0")
    assert "success" in admin.run("setConsumeMode", *words)
    admin.finish()
    wanted = send(own_broker, topic, 20)
    consumer = JavaTools(children, own_broker).pop(topic, group)
    consumer.count("message", 20)
    own_broker.stop()
    own_broker.start()
    send(own_broker, topic, 20)
    consumer.wait_for(
        "40 messages", lambda: bodies(consumer.named("message")) == sorted([*wanted, *wanted])
    )
    consumer.finish()


@pytest.mark.parametrize("own_broker", [{"enableRetryTopicV2": "true"}], indirect=True)
def test_retries_in_a_topic_of_the_newer_name(
    maven: None, own_broker: Broker, children: Children
) -> None:
    """The client finds their handles by the `+`, and acknowledges what came again."""
    admin = JavaAdmin(own_broker.children, own_broker, of_5=True)
    topic, group = "PopTopic_plus", "PopGroup_plus"
    with Admin(namesrv_addr=own_broker.namesrv) as ours:
        ours.create_topic(topic, queues=QUEUES)
        words = ("-b", admin.address, "-t", topic, "-g", group, "-m", "POP", "-q", "0")
        assert "success" in admin.run("setConsumeMode", *words)
        admin.finish()
        send(own_broker, topic, 2)
        consumer = JavaTools(children, own_broker).pop(topic, group, fail=1)
        consumer.count("message", 4)
        events = consumer.named("message")
        assert bodies(events) == ["m-0", "m-0", "m-1", "m-1"]
        assert {event["topic"] for event in events} == {topic}
        assert f"%RETRY%{group}+{topic}" in ours.list_topics(groups=True)
        consumer.finish()
    with SimpleConsumer(topic, group=group, namesrv_addr=own_broker.namesrv) as rest:
        assert rest.receive(32, timeout=2 * INVISIBLE_MS / 1000) == [], "all is acknowledged"
