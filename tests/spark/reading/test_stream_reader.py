"""What Spark sees of the stream and of the batch, without a JVM: limits, JSON, pickles."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from skylarkmq.client import Message
from skylarkmq.client.sync import Admin, Producer
from skylarkmq.spark.clients import close_all
from skylarkmq.spark.errors import DataLost
from skylarkmq.spark.offsets import QueueOffsets
from skylarkmq.spark.option_reading import OptionError
from skylarkmq.spark.reading.planning import NO_LIMIT, Limit
from skylarkmq.spark.reading.readers import BatchReader, StreamReader
from skylarkmq.spark.schema import SchemaError
from skylarkmq.spark.source import SkylarkSource
from skylarkmq.testing.threaded import SyncBroker
from tests.spark.support.scripted_brokers import late_broker

BODY = StructType([StructField("body", BinaryType()), StructField("queueOffset", LongType())])


def source(**given: object) -> SkylarkSource:
    texts = {"nameServer": "n:1", "topic": "T", **{name: str(v) for name, v in given.items()}}
    return SkylarkSource(texts)


def stream(**given: object) -> StreamReader:
    return source(**given).streamReader(BODY)


@pytest.mark.parametrize(
    ("options", "spark_limit", "limit"),
    [
        ({}, ReadAllAvailable(), NO_LIMIT),
        ({"maxOffsetsPerTrigger": 5}, ReadMaxRows(5), Limit(5)),
        ({"minOffsetsPerTrigger": 2}, ReadMinRows(2), Limit(None, 2)),
        ({"maxOffsetsPerTrigger": 5, "minOffsetsPerTrigger": 2}, ReadMaxRows(5), Limit(5, 2)),
    ],
)
def test_limits(options: dict[str, object], spark_limit: ReadLimit, limit: Limit) -> None:
    reader = stream(**options)
    assert reader.getDefaultReadLimit() == spark_limit
    assert reader._limit(spark_limit) == limit
    assert reader._limit(ReadAllAvailable()) == NO_LIMIT  # Trigger.Once ignores the options


def test_readers_travel_and_are_connected_to_nobody() -> None:
    with late_broker() as names:
        access = {"secretKey": "hush", "accessKey": "ak"}
        reader = stream(nameServer=names.address, startTimeoutMs=0, **access)
        reader._planner()
    copy = pickle.loads(pickle.dumps(reader))
    assert copy._made is None and copy._columns == ("body", "queueOffset")
    batch = source().reader(BODY)
    assert pickle.loads(pickle.dumps(batch))._columns == ("body", "queueOffset")


def test_errors_come_early() -> None:
    with pytest.raises(OptionError, match="did you mean topic"):
        source(topics="T").streamReader(BODY)
    with pytest.raises(SchemaError, match="Did you mean body"):
        source().reader(StructType([StructField("bodi", StringType())]))
    assert SkylarkSource.name() == "skylarkmq"


@pytest.fixture
def filled(broker: SyncBroker, topic: str) -> Iterator[dict[str, object]]:
    with Producer(namesrv_addr=broker.namesrv_addr) as producer:
        for number in range(20):
            producer.send(Message(topic, str(number)))
    yield {"nameServer": broker.namesrv_addr, "topic": topic, "offsetCacheMs": 0}
    close_all()


def rows(reader: StreamReader | BatchReader, partitions: list[InputPartition]) -> list[int]:
    batches = [batch for each in partitions for batch in reader.read(each)]
    return sorted(int(row["body"]) for batch in batches for row in batch.to_pylist())


def test_a_query(filled: dict[str, object]) -> None:
    reader = stream(**filled, startingOffsets="earliest", maxOffsetsPerTrigger=8)
    task_side = pickle.loads(pickle.dumps(reader))
    assert reader.reportLatestOffset() is None
    at = json.loads(json.dumps(reader.initialOffset()))
    found: list[int] = []
    reader.prepareForTriggerAvailableNow()
    while True:
        end = json.loads(json.dumps(reader.latestOffset(at, reader.getDefaultReadLimit())))
        if json.dumps(end) == json.dumps(at):
            break
        partitions = pickle.loads(pickle.dumps(reader.partitions(at, end)))
        batch = rows(task_side, partitions)
        assert len(batch) <= 8
        found += batch
        reader.commit(end)
        at = end
    assert sorted(found) == list(range(20))
    report = json.loads(json.dumps(reader.reportLatestOffset()))
    told = {"behind": {filled["topic"]: 0}, "lost": 0, "away": []}
    assert report == {"v": 1, "o": at["o"]} | told
    reader.stop()


@pytest.mark.parametrize("lenient", [False, True])
def test_a_topic_made_anew_while_the_query_was_away(
    broker: SyncBroker, topic: str, filled: dict[str, object], lenient: bool
) -> None:
    options = {**filled, "startingOffsets": "earliest", "failOnDataLoss": not lenient}
    query = stream(**options)
    start = query.latestOffset(query.initialOffset(), ReadAllAvailable())
    assert stream(**options).latestOffset(start, ReadAllAvailable()) == start
    with Admin(namesrv_addr=broker.namesrv_addr) as admin:
        admin.delete_topic(topic)
    broker.create_topic(topic)
    with Producer(namesrv_addr=broker.namesrv_addr) as producer:
        for number in range(100, 140):
            producer.send(Message(topic, str(number)))
    query = stream(**options)
    if not lenient:
        with pytest.raises(DataLost, match="made anew"):
            query.latestOffset(start, ReadAllAvailable())
        with pytest.raises(DataLost, match="made anew"):  # a batch that is read after a crash
            stream(**options).partitions(start, query_end(start, 2))
        return
    end = query.latestOffset(start, ReadAllAvailable())
    assert rows(query, query.partitions(start, end)) == list(range(100, 140))
    assert rows(query, stream(**options).partitions(start, end)) == list(range(100, 140))
    assert query.latestOffset(end, ReadAllAvailable()) == end


def query_end(start: dict[str, object], more: int) -> dict[str, object]:
    """An end with a few more messages in each queue."""
    offsets = QueueOffsets.from_json(start)
    return QueueOffsets({key: at + more for key, at in offsets.items()}).to_json()


def test_a_task_takes_several_short_ranges(filled: dict[str, object]) -> None:
    reader = source(**filled).reader(BODY)
    (one,) = reader.partitions()
    assert len(one.value) == 4, "the queues of the topic"
    (batch,) = reader.read(one)
    assert batch.num_rows == 20, "in one Arrow batch"
    assert len(source(**filled, pullBatchSize=5).reader(BODY).partitions()) == 4
    few = source(**filled, pullBatchSize=5, maxPartitions=3).reader(BODY)
    assert len(few.partitions()) == 3 and rows(few, few.partitions()) == list(range(20))
    query = stream(**filled, pullBatchSize=5, maxPartitions=3, startingOffsets="earliest")
    end = query.latestOffset(query.initialOffset(), ReadAllAvailable())
    assert len(query.partitions(query.initialOffset(), end)) == 3


def test_messages_of_some_keys(broker: SyncBroker, topic: str) -> None:
    with Producer(namesrv_addr=broker.namesrv_addr) as producer:
        for number in range(200):
            keys = {5: "a b", 9: "b", 180: "ab a"}.get(number, f"k{number % 2}")
            producer.send(Message(topic, str(number), keys=keys.split()))
    given: dict[str, object] = {"nameServer": broker.namesrv_addr, "topic": topic}
    some = source(**given, keys="a").reader(BODY)
    assert sum(each.message_count for task in some.partitions() for each in task.value) == 2
    assert rows(some, some.partitions()) == [5, 180]
    (batch,) = (batch for task in some.partitions() for batch in some.read(task))
    assert batch.schema.names == ["body", "queueOffset"]
    both = source(**given, keys="a,b,nobody").reader(BODY)
    assert rows(both, both.partitions()) == [5, 9, 180]
    many = source(**given, keys="k1").reader(BODY)  # more than an index gives
    assert rows(many, many.partitions()) == [n for n in range(1, 200, 2) if n not in (5, 9)]
    close_all()


def test_a_batch(filled: dict[str, object]) -> None:
    reader = source(**filled, minPartitions=9).reader(BODY)
    partitions = reader.partitions()
    assert type(partitions) is list and len(partitions) == 9
    assert rows(reader, partitions) == list(range(20))
    assert list(reader.read(InputPartition(None))) == []  # Spark's one task of an empty read
