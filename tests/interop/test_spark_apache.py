"""The Spark connector against the broker under test, with RocketMQ's Java client at the other end.

    INTEROP_BROKER=apache .venv/bin/pytest -m interop tests/interop/test_spark_apache.py

All tests share one session, and one JVM of Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from skylarkmq.spark import archive_table
from skylarkmq.spark.jobs import archive
from tests.interop.servers import Broker
from tests.interop.tools import JavaTools, bodies, numbered
from tests.spark.conftest import QUICK
from tests.spark.support.archives import differences

if TYPE_CHECKING:
    from click import Command
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.spark]

COUNT = 90
WAIT_S = 120
PLACE = ("brokerName", "queueId", "queueOffset")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from skylarkmq.spark.session import build_session

    folder = tmp_path_factory.mktemp("spark")
    session = build_session(
        "interop", "local[2]", **{**QUICK, "spark.sql.warehouse.dir": folder / "warehouse"}
    )
    yield session
    session.stop()


@pytest.fixture
def sent(tools: JavaTools, topic: str) -> list[dict[str, Any]]:
    """What Java says of COUNT messages it sent to three queues, tags A, B and C in turn."""
    tools.queues(topic, create=3)
    return tools.produce(topic, "ordered", COUNT, tags="A,B,C", orders=3)


def read(spark: SparkSession, broker: Broker, topic: str, **options: str) -> DataFrame:
    return (
        spark.read.format("skylarkmq")
        .options(nameServer=broker.namesrv, topic=topic, **options)
        .load()
    )


def rows_of(frame: DataFrame) -> list[int]:
    """Java's numbers of the messages, sorted."""
    return sorted(int(row["properties"]["row"]) for row in frame.select("properties").collect())


def test_batch_has_what_java_sent(
    spark: SparkSession, broker: Broker, topic: str, sent: list[dict[str, Any]]
) -> None:
    found = {row["properties"]["row"]: row for row in read(spark, broker, topic).collect()}
    assert len(found) == len(sent) == COUNT
    for event in sent:
        row = found[str(event["index"])]
        assert bytes(row["body"]).decode() == f"m-{event['index']}"
        assert (row["brokerName"], row["queueId"], row["queueOffset"]) == (
            event["broker_name"], event["queue_id"], event["queue_offset"],
        )  # fmt: skip
        assert (row["msgId"], row["offsetMsgId"]) == (event["msg_id"], event["offset_msg_id"])
        assert (row["topic"], row["keys"]) == (topic, f"m-key-{event['index']}")
        assert row["tags"] == "ABC"[event["index"] % 3]
        assert (row["flag"], row["reconsumeTimes"]) == (event["index"], 0)
        assert row["properties"]["stadt"] == "Zürich"


def test_selection_by_tag_and_by_sql(
    spark: SparkSession, broker: Broker, topic: str, sent: list[dict[str, Any]]
) -> None:
    tagged = read(spark, broker, topic, subExpression="A || C")
    assert rows_of(tagged) == [row for row in range(COUNT) if row % 3 != 1]
    chosen = read(spark, broker, topic, expressionType="SQL92", subExpression="row BETWEEN 5 AND 8")
    assert rows_of(chosen) == [5, 6, 7, 8]


def test_stream_in_bounded_batches(
    spark: SparkSession, broker: Broker, tools: JavaTools, topic: str,
    sent: list[dict[str, Any]], group: str, tmp_path: Path,
) -> None:  # fmt: skip
    """Two runs on one checkpoint; the second has what came between them; offsets go back."""
    messages = (
        spark.readStream.format("skylarkmq")
        .options(nameServer=broker.namesrv, topic=topic, startingOffsets="earliest")
        .options(maxOffsetsPerTrigger="40", consumerGroup=group)
        .load()
    )

    def run() -> int:
        query = (
            messages.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        assert query.awaitTermination(WAIT_S)
        return len([batch for batch in query.recentProgress if batch.numInputRows])

    assert run() == 3
    tools.produce(topic, "ordered", 12, tags="A,B,C", orders=3)
    assert run() == 1
    table = spark.read.parquet(str(tmp_path / "out"))
    assert table.count() == table.select(*PLACE).distinct().count() == COUNT + 12
    assert sum(event["offset"] for event in tools.pull(topic, group)) == COUNT + 12


def test_sink_is_read_by_java(
    spark: SparkSession, broker: Broker, tools: JavaTools, topic: str, group: str
) -> None:
    tools.queues(topic, create=3)
    frame = spark.range(COUNT).selectExpr(
        "concat('m-', id) as body", "'T' as tags", "concat('key ', id) as keys",
        "map('row', cast(id as string), 'stadt', 'Zürich') as properties",
    )  # fmt: skip
    options = {"nameServer": broker.namesrv, "topic": topic}
    frame.write.format("skylarkmq").options(**options).mode("append").save()
    received = tools.received(topic, group, COUNT)
    assert bodies(received) == numbered("m", COUNT)
    assert {event["properties"]["stadt"] for event in received} == {"Zürich"}
    assert {event["tags"] for event in received} == {"T"}
    assert len({event["msg_id"] for event in received}) == COUNT


def test_log_reader_has_the_same_messages(
    spark: SparkSession, broker: Broker, topic: str, sent: list[dict[str, Any]]
) -> None:
    """The broker runs meanwhile; nothing of its disk is changed."""
    store = broker.folder / "store"
    log = spark.read.format("skylarkmq-commitlog").option("topic", topic).load(str(store))
    common = [name for name in read(spark, broker, topic).columns if name != "brokerName"]
    from_disk = log.select(*common, "crcOk", "recordKind").collect()
    assert {(row["crcOk"], row["recordKind"]) for row in from_disk} == {(True, "message")}
    from_broker = read(spark, broker, topic).select(*common).collect()

    def plain(row: Any) -> tuple[Any, ...]:
        return tuple(
            sorted(row[name].items()) if name == "properties" else row[name] for name in common
        )

    assert sorted(map(plain, from_disk)) == sorted(map(plain, from_broker))
    assert len(from_disk) == COUNT


def run_job(command: Command, capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    """Run a job in this session; its summary, of a run that found nothing wrong."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        command.main([*map(str, words), "--json"])
    summary = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0, json.dumps(summary)  # a text is printed whole
    return summary


def test_archive(
    spark: SparkSession, broker: Broker, topic: str, sent: list[dict[str, Any]],
    tools: JavaTools, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Two runs, the second with what came meanwhile; topic and table agree."""
    table, where = tmp_path / "table", ("--name-server", broker.namesrv)
    run_job(archive.main, capsys, topic, table, *where, "--batch-messages", 40)
    assert archive_table.read(spark, table).count() == COUNT
    tools.produce(topic, "ordered", 12, tags="A,B,C", orders=3, prefix="late")
    assert run_job(archive.main, capsys, topic, table, *where)["figures"]["messages"] == 12
    archived = archive_table.read(spark, table)
    assert archived.select(*PLACE).distinct().count() == archived.count() == COUNT + 12
    assert rows_of(archived.where("tags = 'A'")) == sorted([*range(0, COUNT, 3), *range(0, 12, 3)])
    assert differences(spark, table, broker.namesrv, topic) == []
