"""The sink against a broker in this process: its writers by themselves, then through Spark."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark import SparkFiles
from pyspark.errors import StreamingQueryException
from pyspark.sql.types import LongType, StructField, StructType

from skylarkmq.client import DeduplicationWindow
from skylarkmq.client.errors import ConnectionFailed
from skylarkmq.client.producer.lanes import by_hash
from skylarkmq.client.sync import Admin
from skylarkmq.protocol.message import MessageExt
from skylarkmq.spark import clients
from skylarkmq.spark.errors import SendFailed
from skylarkmq.spark.option_reading import OptionError
from skylarkmq.spark.schema import SchemaError
from skylarkmq.spark.sink import BatchSink, SendReceipt, StreamSink, batch_sink, stream_sink
from skylarkmq.spark.writing.promises import Promise
from skylarkmq.spark.writing.rows import RowError
from skylarkmq.spark.writing.sink_task import QueueTotal
from skylarkmq.spark.writing.unique_keys import PlaceKeys
from skylarkmq.spark.writing.window import MessageQueue
from skylarkmq.testing.threaded import SyncBroker
from tests.spark.support.scripted_brokers import late_broker, waiting_for
from tests.spark.support.sink_tasks import BODY, LOCAL, Context, batches, in_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(autouse=True)
def no_clients_left() -> Iterator[None]:
    yield
    clients.close_all()


def keys(messages: Sequence[MessageExt]) -> list[str]:
    return [message.unique_key or "" for message in messages]


def test_a_repeated_task_gives_its_rows_the_same_keys(
    broker: SyncBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"nameserver": broker.namesrv_addr, "topic": topic}
    bodies = [b"%d" % number for number in range(700)]
    receipts: list[SendReceipt] = []
    for attempt in range(2):
        # Another writer, as after a restart of the query: the checkpoint alone keeps its id.
        writer = pickle.loads(pickle.dumps(stream_sink(options, BODY, overwrite=False)))
        in_task(monkeypatch, Context(3, attempt, LOCAL))
        receipts.append(writer.write(batches(bodies)))
    first, second = receipts
    assert (first.count, first.size) == (700, sum(map(len, bodies)))
    assert (first.partition, first.attempt, second.attempt) == (3, 0, 1)
    assert first.queues == second.queues
    stored = broker.messages(topic)
    assert len(stored) == 1400
    place_keys = PlaceKeys(("the-query", "7", 3))
    wanted = {place_keys.key(topic, row): body for row, body in enumerate(bodies)}
    assert {message.unique_key: message.body for message in stored} == wanted
    for queue, total in first.queues.items():
        mine = [message for message in stored if message.queue_id == queue.queue_id]
        assert len(mine) == 2 * total.count
        assert keys(mine)[0] == total.first_unique_key
        assert keys(mine)[-1] == total.last_unique_key


def test_a_batch_write_has_keys_of_its_own(
    broker: SyncBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"nameserver": broker.namesrv_addr, "topic": topic}
    in_task(monkeypatch, Context())
    one, two = (batch_sink(options, BODY, overwrite=False) for _ in range(2))
    for writer in (one, one, two):
        assert writer.write(batches([b"x", b"y"])).count == 2
    stored = keys(broker.messages(topic))
    assert len(stored) == 6
    assert sorted(stored.count(key) for key in set(stored)) == [1, 1, 2, 2]


def foreach_batch_write(options: dict[str, str], *bodies: bytes) -> BatchSink:
    """Make a write as `foreachBatch` does, one task of it, and commit it."""
    writer: BatchSink = pickle.loads(pickle.dumps(batch_sink(options, BODY, overwrite=False)))
    writer.commit([writer.write(batches(bodies))])
    return writer


def test_writes_of_one_foreach_batch_have_keys_of_their_own(
    broker: SyncBroker, topic: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    options = {"nameserver": broker.namesrv_addr, "topic": topic}
    broker.create_topic(f"{topic}_other", 1)
    writes = [options, {**options, "topic": f"{topic}_other"}, {**options, "writename": "second"}]
    for attempt in ("12", "20"):  # the second time as if a restarted query repeated the batch
        in_task(monkeypatch, Context(local={**LOCAL, "spark.sql.execution.root.id": attempt}))
        for number, each in enumerate(writes):
            foreach_batch_write(each, b"%d" % number)
    stored = [*broker.messages(topic), *broker.messages(f"{topic}_other")]
    body_of = {message.unique_key: message.body for message in stored}
    assert len(stored) == 6
    assert sorted(body_of.values()) == [b"0", b"1", b"2"]
    assert all(body_of[message.unique_key] == message.body for message in stored)
    assert len(list(tmp_path.glob("skylarkmq-writes/the-query/*"))) == len(writes)


def test_a_write_that_cannot_be_told_from_another_of_its_batch_is_refused(
    broker: SyncBroker, topic: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    in_task(monkeypatch, Context(local=LOCAL))
    options = {"nameserver": broker.namesrv_addr, "topic": topic}
    at_once = batch_sink(options, BODY, overwrite=False)
    foreach_batch_write(options, b"first")
    cure = rf"to topic {topic}, with no option writeName.*Give each write.*a writeName of its own"
    with pytest.raises(OptionError, match=cure):
        foreach_batch_write(options, b"second")
    assert [message.body for message in broker.messages(topic)] == [b"first"]
    receipt = at_once.write(batches([b"third"]))
    with pytest.raises(OptionError, match=cure):
        at_once.commit([receipt])
    foreach_batch_write({**options, "idempotencycolumns": "body"}, b"by its own identity")


def test_a_bad_row_ends_the_task(
    broker: SyncBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"nameserver": broker.namesrv_addr, "topic": topic, "maxmessagesize": "100"}
    in_task(monkeypatch, Context(2))
    writer = batch_sink({**options, "sendbatchbytes": "90"}, BODY, overwrite=False)
    with pytest.raises(RowError, match=r"row 1 of partition 2, to topic .* 101 bytes.* 100\. R"):
        writer.write(batches([b"x", bytes(101)]))


PRIORITY = StructType([*BODY.fields, StructField("priority", LongType())])


def with_priorities() -> pa.RecordBatch:
    """Ten rows, each with its priority as body; the last one has none."""
    priorities = [0, 9, 2, 3, 1, 2**31 - 1, 2, 7, 0, None]
    bodies = pa.array([str(each).encode() for each in priorities])
    return pa.record_batch([bodies, pa.array(priorities, pa.int64())], names=PRIORITY.names)


@pytest.mark.parametrize("windowed", [False, True])
def test_a_priority_is_the_queue(broker: SyncBroker, topic: str, windowed: bool) -> None:
    topic = f"{topic}_urgent"
    window = DeduplicationWindow(3600, 1000) if windowed else None
    with Admin(namesrv_addr=broker.namesrv_addr) as admin:
        admin.create_topic(topic, queues=4, message_type="PRIORITY", deduplication=window)
    options = {"nameserver": broker.namesrv_addr, "topic": topic, "idempotencycolumns": "priority"}
    options["delivery"] = "exactlyOnce" if windowed else "atLeastOnce"
    rows = with_priorities()
    for _ in range(2):
        receipt = batch_sink(options, PRIORITY, overwrite=False).write(iter([rows[:-1]]))
        assert receipt.count == 9
    stored = broker.messages(topic)
    assert len(stored) == (7 if windowed else 18)  # two priorities are there twice
    for message in stored:
        assert message.priority == int(message.body)
        assert message.queue_id == min(message.priority, 3)


def test_a_topic_without_priorities(broker: SyncBroker, topic: str) -> None:
    options = {"nameserver": broker.namesrv_addr, "topic": topic}
    sink = batch_sink(options, PRIORITY, overwrite=False)
    assert sink.write(iter([with_priorities()[-1:]])).count == 1
    with pytest.raises(SendFailed, match=f"topic {topic} has no priorities"):
        sink.write(iter([with_priorities()]))


@pytest.mark.parametrize("sink", [batch_sink, stream_sink])
def test_the_driver_waits_for_the_cluster_once(
    sink: Callable[..., object], caplog: pytest.LogCaptureFixture
) -> None:
    with late_broker() as names:
        options = {"nameserver": names.address, "topic": "T"}
        for _ in range(3):  # as in each micro-batch
            sink(options, BODY, overwrite=False)
        assert [record.getMessage() for record in caplog.records] == [waiting_for(names)]
        assert len(names.requests) == 2


def test_what_waiting_does_not_mend_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    options = {"nameserver": "no such host:1", "topic": "T"}
    with pytest.raises(ConnectionFailed, match="no such host"):
        batch_sink(options, BODY, overwrite=False)
    with pytest.raises(OptionError, match="or a column msgId"):
        batch_sink({**options, "delivery": "exactlyOnce"}, BODY, overwrite=False)
    assert not caplog.records


def test_an_empty_task() -> None:
    with late_broker() as names:
        options = {"nameserver": names.address, "topic": "T", "starttimeoutms": "0"}
        receipt = batch_sink(options, BODY, overwrite=False).write(iter(()))
    assert (receipt.count, receipt.queues) == (0, {})


def test_what_the_driver_refuses() -> None:
    options = {"nameserver": "127.0.0.1:1", "topic": "T"}
    with pytest.raises(OptionError, match=r'cannot be overwritten; use \.mode\("append"\)'):
        batch_sink(options, BODY, overwrite=True)
    with pytest.raises(OptionError, match=r"output mode complete"):
        stream_sink(options, BODY, overwrite=True)
    with pytest.raises(OptionError, match="writeName is for writes inside foreachBatch"):
        stream_sink({**options, "writename": "x"}, BODY, overwrite=False)
    with pytest.raises(SchemaError, match="no column topic"):
        stream_sink({"nameserver": "127.0.0.1:1"}, BODY, overwrite=False)


def test_what_the_driver_logs(caplog: pytest.LogCaptureFixture) -> None:
    queue = MessageQueue("T", "a", 0)
    told = {"T": Promise(why="broker a is RocketMQ 4.9.8")}
    totals = QueueTotal(5, 50, "a", "e"), QueueTotal(3, 30, "f", "h", 1)
    receipts = [
        SendReceipt(0, 0, 5, 50, 0, {queue: totals[0]}, promises=told),
        SendReceipt(1, 2, 3, 30, 1, {queue: totals[1]}, promises=told),
        None,
    ]
    with late_broker() as names:
        options = {"nameserver": names.address, "topic": "T", "starttimeoutms": "0"}
        writer: StreamSink = stream_sink(options, BODY, overwrite=False)
    with caplog.at_level(logging.INFO):
        writer.commit(pickle.loads(pickle.dumps(receipts)), 4)
        writer.abort([None, receipts[0]], 5)
    assert [record.getMessage() for record in caplog.records] == [
        "micro-batch 4: sent 8 messages, 80 bytes, to 1 queues",
        "micro-batch 4: topic T: at least once: broker a is RocketMQ 4.9.8",
        "micro-batch 4: 1 requests were sent again without an answer: their messages may be there "
        "twice, with the same unique keys",
        "micro-batch 4: Spark repeated the tasks of partitions [1]: their messages may be there "
        "more than once, with the same unique keys",
        "micro-batch 5 failed: at least 5 messages of it are sent and stay sent; the next try "
        "sends its rows again",
    ]


@pytest.mark.spark
def test_through_spark(spark: SparkSession, broker: SyncBroker, topic: str, tmp_path: Path) -> None:
    options = {"nameServer": broker.namesrv_addr, "topic": topic}
    rows = spark.range(0, 300, numPartitions=3).selectExpr(
        "concat('body ', id) AS body", "array(concat('k', id), 'all') AS keys",
        "if(id % 3 = 0, 'A', null) AS tags", "map('n', cast(id AS string)) AS properties",
        "concat('s', id % 7) AS shardingKey", "cast(id AS int) AS flag", "'not there' AS topic",
    )  # fmt: skip
    rows.write.format("skylarkmq").options(**options).mode("append").save()
    stored = {message.flag: message for message in broker.messages(topic)}
    assert sorted(stored) == list(range(300))
    queues = [MessageQueue(topic, "broker-a", number) for number in range(4)]
    for number, message in stored.items():
        assert message.body == f"body {number}".encode()
        assert message.keys == f"k{number} all"
        assert message.tags == ("A" if number % 3 == 0 else None)
        assert message.properties["n"] == str(number)
        assert message.queue_id == by_hash(queues, f"s{number % 7}").queue_id

    again = f"{topic}_again"
    broker.create_topic(again, 2)

    def copy() -> None:
        """Copy the topic, until its end."""
        read = spark.readStream.format("skylarkmq").options(**options, startingOffsets="earliest")
        sent = read.load().writeStream.format("skylarkmq")
        query = (
            sent.options(nameServer=broker.namesrv_addr, topic=again)
            .option("idempotencyColumns", "topic,brokerName,queueId,queueOffset")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    copy()
    first = broker.messages(again)
    assert {message.body for message in first} == {message.body for message in stored.values()}
    assert len(first) == 300
    assert all(message.properties["n"] == str(message.flag) for message in first)
    # As if the driver had died between the last send and the commit.
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
    copy()
    second = broker.messages(again)
    assert len(second) == 600
    assert set(keys(second)) == set(keys(first))

    def refused(mode: str = "append", **more: str) -> str:
        with pytest.raises(Exception) as caught:
            rows.write.format("skylarkmq").options(**options).options(**more).mode(mode).save()
        return str(caught.value)

    assert "unknown option tipoc: did you mean topic?" in refused(tipoc="x")
    away = {"nameServer": "127.0.0.1:1", "startTimeoutMs": "0"}
    secret = refused(**away, accessKey="the-account", secretKey="hush-hush")
    assert "127.0.0.1:1" in secret
    assert "hush" not in secret
    assert "UNSUPPORTED_DATA_SOURCE_SAVE_MODE" in refused("errorifexists")


@pytest.mark.spark
def test_a_second_write_of_a_batch_in_spark(
    spark: SparkSession, broker: SyncBroker, topic: str
) -> None:
    options = {"nameServer": broker.namesrv_addr, "topic": topic}

    def twice(batch: DataFrame, number: int) -> None:
        for body in ("a", "b"):
            writer = batch.selectExpr(f"'{body}' AS body").write.format("skylarkmq")
            writer.options(**options).mode("append").save()

    query = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 4).load().writeStream
    running = query.foreachBatch(twice).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="writeName of its own"):
        running.awaitTermination(120)
    bodies = [message.body for message in broker.messages(topic)]
    assert (bodies.count(b"a"), bodies.count(b"b")) == (4, 0)
