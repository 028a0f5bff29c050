"""mqadmin over a broker and a name server of each kind: one answer for both, sums over both."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

from tests.interop.admin_tools import JavaAdmin, queues, rows
from tests.interop.children import Children
from tests.interop.mixed_cluster import OURS, THEIRS, MixedCluster
from tests.interop.tools import JavaTools

pytestmark = pytest.mark.interop

CLUSTER = "DefaultCluster"
BOTH = [OURS, THEIRS]
COUNT = 12
UNQUOTED_KEY = re.compile(r"([{,])(\d+):")


@pytest.fixture(scope="module")
def admin(mixed: MixedCluster) -> JavaAdmin:
    return JavaAdmin(mixed.new("admin"), mixed)


@pytest.fixture
def java(mixed: MixedCluster, children: Children) -> JavaTools:
    return JavaTools(children, mixed)


def create(admin: JavaAdmin, topic: str, *words: str) -> str:
    """Create a topic on both brokers and wait until both name servers have it."""
    text = admin.run("updateTopic", "-t", topic, "-c", CLUSTER, "-r", "3", "-w", "3", *words)
    admin.until("both brokers", lambda: len(route(admin, topic)["queueDatas"]) == 2)
    return text


def route(admin: JavaAdmin, topic: str) -> dict[str, Any]:
    """What `topicRoute` prints: JSON, but for its numbers as keys."""
    text = admin.run("topicRoute", "-t", topic)
    return dict(json.loads(UNQUOTED_KEY.sub(r'\1"\2":', text)))


def permissions(admin: JavaAdmin, topic: str) -> dict[str, int]:
    return {queue["brokerName"]: queue["perm"] for queue in route(admin, topic)["queueDatas"]}


def test_the_cluster_is_listed_with_both(
    mixed: MixedCluster, admin: JavaAdmin, java: JavaTools, topic: str
) -> None:
    create(admin, topic)
    before = messages_in(admin)
    java.produce(topic, "sync", COUNT)
    table = rows(admin.run("clusterList"))
    addresses = {name: f"127.0.0.1:{broker.port}" for name, broker in mixed.brokers.items()}
    assert [row[:4] for row in table] == [[CLUSTER, name, "0", addresses[name]] for name in BOTH]
    assert [row[4] for row in table] == ["V4_9_8", "V4_9_7"]
    after = messages_in(admin)
    assert {name: after[name] - before[name] for name in BOTH} == dict.fromkeys(BOTH, COUNT // 2)


def messages_in(admin: JavaAdmin) -> dict[str, int]:
    """How many messages each broker took today."""
    return {row[1]: int(row[4]) for row in rows(admin.run("clusterList", "-m"))}


def test_a_topic_is_created_on_both(mixed: MixedCluster, admin: JavaAdmin, topic: str) -> None:
    text = create(admin, topic)
    for broker in mixed.brokers.values():
        assert f"create topic to 127.0.0.1:{broker.port} success" in text
    found = route(admin, topic)
    assert {each["brokerName"]: each["brokerAddrs"] for each in found["brokerDatas"]} == {
        name: {"0": f"127.0.0.1:{mixed.brokers[name].port}"} for name in BOTH
    }
    counted = {
        each["brokerName"]: (each["readQueueNums"], each["writeQueueNums"], each["perm"])
        for each in found["queueDatas"]
    }
    assert counted == dict.fromkeys(BOTH, (3, 3, 6))
    assert "orderTopicConf" not in found
    *brokers, _, total = rows(admin.run("topicRoute", "-t", topic, "-l"))
    assert [row[:2] + row[-3:] for row in brokers] == [
        [CLUSTER, name, "3", "3", "6"] for name in BOTH
    ]
    assert total == ["Total:", "2", "6", "6"]


def test_state_and_progress_of_both(
    admin: JavaAdmin, java: JavaTools, topic: str, group: str
) -> None:
    create(admin, topic)
    java.produce(topic, "sync", COUNT)
    every = [[name, str(queue)] for name in BOTH for queue in range(3)]
    table = rows(admin.run("topicStatus", "-t", topic))
    assert [row[:4] for row in table] == [[*queue, "0", "2"] for queue in every]
    java.received(topic, group, COUNT)
    text = admin.run("consumerProgress", "-g", group)
    own = [row for row in rows(text) if row[0] == topic]
    assert [row[:6] for row in own] == [[topic, *queue, "2", "2", "0"] for queue in every]
    assert "Diff Total: 0" in text
    java.produce(topic, "sync", COUNT, prefix="more")
    assert f"Diff Total: {COUNT}" in admin.run("consumerProgress", "-g", group)
    stats = queues(admin.call("examineConsumeStats", group, topic)["offsetTable"])
    left = Counter[str]()
    for (name, _), row in stats.items():
        left[name] += row["brokerOffset"] - row["consumerOffset"]
    assert left == dict.fromkeys(BOTH, COUNT // 2)
    (line,) = (row for row in rows(admin.run("statsAll", "-t", topic)) if row[0] == topic)
    assert line[:3] == [topic, group, str(COUNT)]


@pytest.mark.parametrize(("wiped", "left"), [(OURS, THEIRS), (THEIRS, OURS)])
def test_writing_to_one_ends_and_begins_again(
    mixed: MixedCluster, admin: JavaAdmin, java: JavaTools, topic: str, wiped: str, left: str
) -> None:
    create(admin, topic)
    text = admin.run("wipeWritePerm", "-b", wiped)
    assert all(f"in name server[{each}] OK" in text for each in mixed.namesrv.split(";"))
    assert permissions(admin, topic) == {wiped: 4, left: 6}
    assert {ack["broker_name"] for ack in java.produce(topic, "sync", 6)} == {left}

    # A topic that is made there meanwhile is not wiped, and the others stay as they are.
    admin.run("updateTopic", "-t", f"{topic}_new", "-c", CLUSTER, "-r", "1", "-w", "1")
    admin.until("the new topic", lambda: len(permissions(admin, f"{topic}_new")) == 2)
    assert permissions(admin, topic) == {wiped: 4, left: 6}
    assert permissions(admin, f"{topic}_new") == {wiped: 6, left: 6}

    text = admin.run("addWritePerm", "-b", wiped)
    assert all(f"in name server[{each}] OK" in text for each in mixed.namesrv.split(";"))
    assert permissions(admin, topic) == {wiped: 6, left: 6}
    assert {ack["broker_name"] for ack in java.produce(topic, "sync", 6)} == {wiped, left}


def test_queues_of_an_ordered_topic(
    mixed: MixedCluster, admin: JavaAdmin, java: JavaTools, topic: str
) -> None:
    create(admin, topic)
    wanted = f"{OURS}:3;{THEIRS}:2"
    assert "CODE: 22" in admin.run("updateOrderConf", "-t", topic, "-m", "get")
    text = admin.run("updateOrderConf", "-t", topic, "-m", "put", "-v", wanted)
    assert f"update orderConf success. topic=[{topic}], orderConf=[{wanted}]" in text
    text = admin.run("updateOrderConf", "-t", topic, "-m", "get")
    assert f"orderConf=[{wanted}]" in text
    for names in (mixed.our_names, mixed.their_names):
        text = admin.run_at(names.namesrv, "topicRoute", "-t", topic)
        assert f'"orderTopicConf":"{wanted}"' in text
    listed = Counter(queue["broker_name"] for queue in java.queues(topic))
    assert listed == {OURS: 3, THEIRS: 2}, "clients have the queues of the table, not of the route"
    admin.until("both to mark it", lambda: marks(mixed, admin, topic) == dict.fromkeys(BOTH, True))

    text = admin.run("updateOrderConf", "-t", topic, "-m", "delete")
    assert f"delete orderConf success. topic=[{topic}]" in text
    assert "orderTopicConf" not in route(admin, topic)
    admin.until("no mark", lambda: marks(mixed, admin, topic) == dict.fromkeys(BOTH, False))


def test_an_ordered_topic_keeps_its_queues_while_a_broker_is_away(
    mixed: MixedCluster, admin: JavaAdmin, java: JavaTools, topic: str
) -> None:
    text = create(admin, topic, "-o", "true")
    assert "set cluster orderConf. isOrder=true" in text
    before = java.queues(topic)
    sent = java.produce(topic, "ordered", COUNT, orders=6)
    mixed.brokers[OURS].kill()
    try:
        admin.until("its end", lambda: permissions(admin, topic).keys() == {THEIRS})
        assert set(route(admin, topic)["orderTopicConf"].split(";")) == {f"{b}:3" for b in BOTH}
        away = java.produce(topic, "ordered", COUNT, orders=6, prefix="away")
    finally:
        mixed.brokers[OURS].start()
    assert len(before) == 6
    place = {ack["index"] % 6: (ack["broker_name"], ack["queue_id"]) for ack in sent}
    theirs = [event for event in away if event["event"] == "sent"]
    assert {(ack["broker_name"], ack["queue_id"]) for ack in theirs} == {
        (THEIRS, queue) for queue in range(3)
    }
    for ack in theirs:
        assert place[ack["index"] % 6] == (ack["broker_name"], ack["queue_id"]), "no other queue"
    admin.until("both", lambda: permissions(admin, topic).keys() == {*BOTH})


def marks(mixed: MixedCluster, admin: JavaAdmin, topic: str) -> dict[str, bool]:
    """Whether each broker takes a topic for one that is consumed in order."""
    return {
        name: admin.call("examineTopicConfig", f"127.0.0.1:{broker.port}", topic)["order"]
        for name, broker in mixed.brokers.items()
    }
