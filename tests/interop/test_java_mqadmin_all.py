"""Every sub-command of mqadmin that one cluster can answer, and what dashboard and exporter read.

The dashboard (rocketmq-dashboard) is a page over the calls of DefaultMQAdminExt. The exporter
(rocketmq-exporter) has no release on Maven Central: its calls are made here by the library, and the
texts that it parses are read by its rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.admin_tools import JavaAdmin
from tests.interop.children import Child
from tests.interop.servers import Broker
from tests.interop.tools import JavaTools

pytestmark = pytest.mark.interop

CLUSTER = "DefaultCluster"
TOPIC, GROUP = "T_mqadmin_all", "G_mqadmin_all"
COUNT = 6

# Of this file: words, with @names for what differs, and what must be printed (a pattern).
COMMANDS: dict[str, list[tuple[str, str]]] = {
    "allocateMQ": [(f"-t {TOPIC} -i 10.0.0.1,10.0.0.2", r'"10.0.0.1":\[\{"brokerName":"broker-a"')],
    "brokerConsumeStats": [("-b @address", rf"{TOPIC} +{GROUP} +broker-a +0 +3 +3 +0 +20")],
    "brokerStatus": [
        ("-b @address", r"putMessageDistributeTime +: (null|\[<=0ms\]:\d+ )"),
        (f"-c {CLUSTER}", r"broker-a|127\.0\.0\.1:\d+ +bootTimestamp"),
    ],
    "cleanExpiredCQ": [("-b @address", "^success"), (f"-c {CLUSTER}", "^success")],
    "cleanUnusedTopic": [("-b @address", "^success"), (f"-c {CLUSTER}", "^success")],
    "clusterList": [
        ("", rf"{CLUSTER} +broker-a +0 +127.0.0.1:\d+ +V4_9_8? +"),
        ("-m", rf"{CLUSTER} +broker-a +"),
    ],
    "consumeMessage": [(f"-t {TOPIC} -c 2", r"Consume ok\s+MSGID: \w+ MessageExt")],
    "consumerConnection": [(f"-g {GROUP}", rf"JAVA +V4_9_8[\s\S]+{TOPIC} +\*[\s\S]+CLUSTERING")],
    "consumerProgress": [
        (f"-g {GROUP}", rf"{TOPIC} +broker-a +0 +3 +3 [\s\S]+Consume TPS: [\d.]+\s+Diff Total: 0"),
        (f"-g {GROUP} -s true", rf"{TOPIC} +broker-a +0 +3 +3 +[\d.]+ +0 "),
    ],
    "consumerStatus": [(f"-g {GROUP}", "Rebalance OK"), (f"-g {GROUP} -s", "JSTACK|Rebalance OK")],
    "deleteExpiredCommitLog": [("-b @address", "^success"), (f"-c {CLUSTER}", "^success")],
    "exportConfigs": [(f"-c {CLUSTER} -f @folder", "export @folder/configs.json success")],
    "exportMetadata": [
        (f"-c {CLUSTER} -f @folder", "export @folder/metadata.json success"),
        (f"-c {CLUSTER} -t -f @folder/t", "export @folder/t/topic.json success"),
        (f"-c {CLUSTER} -g -f @folder/g", "export @folder/g/subscriptionGroup.json success"),
    ],
    "exportMetrics": [(f"-c {CLUSTER} -f @folder", "export @folder/metrics.json success")],
    "getBrokerConfig": [
        ("-b @address", r"brokerName += +broker-a"),
        (f"-c {CLUSTER}", r"brokerClusterName += +DefaultCluster"),
    ],
    "getConsumerConfig": [(f"-g {GROUP}", rf"groupName += +{GROUP}")],
    "getNamesrvConfig": [("", r"orderMessageEnable += +false")],
    "printMsg": [(f"-t {TOPIC} -d true", r"BODY: m-0")],
    "printMsgByQueue": [(f"-t {TOPIC} -a broker-a -i 0 -p true -d true", "BODY: m-[01]")],
    "producer": [("-b @address", r"producer group \(.+\) instance : clientId=.+remoteIP=/127")],
    "producerConnection": [
        (f"-g CLIENT_INNER_PRODUCER -t {TOPIC}", r"127.0.0.1:\d+ +JAVA +V4_9_8"),
        (f"-g nobody -t {TOPIC}", r"the producer group\[nobody\] not exist"),
    ],
    "queryCq": [(f"-t {TOPIC} -q 0 -i 0 -c 1 -b @address", "max: 3, min: 0")],
    "statsAll": [
        (f"-t {TOPIC}", rf"{TOPIC} +{GROUP} +0 +[\d.]+ +[\d.]+ +{COUNT} +{COUNT}"),
        (f"-a -t {TOPIC}", rf"{TOPIC} +{GROUP} +0 "),
    ],
    "topicClusterList": [(f"-t {TOPIC}", CLUSTER)],
    "topicList": [("", TOPIC), ("-c", rf"{CLUSTER} +{TOPIC} +{GROUP}")],
    "topicRoute": [
        (f"-t {TOPIC}", r'"brokerName":"broker-a"'),
        (f"-t {TOPIC} -l", r"Total: +1 +2 +2"),
    ],
    "topicStatus": [(f"-t {TOPIC}", r"broker-a +0 +0 +3 +20\d\d-")],
}
# Elsewhere, with their consequences.
IN_OTHER_TESTS = {
    *("updateTopic", "deleteTopic", "updateTopicPerm", "updateSubGroup", "deleteSubGroup"),
    *("updateBrokerConfig", "wipeWritePerm", "addWritePerm", "updateOrderConf"),
    *("updateKvConfig", "deleteKvConfig", "cloneGroupOffset", "sendMessage", "sendMsgStatus"),
    *("checkMsgSendRT", "queryMsgByKey", "queryMsgByUniqueKey", "queryMsgByOffset"),
    *("queryMsgById", "queryMsgTraceById", "resetOffsetByTime", "skipAccumulatedMessage"),
    "updateNamesrvConfig",
}
NOT_RUN = {
    "clusterRT": "sends for ever",
    "startMonitoring": "looks for ever, once a minute",
    "updateAclConfig": "access control",
    "deleteAclConfig": "access control",
    "clusterAclConfigVersion": "access control",
    "updateGlobalWhiteAddr": "access control",
    "getAclConfig": "access control",
}


@pytest.fixture(scope="module")
def busy(maven: None, broker: Broker, admin: JavaAdmin) -> Iterator[Child]:
    """A topic with messages and a group that has got and confirmed them."""
    tools = JavaTools(broker.children, broker)
    tools.queues(TOPIC, create=2)
    tools.produce(TOPIC, "sync", COUNT)
    consumer = tools.consume(TOPIC, GROUP)
    consumer.count("message", COUNT)
    admin.until("commits", lambda: not any(_left(admin).values()))
    yield consumer
    consumer.finish()


def _left(admin: JavaAdmin) -> dict[int, int]:
    try:
        return admin.left_to_read(GROUP, TOPIC)
    except AssertionError:
        return {0: 1}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command(
    command: str, busy: Child, broker: Broker, admin: JavaAdmin, tmp_path: Path
) -> None:
    if broker.kind != "skylarkmq" and command == "clusterList":
        pytest.skip("it ends in an error in a broker's first minute, and says its own version")
    runs = COMMANDS[command][:1] if command == "brokerConsumeStats" else COMMANDS[command]
    for words, expected in runs:  # that one keeps its connections closed in a JVM's second run
        said = (words.replace("@address", admin.address).replace("@folder", str(tmp_path))).split()
        text = admin.run(command, *said)
        assert re.search(expected.replace("@folder", str(tmp_path)), text, re.MULTILINE), text
        for file in tmp_path.rglob("*.json"):
            assert json.loads(_readable(file.read_text()))


def _readable(text: str) -> str:
    return re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', text)  # numbers as keys are fastjson's


def test_a_name_servers_keys_take_a_restart(broker: Broker, admin: JavaAdmin) -> None:
    text = admin.run("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "false")
    if broker.kind == "skylarkmq":
        assert "CODE: 16  DESC: orderMessageEnable: keys of a name server take a restart" in text
    else:
        assert "update name server config success!" in text


def test_no_command_is_left_out(admin: JavaAdmin) -> None:
    listed = re.findall(r"^   (\w+) ", admin.help(), re.MULTILINE)
    assert len(listed) > 50
    assert {*listed} - COMMANDS.keys() - IN_OTHER_TESTS - NOT_RUN.keys() == set()


# What dashboard and exporter call and read


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("TOPIC_PUT_NUMS", TOPIC), ("TOPIC_PUT_SIZE", TOPIC), ("BROKER_PUT_NUMS", CLUSTER),
        ("GROUP_GET_NUMS", f"{TOPIC}@{GROUP}"), ("GROUP_GET_SIZE", f"{TOPIC}@{GROUP}"),
        ("BROKER_GET_NUMS", CLUSTER),
    ],
)  # fmt: skip
def test_a_statistic(busy: Child, broker: Broker, admin: JavaAdmin, name: str, key: str) -> None:
    data = admin.call("viewBrokerStatsData", admin.address, name, key)
    assert data.keys() == {"statsMinute", "statsHour", "statsDay"}
    if broker.kind == "skylarkmq":  # RocketMQ's begin with the next note, up to 10 s later
        assert data["statsDay"]["sum"] >= COUNT
        assert data["statsDay"]["tps"] > 0  # the minute of the messages may be over


def test_a_statistic_that_does_not_exist(busy: Child, admin: JavaAdmin) -> None:
    refusal = admin.refused("viewBrokerStatsData", admin.address, "TOPIC_PUT_NUMS", "nobody")
    assert refusal["code"] == 1
    assert "The stats <TOPIC_PUT_NUMS> <nobody> not exist" in refusal["message"]


def test_the_runtime_table_as_the_exporter_reads_it(busy: Child, admin: JavaAdmin) -> None:
    table = admin.call("fetchBrokerRuntimeStats", admin.address)["table"]
    for key in (
        *("msgPutTotalTodayNow", "msgGetTotalTodayNow", "msgPutTotalTodayMorning"),
        *("msgGetTotalTodayMorning", "msgPutTotalYesterdayMorning", "bootTimestamp"),
        *("msgGetTotalYesterdayMorning", "sendThreadPoolQueueHeadWaitTimeMills"),
        *("queryThreadPoolQueueHeadWaitTimeMills", "pullThreadPoolQueueHeadWaitTimeMills"),
        *("queryThreadPoolQueueSize", "pullThreadPoolQueueSize", "sendThreadPoolQueueSize"),
        *("sendThreadPoolQueueCapacity", "pullThreadPoolQueueCapacity", "commitLogMinOffset"),
        *("queryThreadPoolQueueCapacity", "commitLogMaxOffset", "brokerVersion"),
        *("dispatchMaxBuffer", "pageCacheLockTimeMills", "getMessageEntireTimeMax"),
        *("putMessageTimesTotal", "startAcceptSendRequestTimeStamp", "putMessageEntireTimeMax"),
        *("earliestMessageTimeStamp", "remainTransientStoreBufferNumbs", "putMessageSizeTotal"),
        "dispatchBehindBytes",
    ):
        assert re.fullmatch(r"-?\d+", table[key]), key
    for key in ("consumeQueueDiskRatio", "commitLogDiskRatio", "putMessageAverageSize"):
        assert float(table[key]) >= -1, key
    for key in ("putTps", "getMissTps", "getTransferedTps", "getTotalTps", "getFoundTps"):
        assert all(float(word) >= 0 for word in table[key].split()), key
    assert re.fullmatch(r"[\d.]+ ([KMGTPE]i)?B", table["remainHowManyDataToFlush"])
    size = r"[\d.]+ ([KMGTPE]i)?B"
    assert re.fullmatch(rf"Total : {size}, Free : {size}\.", table["commitLogDirCapacity"])
    # RocketMQ's has none for its first minute, in which the exporter ends in an error.
    for word in (table["putMessageDistributeTime"] or "").split(" "):
        if word:
            assert re.fullmatch(r"\[[^:\]]+\]:\d+", word), word
    delays = {key: value for key, value in table.items() if key.startswith("scheduleMessage")}
    assert all(re.fullmatch(r"\d+,\d+", value) for value in delays.values())


def test_calls_of_dashboard_and_exporter(busy: Child, admin: JavaAdmin) -> None:
    assert admin.call("examineBrokerClusterInfo")["clusterAddrTable"] == {CLUSTER: ["broker-a"]}
    assert TOPIC in admin.call("fetchAllTopicList")["topicList"]
    assert GROUP in admin.call("queryTopicConsumeByWho", TOPIC)["groupList"]
    assert admin.call("getAllProducerInfo", admin.address)["data"]
    members = admin.call("examineConsumerConnectionInfo", GROUP)
    assert (members["messageModel"], members["consumeType"]) == ("CLUSTERING", "CONSUME_PASSIVELY")
    (member,) = members["connectionSet"]
    running = admin.call("getConsumerRunningInfo", GROUP, member["clientId"], False)
    assert running["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert admin.call("examineConsumeStats", GROUP, TOPIC)["consumeTps"] >= 0
    spans = admin.call("queryConsumeTimeSpan", TOPIC, GROUP)
    assert len(spans) == 2 and all(span["delayTime"] == 0 for span in spans)
    stats = admin.call("fetchConsumeStatsInBroker", admin.address, False, 5000)
    assert stats["brokerAddr"] == admin.address
    assert GROUP in {name for each in stats["consumeStatsList"] for name in each}


# The sub-commands of 5.3.3 that send codes of 4.9

COMMANDS_OF_5: list[tuple[str, str, str]] = [
    ("topicList", "", TOPIC),
    ("topicRoute", f"-t {TOPIC}", r'"brokerName":"broker-a"'),
    ("topicStatus", f"-t {TOPIC}", r"broker-a +0 +0 +3 +20\d\d-"),
    ("updateTopic", f"-t {TOPIC}_5 -b @address -r 2 -w 2", "create topic to @address success"),
    ("updateTopicPerm", f"-t {TOPIC}_5 -b @address -p 4", "update topic perm from 6 to 4"),
    ("deleteTopic", f"-t {TOPIC}_5 -c {CLUSTER}", "from NameServer success"),
    (
        "updateSubGroup",
        f"-b @address -g {GROUP}_5",
        "subscription group to @address success",
    ),
    ("getConsumerConfig", f"-g {GROUP}_5", rf"groupName += +{GROUP}_5"),
    ("cloneGroupOffset", f"-s {GROUP} -d {GROUP}_5 -t {TOPIC}", "clone group offset success"),
    ("deleteSubGroup", f"-b @address -g {GROUP}_5", "success"),
    ("statsAll", f"-t {TOPIC}", rf"{TOPIC} +{GROUP} +0 +[\d.]+ +[\d.]+ +{COUNT} +{COUNT}"),
    ("brokerConsumeStats", "-b @address", rf"{TOPIC} +{GROUP} +broker-a +0 +3 +3 +0 +20"),
    ("brokerStatus", "-b @address", r"getTransferredTps +: "),
    ("clusterList", "", rf"{CLUSTER} +broker-a +0 +127.0.0.1:\d+ +V4_9_8"),
    ("getBrokerConfig", "-b @address", r"brokerName += +broker-a"),
    ("getNamesrvConfig", "", r"orderMessageEnable += +false"),
    ("consumerProgress", f"-g {GROUP}", r"Consume Inflight Total: 0"),
    ("consumerConnection", f"-g {GROUP}", rf"JAVA +V4_9_8[\s\S]+{TOPIC} +\*"),
    ("consumerStatus", f"-g {GROUP}", "Rebalance OK"),
    ("producer", "-b @address", r"producer group \(.+\) instance : clientId="),
    ("queryMsgByKey", f"-t {TOPIC} -k m-key-0", r"0 +0|1 +0"),
    ("printMsg", f"-t {TOPIC} -d true", r"BODY: m-0"),
    ("queryCq", f"-t {TOPIC} -q 0 -i 0 -c 1 -b @address", "max: 3, min: 0"),
    ("exportConfigs", f"-c {CLUSTER} -f @folder", "export @folder/configs.json success"),
    ("exportMetadata", f"-c {CLUSTER} -f @folder", "export @folder/metadata.json success"),
    ("exportMetrics", f"-c {CLUSTER} -f @folder", "export @folder/metrics.json success"),
    ("cleanExpiredCQ", "-b @address", "success"),
    ("cleanUnusedTopic", "-b @address", "success"),
    ("deleteExpiredCommitLog", "-b @address", "success"),
    (
        "updateKvConfig",
        "-s five -k key -v value",
        "update kv config to namespace success",
    ),
    ("deleteKvConfig", "-s five -k key", "delete kv config from namespace success"),
    ("updateOrderConf", f"-m put -t {TOPIC} -v broker-a:2", "success"),
    ("updateOrderConf", f"-m delete -t {TOPIC}", "success"),
]


@pytest.fixture(scope="module")
def admin_of_5(maven: None, broker: Broker) -> Iterator[JavaAdmin]:
    """RocketMQ's administration tool of 5.3, one JVM for all tests."""
    if broker.kind != "skylarkmq":
        pytest.skip("the tools of 5.3 are tried on our broker")
    admin = JavaAdmin(broker.children, broker, of_5=True)
    yield admin
    admin.finish()


def test_commands_of_5(busy: Child, admin_of_5: JavaAdmin, tmp_path: Path) -> None:
    for command, words, expected in COMMANDS_OF_5:
        said = words.replace("@address", admin_of_5.address).replace("@folder", str(tmp_path))
        pattern = expected.replace("@address", admin_of_5.address)
        text = admin_of_5.run(command, *said.split())
        assert re.search(pattern.replace("@folder", str(tmp_path)), text), f"{command}: {text}"
