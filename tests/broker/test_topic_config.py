"""Topics: who may create them, durable before they are acknowledged, the file in both dialects."""

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.store.config import StoreConfig
from tests.support.manual_clock import ManualClock
from tests.support.memory_files import Tables
from tests.support.workers import rest

ROOT = Path("/store")
PATH = ROOT / "config" / "topics.json"
CONFIG = BrokerConfig(
    store=StoreConfig(store_path_root_dir=ROOT),
    broker_name="broker-a",
    broker_cluster_name="DefaultCluster",
)
REMOTE = "127.0.0.1:5000"


def _manager(tables: Tables | None = None, **changes: Any) -> tuple[TopicConfigManager, Tables]:
    tables = tables or Tables()
    config = dataclasses.replace(CONFIG, **changes)
    manager = TopicConfigManager(config, tables.files, tables.writer, ManualClock())
    manager.load()
    return manager, tables


async def test_system_topics_are_there_at_the_start() -> None:
    manager, tables = _manager()
    shapes = {
        name: (topic.read_queue_nums, topic.write_queue_nums, topic.perm)
        for name, topic in manager.table.items()
    }
    assert shapes == {
        "TBW102": (8, 8, 7),
        "SELF_TEST_TOPIC": (1, 1, 6),
        "BenchmarkTest": (1024, 1024, 6),
        "DefaultCluster": (16, 16, 7),
        "broker-a": (1, 1, 7),
        "OFFSET_MOVED_EVENT": (1, 1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 18, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 1, 6),
    }
    assert not manager.pending and tables.files.write_count == 0


async def test_switches_of_system_topics() -> None:
    manager, _ = _manager(
        auto_create_topic_enable=False,
        trace_topic_enable=True,
        cluster_topic_enable=False,
        broker_topic_enable=False,
    )
    assert manager.get("TBW102") is None
    trace = manager.get("RMQ_SYS_TRACE_TOPIC")
    assert trace is not None and trace.write_queue_nums == 1
    assert manager.table["DefaultCluster"].perm == 1
    assert manager.table["broker-a"].perm == 1


async def test_a_host_name_with_dots_gets_no_topic() -> None:
    manager, _ = _manager(broker_name="node.example.com")
    assert "node.example.com" not in manager.table


@pytest.mark.parametrize(("asked", "queues"), [(4, 4), (8, 8), (2**31 - 1, 8)])
async def test_a_send_creates_a_topic_from_its_default(asked: int, queues: int) -> None:
    manager, _ = _manager()
    topic = manager.create_in_send("orders", "TBW102", asked, REMOTE)
    assert topic == TopicConfig(
        topic_name="orders",
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=6,
    )
    assert manager.create_in_send("orders", "nothing", 1, REMOTE) is topic


async def test_a_send_creates_nothing_without_a_default_that_is_inherited() -> None:
    manager, _ = _manager()
    assert manager.create_in_send("orders", "missing", 4, REMOTE) is None
    assert manager.create_in_send("orders", "SELF_TEST_TOPIC", 4, REMOTE) is None
    assert "orders" not in manager.table and not manager.pending


async def test_tbw102_of_an_earlier_start_creates_nothing_when_switched_off() -> None:
    manager, tables = _manager()
    manager.create_in_send("orders", "TBW102", 4, REMOTE)
    await rest(tables.worker)
    manager, _ = _manager(tables, auto_create_topic_enable=False)
    assert "TBW102" in manager.table
    assert manager.create_in_send("other", "TBW102", 4, REMOTE) is None


