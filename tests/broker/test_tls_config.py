"""The keys of TLS, which RocketMQ has as system properties: from file, environment and --set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skylarkmq.broker.cli import _tell_oddities
from skylarkmq.broker.config.config_file import (
    Sources,
    effective_values,
    load_broker_config,
    load_namesrv_config,
)
from skylarkmq.broker.config.settings import BrokerConfig, NamesrvConfig
from skylarkmq.broker.config.tls_settings import TlsConfig
from skylarkmq.broker.metrics.access_families import access_families
from skylarkmq.broker.metrics.families import FamilyMaker
from skylarkmq.broker.net.exposure import why_open
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.store.config import StoreConfig


def test_dotted_keys_from_each_source(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("tls.server.certPath = /tls/file.pem\ntls.server.mode=enforcing\n")
    environment = {"SKYLARKMQ_TLS_SERVER_CERT_PATH": "/tls/environment.pem"}
    settings = ["tls.server.need.client.auth=optional", "tls.server.trustCertPath=/tls/ca.pem"]
    for load in (load_broker_config, load_namesrv_config):
        tls = load(Sources(file, environment, settings)).config.tls
        assert tls.tls_server_mode == "enforcing"
        assert tls.tls_server_cert_path == Path("/tls/environment.pem")
        assert tls.tls_server_need_client_auth == "optional"
        assert tls.tls_server_trust_cert_path == Path("/tls/ca.pem")


def test_the_file_of_tls_is_weaker_than_the_brokers_own(tmp_path: Path) -> None:
    tls_file, file = tmp_path / "tls.properties", tmp_path / "broker.conf"
    tls_file.write_text("tls.server.certPath=/tls/a.pem\ntls.server.keyPath=/tls/key.pem\n")
    file.write_text("tls.server.certPath=/tls/b.pem\n")
    loaded = load_broker_config(Sources(file, tls_file=tls_file))  # as /etc/rocketmq has it
    assert loaded.config.tls.tls_server_cert_path == Path("/tls/b.pem")
    assert loaded.config.tls.tls_server_key_path == Path("/tls/key.pem")
    assert loaded.settings["tls.server.keyPath"].origin == f"{tls_file} line 2"
    named = load_namesrv_config(Sources(settings=[f"tls.config.file={tls_file}"])).config.tls
    assert named.tls_server_cert_path == Path("/tls/a.pem")


def test_the_file_of_tls_need_not_exist_unless_it_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert load_broker_config(Sources(tls_file=missing)).config.tls.tls_config_file == missing
    with pytest.raises(FileNotFoundError):
        load_broker_config(Sources(settings=[f"tls.config.file={missing}"]))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("listenPort=1", "listenPort=1: this file holds keys of TLS alone; .*properties line 1"),
        ("tls.config.file=x", "this file holds keys of TLS alone"),
        ("tls.server.certpat=x", "no such key; did you mean tls.server.certPath"),
    ],
)
def test_what_the_file_of_tls_does_not_take(tmp_path: Path, line: str, why: str) -> None:
    file = tmp_path / "tls.properties"
    file.write_text(line)
    with pytest.raises(ConfigError, match=why):
        load_broker_config(Sources(tls_file=file))


@pytest.mark.parametrize(
    ("settings", "environment", "why"),
    [
        (["tls.server.mod=enforcing"], {}, "did you mean tls.server.mode"),
        (["tlsServerMode=enforcing"], {}, "did you mean tls.server.mode"),
        ([], {"SKYLARKMQ_TLS_SERVER_CERTPATH": "x"}, "did you mean SKYLARKMQ_TLS_SERVER_CERT_PATH"),
        ([], {"SKYLARKMQ_TLS_SERVER_MOD": "x"}, "did you mean SKYLARKMQ_TLS_SERVER_MODE"),
    ],
)
def test_a_key_that_is_nearly_one(
    settings: list[str], environment: dict[str, str], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        load_broker_config(Sources(environment=environment, settings=settings))


def test_a_password_is_never_shown() -> None:
    settings = ["tls.server.certPath=/c", "tls.server.keyPassword=hush"]
    loaded = load_broker_config(Sources(settings=settings))
    rows = {key: value for key, value, _ in effective_values(loaded)}
    assert rows["tls.server.keyPassword"] == "******" and rows["tls.client.keyPassword"] == ""
    assert "hush" not in str(rows)
    with pytest.raises(ConfigError) as caught:
        load_broker_config(Sources(settings=["tls.server.keyPasword=hush"]))
    assert "hush" not in str(caught.value) and "did you mean" in str(caught.value)
    environment = {"SKYLARKMQ_TLS_SERVER_KEY_PASWORD": "hush"}
    with pytest.raises(ConfigError) as caught:
        load_broker_config(Sources(environment=environment))
    assert "hush" not in str(caught.value) and "KEY_PASSWORD?" in str(caught.value)


def broker_of(**keys: Any) -> BrokerConfig:
    return BrokerConfig(store=StoreConfig(store_path_root_dir=Path("/store")), **keys)


def test_who_is_open_to_the_network() -> None:
    known = TlsConfig(
        tls_server_mode="enforcing",
        tls_server_need_client_auth="require",
        tls_server_trust_cert_path=Path("/ca.pem"),
    )
    optional = TlsConfig(tls_server_mode="enforcing")
    assert not why_open(broker_of())
    assert not why_open(broker_of(bind_address="::1"))
    assert not why_open(broker_of(bind_address="0.0.0.0", tls=known))
    assert not why_open(NamesrvConfig(bind_address="0.0.0.0", tls=known))
    accounts = {"acl_enable": True, "rocketmq_home": Path("/home")}
    assert not why_open(broker_of(bind_address="0.0.0.0", **accounts))
    assert not why_open(NamesrvConfig(bind_address="0.0.0.0", **accounts))
    open_text = why_open(broker_of(bind_address="10.0.0.1"))
    assert open_text.startswith("OPEN TO THE NETWORK: any machine that reaches 10.0.0.1")
    assert "in plain text" in open_text and "tls.server.need.client.auth=require" in open_text
    assert "in plain text" not in why_open(broker_of(bind_address="0.0.0.0", tls=optional))
    assert why_open(NamesrvConfig(bind_address="::"))


@pytest.mark.parametrize("load", [load_broker_config, load_namesrv_config])
def test_the_start_says_that_it_is_open(load: Any, caplog: pytest.LogCaptureFixture) -> None:
    _tell_oddities(load(Sources()))
    assert not caplog.records
    _tell_oddities(load(Sources(settings=["bindAddress=0.0.0.0"])))
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "OPEN TO THE NETWORK" in record.getMessage()


@pytest.mark.parametrize(("address", "value"), [("127.0.0.1", 0), ("0.0.0.0", 1)])
def test_the_metric_says_what_the_start_warns_of(address: str, value: int) -> None:
    families = access_families(broker_of(bind_address=address), {}, FamilyMaker({}))
    first = next(iter(families))
    assert first.name == "skylarkmq_open_to_network"
    assert [sample.value for sample in first.samples] == [value]
