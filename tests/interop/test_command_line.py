"""The command line's administration against RocketMQ's own broker, and mqadmin beside Java's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from skylarkmq.client import Message, StartFrom
from skylarkmq.client.sync import Admin, Client, Consumer, Producer
from tests.interop.admin_tools import JavaAdmin
from tests.interop.apache_server import ApacheBroker
from tests.interop.children import Children
from tests.interop.conftest import Start
from tests.interop.servers import Broker
from tests.support.patience import LIMIT_S, until_sync
from tests.tools.admin.support import COUNT, GROUP, TOPIC, Shell, paths
from tests.tools.admin.test_stable_json import ANSWERS, WITHIN_A_MEMBER, names

pytestmark = pytest.mark.interop

LIVE_TOPIC, LIVE = "live-topic", "live"


@dataclass
class Place:
    """RocketMQ's broker with what the tests of the default suite have on ours."""

    broker: Broker
    shell: Shell
    client_id: str
    msg_id: str
    offset_msg_id: str


@pytest.fixture(scope="module")
def place(start_broker: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A topic, a group that has taken all of it, and a consumer that is connected."""
    broker = start_broker(ApacheBroker)
    home = tmp_path_factory.mktemp("home")
    shell = Shell(home, variables={"NAMESRV_ADDR": broker.namesrv})
    ready = ("cluster", "health", "--exit-when-ready", "--every", "0.2", "--disk-max", "1")
    shell.ok(*ready)
    shell.ok("topic", "create", TOPIC, "--queues", "2")
    shell.ok("topic", "create", LIVE_TOPIC, "--queues", "1")
    shell.ok("group", "create", LIVE)
    with Client(broker.namesrv, heartbeat_interval=1.0) as client:
        with Producer(client=client) as producer:
            sent = [
                producer.send(Message(TOPIC, f"m-{number}", keys=f"k-{number}", tags="A"))
                for number in range(COUNT)
            ][-1]
        with Consumer(TOPIC, client=client, group=GROUP, start_from=StartFrom.FIRST) as consumer:
            for _ in range(COUNT):
                consumer.getone(LIMIT_S).ack()
            consumer.commit()
    with (
        Client(broker.namesrv, heartbeat_interval=1.0) as client,
        Producer(client=client, group="makers") as producer,
        Consumer(LIVE_TOPIC, client=client, group=LIVE, start_from=StartFrom.FIRST) as consumer,
        Admin(client=client) as admin,
    ):
        producer.send(Message(LIVE_TOPIC, "one"))
        consumer.getone(LIMIT_S).ack()
        consumer.commit()
        until_sync(lambda: admin.producers("makers"), "a heartbeat of the producer")
        assert sent.offset_msg_id is not None
        yield Place(broker, shell, client.client_id, sent.msg_id, sent.offset_msg_id)


def test_every_command_answers_with_the_names_that_it_has_on_ours(place: Place) -> None:
    for command, said in ANSWERS.items():
        if command.startswith(("cluster health", "context")):
            continue
        answer = place.shell.json(*command.replace("@consumer", place.client_id).split())
        found = {
            path
            for path in paths(answer)
            if not path.startswith(WITHIN_A_MEMBER) and ".queues[]" not in path
        } - {"consumers[].stack"}
        assert found == names(said), command


def test_a_group_is_moved_back_and_takes_all_again(place: Place) -> None:
    shell = place.shell
    plan = shell.json("group", "reset", GROUP, TOPIC, "--to", "first", "--dry-run")
    assert sum(row["moved"] for row in plan["queues"]) == -COUNT
    assert shell.json("group", "lag", GROUP)["lag"] == 0
    shell.ok("group", "reset", GROUP, TOPIC, "--to", "first", "--yes")
    assert shell.json("group", "lag", GROUP)["lag"] == COUNT
    with (
        Client(place.broker.namesrv) as client,
        Consumer(TOPIC, client=client, group=GROUP) as consumer,
    ):
        assert {consumer.getone(LIMIT_S).body for _ in range(COUNT)} == {
            f"m-{number}".encode() for number in range(COUNT)
        }
        consumer.commit()
    shell.ok("group", "reset", GROUP, TOPIC, "--to", "last", "--yes")
    assert shell.json("group", "lag", GROUP)["lag"] == 0


def test_a_drained_broker_gets_no_message(place: Place) -> None:
    drained = place.shell.json("cluster", "drain", "broker-a", "--yes")
    assert drained["how"] == "writes_stopped"
    settings = place.shell.json("topic", "describe", TOPIC)["settings"]
    assert [row["perm"] for row in settings] == ["r"]
    place.shell.ok("cluster", "undrain", "broker-a")
    settings = place.shell.json("topic", "describe", TOPIC)["settings"]
    assert [row["perm"] for row in settings] == ["rw"]


def test_what_apache_does_not_know_is_refused_with_the_reason(place: Place) -> None:
    said = place.shell("cluster", "failover", "broker-a", "--yes")
    assert said.code == 5 and "controllerEndpoints" in said.err
    said = place.shell("acl", "list", "--timeout", "1")
    assert said.code == 5 and "aclEnable is false" in said.err


# Beside Java's

SAME: dict[str, str] = {
    "topicList": "",
    "topicRoute": f"-t {TOPIC} -l",
    "topicStatus": f"-t {TOPIC}",
    "topicClusterList": f"-t {TOPIC}",
    "getBrokerConfig": "-b @address",
    "getNamesrvConfig": "",
    "consumerProgress": f"-g {GROUP}",
    "consumerConnection": f"-g {LIVE}",
    "producerConnection": f"-g makers -t {LIVE_TOPIC}",
    "getConsumerConfig": f"-g {LIVE}",
    "updateTopic": "-c DefaultCluster -t T_same -r 4 -w 4",
    "updateTopicPerm": "-c DefaultCluster -t T_same -p 4",
    "updateSubGroup": "-c DefaultCluster -g G_same -r 5",
    "updateBrokerConfig": "-b @address -k defaultQueryMaxNum -v 34",
    "updateKvConfig": "-s notes -k one -v text",
    "deleteKvConfig": "-s notes -k one",
    "resetOffsetByTime": f"-g {GROUP} -t {TOPIC} -s 0",
    "skipAccumulatedMessage": f"-g {GROUP} -t {TOPIC}",
    "queryMsgById": "-i @offset_msg_id",
    "queryMsgByKey": f"-t {TOPIC} -k k-3",
    "queryMsgByUniqueKey": f"-t {TOPIC} -i @msg_id",
    "queryMsgByOffset": f"-t {TOPIC} -b broker-a -i 0 -o 1",
    "printMsg": f"-t {TOPIC}",
    "cloneGroupOffset": f"-s {GROUP} -d G_same -t {TOPIC}",
    "deleteSubGroup": "-c DefaultCluster -g G_same",
    "deleteTopic": "-c DefaultCluster -t T_same",
}
"""Commands whose text is Java's, line by line, but for what `lines` leaves out."""
OF_JAVA_ALONE = re.compile(
    r"^(Message Body Path|.*RMQ_SYS_|consumerOffset|rocketmqHome|%RETRY%\S+ +broker-a +0 +0 +0 )"
    r"|no matched msg|print msg finished"
)


def _sorted(table: re.Match[str]) -> str:
    """Return a table in braces in order; a pull of Java's adds two properties of its own."""
    rows = [row for row in table[1].split(", ") if not row.startswith(("MIN_OFF", "MAX_OFF"))]
    return "{" + ", ".join(sorted(rows)) + "}"


def lines(text: str) -> list[str]:
    """Return the lines without their order, and without that of tables inside of braces."""
    tables = re.sub(r"\{([^{}]*)\}", _sorted, text)
    found = (line.rstrip() for line in tables.splitlines())
    return sorted(line for line in found if line and not OF_JAVA_ALONE.search(line))


def test_mqadmin_prints_what_javas_does(maven: None, place: Place) -> None:
    java = JavaAdmin(place.broker.children, place.broker)
    values = {
        "@address": java.address, "@offset_msg_id": place.offset_msg_id, "@msg_id": place.msg_id
    }  # fmt: skip
    differ: list[str] = []
    for command, words in SAME.items():
        for name, value in values.items():
            words = words.replace(name, value)
        theirs = lines(java.run(command, *words.split()))
        if command in ("resetOffsetByTime", "skipAccumulatedMessage"):  # from the same place again
            opposite = "last" if command == "resetOffsetByTime" else "first"
            place.shell.ok("group", "reset", GROUP, TOPIC, "--to", opposite, "--yes")
        if command in ("deleteSubGroup", "updateTopicPerm"):
            java.run("updateTopic", "-c", "DefaultCluster", "-t", "T_same", "-r", "4", "-w", "4")
        ours = lines(place.shell.ok("mqadmin", command, *words.split()).out)
        if ours != theirs:
            only = [f"  java {line}" for line in theirs if line not in ours]
            only += [f"  ours {line}" for line in ours if line not in theirs]
            differ += [f"{command} {words}", *only]
    assert not differ, "\n".join(differ)


def test_the_columns_of_what_moves_are_javas(maven: None, place: Place) -> None:
    """Rates and times differ from one look to the next; what stands over them does not."""
    java = JavaAdmin(place.broker.children, place.broker)
    for command, words in {
        "clusterList": (),
        "brokerConsumeStats": ("-b", java.address),
        "consumerProgress": (),
        "topicList": ("-c",),
    }.items():
        theirs = java.run(command, *words).splitlines()
        ours = place.shell.ok("mqadmin", command, *words).out.splitlines()
        assert ours[0].rstrip() == theirs[0].rstrip(), command
    theirs = {line[:32] for line in java.run("brokerStatus", "-b", java.address).splitlines()}
    ours = place.shell.ok("mqadmin", "brokerStatus", "-b", java.address).out.splitlines()
    assert {line[:32] for line in ours} == theirs


def test_accounts_of_apaches_broker(
    maven: None, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """4.9's plain_acl.yml, changed by our commands; the new account is let in, and then not."""
    folder = tmp_path_factory.mktemp("acl")
    broker = ApacheBroker(Children(folder), folder, aclEnable="true")
    (folder / "home" / "conf" / "plain_acl.yml").write_text(
        "globalWhiteRemoteAddresses: []\naccounts:\n- accessKey: rocketmq-admin\n"
        "  secretKey: 12345678-admin\n  whiteRemoteAddress:\n  admin: true\n"
    )
    variables = {
        "NAMESRV_ADDR": broker.namesrv,
        "SKYLARKMQ_ACCESS_KEY": "rocketmq-admin",
        "SKYLARKMQ_SECRET_KEY": "12345678-admin",
    }
    shell = Shell(tmp_path, variables=variables)
    secret = "an open secret"
    as_alice = Shell(
        tmp_path,
        variables=variables
        | {"SKYLARKMQ_ACCESS_KEY": "alice-of-sales", "SKYLARKMQ_SECRET_KEY": secret},
    )
    try:
        broker.start()
        shell.ok("topic", "create", TOPIC)
        assert as_alice("group", "list").code == 5
        put = ("acl", "put", "alice-of-sales", "--admin", "--secret-stdin", "--yes")
        shell.ok(*put, stdin=secret)
        until_sync(lambda: as_alice("group", "list").code == 0, "the broker to read its file")
        rows = shell.json("acl", "list")
        assert {row["access_key"] for row in rows} == {"rocketmq-admin", "alice-of-sales"}
        assert shell.json("acl", "files")[0]["change_count"] >= 1
        shell.ok("acl", "white-list", "--set", "10.0.0.7", "--yes")
        until_sync(lambda: shell.json("acl", "white-list"), "the white list")
        shell.ok("acl", "delete", "alice-of-sales", "--yes")
        until_sync(lambda: as_alice("group", "list").code == 5, "the broker to read its file")
    finally:
        broker.end()
