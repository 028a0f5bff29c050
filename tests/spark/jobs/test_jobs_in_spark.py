"""The jobs `metrics` and `dlq` through Spark, by their commands, against a broker here."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from prometheus_client import CollectorRegistry

from skylarkmq.client import Message, StartFrom
from skylarkmq.client.sync import Client, Consumer, Producer
from skylarkmq.protocol.message import MessageExt
from skylarkmq.spark.jobs.dlq import main as dlq
from skylarkmq.spark.jobs.metrics import main as metrics
from skylarkmq.spark.jobs.window_table import SCHEMA
from skylarkmq.spark.jobs.windows import DELAY_BOUNDS_MS
from skylarkmq.spark.progress import watch
from skylarkmq.spark.storage import Location
from skylarkmq.testing.threaded import SyncBroker
from tests.spark.support.s3_server import S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 900
WINDOW_MS = 50
Window = tuple[int, str, str]


def run(command: click.Command, *arguments: str, code: int = 0) -> dict[str, Any]:
    """Run a command; return its summary."""
    result = CliRunner().invoke(command, [*arguments, "--json"])
    assert result.exit_code == code, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def fill(broker: SyncBroker, topic: str, count: int) -> None:
    with Producer(namesrv_addr=broker.namesrv_addr) as producer:
        for number in range(count):
            tag = ("red", "blue", None)[number % 3]
            producer.send(Message(topic, b"x" * number, tags=tag, keys=(f"k{number}",)))


def give_up(broker: SyncBroker, topic: str, group: str, count: int) -> None:
    with (
        Client(broker.namesrv_addr) as client,
        Consumer(topic, client=client, group=group, start_from=StartFrom.FIRST) as member,
    ):
        for _ in range(count):
            member.getone(30).dead_letter()
        member.commit()


def expected(first: list[MessageExt], dead: list[MessageExt], topic: str) -> dict[Window, Any]:
    """What all rows of a window come to together, counted here."""
    found: dict[Window, Counter[str]] = {}
    for name, messages in (("messages", first), ("deadLetters", dead)):
        for message in messages:
            start = message.store_timestamp - message.store_timestamp % WINDOW_MS
            sums = found.setdefault((start, topic, message.tags or ""), Counter())
            delay = message.store_timestamp - message.born_timestamp
            sums.update({name: 1, "storedBytes": message.store_size})
            sums["bodyBytes"] += len(message.body)
            if name == "messages":
                sums["delayMsSum"] += delay
                for number, bound in enumerate(DELAY_BOUNDS_MS):
                    sums[f"le{number}"] += delay <= bound
    return {window: +sums for window, sums in found.items()}


def summed(rows: list[dict[str, Any]]) -> dict[Window, Any]:
    """The same of the rows that the job wrote; times as ms."""
    found: dict[Window, Counter[str]] = {}
    for row in rows:
        start = int(row["windowStart"].timestamp() * 1000)
        sums = found.setdefault((start, row["topic"], row["tag"] or ""), Counter())
        for name in ("messages", "deadLetters", "storedBytes", "bodyBytes", "delayMsSum"):
            sums[name] += row[name]
        sums.update({f"le{number}": count for number, count in enumerate(row["delayCounts"])})
    return {window: +sums for window, sums in found.items()}


@pytest.mark.spark
def test_metrics(spark: SparkSession, broker: SyncBroker, topic: str, s3_server: S3Server) -> None:
    """Into an object store, for which Spark itself has no library."""
    fill(broker, topic, COUNT)
    give_up(broker, topic, f"g_{topic}", 7)
    broker.create_topic(f"{topic}_windows", 1)
    output = Location.parse(s3_server.place(), s3_server.options, {})
    storage = [f"--storage-option={name}={value}" for name, value in s3_server.options.items()]
    arguments = [
        topic, "--output", output.uri, *storage, "--name-server", broker.namesrv_addr,
        "--window", f"{WINDOW_MS}ms", "--watermark", "0", "--group", f"g_{topic}", "--body-bytes",
        "--batch-messages", "400", "--to-topic", f"{topic}_windows",
    ]  # fmt: skip
    assert run(metrics, *arguments, "--dry-run")["figures"]["messages"] == COUNT + 7
    assert output.names() == []

    registry = CollectorRegistry()
    watching = watch(spark, registry=registry)
    first = run(metrics, *arguments)["figures"]
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    assert registry.get_sample_value("skylarkmq_spark_rows_total", {"query": "metrics"}) == (
        COUNT + 7
    )
    watching.close()
    assert (first["messages"], first["batches"]) == (COUNT + 7, 3)
    fill(broker, topic, 10)  # these close what was open before
    second = run(metrics, *arguments)["figures"]
    assert (second["messages"], second["batches"]) == (10, 1)

    table = DeltaTable(output.uri, storage_options=output.delta_options()).to_pyarrow_table()
    assert table.column_names == SCHEMA.names
    rows = table.to_pylist()
    dead = broker.messages(f"%DLQ%g_{topic}")
    wanted = expected(broker.messages(topic), dead, topic)
    open_windows = {window for window in wanted if window not in summed(rows)}
    counted = sum(
        wanted[window]["messages"] + wanted[window]["deadLetters"] for window in open_windows
    )
    assert counted == second["messages_in_open_windows"]
    for window in open_windows:
        del wanted[window]
    assert summed(rows) == wanted
    final = Counter((row["windowStart"], row["tag"]) for row in rows if row["kind"] == "window")
    assert set(final.values()) == {1}
    late = sum(row["messages"] + row["deadLetters"] for row in rows if row["kind"] == "late")
    assert late == first["late_messages"] + second["late_messages"]
    sent = [json.loads(message.body) for message in broker.messages(f"{topic}_windows")]
    assert sorted(json.dumps(one["delayCounts"]) for one in sent) == sorted(
        json.dumps(row["delayCounts"]) for row in rows
    )


@pytest.mark.spark
def test_dlq(spark: SparkSession, broker: SyncBroker, topic: str, tmp_path: Path) -> None:
    fill(broker, topic, 30)
    group = f"g_{topic}"
    common = [group, "--name-server", broker.namesrv_addr]
    assert run(dlq, "report", *common)["figures"]["letters"] == 0
    give_up(broker, topic, group, 20)
    letters = broker.messages(f"%DLQ%{group}")
    report = run(dlq, "report", *common)
    assert report["figures"]["letters"] == 20
    tags = Counter(message.tags or "" for message in letters)
    assert {row["tag"]: row["letters"] for row in report["tables"]["by tag"]} == tags
    assert report["tables"]["by first topic"] == [{"topic": topic, "letters": 20}]
    assert report["tables"]["by age"] == [{"age": "under 1 hour", "letters": 20}]

    chosen = ["redrive", *common, "--ledger", str(tmp_path / "ledger.jsonl")]
    red = [*chosen, "--filter", f"tags = 'red' and originTopic = '{topic}' and bodyText like '%x%'"]
    reds = {
        message.msg_id: message for message in letters if message.tags == "red" and message.body
    }
    assert run(dlq, *red)["figures"]["would_send"] == len(reds)
    assert len(broker.messages(topic)) == 30
    assert run(dlq, *red, "--send", "--rate", "1000")["figures"]["sent"] == len(reds)
    copies = broker.messages(topic)[30:]
    assert {copy.msg_id for copy in copies} == set(reds)
    assert all(copy.body == reds[copy.msg_id].body for copy in copies)
    rest = run(dlq, *chosen, "--send")["figures"]
    assert (rest["sent"], rest["done_before"]) == (20 - len(reds), len(reds))
    assert len(broker.messages(topic)) == 50
    wrong = run(dlq, "report", *common, "--filter", "colour = 1", code=2)
    assert "colour" in wrong["figures"]["error"]
