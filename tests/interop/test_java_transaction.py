"""RocketMQ's Java transactional producer: commit, rollback, and what the broker asks it later."""

from __future__ import annotations

import pytest

from tests.interop.children import Event
from tests.interop.servers import FEATURES, Broker
from tests.interop.tools import JavaTools, bodies

pytestmark = pytest.mark.interop

DISCARDED = "TRANS_CHECK_MAX_TIME_TOPIC"


def picked(count: int, step: int, first: int) -> list[str]:
    return sorted(f"m-{index}" for index in range(first, count, step))


def test_committed_messages_are_shown_and_rolled_back_ones_are_not(
    tools: JavaTools, topic: str, group: str
) -> None:
    tools.queues(topic, create=2)
    consumer = tools.consume(topic, group)
    producer = tools.transact(topic, f"P_{topic}", count=12, local="commit,rollback", tags="A,B,C")
    tools.produce(topic, "sync", 2, prefix="last")
    received = consumer.count("message", 8)
    consumer.finish()
    producer.finish()

    assert bodies(received) == sorted(["last-0", "last-1", *picked(12, 2, 0)])
    assert producer.named("check") == []
    sent = {f"m-{event['index']}": event for event in producer.named("sent")}
    assert {event["status"] for event in sent.values()} == {"SEND_OK"}
    for event in received:
        if event["body"].startswith("last"):
            continue
        half = sent[event["body"]]
        assert event["msg_id"] == half["msg_id"]
        assert event["queue_id"] == half["queue_id"]
        assert event["tags"] == "ABC"[event["flag"] % 3]
        assert event["properties"]["TRAN_MSG"] == "true"
        assert event["properties"]["PGROUP"] == f"P_{topic}"
        assert event["properties"]["REAL_TOPIC"] == topic
        assert event["sys_flag"] & 0xC == 8
        assert event["prepared_offset"] > 0 or half["index"] == 0


def test_an_undecided_message_is_asked_for(tools: JavaTools, topic: str, group: str) -> None:
    consumer = tools.consume(topic, group)
    producer = tools.transact(
        topic, f"P_{topic}", count=6, local="unknown,throw", check="commit,rollback,commit"
    )
    received = consumer.count("message", 4)
    checks = producer.count("check", 6)
    producer.finish()
    consumer.finish()

    assert bodies(received) == ["m-0", "m-2", "m-3", "m-5"]
    sent = {event["index"]: event for event in producer.named("sent")}
    for check in checks:
        row = int(check["properties"]["row"])
        assert check["topic"] == topic
        assert check["body"] == f"m-{row}"
        assert check["properties"]["TRANSACTION_CHECK_TIMES"] == "1"
        assert check["properties"]["PGROUP"] == f"P_{topic}"
        assert check["properties"]["UNIQ_KEY"] == sent[row]["msg_id"]
        assert check["transaction_id"] == sent[row]["msg_id"]
    # One check each: those that came in time were answered in time.
    assert sorted(int(check["properties"]["row"]) for check in checks) == [*range(6)]


def test_another_producer_of_the_group_is_asked(tools: JavaTools, topic: str, group: str) -> None:
    """The one that sent it has been killed."""
    consumer = tools.consume(topic, group)
    gone = tools.transact(topic, f"P_{topic}", count=2, local="unknown", check="unknown")
    gone.kill()
    other = tools.transact(topic, f"P_{topic}", count=0, check="commit")
    assert bodies(consumer.count("message", 2)) == ["m-0", "m-1"]
    other.finish()
    consumer.finish()


def test_what_nobody_decides_is_put_aside(tools: JavaTools, topic: str, group: str) -> None:
    tools.queues(topic, create=1)
    producer = tools.transact(topic, f"P_{topic}", count=1, local="unknown", check="unknown")
    limit = int(FEATURES["transactionCheckMax"])
    aside = tools.consume(DISCARDED, group)
    (event,) = aside.wait_for("it", lambda: of_topic(aside.named("message"), topic))
    aside.finish()
    producer.finish()
    times = [check["properties"]["TRANSACTION_CHECK_TIMES"] for check in producer.named("check")]
    assert times == [str(number + 1) for number in range(limit)]
    assert event["body"] == "m-0"
    assert event["topic"] == DISCARDED
    assert [queue["max_offset"] for queue in tools.queues(topic)] == [0]


def of_topic(events: list[Event], topic: str) -> list[Event]:
    return [event for event in events if event["properties"].get("REAL_TOPIC") == topic]


def test_immunity_puts_a_check_off(tools: JavaTools, topic: str, group: str) -> None:
    consumer = tools.consume(topic, group)
    producer = tools.transact(
        topic,
        f"P_{topic}",
        count=2,
        local="unknown",
        check="commit",
        props="CHECK_IMMUNITY_TIME_IN_SECONDS:1|3",
    )
    early, late = consumer.count("message", 2)
    producer.finish()
    consumer.finish()
    assert [early["body"], late["body"]] == ["m-0", "m-1"]
    assert late["store_timestamp"] - late["born_timestamp"] >= 3000


# A clean stop of RocketMQ's takes ten seconds, in which it goes on asking.
@pytest.mark.parametrize("own_broker", [{"transactionCheckMax": 40}], indirect=True)
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_pending_messages_outlive_the_broker(
    own_broker: Broker, own_tools: JavaTools, topic: str, group: str, how: str
) -> None:
    """Each is decided once, by the broker that starts again."""
    own_tools.queues(topic, create=1)
    decided = own_tools.transact(topic, f"P_{topic}", count=4, local="commit,rollback")
    pending = own_tools.transact(
        topic, f"P_{topic}", count=3, local="unknown", check="unknown", prefix="open"
    )
    pending.kill()
    decided.finish()
    if how == "stopped":
        own_broker.stop()
    else:
        own_broker.kill()
    own_broker.start()
    own_tools.transact(topic, f"P_{topic}", count=0, check="commit,rollback,commit")
    consumer = own_tools.consume(topic, group)
    expected = ["m-0", "m-2", "open-0", "open-2"]
    assert bodies(consumer.count("message", 4)) == expected
    own_tools.produce(topic, "sync", 1, prefix="last")
    consumer.count("message", 5)
    consumer.finish()
    assert bodies(consumer.named("message")) == sorted([*expected, "last-0"])
