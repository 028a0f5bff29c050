"""`skylarkmq topic` and `skylarkmq group`: what they change, refuse, ask and show to people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.client import Message, StartFrom
from skylarkmq.client.sync import Consumer, Producer, SimpleConsumer
from skylarkmq.testing import SyncBroker, run_broker_sync
from tests.support.patience import LIMIT_S, until_sync
from tests.tools.admin.support import Shell


@pytest.fixture(scope="module")
def own_broker() -> Iterator[SyncBroker]:
    """One whose topics and groups these tests change."""
    with run_broker_sync() as running:
        yield running


@pytest.fixture
def shell(own_broker: SyncBroker, tmp_path: Path) -> Shell:
    """Commands towards it."""
    return Shell(tmp_path, variables={"NAMESRV_ADDR": own_broker.namesrv_addr})


def taken(broker: SyncBroker, topic: str, group: str, count: int) -> None:
    """Send so many messages and let a group take them."""
    with broker.client() as client:
        with Producer(client=client) as producer:
            for number in range(count):
                producer.send(Message(topic, f"{number}"))
        with Consumer(topic, client=client, group=group, start_from=StartFrom.FIRST) as consumer:
            for _ in range(count):
                consumer.getone(LIMIT_S).ack()
            consumer.commit()


def test_the_life_of_a_topic(shell: Shell) -> None:
    shell.ok("topic", "create", "t", "--queues", "3", "--broker", "broker-a")
    table = shell.ok("topic", "describe", "t", "-o", "table").out
    assert re.search(r"^Settings\nBROKER +WRITE QUEUES .*\nbroker-a +3 +3 +rw +no +- +-\n", table)
    again = shell("topic", "create", "t")
    assert (again.code, again.err) == (
        5, "error: topic t exists on broker-a. `skylarkmq topic update` changes it\n",
    )  # fmt: skip
    shell.ok("topic", "create", "t", "--exist-ok")

    dry = shell.ok("topic", "update", "t", "--queues", "2", "--dry-run")
    assert dry.out == "" and "would set queues=2" in dry.err
    assert "(broker-a: queues=3 -> 2, read-queues=3, perm=rw)" in dry.err
    assert shell.json("topic", "describe", "t")["settings"][0]["write_queues"] == 3
    shell.ok("topic", "update", "t", "--queues", "2", "--yes")
    assert shell.json("topic", "describe", "t")["settings"][0]["write_queues"] == 2
    shell.ok("topic", "update", "t", "--perm", "r", "--cluster", "DefaultCluster", "--yes")
    assert shell("topic", "update", "t", "--perm", "r", "--cluster", "no", "--yes").code == 3
    assert shell("topic", "update", "t").code == 2

    asked = shell("topic", "delete", "t")
    assert asked.code == 2 and "needs --yes where nobody can be asked" in asked.err
    shell.ok("topic", "delete", "t", "--dry-run")
    mixed = shell("topic", "delete", "t", "nope", "--yes")
    assert mixed.code == 3 and "nothing is deleted" in mixed.err
    assert {"topic": "t"} in shell.json("topic", "list")
    shell.ok("topic", "delete", "t", "--yes")
    assert {"topic": "t"} not in shell.json("topic", "list")
    assert shell("topic", "describe", "t").code == 3


def test_what_fewer_queues_leave_unread_is_told_before(
    shell: Shell, own_broker: SyncBroker
) -> None:
    shell.ok("topic", "create", "levels", "--queues", "8", "--message-type", "PRIORITY")
    shell.ok("send", "levels", "urgent", "--priority", "7")
    shell.ok("topic", "update", "levels", "--queues", "4", "--yes")
    with own_broker.client() as client, SimpleConsumer("levels", client=client, group="g") as it:
        (message,) = it.receive(1)
        assert message.priority == 7
        it.ack(message)
    dry = shell.ok("topic", "update", "levels", "--read-queues", "4", "--dry-run").err
    assert "queues=4, read-queues=8 -> 4, perm=rw, and queues from 4 on are read no more" in dry
    assert "(messages there, consumed or not: 1)" in dry
    address = shell.json("cluster", "status")["brokers"][0]["address"]
    dry = shell.ok("topic", "update", "levels", "--perm", "r", "--broker", address, "--dry-run")
    assert "(broker-a: queues=4, read-queues=8, perm=rw -> r)" in dry.err
    absent = shell("topic", "update", "levels", "--perm", "r", "--broker", "b", "--dry-run")
    assert absent.code == 3 and "broker b has no topic levels" in absent.err


def test_fewer_queues_of_a_broker_need_no_answer_of_another_one(tmp_path: Path) -> None:
    with run_broker_sync() as first:
        shell = Shell(tmp_path, variables={"NAMESRV_ADDR": first.namesrv_addr})
        settings = {"brokerName": "broker-b", "namesrvAddr": first.namesrv_addr}
        with run_broker_sync(settings=settings) as second:
            until_sync(lambda: len(shell.json("cluster", "status")["brokers"]) == 2)
            shell.ok("topic", "create", "orders", "--queues", "8")
            second.faults.refuse_connections()
            fewer = ("topic", "update", "orders", "--read-queues", "4", "--broker", "broker-a")
            dry = shell.ok(*fewer, "--dry-run").err
            assert "from 4 on are read no more (messages there, consumed or not: not known" in dry
            shell.ok(*fewer, "--yes")
            found = json.loads(shell("topic", "describe", "orders").out)["settings"]
            reads = {one["broker"]: one["read_queues"] for one in found}
            assert reads == {"broker-a": 4, "broker-b": 8}


def test_a_topic_gets_and_loses_a_deduplication_window(shell: Shell) -> None:
    def window() -> Any:
        return shell.json("topic", "describe", "once")["settings"][0]["deduplication"]

    shell.ok("topic", "create", "once", "--deduplicate", "600")
    assert window() == {"seconds": 600, "keys": 100_000}
    asked = shell.ok("topic", "update", "once", "--deduplicate", "60:500", "--dry-run")
    assert "would set deduplication=60 s, 500 keys" in asked.err
    shell.ok("topic", "update", "once", "--deduplicate", "60:500", "--yes")
    assert window() == {"seconds": 60, "keys": 500}
    assert "60 s, 500 keys" in shell.ok("topic", "describe", "once", "-o", "table").out
    shell.ok("topic", "update", "once", "--deduplicate", "0", "--yes")
    assert window() is None
    wrong = shell("topic", "update", "once", "--deduplicate", "soon", "--yes")
    assert wrong.code == 2 and "SECONDS:KEYS" in wrong.err


def test_a_topic_is_created_at_a_dry_run_only_in_words(shell: Shell) -> None:
    dry = shell.ok("topic", "create", "never", "--dry-run")
    assert dry.err == "would create the topic never on all brokers\n"
    assert shell("topic", "describe", "never").code == 3


def test_a_group_is_moved_while_nobody_is_there(shell: Shell, own_broker: SyncBroker) -> None:
    own_broker.create_topic("moves", 1)
    taken(own_broker, "moves", "g", 4)
    assert shell.json("group", "lag", "g", "--topic", "moves")["lag"] == 0

    dry = shell.ok("group", "reset", "g", "moves", "--to", "first", "--dry-run")
    assert [(row["before"], row["after"]) for row in dry.json["queues"]] == [(4, 0)]
    assert shell.json("group", "lag", "g")["lag"] == 0
    shell.ok("group", "reset", "g", "moves", "--to", "first", "--yes")
    assert shell.json("group", "lag", "g")["lag"] == 4
    shell.ok("group", "reset", "g", "moves", "--offset", "3", "--yes")
    assert shell.json("group", "lag", "g")["lag"] == 1
    shell.ok("group", "reset", "g", "moves", "--to", "365d", "--yes")
    assert shell.json("group", "lag", "g")["lag"] == 4
    shell.ok("group", "reset", "g", "moves", "--to", "2020-01-01T00:00:00Z", "--yes")
    assert shell.json("group", "lag", "g")["lag"] == 4
    seek = ("group", "seek", "g", "moves", "--broker", "broker-a", "--queue")
    shell.ok(*seek, "0", "--offset", "2", "--yes")
    assert shell.json("group", "lag", "g")["lag"] == 2
    assert shell(*seek, "7", "--offset", "2", "--yes").code == 3
    shell.ok("group", "reset", "g", "moves", "--to", "last", "--yes")
    assert shell.json("group", "lag", "g")["lag"] == 0
    table = shell.ok("group", "lag", "g", "-o", "table").out
    assert re.search(r"^moves +broker-a +0 +4 +4 +0 +\d{4}-", table, re.M)
    assert re.search(r"^lag 0, [\d.]+ messages a second$", table, re.M)

    shell.ok("group", "clone", "g", "other", "--topic", "moves", "--yes")
    assert shell.json("group", "lag", "other")["lag"] == 0
    assert {"g", "other"} <= {row["group"] for row in shell.json("group", "lag")}


@pytest.mark.parametrize(
    "words",
    [
        "group reset g moves --yes",
        "group reset g moves --to first --offset 1 --yes",
        "group reset g moves --to yesterday --yes",
        "group lag --topic moves",
        "group update g",
        "topic create x --cluster a --broker b",
        "topic create x --perm q",
    ],
)
def test_wrong_use(shell: Shell, words: str) -> None:
    assert shell(*words.split()).code == 2


@pytest.mark.parametrize("command", ["create", "update"])
def test_help_says_whose_limit_counts(shell: Shell, command: str) -> None:
    said = " ".join(shell.ok("group", command, "--help").out.split())
    assert "consumers that do not send their own" in said and "max_reconsume, 16 by" in said


def test_the_life_of_a_group(shell: Shell) -> None:
    shell.ok("group", "create", "made", "--max-retries", "5", "--no-broadcast")
    (settings,) = shell.json("group", "describe", "made")["settings"]
    assert (settings["max_retries"], settings["broadcast_enabled"]) == (5, False)
    again = shell("group", "create", "made")
    assert again.code == 5 and "`skylarkmq group update` changes it" in again.err
    dry = shell.ok("group", "update", "made", "--no-consume", "--dry-run")
    assert "consume_enabled=False of the group made" in dry.err
    assert "now broker-a: consume_enabled=True" in dry.err
    shell.ok("group", "update", "made", "--no-consume", "--yes", "--broker", "broker-a")
    assert not shell.json("group", "describe", "made")["settings"][0]["consume_enabled"]
    shell.ok("group", "delete", "made", "--messages", "--yes")
    gone = shell("group", "members", "made")
    assert gone.code == 3 and "`skylarkmq group create` has made it" in gone.err
    assert shell("group", "delete", "made", "--yes").code == 3


def test_watching_prints_a_line_each_time(shell: Shell, own_broker: SyncBroker) -> None:
    taken(own_broker, "watched", "w", 1)
    words = ("group", "lag", "w", "--watch", "--every", "0.001", "--times", "3")
    assert len(shell.ok(*words).out.splitlines()) == 3
    assert shell.ok(*words, "-o", "table").out.count("lag 0, ") == 3
    assert len(shell.ok("group", "lag", "--watch", "--every", "1ms", "--times", "2").out) > 0
    assert shell("group", "lag", "w", "--watch", "--every", "0").code == 2


def test_skip_says_what_to_use(shell: Shell) -> None:
    said = shell("group", "skip", "billing", "orders", "--yes")
    assert said.code == 2 and "`skylarkmq group reset GROUP TOPIC --to last`" in said.err


def test_a_topic_that_is_not_there_is_told_with_a_cure(shell: Shell) -> None:
    said = shell("peek", "no-such-topic")
    assert said.code == 3 and "`skylarkmq topic create` makes one" in said.err


def test_nobody_there(tmp_path: Path) -> None:
    said = Shell(tmp_path)("topic", "list", "--namesrv", "127.0.0.1:1", "--timeout", "0.2")
    assert said.code == 4
    assert "hint: asked 127.0.0.1:1 (--namesrv)" in said.err


def test_priorities_in_and_out_of_a_shell(shell: Shell) -> None:
    shell.ok("topic", "create", "urgent", "--queues", "4", "--message-type", "PRIORITY")
    assert shell.json("topic", "describe", "urgent")["settings"][0]["message_type"] == "PRIORITY"
    shell.ok("send", "urgent", "low")
    sent = json.loads(shell.ok("send", "urgent", "high", "--priority", "9").out)
    assert sent["queue_id"] == 3
    rows = shell.json("peek", "urgent")
    assert {row["body"]: row["priority"] for row in rows} == {"low": None, "high": 9}
    assert "9" in shell.ok("msg", "get", sent["offset_msg_id"], "-o", "table").out
    shell.ok("topic", "create", "plain")
    refused = shell("send", "plain", "high", "--priority", "9")
    assert refused.code == 5 and "--message-type PRIORITY" in refused.err
    assert shell("send", "urgent", "x", "--priority", "-1").code == 2
