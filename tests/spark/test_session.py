"""The session of the connector: what it is given, and that it works."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from skylarkmq.client import Message
from skylarkmq.client.spark import java, session
from skylarkmq.client.sync import Producer
from skylarkmq.testing.threaded import SyncBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
TIME_ZONE = "spark.sql.session.timeZone"


@pytest.mark.parametrize(
    ("master", "told", "local"),
    [
        ("local", {}, True),
        ("local[2]", {}, True),
        ("local-cluster[2,1,1024]", {}, True),
        (None, {"spark.master": "local[*]"}, True),
        ("spark://host:7077", {}, False),
        (None, {"spark.master": "yarn"}, False),
        (None, {}, False),
    ],
)
def test_only_a_local_master_is_tied_to_this_machine(
    master: str | None, told: dict[str, str], local: bool
) -> None:
    chosen = session.choose(master, told, {})
    assert (chosen.get("spark.driver.host") == "127.0.0.1") == local
    assert (chosen.get("spark.driver.bindAddress") == "127.0.0.1") == local
    assert ("spark.sql.shuffle.partitions" in chosen) == local
    assert session.SETTINGS.items() <= chosen.items()


def test_what_the_caller_says_goes_first_then_spark_submit() -> None:
    told = {ARROW_BYTES: "77", "spark.driver.host": "me", TIME_ZONE: "CET"}
    chosen = session.choose("local", told, {ARROW_BYTES: 5, "spark.ui.enabled": False})
    assert chosen[ARROW_BYTES] == "5"
    assert chosen["spark.ui.enabled"] == "false"
    assert not {"spark.driver.host", TIME_ZONE} & chosen.keys()
    assert chosen["spark.log.level"] == "WARN"


def test_workers_run_the_python_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "ensure", lambda: None)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.setenv(name, "as it was")
        monkeypatch.delenv(name)
    session.prepare()
    assert os.environ["PYSPARK_PYTHON"] == os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "./environment/bin/python")
    session.prepare()
    assert os.environ["PYSPARK_PYTHON"] == "./environment/bin/python"


@pytest.mark.spark
def test_a_session_has_our_settings_and_shows_no_secret(
    spark: SparkSession, broker: SyncBroker, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert spark.conf.get(TIME_ZONE) == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert session.build_session("again", **{TIME_ZONE: "CET"}) is spark
    assert spark.conf.get(TIME_ZONE) == "CET"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    spark.conf.set(TIME_ZONE, "UTC")
    with Producer(broker.namesrv_addr) as producer:
        producer.send(Message(topic, b"body"))
    options = {"accessKey": "who", "secretKey": "hush", "securityToken": "hush"}
    options |= {"nameServer": broker.namesrv_addr, "topic": topic}
    messages = spark.read.format("skylarkmq").options(**options).load()
    messages.explain(extended=True)
    assert messages.count() == 1
    out, err = capfd.readouterr()
    assert "hush" not in out + err
    assert "Relation" in out
