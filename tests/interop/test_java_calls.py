"""What RocketMQ's administration tool asks consumers through the broker, and of who is there."""

from __future__ import annotations

import pytest

from tests.interop.admin_tools import JavaAdmin, queues, rows
from tests.interop.tools import JavaTools, holds_queues

pytestmark = pytest.mark.interop

NOT_THERE = 206


def client_of(admin: JavaAdmin, group: str) -> str:
    """The id of the only member of a group."""
    connections = admin.call("examineConsumerConnectionInfo", group)["connectionSet"]
    (client,) = [row["clientId"] for row in connections]
    return str(client)


def test_consume_a_message_directly(
    tools: JavaTools, admin: JavaAdmin, topic: str, group: str
) -> None:
    tools.queues(topic, create=1)
    consumer = tools.consume(topic, group)
    (sent,) = tools.produce(topic, "sync", 1, tags="A")
    consumer.count("message", 1)
    client = client_of(admin, group)
    result = admin.call("consumeMessageDirectly", group, client, topic, sent["msg_id"])
    assert result["consumeResult"] == "CR_SUCCESS"
    first, again = consumer.count("message", 2)
    for name in ("body", "queue_id", "queue_offset", "commit_log_offset", "tags"):
        assert first[name] == again[name]
    assert again["properties"]["UNIQ_KEY"] == sent["msg_id"]
    text = admin.run("queryMsgById", "-i", sent["offset_msg_id"], "-g", group, "-d", client)
    assert "CR_SUCCESS" in text
    consumer.count("message", 3)
    consumer.finish()
    refusal = admin.refused("consumeMessageDirectly", group, client, topic, sent["msg_id"])
    assert refusal["code"] == 1


def test_a_message_that_fails_when_consumed_directly(
    tools: JavaTools, admin: JavaAdmin, topic: str, group: str
) -> None:
    tools.queues(topic, create=1)
    consumer = tools.consume(topic, group, fail=1, level=2)
    (sent,) = tools.produce(topic, "sync", 1)
    consumer.count("message", 2)
    result = admin.call(
        "consumeMessageDirectly", group, client_of(admin, group), topic, sent["msg_id"]
    )
    consumer.finish()
    assert result["consumeResult"] == "CR_LATER"


def test_running_info(tools: JavaTools, admin: JavaAdmin, topic: str, group: str) -> None:
    tools.queues(topic, create=3)
    consumer = tools.consume(topic, group, tags="A || B")
    holds_queues(consumer, 3)
    client = client_of(admin, group)
    info = admin.call("getConsumerRunningInfo", group, client, True)
    assert {queue_id for _, queue_id in queues(info["mqTable"])} >= {0, 1, 2}
    assert info["properties"]["PROP_CLIENT_VERSION"] == "V4_9_8"
    assert "java.lang.Thread" in info["jstack"] or "TID" in info["jstack"]
    (mine,) = [sub for sub in info["subscriptionSet"] if sub["topic"] == topic]
    assert mine["subString"] == "A || B"
    text = admin.run("consumerStatus", "-g", group)
    assert client in text
    assert "Rebalance OK" in text
    consumer.finish()
    assert admin.refused("getConsumerRunningInfo", group, client, False)["code"] == 1


def test_who_consumes(tools: JavaTools, admin: JavaAdmin, topic: str, group: str) -> None:
    tools.queues(topic, create=2)
    consumer = tools.consume(topic, group, tags="A", model="CLUSTERING")
    holds_queues(consumer, 2)
    text = admin.run("consumerConnection", "-g", group)
    assert client_of(admin, group) in text
    assert "V4_9_8" in text
    assert [topic, "A"] in rows(text)
    assert [f"%RETRY%{group}", "*"] in rows(text)
    for line in (
        "ConsumeType: CONSUME_PASSIVELY",
        "MessageModel: CLUSTERING",
        "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET",
    ):
        assert line in text
    assert admin.call("queryTopicConsumeByWho", topic)["groupList"] == [group]
    consumer.finish()
    assert admin.refused("examineConsumerConnectionInfo", group)["code"] == NOT_THERE


def test_who_produces(tools: JavaTools, admin: JavaAdmin, topic: str) -> None:
    tools.queues(topic, create=1)
    group = f"P_{topic}"
    assert admin.refused("examineProducerConnectionInfo", group, topic)["code"] == 1
    producer = tools.transact(topic, group, count=1)

    def shown() -> str:
        text = admin.run("producerConnection", "-g", group, "-t", topic)
        return text if "V4_9_8" in text else ""

    text = admin.until("the producer", shown)
    (line,) = [line for line in text.splitlines() if "V4_9_8" in line]
    _, client, *_ = line.split()
    listed = admin.run("producer", "-b", admin.address)
    assert f"producer group ({group}) instance : clientId={client}" in listed
    producer.finish()


def test_how_far_a_group_is(tools: JavaTools, admin: JavaAdmin, topic: str, group: str) -> None:
    tools.queues(topic, create=2)
    tools.produce(topic, "sync", 6, prefix="first")
    tools.received(topic, group, 6)
    tools.produce(topic, "sync", 4, prefix="second")
    stats = admin.call("examineConsumeStats", group, topic)
    for (broker_name, _), row in queues(stats["offsetTable"]).items():
        assert broker_name == "broker-a"
        assert (row["brokerOffset"], row["consumerOffset"]) == (5, 3)
        assert row["lastTimestamp"] > 0
    text = admin.run("consumerProgress", "-g", group)
    mine = [row for row in rows(text) if row[0] == topic]
    expected = [["broker-a", "0", "5", "3", "2"], ["broker-a", "1", "5", "3", "2"]]
    assert [row[1:6] for row in mine] == expected
    assert "Diff Total: 4" in text
