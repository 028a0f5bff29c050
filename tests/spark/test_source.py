"""The source through Spark, batch and stream, against a broker in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from skylarkmq.client import Message
from skylarkmq.client.sync import Producer
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.jobs.common import explain
from skylarkmq.spark.schema import COLUMNS, arrow_schema, names
from skylarkmq.spark.session import build_session
from skylarkmq.spark.settings import ConnectionSettings
from skylarkmq.testing.threaded import SyncBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timing

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
"""Spark's own setting, which must not matter here."""
TIME_ZONE = "spark.sql.session.timeZone"
COUNT = 400
"""Messages of a topic, over four queues in turn."""


def fill(broker: SyncBroker, topic: str, first: int = 0, count: int = COUNT) -> None:
    """Send messages whose bodies are their numbers; every third one has tag A, the others B."""
    with Producer(namesrv_addr=broker.namesrv_addr) as producer:
        queues = sorted(producer.queues(topic))
        for number in range(first, first + count):
            message = Message(
                topic,
                str(number),
                tags="A" if number % 3 == 0 else "B",
                keys=(f"k{number}", "all"),
                properties={"n": str(number)},
            )
            producer.send(message, queue=queues[number % len(queues)])


def numbers(frame: DataFrame) -> list[int]:
    return sorted(int(bytes(row.body)) for row in frame.select("body").collect())


@pytest.mark.spark
def test_batch(spark: SparkSession, broker: SyncBroker, topic: str) -> None:
    fill(broker, topic)

    def load(schema: str | None = None, **options: object) -> DataFrame:
        reader = spark.read.format("skylarkmq").options(nameServer=broker.namesrv_addr)
        reader = reader.options(topic=topic).options(**options)  # type: ignore[arg-type]
        return (reader.schema(schema) if schema else reader).load()

    everything = load(minPartitions=7, maxRecordsPerPartition=60)
    assert [field.name for field in everything.schema] == list(names())
    table = everything.toArrow()
    assert table.schema == arrow_schema(names(), COLUMNS)
    places = {(row["queueId"], row["queueOffset"]) for row in table.to_pylist()}
    assert places == {(queue, offset) for queue in range(4) for offset in range(COUNT // 4)}
    one = table.filter(pa.compute.equal(table["keys"], "k6 all")).to_pylist()[0]
    assert (one["body"], one["tags"], dict(one["properties"])["n"]) == (b"6", "A", "6")

    some = load("tags string, body binary, queueOffset bigint", subExpression="A || C")
    assert some.columns == ["tags", "body", "queueOffset"]
    assert numbers(some) == [number for number in range(COUNT) if number % 3 == 0]
    late = next(row for row in table.to_pylist() if (row["queueId"], row["queueOffset"]) == (2, 90))
    narrowed = (
        f"queueId = 2 AND queueOffset > 90 AND tags = 'B' "
        f"AND storeTimestamp >= '{late['storeTimestamp'].isoformat()}'"
    )
    for enabled in (False, True):
        spark.conf.set(PUSHDOWN, enabled)
        several = load(maxRecordsPerPartition=50)
        assert numbers(several.where(narrowed)) == [n for n in range(4 * 91 + 2, COUNT, 4) if n % 3]
        assert several.where("queueOffset = 7").count() == 4
        assert several.count() == COUNT
    spark.conf.unset(PUSHDOWN)
    some = load(maxRecordsPerPartition=50, keys="k6,k399")
    assert numbers(some) == [6, 399]
    assert (some.rdd.getNumPartitions(), several.rdd.getNumPartitions()) == (1, 8)


@pytest.mark.spark
def test_stream(spark: SparkSession, broker: SyncBroker, topic: str, tmp_path: Path) -> None:
    fill(broker, topic)

    def run() -> list[int]:
        """Read what there is, in batches, and return how large each was."""
        frame = (
            spark.readStream.format("skylarkmq")
            .schema("body binary, queueId int, queueOffset bigint")
            .options(nameServer=broker.namesrv_addr, topic=topic, startingOffsets="earliest")
            .options(maxOffsetsPerTrigger=150, consumerGroup=f"g_{topic}")
            .load()
        )
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "table"))
        )
        assert query.awaitTermination(120)
        return [progress.numInputRows for progress in query.recentProgress]

    assert [count for count in run() if count] == [150, 150, 100]
    fill(broker, topic, COUNT, 20)
    assert [count for count in run() if count] == [20]
    assert sum(run()) == 0
    table = spark.read.parquet(str(tmp_path / "table"))
    assert numbers(table) == list(range(COUNT + 20))
    client = BlockingClient(ConnectionSettings(name_servers=(broker.namesrv_addr,)))
    queues = client.read_queues(topic)
    committed = client.committed_offsets(f"g_{topic}", queues)
    assert committed == client.max_offsets(queues)  # the NEXT offsets: no lag is left
    client.close()


