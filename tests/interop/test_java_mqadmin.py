"""mqadmin, RocketMQ's administration by command line: topics, groups, settings, name server."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.interop.admin_tools import JavaAdmin, queues, rows
from tests.interop.servers import Broker
from tests.interop.tools import JavaTools, bodies, holds_queues, numbered

pytestmark = pytest.mark.interop

CLUSTER = "DefaultCluster"
NO_TOPIC = 17
SYSTEM_TOPICS = {
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRACE_TOPIC",
    "DefaultCluster_REPLY_TOPIC",
    "BenchmarkTest",
    "OFFSET_MOVED_EVENT",
    "TBW102",
    "SELF_TEST_TOPIC",
    "DefaultCluster",
    "broker-a",
}


def settings_of(text: str) -> dict[str, str]:
    """What was printed as name = value."""
    pairs = (line.split("=", 1) for line in text.splitlines() if " = " in line)
    return {name.strip(): value.strip() for name, value in pairs}


def route(admin: JavaAdmin, topic: str) -> dict[str, Any]:
    """The queues of a topic as the name server tells them."""
    data = admin.call("examineTopicRouteInfo", topic)["queueDatas"]
    (queue,) = data
    return dict(queue)


# Topics


def test_topics_are_created_changed_and_listed(
    tools: JavaTools, admin: JavaAdmin, topic: str
) -> None:
    text = admin.run("updateTopic", "-t", topic, "-b", admin.address, "-r", "3", "-w", "2")
    assert f"create topic to {admin.address} success" in text
    queue = route(admin, topic)
    assert (queue["readQueueNums"], queue["writeQueueNums"], queue["perm"]) == (3, 2, 6)
    assert "update topic perm from 6 to 4" in admin.run(
        "updateTopicPerm", "-t", topic, "-b", admin.address, "-p", "4"
    )
    assert route(admin, topic)["perm"] == 4
    text = admin.run("updateTopic", "-t", topic, "-c", CLUSTER, "-r", "4", "-w", "4")
    assert "success" in text
    queue = route(admin, topic)
    assert (queue["readQueueNums"], queue["writeQueueNums"], queue["perm"]) == (4, 4, 6)

    listed = {row[0] for row in rows(admin.run("topicList"))}
    assert {topic, *SYSTEM_TOPICS} <= listed
    assert [CLUSTER] in rows(admin.run("topicClusterList", "-t", topic))
    assert admin.call("fetchTopicsByCLuster", CLUSTER)["topicList"].count(topic) == 1
    by_cluster = rows(admin.run("topicList", "-c"))
    assert [CLUSTER, topic] in [row[:2] for row in by_cluster]


@pytest.mark.parametrize("name", ["SCHEDULE_TOPIC_XXXX", "no/topic", "x" * 128])
def test_such_a_topic_cannot_be_created(admin: JavaAdmin, name: str) -> None:
    config = {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    assert admin.refused("createAndUpdateTopicConfig", admin.address, config)["code"] == 1


def test_the_state_of_a_topic(tools: JavaTools, admin: JavaAdmin, topic: str) -> None:
    tools.queues(topic, create=2)
    tools.produce(topic, "sync", 6)
    table = rows(admin.run("topicStatus", "-t", topic))
    assert [row[:4] for row in table] == [
        ["broker-a", "0", "0", "3"],
        ["broker-a", "1", "0", "3"],
    ]
    assert all(len(row) == 6 for row in table)  # each with its time
    assert admin.refused("examineTopicStats", f"{topic}_none")["code"] == NO_TOPIC


def test_a_topic_is_deleted_and_created_again(
    tools: JavaTools, admin: JavaAdmin, topic: str, group: str
) -> None:
    tools.queues(topic, create=2)
    tools.produce(topic, "sync", 6, prefix="before")
    tools.received(topic, group, 6)
    text = admin.run("deleteTopic", "-t", topic, "-c", CLUSTER)
    assert f"delete topic [{topic}] from cluster [{CLUSTER}] success" in text
    assert f"delete topic [{topic}] from NameServer success" in text
    assert admin.refused("examineTopicRouteInfo", topic)["code"] == NO_TOPIC
    assert topic not in admin.call("getAllTopicConfig", admin.address, 5000)["topicConfigTable"]

    tools.queues(topic, create=1)
    tools.produce(topic, "sync", 4, prefix="after")
    received = tools.received(topic, f"{group}_new", 4)
    assert bodies(received) == numbered("after", 4)
    assert [queue["queue_id"] for queue in tools.queues(topic)] == [0]
    again = admin.run("deleteTopic", "-t", f"{topic}_none", "-c", CLUSTER)
    assert "success" in again  # what is not there is gone


def test_queues_unit_by_unit(tools: JavaTools, admin: JavaAdmin, topic: str, group: str) -> None:
    tools.queues(topic, create=1)
    tools.produce(topic, "sync", 4, tags="A,B")
    stored = tools.received(topic, group, 4)
    stored.sort(key=lambda event: event["queue_offset"])
    text = admin.run("queryCq", "-t", topic, "-q", "0", "-i", "1", "-c", "2", "-b", admin.address)
    assert "max: 4, min: 0" in text
    for event in stored[1:3]:
        code = ord(event["tags"])
        assert f"physicOffset={event['commit_log_offset']}," in text
        assert f"tagsCode={code}," in text
    assert text.count("ConsumeQueueData") == 2


def test_queues_through_a_filter(
    own_broker: Broker, own_tools: JavaTools, own_admin: JavaAdmin, topic: str, group: str
) -> None:
    """An expression is held against records, not against units: all of them may be wanted."""
    own_tools.queues(topic, create=1)
    consumer = own_tools.consume(topic, group, sql="row > 2")
    holds_queues(consumer, 1)
    own_tools.produce(topic, "sync", 4)
    own_tools.produce(topic, "sync", 4, prefix="more")
    assert bodies(consumer.count("message", 2)) == ["m-3", "more-3"]
    text = own_admin.run(
        *("queryCq", "-t", topic, "-q", "0", "-i", "0", "-c", "8"),
        *("-b", own_admin.address, "-g", group),
    )
    consumer.finish()
    assert '"expressionType":"SQL92"' in text
    assert '"expression":"row > 2"' in text
    assert f'"consumerGroup":"{group}"' in text
    passed = re.findall("eval=(true|false)", text)
    assert passed == 8 * ["true"]


def test_messages_are_sent_found_and_printed(
    tools: JavaTools, admin: JavaAdmin, topic: str
) -> None:
    tools.queues(topic, create=1)
    (row,) = rows(admin.run("sendMessage", "-t", topic, "-p", "hello", "-k", "its", "-c", "A"))
    assert row[:3] == ["broker-a", "0", "SEND_OK"]
    msg_id = row[3]
    (found,) = rows(admin.run("queryMsgByKey", "-t", topic, "-k", "its"))
    assert found == [msg_id, "0", "0"]
    for text in (
        admin.run("queryMsgByUniqueKey", "-t", topic, "-i", msg_id),
        admin.run("queryMsgByOffset", "-t", topic, "-b", "broker-a", "-i", "0", "-o", "0"),
    ):
        assert f"UNIQ_KEY={msg_id}" in text
        assert "Tags:                [A]" in text
    text = admin.run("printMsg", "-t", topic, "-d", "true")
    assert "BODY: hello" in text
    assert "SEND_OK" in admin.run("sendMsgStatus", "-b", "broker-a", "-c", "2")
    assert "true" in admin.run("checkMsgSendRT", "-t", topic, "-a", "2", "-s", "10")


# Groups


def test_groups_have_settings(tools: JavaTools, admin: JavaAdmin, group: str) -> None:
    words = ("-s", "true", "-m", "false", "-d", "false", "-q", "2", "-r", "7", "-a", "false")
    text = admin.run("updateSubGroup", "-b", admin.address, "-g", group, *words)
    assert f"create subscription group to {admin.address} success" in text
    settings = settings_of(admin.run("getConsumerConfig", "-g", group))
    assert settings == {
        "groupName": group,
        "consumeEnable": "true",
        "consumeFromMinEnable": "false",
        "consumeBroadcastEnable": "false",
        "retryQueueNums": "2",
        "retryMaxTimes": "7",
        "brokerId": "0",
        "whichBrokerWhenConsumeSlowly": "1",
        "notifyConsumerIdsChangedEnable": "false",
    }
    assert (
        group
        in admin.call("getAllSubscriptionGroup", admin.address, 5000)["subscriptionGroupTable"]
    )
    assert "success" in admin.run("deleteSubGroup", "-b", admin.address, "-g", group)
    assert settings_of(admin.run("getConsumerConfig", "-g", group)) == {}


def test_a_group_that_is_switched_off(
    tools: JavaTools, admin: JavaAdmin, topic: str, group: str
) -> None:
    tools.queues(topic, create=1)
    tools.produce(topic, "sync", 4)
    group_off = ("updateSubGroup", "-b", admin.address, "-g", group, "-s", "false")
    assert "success" in admin.run(*group_off)
    consumer = tools.consume(topic, group)
    consumer.wait_for("its queue", lambda: consumer.named("queues"))
    # Its pulls are refused and tried again; nothing says so but the answers that do not come.
    assert consumer.named("message") == []
    assert "success" in admin.run(*group_off[:-1], "true")
    assert bodies(consumer.count("message", 4)) == numbered("m", 4)
    consumer.finish()


def test_deleting_a_group_forgets_its_place(
    tools: JavaTools, admin: JavaAdmin, topic: str, group: str
) -> None:
    tools.queues(topic, create=1)
    tools.produce(topic, "sync", 4)
    tools.received(topic, group, 4)
    assert "success" in admin.run("deleteSubGroup", "-b", admin.address, "-g", group, "-r", "true")
    assert bodies(tools.received(topic, group, 4)) == numbered("m", 4)


def test_a_new_group_stands_where_another_does(
    tools: JavaTools, admin: JavaAdmin, topic: str, group: str
) -> None:
    tools.queues(topic, create=1)
    tools.produce(topic, "sync", 4)
    tools.received(topic, group, 4)
    words = ("-s", group, "-d", f"{group}_2", "-t", topic)
    assert "clone group offset success" in admin.run("cloneGroupOffset", *words)
    tools.produce(topic, "sync", 2, prefix="later")
    assert bodies(tools.received(topic, f"{group}_2", 2)) == numbered("later", 2)


# The broker


def test_settings_of_the_broker(own_admin: JavaAdmin) -> None:
    settings = settings_of(own_admin.run("getBrokerConfig", "-b", own_admin.address))
    assert settings["brokerName"] == "broker-a"
    assert settings["brokerClusterName"] == CLUSTER
    assert settings["maxMessageSize"] == "4194304"
    assert settings["transactionTimeOut"] == "1000"
    words = ("-b", own_admin.address, "-k", "fileReservedTime", "-v", "70")
    assert "update broker config success" in own_admin.run("updateBrokerConfig", *words)
    settings = settings_of(own_admin.run("getBrokerConfig", "-b", own_admin.address))
    assert settings["fileReservedTime"] == "70"


def test_a_setting_that_is_nobodys_business(broker: Broker, admin: JavaAdmin) -> None:
    if broker.kind == "apache":
        pytest.skip("4.9.7 has no list of such keys, 4.9.8 has")
    refusal = admin.refused("updateBrokerConfig", admin.address, {"brokerConfigPath": "elsewhere"})
    assert refusal["code"] == 16


def test_the_state_of_the_broker(
    tools: JavaTools, broker: Broker, admin: JavaAdmin, topic: str
) -> None:
    tools.produce(topic, "sync", 4)
    table = admin.call("fetchBrokerRuntimeStats", admin.address)["table"]
    assert int(table["msgPutTotalTodayNow"]) >= 4
    assert int(table["commitLogMaxOffset"]) > 0
    assert len(table["putTps"].split()) <= 3
    (row,) = rows(admin.run("clusterList"))
    assert row[:4] == [CLUSTER, "broker-a", "0", admin.address]
    text = admin.run("brokerStatus", "-b", admin.address)
    assert "bootTimestamp" in text


def test_system_topics(admin: JavaAdmin) -> None:
    table = admin.call("getUserTopicConfig", admin.address, False, 5000)["topicConfigTable"]
    assert not SYSTEM_TOPICS & {*table}
    assert not [name for name in table if name.startswith("%RETRY%")]


@pytest.mark.parametrize(
    "command", ["deleteExpiredCommitLog", "cleanExpiredCQ", "cleanUnusedTopic"]
)
def test_cleaning(admin: JavaAdmin, command: str) -> None:
    assert admin.run(command, "-b", admin.address).strip() == "success"


# The name server


def test_write_permission_of_a_broker(
    own_tools: JavaTools, own_admin: JavaAdmin, topic: str
) -> None:
    own_tools.queues(topic, create=2)
    text = own_admin.run("wipeWritePerm", "-b", "broker-a")
    assert "wipe write perm of broker[broker-a] in name server" in text
    assert route(own_admin, topic)["perm"] == 4
    text = own_admin.run("addWritePerm", "-b", "broker-a")
    assert "add write perm of broker[broker-a] in name server" in text
    assert route(own_admin, topic)["perm"] == 6


def test_ordered_topics(tools: JavaTools, admin: JavaAdmin, topic: str) -> None:
    words = ("-t", topic, "-c", CLUSTER, "-r", "3", "-w", "3", "-o", "true")
    assert "orderConf=[broker-a:3]" in admin.run("updateTopic", *words)
    kept = admin.run("updateOrderConf", "-m", "get", "-t", topic)
    assert f"topic=[{topic}], orderConf=[broker-a:3]" in kept
    assert "success" in admin.run("updateOrderConf", "-m", "put", "-t", topic, "-v", "broker-a:2")
    assert "[broker-a:2]" in admin.run("updateOrderConf", "-m", "get", "-t", topic)
    assert "success" in admin.run("updateOrderConf", "-m", "delete", "-t", topic)


def test_keys_and_values(admin: JavaAdmin, topic: str) -> None:
    assert "success" in admin.run("updateKvConfig", "-s", "ns", "-k", topic, "-v", "some value")
    assert admin.call("getKVConfig", "ns", topic) == "some value"
    assert admin.call("getKVListByNamespace", "ns")["table"][topic] == "some value"
    admin.call("createAndUpdateKvConfig", "ns", "other", "1")
    assert "success" in admin.run("deleteKvConfig", "-s", "ns", "-k", topic)
    assert admin.call("getKVListByNamespace", "ns")["table"] == {"other": "1"}


def test_progress_of_all_groups(tools: JavaTools, admin: JavaAdmin, topic: str, group: str) -> None:
    tools.queues(topic, create=1)
    tools.produce(topic, "sync", 4)
    consumer = tools.consume(topic, group)
    consumer.count("message", 4)
    table = rows(admin.run("consumerProgress"))
    (mine,) = [row for row in table if row[0] == group]
    assert mine[1:5] == ["1", "V4_9_8", "PUSH", "CLUSTERING"]
    consumer.finish()
    stats = admin.call("examineConsumeStats", group, topic)["offsetTable"]
    assert queues(stats)[("broker-a", 0)]["consumerOffset"] == 4
