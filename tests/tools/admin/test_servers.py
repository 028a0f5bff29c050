"""`skylarkmq cluster`, `config` and `client`."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylarkmq.client import Message, StartFrom
from skylarkmq.client.sync import Consumer, Producer
from skylarkmq.testing import SyncBroker
from skylarkmq.tools.config import is_ignored
from skylarkmq.tools.secret_options import MASK, masked
from tests.support.patience import LIMIT_S
from tests.tools.admin.support import GROUP, Shell


def test_a_healthy_cluster(shell: Shell) -> None:
    health = ("cluster", "health", "--disk-max", "1")
    said = shell.ok(*health, "-o", "table")
    looked = "nothing found: name servers and brokers answer, slaves keep up, disks have room\n"
    assert (said.out, said.err) == ("", looked), "groups were not looked at"
    assert shell.ok(*health, "--exit-when-ready", "--every", "0.001").out == ""


def test_what_is_wrong_is_told_with_its_cure(tmp_path: Path) -> None:
    nobody = Shell(tmp_path, words=("--namesrv", "127.0.0.1:1", "--timeout", "0.2"))
    assert nobody("cluster", "health").code == 4
    waits = nobody(
        "cluster", "health", "--exit-when-ready", "--every", "0.001", "--times", "2", "-o", "ndjson"
    )
    assert waits.code == 1
    assert waits.out.count('"kind": "name_server_unreachable"') == 2
    assert waits.out.count('"cure": "Start the name server') == 2


def test_load_is_taken_off_and_comes_back(shell: Shell, broker: SyncBroker) -> None:
    assert shell("cluster", "drain", "broker-a").code == 2
    shell.ok("cluster", "drain", "broker-a", "--dry-run")
    assert shell.json("topic", "describe", "orders")["settings"][0]["perm"] == "rw"
    assert shell.json("cluster", "drain", "broker-a", "--yes")["how"] == "writes_stopped"
    assert shell.json("topic", "describe", "orders")["settings"][0]["perm"] == "r"
    alone = shell("cluster", "drain", "broker-a", "--yes", "--wait", str(LIMIT_S))
    assert alone.code == 1 and "does not become drained: no other broker takes" in alone.err
    shell.ok("cluster", "undrain", "broker-a")
    assert shell.json("topic", "describe", "orders")["settings"][0]["perm"] == "rw"
    with broker.client() as client, Producer(client=client) as producer:
        producer.send(Message("sent-again", "one"))
    assert shell("cluster", "drain", "broker-x", "--yes").code == 3


def test_failover_is_for_brokers_that_elect_their_master(shell: Shell) -> None:
    said = shell("cluster", "failover", "broker-a", "--yes")
    assert said.code == 5 and "controllerEndpoints" in said.err
    assert shell("cluster", "failover", "broker-a", "--accept-loss", "--yes").code == 2
    dry = shell.ok("cluster", "failover", "broker-a", "--to", "2", "--accept-loss", "--dry-run")
    assert "would let replica 2 lead broker-a, although messages" in dry.err


def test_settings(shell: Shell) -> None:
    (row,) = shell.json("config", "get", "brokerName", "--broker", "broker-a")
    assert row == {"of": "broker-a", "key": "brokerName", "value": "broker-a"}
    wrong = shell("config", "get", "brokrName")
    assert wrong.code == 3 and "did you mean brokerName?" in wrong.err
    name_servers = shell.json("config", "list", "--name-servers", "--match", "PORT")
    assert [row["key"] for row in name_servers] == ["listenPort"]

    change = ("config", "set", "maxErrorRateOfBloomFilter=21")
    assert shell(*change, "--yes").code == 2  # not said where
    dry = shell.ok(*change, "--all", "--dry-run")
    assert "maxErrorRateOfBloomFilter of broker-a: 20 -> 21" in dry.err
    refused = shell("config", "set", "noSuchKey=1", "--broker", "broker-a", "--yes")
    assert refused.code == 5
    restart = shell("config", "set", "orderMessageEnable=true", "--name-servers", "--yes")
    assert restart.code == 5 and "take a restart" in restart.err


def test_secrets_among_settings_are_masked() -> None:
    assert masked("tlsServerKeyPassword", "open sesame") == MASK
    assert masked("secretKey", "open sesame") == MASK
    assert masked("tlsServerKeyPassword", "") == ""
    assert masked("flushDiskType", "ASYNC_FLUSH") == "ASYNC_FLUSH"


def test_a_setting_that_a_server_took_no_notice_of_is_told() -> None:
    """RocketMQ's answer is the same as for one that it took."""

    def ignored(before: str | None, wanted: str, after: str | None) -> bool:
        return is_ignored({"before": before, "value": wanted}, after)

    assert ignored(None, "1", None)
    assert ignored("ASYNC_FLUSH", "nonsense", "ASYNC_FLUSH")
    assert not ignored("32", "64", "64")
    assert not ignored("64", "64", "64") and not ignored("0.75", "0.750", "0.75")
    assert not ignored("true", "TRUE", "true"), "it is so already"


def test_who_is_connected(shell: Shell, broker: SyncBroker) -> None:
    broker.create_topic("of-shop", 1)
    with (
        broker.client() as client,
        Producer(client=client, group="shop") as producer,
        Consumer("of-shop", client=client, group="buyers", start_from=StartFrom.FIRST) as consumer,
    ):
        producer.send(Message("of-shop", "one"))
        consumer.getone(LIMIT_S).ack()  # a heartbeat went before, in the names of both
        rows = shell.json("client", "list", "--role", "producer")
        assert ("shop", client.client_id) in {(row["group"], row["client_id"]) for row in rows}
        assert {row["release"] for row in rows} == {"4.9.8"}
        assert shell.json("client", "list", "--role", "consumer", "--group", "shop") == []
        shown = shell.json("client", "show", client.client_id)
        assert [row["role"] for row in shown["connections"]] == ["producer", "consumer"]
        assert "of-shop" in {row["queue"]["topic"] for row in shown["consumers"][0]["queues"]}
        table = shell.ok("client", "show", client.client_id, "--group", "buyers", "-o", "table").out
        assert "Queues\nGROUP " in table and "buyers  of-shop " in table
    assert shell("client", "show", "nobody").code == 3


@pytest.mark.parametrize("form", ["table", "json", "yaml", "ndjson"])
def test_every_form(shell: Shell, form: str) -> None:
    out = shell.ok("cluster", "status", "-o", form).out
    assert "broker-a" in out and "4.9.8" in out and "V4_9_8" not in out


def test_clients_of_a_group_that_does_not_exist(shell: Shell) -> None:
    said = shell("client", "list", "--group", "nosuch")
    assert said.code == 3 and "there is no group nosuch" in said.err and not said.out
    said = shell("client", "list", "--group", "nosuch", "--role", "producer")
    assert said.code == 3 and "no producer of the group nosuch is connected" in said.err
    assert shell.json("client", "list", "--group", GROUP) == [], "it is there, and nobody in it"
