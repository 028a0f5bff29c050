"""Limits of the broker's and the name server's configuration."""

from pathlib import Path
from typing import Any, get_args

import pytest

from skylarkmq.broker.config.settings import BrokerConfig, NamesrvConfig, parse_namesrv_addresses
from skylarkmq.common.config_fields import ConfigError, keys_of
from skylarkmq.store.config import BrokerRole, StoreConfig

STORE = StoreConfig(store_path_root_dir=Path("/store"))


def test_defaults_bind_loopback_on_rocketmqs_ports() -> None:
    config = BrokerConfig(store=STORE)
    assert config.bind_address == "127.0.0.1"
    assert (config.listen_port, config.namesrv_listen_port) == (10911, 9876)
    assert config.metrics_prom_exporter_port == 5557
    assert NamesrvConfig().listen_port == 9876


def test_metrics_follow_the_bind_address_unless_told_otherwise() -> None:
    assert BrokerConfig(store=STORE, bind_address="0.0.0.0").metrics_host == "0.0.0.0"
    config = BrokerConfig(
        store=STORE, bind_address="0.0.0.0", metrics_prom_exporter_host="127.0.0.1"
    )
    assert config.metrics_host == "127.0.0.1"


def test_no_key_belongs_to_broker_and_store_at_once() -> None:
    assert not keys_of(BrokerConfig).keys() & keys_of(StoreConfig).keys()


@pytest.mark.parametrize(
    ("attribute", "value", "key"),
    [
        ("listen_port", 65536, "listenPort"),
        ("listen_port", 2, "listenPort"),
        ("broker_permission", 7, "brokerPermission"),
        ("default_topic_queue_nums", 0, "defaultTopicQueueNums"),
        ("default_topic_queue_nums", 1025, "defaultTopicQueueNums"),
        ("broker_name", "", "brokerName"),
        ("broker_name", "a b", "brokerName"),
        ("bind_address", "::1\n", "bindAddress"),
        ("namesrv_addr", "localhost", "namesrvAddr"),
        ("namesrv_addr", "localhost:0", "namesrvAddr"),
        ("namesrv_addr", "a:9876;b:x", "namesrvAddr"),
    ],
)
def test_a_value_outside_of_its_limits_names_its_key(attribute: str, value: Any, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig(store=STORE, **{attribute: value})
    assert caught.value.key == key


def test_name_servers_are_separated_by_semicolons() -> None:
    assert parse_namesrv_addresses(None) == []
    assert parse_namesrv_addresses(" a:9876; b:1 ;;a:9876") == ["a:9876", "b:1"]
    assert parse_namesrv_addresses("[::1]:9876") == ["[::1]:9876"]


def _of_role(role: BrokerRole, broker_id: int = 0, **store: Any) -> BrokerConfig:
    config = StoreConfig(store_path_root_dir=Path("/store"), broker_role=role, **store)
    return BrokerConfig(store=config, broker_id=broker_id)


@pytest.mark.parametrize("role", get_args(BrokerRole))
def test_a_master_has_the_id_0_and_a_slave_has_one_of_its_own(role: BrokerRole) -> None:
    right, wrong = (1, 0) if role == "SLAVE" else (0, 1)
    assert _of_role(role, right).broker_id == right
    with pytest.raises(ConfigError, match=r"brokerId=\d: .*(use 1 or more|set brokerRole=SLAVE)"):
        _of_role(role, wrong)


@pytest.mark.parametrize(
    ("attribute", "value", "key"),
    [
        ("ha_master_address", "master", "haMasterAddress"),
        ("ha_master_address", "master:0", "haMasterAddress"),
        ("ha_housekeeping_interval", 5000, "haHousekeepingInterval"),
        ("ha_transfer_batch_size", 4 << 20, "haTransferBatchSize"),
        ("ha_copy_from", "first", "haCopyFrom"),
    ],
)
def test_what_no_master_and_slave_could_work_with_is_refused(
    attribute: str, value: Any, key: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        _of_role("SLAVE", 1, **{attribute: value})
    assert caught.value.key == key and caught.value.cure


def test_addresses_that_may_copy_the_log_are_written_as_in_white_lists() -> None:
    BrokerConfig(store=STORE, ha_allowed_addresses="192.168.0.*, 10.0.0.{7,9}")
    with pytest.raises(ConfigError, match="haAllowedAddresses"):
        BrokerConfig(store=STORE, ha_allowed_addresses="192.168.0.0/24")


def test_slaves_connect_above_the_listen_port_or_where_it_says() -> None:
    assert BrokerConfig(store=STORE).ha_port(10_911) == 10_912
    assert _of_role("SYNC_MASTER", ha_listen_port=7000).ha_port(10_911) == 7000
