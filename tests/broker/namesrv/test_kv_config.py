"""Texts that a name server keeps: bounded, and on the disk before the answer."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from skylarkmq.broker.namesrv import kv_config
from skylarkmq.broker.namesrv.kv_config import KVConfig
from skylarkmq.protocol.errors import RemoteProtocolError
from tests.support.memory_files import Tables
from tests.support.workers import rest

PATH = Path("/namesrv/kvConfig.json")


def open_kv(tables: Tables) -> KVConfig:
    kv = KVConfig()
    kv.open(tables.files, PATH, tables.writer)
    return kv


async def test_values_are_set_found_and_forgotten() -> None:
    kv = KVConfig()
    kv.put("N", "T", "broker-a:4")
    kv.put("N", "T", "broker-a:8")
    assert kv.get("N", "T") == "broker-a:8"
    assert kv.of_namespace("N") == {"T": "broker-a:8"}
    kv.delete("N", "T")
    kv.delete("N", "T")
    assert kv.get("N", "T") is None
    assert kv.of_namespace("N") is None
    assert kv.file is None or not kv.file.pending


async def test_an_order_table_stays_when_its_last_topic_goes() -> None:
    tables = Tables()
    kv = open_kv(tables)
    assert kv.of_namespace("ORDER_TOPIC_CONFIG") is None
    kv.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4")
    kv.delete("ORDER_TOPIC_CONFIG", "T")
    assert kv.of_namespace("ORDER_TOPIC_CONFIG") == {}
    await rest(tables.worker)
    assert open_kv(tables).of_namespace("ORDER_TOPIC_CONFIG") == {}, "brokers are still to be told"


async def test_the_file_is_rocketmqs_and_survives() -> None:
    tables = Tables()
    kv = open_kv(tables)
    kv.put("N", "k", 'quoted "},"')
    assert kv.file is not None and kv.file.pending
    await rest(tables.worker)
    assert not kv.file.pending
    assert json.loads(tables.files.texts[PATH]) == {"configTable": {"N": {"k": 'quoted "},"'}}}
    assert open_kv(tables).get("N", "k") == 'quoted "},"'


async def test_a_disk_that_refuses_is_told() -> None:
    tables = Tables()
    kv = open_kv(tables)
    tables.files.error = OSError(errno.ENOSPC, "full")
    errors: list[BaseException | None] = []
    kv.put("N", "k", "v")
    kv.file.persisted(errors.append)
    await rest(tables.worker)
    assert isinstance(errors[0], OSError)
    assert kv.file is not None and kv.file.pending


@pytest.mark.parametrize(
    ("namespace", "key", "value"),
    [
        ("", "k", "v"),
        ("n", "", "v"),
        ("n" * 256, "k", "v"),
        ("n", "a\nb", "v"),
        ("n", "k", "v" * 65537),
    ],
)
async def test_what_is_too_long_or_no_name_is_refused(namespace: str, key: str, value: str) -> None:
    kv = KVConfig()
    with pytest.raises(RemoteProtocolError):
        kv.put(namespace, key, value)
    assert kv.of_namespace(namespace) is None


async def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_config, "ENTRIES_MAX", 2)
    monkeypatch.setattr(kv_config, "TOTAL_SIZE_MAX", 20)
    kv = KVConfig()
    kv.put("n", "a", "1")
    kv.put("n", "b", "1")
    with pytest.raises(RemoteProtocolError, match="no room"):
        kv.put("n", "c", "1")
    kv.put("n", "a", "2")
    with pytest.raises(RemoteProtocolError, match="no room"):
        kv.put("n", "a", "2" * 20)
    kv.delete("n", "b")
    kv.put("n", "c", "1" * 15)
    assert kv.get("n", "a") == "2"
