"""Settings of brokers as text, and what a broker refuses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.client import Admin, BrokerError, Client, Message, Producer
from skylarkmq.client.admin.cluster import parse_properties, properties_text
from skylarkmq.client.admin.status import (
    BEHIND_MAX,
    BrokerStatus,
    ClusterStatus,
    NameServerStatus,
    ReplicaStatus,
)
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.flags import MASTER_ID
from tests.client.admin.support import site, two_brokers
from tests.support.live_broker import live_broker, namesrv_of
from tests.support.patience import LIMIT_S, until


def test_properties_as_brokers_write_them() -> None:
    text = b"brokerName=broker-a\n# a comment\npath=C:\\x\nempty=\nequation=a=b\n\nnothing\n"
    assert parse_properties(text) == {
        "brokerName": "broker-a",
        "path": "C:\\x",
        "empty": "",
        "equation": "a=b",
    }


def test_properties_as_brokers_read_them() -> None:
    assert properties_text({"a": "1", "path": "C:\\x"}) == b"a=1\npath=C:\\\\x\n"
    for bad in ({}, {"": "x"}, {"a": "1\nb=2"}, {"a=b": "1"}, {"#a": "1"}):
        with pytest.raises(ValueError):
            properties_text(bad)


async def test_a_refused_setting_changes_nothing(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        before = await it.admin.broker_config("broker-a")
        with pytest.raises(BrokerError, match="brokerName"):
            await it.admin.set_broker_config(
                "broker-a", {"defaultQueryMaxNum": "9", "brokerName": "other"}
            )
        assert await it.admin.broker_config("broker-a") == before


async def test_writes_are_stopped_and_allowed(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        await it.admin.create_topic("orders", queues=1)
        assert await it.admin.stop_writes("broker-a") > 0
        (settings,) = (await it.admin.describe_topic("orders")).settings
        assert settings.perm == "r"
        assert await it.admin.allow_writes("broker-a") > 0
        (settings,) = (await it.admin.describe_topic("orders")).settings
        assert settings.perm == "rw"


async def test_a_code_that_is_not_served_is_an_error_with_its_name(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        (server,) = it.admin._name_servers
        with pytest.raises(BrokerError, match="REQUEST_CODE_NOT_SUPPORTED"):
            await it.admin._api.call(server, RequestCode.GET_CLIENT_CONFIG)


async def test_a_name_server_tells_its_settings(tmp_path: Path) -> None:
    async with site(tmp_path) as it:
        (settings,) = (await it.admin.name_server_config()).values()
        assert settings["orderMessageEnable"] == "false"


async def test_name_servers_that_differ_are_taken_together(tmp_path: Path) -> None:
    """As while one of them was started again and has met one broker only."""
    async with (
        two_brokers(tmp_path) as it,
        live_broker(tmp_path / "c", broker_name="broker-c") as c,
    ):
        await it.admin.create_topic("orders", queues=2)
        async with (
            Client(f"{namesrv_of(c)};{it.namesrv}") as client,
            Admin(client=client, timeout=LIMIT_S) as admin,
            Producer(client=client, send_timeout=LIMIT_S) as producer,
        ):
            summary = await admin.cluster()
            assert summary.clusters == {"DefaultCluster": ["broker-a", "broker-b", "broker-c"]}
            assert [each.name for each in summary.brokers] == ["broker-a", "broker-b", "broker-c"]
            assert "orders" in await admin.list_topics()
            found = await admin.describe_topic("orders")
            assert {each.broker for each in found.settings} == {"broker-a", "broker-b"}
            ack = await producer.send(Message("orders", "m"))
            assert ack.queue.broker_name in {"broker-a", "broker-b"}


async def test_the_status_of_a_cluster_tells_who_does_not_answer(tmp_path: Path) -> None:
    async with (
        site(tmp_path) as it,
        live_broker(tmp_path / "b", broker_name="broker-b", namesrv_addr=it.namesrv) as away,
    ):
        await until(lambda: it.knows("broker-b"))
        await it.send("orders", 3)
        status = await it.admin.cluster_status()
        assert not status.problems(disk_max=1.0)
        (server,) = status.name_servers
        assert server.brokers == {"broker-a": (MASTER_ID,), "broker-b": (MASTER_ID,)}
        first, second = status.brokers
        assert first.master is not None and second.master is not None
        assert (first.master.log_end or 0) + (second.master.log_end or 0) > 0
        assert first.master.version and first.master.started_at
        assert json.loads(json.dumps(status.to_json()))["brokers"][0]["name"] == "broker-a"
        away.server.stop_reading()
        for connection in list(away.server.connections):
            connection.close("away")
        (problem,) = (await it.admin.cluster_status()).problems(disk_max=1.0)
        assert (problem.kind, problem.subject) == ("broker_unreachable", "broker-b (master)")


SERVER = NameServerStatus("ns:9876", None, {"broker-a": (0, 1, 2)})


def replica(broker_id: int, log_end: int, **more: Any) -> ReplicaStatus:
    return ReplicaStatus(broker_id, f"host:{broker_id}", None, "V4_9_8", 0, log_end, **more)


def kinds(*replicas: ReplicaStatus, servers: Sequence[NameServerStatus] = (SERVER,)) -> list[str]:
    brokers = (BrokerStatus("broker-a", "DefaultCluster", replicas),)
    return [f"{each.kind} {each.subject}" for each in ClusterStatus(servers, brokers).problems()]


def test_a_set_that_is_well_has_no_problem() -> None:
    assert kinds(replica(0, 1000, disk_used=0.75), replica(1, 1000), replica(2, 900)) == []


def test_what_an_operator_should_look_at() -> None:
    behind = kinds(replica(0, BEHIND_MAX + 1001), replica(1, 1001), replica(2, 1000))
    assert behind == ["slave_behind broker-a (slave 2)"]
    assert kinds(replica(1, 1000)) == ["no_master broker-a"]
    full = kinds(replica(0, 1000, disk_used=0.76))
    assert full == ["disk_nearly_full broker-a (master)"]
    other = NameServerStatus("other:9876", None, {"broker-a": (0,)})
    missing = kinds(replica(0, 1), replica(1, 1), servers=(SERVER, other))
    assert missing == ["not_registered broker-a (slave 1)"]
    silent = NameServerStatus("other:9876", "no answer", {})
    away = kinds(replica(0, 1), servers=(SERVER, silent))
    assert away == ["name_server_unreachable other:9876"]


def test_a_slave_of_a_master_that_told_nothing_is_not_behind() -> None:
    gone = ReplicaStatus(0, "host:0", "no answer")
    broker = BrokerStatus("broker-a", "DefaultCluster", (gone, replica(1, 5)))
    assert broker.behind(broker.replicas[1]) is None
