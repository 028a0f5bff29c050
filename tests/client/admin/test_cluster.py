"""Settings of brokers as text, and what a broker refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylarkmq.client import Admin, BrokerError, Client, Message, Producer
from skylarkmq.client.admin.topics import parse_properties, properties_text
from skylarkmq.protocol.codes import RequestCode
from tests.client.admin.support import site, two_brokers
from tests.support.live_broker import live_broker, namesrv_of
from tests.support.patience import LIMIT_S


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