@pytest.mark.spark
def test_what_an_engineer_sees(
    spark: SparkSession, broker: SyncBroker, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert_settings_are_ours(spark)
    assert_a_plan_shows_no_secret(spark, broker, topic, capfd)

    def text(**options: object) -> str:
        reader = spark.read.format("skylarkmq").options(nameServer=broker.namesrv_addr)
        with pytest.raises(Exception) as error:
            reader.options(**options).load().collect()  # type: ignore[arg-type]
        return str(error.value)

    assert_tables_are_views(spark, broker, topic)
    assert "did you mean startingOffsets?" in text(topic=topic, startingOffset="earliest")
    assert "topic nothing_here does not exist" in text(topic="nothing_here")
    secret = text(topic=topic, accessKey="ak", secretKey="hush", nameServer="127.0.0.1:1",
                  startTimeoutMs=0)  # fmt: skip
    assert "127.0.0.1:1" in secret and "hush" not in secret


def assert_tables_are_views(spark: SparkSession, broker: SyncBroker, topic: str) -> None:
    using = f"USING skylarkmq OPTIONS (nameServer '{broker.namesrv_addr}', topic '{topic}')"

    def refusal(statement: str) -> str:
        with pytest.raises(Exception) as error:
            spark.sql(statement).collect()
        return explain(error.value)

    spark.sql(f"CREATE TEMPORARY VIEW view_{topic} {using}")
    assert spark.sql(f"SELECT count(*) FROM view_{topic}").collect() == [(1,)]
    instead = "use CREATE TEMPORARY VIEW ... USING skylarkmq OPTIONS (...)"
    assert instead in refusal(f"CREATE TABLE table_{topic} {using}")
    assert not spark.catalog.tableExists(f"table_{topic}")
    # Spark does not ask the source about a table whose columns are given.
    spark.sql(f"CREATE TABLE table_{topic} (body binary) {using}")
    assert instead in refusal(f"SELECT * FROM table_{topic}")
    assert instead in refusal(f"INSERT INTO table_{topic} VALUES (X'00')")
    spark.sql(f"DROP TABLE table_{topic}")


def assert_settings_are_ours(spark: SparkSession) -> None:
    assert spark.conf.get(TIME_ZONE) == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert build_session("again", **{TIME_ZONE: "CET"}) is spark
    assert spark.conf.get(TIME_ZONE) == "CET"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    spark.conf.set(TIME_ZONE, "UTC")


def assert_a_plan_shows_no_secret(
    spark: SparkSession, broker: SyncBroker, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with Producer(namesrv_addr=broker.namesrv_addr) as producer:
        producer.send(Message(topic, b"body"))
    options = {"accessKey": "who", "secretKey": "hush", "securityToken": "hush"}
    options |= {"nameServer": broker.namesrv_addr, "topic": topic}
    messages = spark.read.format("skylarkmq").options(**options).load()
    messages.explain(extended=True)
    assert messages.count() == 1
    out, err = capfd.readouterr()
    assert "hush" not in out + err
    assert "Relation" in out
