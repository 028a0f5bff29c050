"""Consumer groups: made on demand, bounded by their names, durable, in RocketMQ's file."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.groups.subscription_group import BUILT_IN_GROUPS, SubscriptionGroupManager
from skylarkmq.protocol.bodies.group import SubscriptionGroupConfig
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.store.config import StoreConfig
from tests.support.manual_clock import ManualClock
from tests.support.memory_files import Tables
from tests.support.workers import rest

ROOT = Path("/store")
PATH = ROOT / "config" / "subscriptionGroup.json"
CONFIG = BrokerConfig(store=StoreConfig(store_path_root_dir=ROOT))


def _manager(
    tables: Tables | None = None, **changes: Any
) -> tuple[SubscriptionGroupManager, Tables]:
    tables = tables or Tables()
    config = dataclasses.replace(CONFIG, **changes)
    manager = SubscriptionGroupManager(config, tables.files, tables.writer, ManualClock())
    manager.load()
    return manager, tables


async def test_built_in_groups_are_there_at_the_start() -> None:
    manager, _ = _manager()
    assert set(manager.table) == set(BUILT_IN_GROUPS)
    assert "TOOLS_CONSUMER" in manager.table and not manager.pending


async def test_a_group_is_made_when_it_is_first_looked_for() -> None:
    manager, tables = _manager()
    group = manager.find("g")
    assert group == SubscriptionGroupConfig(group_name="g")
    assert manager.find("g") is group
    heard: list[BaseException | None] = []
    manager.persisted(heard.append)
    assert manager.pending and heard == []
    await rest(tables.worker)
    assert heard == [None] and tables.files.write_count == 1
    again, _ = _manager(tables)
    assert again.table == manager.table and again.data_version == manager.data_version


async def test_without_making_on_demand_only_system_groups_are_made() -> None:
    manager, _ = _manager(auto_create_subscription_group=False)
    assert manager.find("g") is None
    assert manager.find("CID_RMQ_SYS_TRANS") is not None


@pytest.mark.parametrize("name", ["", "a.b", "x" * 121, "g\n", "../g"])
async def test_bad_names_are_refused(name: str) -> None:
    manager, _ = _manager()
    with pytest.raises(RemoteProtocolError):
        manager.find(name)
    assert not manager.pending


async def test_the_table_is_bounded() -> None:
    manager, _ = _manager(max_groups=len(BUILT_IN_GROUPS) + 1)
    manager.find("g")
    with pytest.raises(RemoteProtocolError, match=r"no room for group h: .*maxGroups="):
        manager.find("h")
    manager.update(SubscriptionGroupConfig(group_name="g", retry_max_times=3))
    assert manager.table["g"].retry_max_times == 3


async def test_rocketmqs_file_is_read_and_its_names_are_checked_again() -> None:
    text = (
        b'{\n\t"dataVersion":{\n\t\t"counter":2,\n\t\t"timestamp":1\n\t},\n'
        b'\t"forbiddenTable":{},\n\t"subscriptionGroupTable":{\n\t\t"CG":{\n\t\t\t"brokerId":0,\n'
        b'\t\t\t"consumeEnable":false,\n\t\t\t"groupName":"CG",\n\t\t\t"retryMaxTimes":5,\n'
        b'\t\t\t"retryQueueNums":1\n\t\t},\n\t\t"a/b":{"groupName":"a/b"}\n\t}\n}'
    )
    manager, _ = _manager(Tables({PATH: text}))
    assert manager.table["CG"] == SubscriptionGroupConfig(
        group_name="CG", consume_enable=False, retry_max_times=5
    )
    assert "a/b" not in manager.table and "TOOLS_CONSUMER" in manager.table
    assert manager.data_version.counter == 2