@pytest.mark.parametrize("asked", [0, -1, -(2**31)])
async def test_no_queue_at_all_is_refused(asked: int) -> None:
    manager, _ = _manager()
    with pytest.raises(RemoteProtocolError, match="1 to 1024"):
        manager.create_in_send("orders", "TBW102", asked, REMOTE)


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "x" * 128, "ä", "orders\n"])
async def test_bad_names_are_refused_on_every_path(name: str) -> None:
    manager, _ = _manager()
    with pytest.raises(RemoteProtocolError):
        manager.create_in_send(name, "TBW102", 4, REMOTE)
    with pytest.raises(RemoteProtocolError):
        manager.create_in_send_back(name, 1, 6)
    with pytest.raises(RemoteProtocolError):
        manager.update(TopicConfig(topic_name=name))
    assert not manager.pending


async def test_the_table_is_bounded() -> None:
    manager, _ = _manager(max_topics=9)
    manager.create_in_send_back("%RETRY%g", 1, 6)
    with pytest.raises(RemoteProtocolError, match="maxTopics=9"):
        manager.create_in_send("orders", "TBW102", 4, REMOTE)
    manager.update(TopicConfig(topic_name="%RETRY%g", perm=4))
    assert manager.table["%RETRY%g"].perm == 4


async def test_a_topic_is_acknowledged_when_its_file_is_on_the_disk() -> None:
    manager, tables = _manager()
    heard: list[BaseException | None] = []
    manager.create_in_send("orders", "TBW102", 4, REMOTE)
    manager.persisted(heard.append)
    assert manager.pending and heard == []
    await rest(tables.worker)
    assert not manager.pending and heard == [None]
    again, _ = _manager(tables)
    assert again.table == manager.table
    assert again.data_version == manager.data_version


async def test_every_change_has_a_version_of_its_own_and_is_told() -> None:
    manager, _ = _manager()
    told: list[str] = []
    manager.add_change_listener(lambda topic: told.append(topic.topic_name))
    counters = [manager.data_version.counter]
    manager.create_in_send("orders", "TBW102", 4, REMOTE)
    counters.append(manager.data_version.counter)
    manager.create_in_send_back("%RETRY%g", 1, 6)
    counters.append(manager.data_version.counter)
    manager.update(TopicConfig(topic_name="orders", perm=4))
    counters.append(manager.data_version.counter)
    assert manager.delete("orders") and not manager.delete("orders")
    counters.append(manager.data_version.counter)
    assert counters == [0, 1, 2, 3, 4]
    assert told == ["orders", "%RETRY%g", "orders"]


async def test_rocketmqs_file_is_read_and_its_names_are_checked_again() -> None:
    text = (
        b'{\n\t"dataVersion":{\n\t\t"counter":3,\n\t\t"timestamp":1700000000000\n\t},\n'
        b'\t"topicConfigTable":{\n\t\t"TopicTest":{\n\t\t\t"attributes":{},\n\t\t\t"order":true,\n'
        b'\t\t\t"perm":6,\n\t\t\t"readQueueNums":4,\n\t\t\t"topicFilterType":"SINGLE_TAG",\n'
        b'\t\t\t"topicName":"TopicTest",\n\t\t\t"topicSysFlag":0,\n\t\t\t"writeQueueNums":4\n'
        b'\t\t},\n\t\t"../../etc":{"topicName":"x"},\n\t\t"Other":{"topicName":"lie"}\n\t}\n}'
    )
    manager, _ = _manager(Tables({PATH: text}))
    assert manager.table["TopicTest"] == TopicConfig(
        topic_name="TopicTest", order=True, read_queue_nums=4, write_queue_nums=4, attributes={}
    )
    assert manager.table["Other"].topic_name == "Other"
    assert "../../etc" not in manager.table and "TBW102" in manager.table
    assert manager.data_version.counter == 3


async def test_the_file_holds_rocketmqs_fields() -> None:
    manager, tables = _manager()
    manager.create_in_send("orders", "TBW102", 4, REMOTE)
    await rest(tables.worker)
    value = msgspec.json.decode(tables.files.texts[PATH])
    assert list(value) == ["dataVersion", "topicConfigTable"]
    assert value["topicConfigTable"]["orders"] == {
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "orders",
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }
