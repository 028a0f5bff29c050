"""`skylarkmq mqadmin`: 4.9's names and letters, and its columns word for word."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from skylarkmq.client import Message, StartFrom
from skylarkmq.client.sync import Admin, Consumer, Producer
from skylarkmq.testing import Account, run_broker_sync
from skylarkmq.tools.mqadmin.cli import ROWS
from skylarkmq.tools.mqadmin.java_text import java, parsed_time
from tests.support.patience import LIMIT_S, until_sync
from tests.tools.admin.support import Shell

THIRTY = {
    "updateTopic", "deleteTopic", "topicList", "topicRoute", "topicStatus", "topicClusterList",
    "updateTopicPerm", "clusterList", "brokerStatus", "brokerConsumeStats", "getBrokerConfig",
    "updateBrokerConfig", "consumerProgress", "consumerStatus", "consumerConnection",
    "producerConnection", "updateSubGroup", "deleteSubGroup", "getConsumerConfig",
    "resetOffsetByTime", "skipAccumulatedMessage", "cloneGroupOffset", "queryMsgById",
    "queryMsgByKey", "queryMsgByUniqueKey", "queryMsgByOffset", "queryMsgTraceById", "printMsg",
    "sendMessage", "consumeMessage",
}  # fmt: skip
T, G, C = "T_mqadmin", "G_mqadmin", "DefaultCluster"


@dataclass
class Place:
    """A broker with a topic, a consumer that is connected and has taken all, and a message."""

    shell: Shell
    address: str
    client_id: str
    msg_id: str
    offset_msg_id: str

    def run(self, words: str) -> str:
        """Return what a command prints; @names stand for what differs."""
        return self.shell.ok("mqadmin", *self.words(words)).out

    def words(self, text: str) -> list[str]:
        """Return the words of a command with what its @names stand for."""
        for name in ("address", "client_id", "offset_msg_id", "msg_id"):
            text = text.replace(f"@{name}", getattr(self, name))
        return text.split()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with run_broker_sync(settings={"traceTopicEnable": True}) as running:
        running.create_topic(T, 1)
        with running.client() as client, Producer(client=client, group="P_traced", trace=True) as p:
            sent = [p.send(Message(T, f"m-{n}", keys=f"k-{n}", tags="A")) for n in range(3)]
        with (
            running.client() as client,
            Producer(client=client, group="P_mqadmin"),
            Consumer(T, client=client, group=G, start_from=StartFrom.FIRST) as consumer,
            Admin(client=client) as admin,
        ):
            for _ in range(3):
                consumer.getone(LIMIT_S).ack()
            consumer.commit()
            until_sync(lambda: admin.trace(sent[0].msg_id).sends, "the trace")
            address = admin.cluster().brokers[0].addresses[0]
            shell = Shell(
                tmp_path_factory.mktemp("home"), variables={"NAMESRV_ADDR": running.namesrv_addr}
            )
            assert sent[0].offset_msg_id is not None
            yield Place(shell, address, client.client_id, sent[0].msg_id, sent[0].offset_msg_id)


COMMANDS: dict[str, list[tuple[str, str]]] = {
    "updateTopic": [
        (
            f"-c {C} -t T_new -r 2 -w 3",
            r"create topic to 127.0.0.1:\d+ success.\nTopicConfig \[topicName=T_new, "
            r"readQueueNums=2, writeQueueNums=3, perm=RW-, topicFilterType=SINGLE_TAG, "
            r"topicSysFlag=0, order=false\]\n$",
        ),
        ("-b @address -t T_new -o true -u true", r"orderConf=\[broker-a:8\]\n.+topicSysFlag=1"),
    ],
    "updateTopicPerm": [
        ("-b @address -t T_new -p 4", r"update topic perm from 6 to 4 in 127.0.0.1:\d+ success."),
        ("-b @address -t T_new -p 4", r"^new perm equals to the old one!\n$"),
        (f"-c {C} -t T_new -p 6", r"update topic perm from 4 to 6 in 127"),
    ],
    "topicList": [
        ("", rf"(?m)^{T}$"),
        ("-c", r"#Cluster Name {7}  #Topic {42}  #Consumer Group"),
        ("-c", rf"(?m)^{C} {{6}}  {T} {{55}}  {G} +$"),
    ],
    "topicRoute": [
        (f"-t {T}", r'"brokerName":"broker-a",\n'),
        (f"-t {T} -l", rf"(?m)^{C} +broker-a +\{{0=127.0.0.1:\d+\}} +1 +1 +6 *$"),
    ],
    "topicStatus": [(f"-t {T}", r"(?m)^broker-a {24}  0     0 {19}  3 {19}    20\d\d-.+,\d{3}$")],
    "topicClusterList": [(f"-t {T}", rf"^{C}\n$")],
    "deleteTopic": [(f"-c {C} -t T_new", r"delete topic \[T_new\] from NameServer success.")],
    "clusterList": [
        ("", rf"(?m)^{C} +broker-a +0 +127.0.0.1:\d+ +V4_9_8 +\d+\.\d\d\(\d+,\d+ms\) "),
        ("-m", rf"(?m)^{C} +broker-a +0 +0 +\d+ +\d+$"),
    ],
    "brokerStatus": [
        ("-b @address", r"(?m)^brokerVersionDesc {15}: V4_9_8$"),
        (f"-c {C}", r"(?m)^127.0.0.1:\d+ +bootTimestamp +: \d+$"),
    ],
    "brokerConsumeStats": [("-b @address", rf"(?m)^{T} +{G} +broker-a +0 +3 +3 +0 +20\d\d-")],
    "getBrokerConfig": [
        ("-b @address", r"(?m)^brokerName {40}=  broker-a$"),
        (f"-c {C}", r"^============Master: 127.0.0.1:\d+============\n"),
    ],
    "updateBrokerConfig": [("-b @address -k defaultQueryMaxNum -v 33", "config success, 127")],
    "getNamesrvConfig": [("", r"(?m)^orderMessageEnable {32}=  false$")],
    "updateKvConfig": [("-s notes -k a -v 1", "create or update kv config to namespace success.")],
    "deleteKvConfig": [("-s notes -k a", "delete kv config from namespace success.")],
    "wipeWritePerm": [("-b broker-a", r"wipe write perm of broker\[broker-a\] in name .+ OK, \d+")],
    "addWritePerm": [("-b broker-a", r"add write perm of broker\[broker-a\] in name .+ OK, \d+")],
    "consumerProgress": [
        (f"-g {G}", rf"(?m)^{T} +broker-a +0 +3 +3 +0 +20\d\d-"),
        (f"-g {G}", r"\n\nConsume TPS: [\d.]+\nDiff Total: 0\n$"),
        (f"-g {G} -s true", rf"(?m)^{T} +broker-a +0 +3 +3 +127.0.0.1 +0 "),
        ("", rf"(?m)^{G} +1 +V4_9_8 +PUSH +CLUSTERING +\d+ +0$"),
    ],
    "consumerStatus": [
        (
            f"-g {G}",
            r"#ConsumerRunningInfoFile\n1 +\S+ +V4_9_8 +/\S+\n\n\nSame [\w ]+\n\nRebal.+OK",
        ),
        (f"-g {G} -i @client_id", rf"#Consumer Subscription#\n001 Topic: \S+ .+\n002 Topic: {T} "),
    ],
    "consumerConnection": [
        (f"-g {G}", rf"127.0.0.1:\d+ +PYTHON +V4_9_8\n\nBelow is subscription:\n[\s\S]+{T} +\*\n"),
        (f"-g {G} -b @address", r"\nMessageModel: CLUSTERING\nConsumeFromWhere: CONSUME_FROM_"),
    ],
    "producerConnection": [
        (f"-g P_mqadmin -t {T}", r"^0001  \S+ +127.0.0.1:\d+ +PYTHON +V4_9_8\n$")
    ],
    "updateSubGroup": [
        (
            f"-c {C} -g G_new -r 3",
            r"SubscriptionGroupConfig \[groupName=G_new, consumeEnable=true, "
            r"consumeFromMinEnable=false, consumeBroadcastEnable=false, retryQueueNums=1, "
            r"retryMaxTimes=3, brokerId=0, whichBrokerWhenConsumeSlowly=1, "
            r"notifyConsumerIdsChangedEnable=true\]",
        ),
        ("-b @address -g G_new -s false", "consumeEnable=false.+retryMaxTimes=16"),
    ],
    "getConsumerConfig": [
        ("-g G_new", rf"^={{29}}{C}:broker-a={{29}}\ngroupName +=  G_new\nconsumeEnable +=  false"),
    ],
    "cloneGroupOffset": [(f"-s {G} -d G_new -t {T}", r"success. srcGroup\[G_mqadmin\], destGroup")],
    "resetOffsetByTime": [
        (
            f"-g G_new -t {T} -s 2020-01-01#00:00:00:000",
            r"(?m)^broker-a              0                     3                     3 +0 +0 +$",
        ),
        (f"-g G_new -t {T} -s now -f false", r"timestamp\(long\)\[-1\]\n.+\nbroker-a +0 +3 +0 +0 "),
        (f"-g {G} -t {T} -s now", r"#brokerName +#queueId +#offset +\nbroker-a +0 +3 +\n$"),
    ],
    "skipAccumulatedMessage": [(f"-g G_new -t {T}", r"(?m)^broker-a +0 +3 +0 +3 +3 +$")],
    "deleteSubGroup": [
        ("-b @address -g G_new -r true", r"group \[G_new\] from broker \[127.0.0.1:\d+\] success."),
        (f"-c {C} -g G_new", r"delete topic \[%DLQ%G_new\] from NameServer success."),
    ],
    "queryMsgById": [
        ("-i @offset_msg_id", rf"^OffsetID: {{12}}\w+\nTopic: {{15}}{T}\nTags: {{16}}\[A\]\n"),
        (
            "-i @offset_msg_id",
            rf"\nMessageTrack \[consumerGroup={G}, trackType=CONSUMED, exceptionDesc=null\]\n",
        ),
        ("-i @offset_msg_id -s true", r"prepare resend msg.+\nSendResult \[sendStatus=SEND_OK, "),
    ],
    "queryMsgByKey": [(f"-t {T} -k k-1", r"(?m)^\w{32} {22}0 {40}1$")],
    "queryMsgByUniqueKey": [
        (f"-t {T} -i @msg_id", rf"^Topic: {{15}}{T}\n[\s\S]+Message Body Path:   /"),
        (f"-t {T} -i @msg_id -a", rf"^Topic: {{15}}{T}\n"),
    ],
    "queryMsgByOffset": [
        (f"-t {T} -b broker-a -i 0 -o 1", r"(?m)^Queue Offset: {8}1$"),
    ],
    "queryMsgTraceById": [
        ("-i @msg_id", r"^#Type {6}#ProducerGroup .+\nPub {8}P_traced +- +20[\d: -]+ms +success"),
    ],
    "printMsg": [
        (
            f"-t {T}",
            rf"minOffset=0, maxOffset=\d+, MessageQueue \[topic={T}, brokerName=broker-a, ",
        ),
        (f"-t {T}", r"(?m)^MSGID: \w{32} MessageExt \[.+body=\[109, 45, 48\].+ BODY: m-0$"),
        (f"-t {T} -s B -d false", r"queueId=0\]\n-{56}\n$"),
    ],
    "sendMessage": [
        (
            f"-t {T} -p hello -k k -c B -b broker-a -i 0",
            r"\nbroker-a {24}  0 {5}SEND_OK {17}\w{32}\n",
        ),
    ],
    "consumeMessage": [
        (f"-t {T} -c 2", r"^(Consume ok\nMSGID: \w{32} MessageExt .+ BODY: m-[01]\n){2}$"),
        (f"-t {T} -b broker-a -i 0 -o 2 -c 1", r"BODY: m-2\n$"),
    ],
}
ELSEWHERE = {
    "updateAclConfig", "deleteAclConfig", "clusterAclConfigVersion", "updateGlobalWhiteAddr",
    "updateNamesrvConfig",
}  # fmt: skip


def test_the_thirty_are_there_and_all_are_tried() -> None:
    names = {row.name for row in ROWS}
    assert THIRTY <= names == COMMANDS.keys() | ELSEWHERE


def test_every_command(place: Place) -> None:
    """In the order of the table: some use what others made."""
    for command, runs in COMMANDS.items():
        for words, expected in runs:
            printed = place.run(f"{command} {words}")
            assert re.search(expected, printed), (command, words, printed)


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        ("updateTopic -t x", 2, "-b or -c is needed"),
        ("updateTopic -c nowhere -t x", 3, f"there is no cluster nowhere; known: {C}"),
        ("updateTopic -b 127.0.0.1:1 -t x", 3, "no broker 127.0.0.1:1 is registered"),
        ("updateTopic -c nowhere -t x -w many", 2, "-w 'many' is no number"),
        ("topicRoute -t nobody", 3, "no route to topic nobody"),
        ("consumerConnection -g nobody", 3, r"the consumer group\[nobody\] not online"),
        ("producerConnection -g nobody -t x", 3, r"the producer group\[nobody\] not exist"),
        (f"resetOffsetByTime -g {G} -t {T} -s noon", 2, "yyyy-MM-dd#HH:mm:ss:SSS"),
        (f"sendMessage -t {T} -p x -i 0", 2, "Broker name must be set"),
        (f"consumeMessage -t {T} -i 0", 2, "brokerName before queueId"),
        ("updateNamesrvConfig -k orderMessageEnable -v true", 5, "take a restart"),
        (f"queryMsgByUniqueKey -t {T} -i @msg_id -g {G} -d @client_id", 5, "has no handler"),
        ("noSuchCommand", 2, "No such command"),
        ("topicList -n 127.0.0.1:1 --timeout 0.2", 4, r"asked 127.0.0.1:1 \(--namesrv\)"),
    ],
)
def test_what_is_refused(place: Place, words: str, code: int, error: str) -> None:
    said = place.shell("mqadmin", *place.words(words))
    assert said.code == code and re.search(error, said.err), said


def test_progress_goes_on_at_retries_of_pop(place: Place) -> None:
    place.run(f"updateTopic -c {C} -t %RETRY%pops+orders -r 1 -w 1")
    found = place.run("consumerProgress")
    place.run(f"deleteTopic -c {C} -t %RETRY%pops+orders")
    assert re.search(rf"(?m)^{G} +1 ", found)
    assert "+orders" not in found, "no group"


def test_nothing_changes_at_a_dry_run(place: Place) -> None:
    said = place.shell.ok("mqadmin", "updateTopic", "-c", C, "-t", "T_dry", "--dry-run")
    assert said.err == f"would update or create the topic (-c {C}, -t T_dry)\n"
    assert place.shell("mqadmin", "topicRoute", "-t", "T_dry").code == 3
    secret = place.shell.ok(
        "mqadmin", "updateAclConfig", "-c", C, "-a", "somebody", "-s", "open sesame", "--dry-run"
    )
    assert "open sesame" not in secret.err


def test_help(place: Place) -> None:
    listed = place.run("help")
    assert all(re.search(rf"(?m)^   {name} ", listed) for name in THIRTY)
    assert re.search(r"(?m)^  -t, --topic TEXT .*\[required\]$", place.run("help updatetopic"))
    assert place.run("TOPICLIST") == place.run("topicList")
    assert place.shell("mqadmin", "help", "nonsense").code == 2


def test_accounts(tmp_path: Path) -> None:
    boss = Account("rocketmq-admin", "12345678-admin", admin=True)
    with run_broker_sync(accounts=[boss]) as secured:
        variables = {
            "NAMESRV_ADDR": secured.namesrv_addr,
            "SKYLARKMQ_ACCESS_KEY": boss.access_key,
            "SKYLARKMQ_SECRET_KEY": boss.secret_key,
        }
        shell = Shell(tmp_path, words=("-c", C), variables=variables)
        put = ("mqadmin", "updateAclConfig", "-a", "alice-of-sales", "-t", "orders=PUB", "-s", "-")
        said = shell.ok(*put, stdin="an open secret\n")
        assert "account's accesskey is:alice-of-sales" in said.out
        assert "an open secret" not in said.out
        listed = Shell(tmp_path, variables=variables).json("acl", "list")
        assert "alice-of-sales" in {row["access_key"] for row in listed}
        version = shell.ok("mqadmin", "clusterAclConfigVersion").out
        assert re.search(rf"(?m)^{C} +broker-a +127.0.0.1:\d+ +/\S+plain_acl.yml +1 +20", version)
        assert "success" in shell.ok("mqadmin", "updateGlobalWhiteAddr", "-g", "10.0.0.7").out
        shell.ok("mqadmin", "deleteAccessConfig", "-a", "alice-of-sales")


def test_texts_as_java_prints_them() -> None:
    assert java({"a": None, "b": True}) == "{a=null, b=true}"
    assert java(b"\x7f\x80\xff") == "[127, -128, -1]"
    assert parsed_time("1700000000123").timestamp() == 1700000000.123
    assert parsed_time("2026-01-31#12:00:00:005").microsecond == 5000


def test_no_letter_stands_twice() -> None:
    for row in ROWS:
        letters = [each.letter for each in row.letters]
        assert len(letters) == len({*letters, "n", "h"}) - 2, row.name
