"""Which processes a fleet has: what cannot be shared out among several brokers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.fleet.plan import members_of
from skylarkmq.common.config_fields import ConfigError
from skylarkmq.store.config import BrokerRole, StoreConfig


def _fleet(brokers: int, role: BrokerRole, **store: Any) -> BrokerConfig:
    config = StoreConfig(store_path_root_dir=Path("/store"), broker_role=role, **store)
    return BrokerConfig(store=config, brokers=brokers, broker_id=1 if config.is_slave else 0)


@pytest.mark.parametrize(
    ("role", "master", "key"),
    [
        ("SLAVE", None, "brokerRole=SLAVE"),
        ("SLAVE", "master:10912", "brokerRole=SLAVE"),
        ("ASYNC_MASTER", "master:10912", "haMasterAddress=master:10912"),
    ],
)
def test_several_slaves_of_one_configuration_are_refused(
    role: BrokerRole, master: str | None, key: str
) -> None:
    with pytest.raises(ConfigError, match=f"{key}: .* one process"):
        members_of(_fleet(2, role, ha_master_address=master))


def test_one_slave_and_several_masters_are_not() -> None:
    (slave,) = members_of(_fleet(1, "SLAVE", ha_master_address="master:10912"))
    assert slave.name == "DEFAULT_BROKER"
    masters = members_of(_fleet(2, "SYNC_MASTER", ha_listen_port=7000))
    assert [each.keys["haListenPort"] for each in masters] == ["7000", "7010"]
    assert "grpcListenPort" not in masters[0].keys
    fleet = _fleet(2, "SYNC_MASTER")
    members = members_of(replace(fleet, grpc_listen_port=8081))
    assert [each.keys["grpcListenPort"] for each in members] == ["8081", "8091"]
    with pytest.raises(ConfigError, match="port 10921 would be that of"):
        members_of(replace(fleet, grpc_listen_port=10_921))
