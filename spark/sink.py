"""The sink of `format("skylarkmq")`, streaming and batch: rows to a topic, once or at least once.

    writer()/streamWriter()   driver: options and columns are checked, and the cluster is waited
                              for; with delivery=exactlyOnce the brokers of option `topic` are
                              asked whether they promise it
    write(batches)            executor, one call a task, again when Spark repeats the task: every
                              row is acknowledged by its broker before the call returns
    commit / abort            driver: log what was sent; what a failed batch sent stays sent

A repeated task or batch sends its rows again, with the same unique keys (see `unique_keys`). Where
the topic has a deduplication window they are stored once, else consumers may get a row more than
once and can tell (see `promises`). Which of the two it is, the log says with each commit.

Save modes. `append` alone: a topic is never overwritten. Spark itself refuses its default mode
(errorifexists) and `ignore` for Python sources, so a batch write says `.mode("append")`.

The writers pickle: connections live in the worker's pool (`clients.client_for`), never in them.
Spark makes a stream's writer anew for each micro-batch, mostly in one process at the driver: its
client, which has found the cluster once, does not wait again.
Source: apache/spark@v4.3.0 python/pyspark/sql/datasource.py (DataSourceArrowWriter,
DataSourceStreamArrowWriter), python/pyspark/sql/worker/write_into_data_source.py
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark import SparkFiles, TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from skylarkmq.protocol.message import MessageQueue
from skylarkmq.spark.clients import client_for
from skylarkmq.spark.clock import SystemClock
from skylarkmq.spark.option_reading import OptionError
from skylarkmq.spark.writing import batch_writes
from skylarkmq.spark.writing.batch_writes import BatchWrite
from skylarkmq.spark.writing.packing import Packer
from skylarkmq.spark.writing.promises import Promise, Promises
from skylarkmq.spark.writing.rows import RowError, RowReader, slices
from skylarkmq.spark.writing.sink_columns import RowPlan, plan_rows
from skylarkmq.spark.writing.sink_options import EXACTLY_ONCE, SinkOptions
from skylarkmq.spark.writing.sink_task import QueueTotal, SinkTask, task_window
from skylarkmq.spark.writing.unique_keys import PlaceKeys

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_log: Final = logging.getLogger(__name__)
QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"
BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"
ATTEMPT_PROPERTY: Final = "spark.sql.execution.root.id"
"""Spark's own names of a task's local properties; internal, so their absence is allowed for."""
BY_PLACE: Final = (
    "; that is, where a repeated task gets the same rows in the same order, which option "
    "idempotencyColumns does without"
)


@dataclass
class SendReceipt(WriterCommitMessage):
    """What one task sent, all of it acknowledged."""

    partition: int
    attempt: int
    count: int
    size: int
    """Bytes of bodies as stored."""
    resent: int
    """Tries without an answer: each may have left a copy of its messages."""
    queues: dict[MessageQueue, QueueTotal]
    batch_writes: frozenset[BatchWrite] = frozenset()
    """One for each topic whose rows got keys by their place."""
    promises: dict[str, Promise] = field(default_factory=dict[str, Promise])
    """What holds for each topic."""


class _Sink:
    """What both writers are: made in the driver, pickled to the tasks."""

    def __init__(self, plan: RowPlan, options: SinkOptions) -> None:
        self._plan = plan
        self._options = options
        # The same for all tasks and their repeats, and another for the next write.
        self._write_id = uuid.uuid4().hex
        self._planned_ms = SystemClock().now_ms()

    def _send(self, batches: Iterator[pa.RecordBatch]) -> SendReceipt:
        """Send all rows of a task; in an executor's Python worker."""
        place = task_place(self._write_id)
        keys = self._keys(place)
        options = self._options
        window, write_queues = task_window(options)
        since_ms = self._planned_ms if place.attempt else None
        promises = Promises(client_for(options.connection), options, since_ms)
        by_place = options.delivery != EXACTLY_ONCE
        key_of_row = keys.key if by_place else no_key
        rows = RowReader(self._plan, options, key_of_row, place.partition)
        packer = Packer(self._plan, options, key_of_row, keys.runs if by_place else None)
        task = SinkTask(window, write_queues, options, rows.error, place.partition, promises)
        for part in (part for batch in batches for part in slices(batch)):
            packed = packer.pack(part, rows.row_count)
            if packed is not None and task.send_packed(packed):
                rows.row_count += packed.count
            else:
                task.send(rows.messages(part))
        queues = task.finish()
        return SendReceipt(
            place.partition,
            place.attempt,
            sum(total.count for total in queues.values()),
            sum(total.size for total in queues.values()),
            sum(total.resent for total in queues.values()),
            queues,
            frozenset(self._batch_write(place, topic) for topic in keys.topics),
            promises.found,
        )

    def _keys(self, place: TaskPlace) -> PlaceKeys:
        return PlaceKeys((place.write_id, place.batch_id, place.partition))

    def _batch_write(self, place: TaskPlace, topic: str) -> BatchWrite:
        return BatchWrite(place.write_id, place.batch_attempt, topic, self._options.write_name)


class BatchSink(_Sink, DataSourceArrowWriter):
    """`df.write.format("skylarkmq").mode("append").save()`."""

    def __init__(self, plan: RowPlan, options: SinkOptions) -> None:
        super().__init__(plan, options)
        self._committed = batch_writes.committed(driver_folder())

    def _keys(self, place: TaskPlace) -> PlaceKeys:
        if not place.batch_id:
            return super()._keys(place)

        def told_apart(topic: str) -> tuple[str, ...]:
            write = self._batch_write(place, topic)
            if write.path in self._committed:
                raise write.refusal()
            return topic, write.name

        return PlaceKeys((place.write_id, place.batch_id, place.partition), told_apart)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SendReceipt:  # type: ignore[override]
        """Send a task's rows."""
        return self._send(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log what was sent.

        Raises:
            OptionError: another write of this batch was committed meanwhile with the same keys.
        """
        log_sent(messages, "batch write")
        receipts = (message for message in messages if isinstance(message, SendReceipt))
        writes = {write for receipt in receipts for write in receipt.batch_writes if write.attempt}
        batch_writes.commit(driver_folder(), writes)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log what stays sent."""
        log_aborted(messages, "batch write")


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """`df.writeStream.format("skylarkmq").option("checkpointLocation", ...).start()`."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SendReceipt:  # type: ignore[override]
        """Send a task's rows of a micro-batch."""
        return self._send(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log what was sent."""
        log_sent(messages, f"micro-batch {batchId}")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log what stays sent."""
        log_aborted(messages, f"micro-batch {batchId}")


def batch_sink(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchSink:
    """Return the writer of a batch write. Driver.

    Raises:
        OptionError, SchemaError: what a task could not send; mode overwrite.
    """
    if overwrite:
        raise OptionError('mode overwrite: a topic cannot be overwritten; use .mode("append")')
    plan, chosen = _plan(options, schema)
    _await_cluster(chosen)
    return BatchSink(plan, chosen)


def stream_sink(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamSink:
    """Return the writer of a streaming query. Driver.

    Raises:
        OptionError, SchemaError: what a task could not send; output mode complete.
    """
    if overwrite:
        raise OptionError(
            "output mode complete replaces the whole result with each batch, and a topic cannot "
            'be overwritten; use .outputMode("append") or .outputMode("update")'
        )
    plan, chosen = _plan(options, schema)
    if chosen.write_name:
        raise OptionError(
            "option writeName is for writes inside foreachBatch: a streaming query writes once "
            "a batch",
            "writeName",
        )
    _await_cluster(chosen)
    return StreamSink(plan, chosen)


def _plan(given: Mapping[str, str], schema: StructType) -> tuple[RowPlan, SinkOptions]:
    options = SinkOptions.from_options(given)
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    plan = plan_rows(fields, has_topic=options.topic is not None, identity=options.identity)
    if options.delivery == EXACTLY_ONCE and not plan.identity and plan.msg_id is None:
        raise OptionError(
            "option delivery=exactlyOnce: without option idempotencyColumns or a column msgId a "
            "row is known by its place among the others, which a repeated task may get in another "
            "order. Name columns that tell each row from all others, say "
            "idempotencyColumns=topic,brokerName,queueId,queueOffset of a row that was read",
            "delivery",
        )
    return plan, options


def _await_cluster(options: SinkOptions) -> None:
    """Wait for the cluster; check that brokers promise what is to be stored exactly once."""
    client = client_for(options.connection)
    client.await_start()
    if options.delivery == EXACTLY_ONCE and options.topic is not None:
        Promises(client, options).of(options.topic)


def no_key(topic: str, row: int) -> str:
    """Refuse a row without a msgId of its own, where none may be made of the row's place."""
    raise RowError(
        f"row {row}, to topic {topic[:128]}: column msgId is null or empty",
        hint="With delivery=exactlyOnce every row has one, or use idempotencyColumns",
    )


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Which part of which write a task is."""

    write_id: str
    batch_id: str
    partition: int
    attempt: int
    batch_attempt: str = ""
    """Spark's number for this run of a stream's batch; empty where there is none."""


def task_place(write_id: str) -> TaskPlace:
    """Return the running task's place; outside a task the first one.

    A stream's query id, which its checkpoint keeps, goes before `write_id`, so a batch that a
    restarted query repeats has the same place.
    """
    context = TaskContext.get()
    if context is None:
        return TaskPlace(write_id, "", 0, 0)
    partition, attempt = context.partitionId(), context.attemptNumber()
    query_id = context.getLocalProperty(QUERY_ID_PROPERTY)
    batch_id = context.getLocalProperty(BATCH_ID_PROPERTY)
    if not query_id or batch_id is None:
        return TaskPlace(write_id, "", partition, attempt)
    batch_attempt = context.getLocalProperty(ATTEMPT_PROPERTY) or ""
    return TaskPlace(query_id, batch_id, partition, attempt, batch_attempt)


def driver_folder() -> Path | None:
    """Return the folder that Spark keeps for the application at the driver; None outside Spark.

    Every Python process that Spark starts at the driver is told of it.
    """
    folder = getattr(SparkFiles, "_root_directory", None)
    return Path(folder) if folder else None


def log_sent(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    """Log the sum of what the tasks sent, what its topics promise, and copies that may be left."""
    receipts = [message for message in messages if isinstance(message, SendReceipt)]
    count = sum(receipt.count for receipt in receipts)
    size = sum(receipt.size for receipt in receipts)
    queues = {queue for receipt in receipts for queue in receipt.queues}
    _log.info("%s: sent %d messages, %d bytes, to %d queues", what, count, size, len(queues))
    by_place = {write.topic for receipt in receipts for write in receipt.batch_writes}
    for topic, promise in sorted(_promises(receipts).items()):
        more = BY_PLACE if promise.window is not None and topic in by_place else ""
        _log.info("%s: topic %s: %s%s", what, topic, promise.text, more)
    _log_forgotten(receipts, what)
    doubtful = [
        each for each in receipts if any(one.window is None for one in each.promises.values())
    ]
    resent = sum(receipt.resent for receipt in doubtful)
    if resent:
        _log.warning("%s: %d requests were sent again without an answer: their messages may be "
                     "there twice, with the same unique keys", what, resent)  # fmt: skip
    repeated = [receipt.partition for receipt in doubtful if receipt.attempt]
    if repeated:
        _log.warning("%s: Spark repeated the tasks of partitions %s: their messages may be there "
                     "more than once, with the same unique keys", what, repeated)  # fmt: skip


def _promises(receipts: Sequence[SendReceipt]) -> dict[str, Promise]:
    """Return what holds for each topic: the least that a task was told."""
    found: dict[str, Promise] = {}
    for receipt in receipts:
        for topic, promise in receipt.promises.items():
            if topic not in found or promise.window is None:
                found[topic] = promise
    return found


def _log_forgotten(receipts: Sequence[SendReceipt], what: str) -> None:
    """Log where a batch had more messages than its windows know: a repeat would store them."""
    promises = _promises(receipts)
    counts: Counter[tuple[str, str]] = Counter()
    for receipt in receipts:
        for queue, total in receipt.queues.items():
            counts[queue.topic, queue.broker_name] += total.count
    for (topic, broker_name), count in sorted(counts.items()):
        window = promises[topic].window if topic in promises else None
        if window is not None and count > window.keys:
            _log.warning("%s: %d messages for topic %s went to broker %s, whose deduplication "
                         "window knows %d: a repeat would have stored the others again", what,
                         count, topic, broker_name, window.keys)  # fmt: skip


def log_aborted(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    """Log that what a failed write has sent stays sent."""
    receipts = [message for message in messages if isinstance(message, SendReceipt)]
    count = sum(receipt.count for receipt in receipts)
    _log.error("%s failed: at least %d messages of it are sent and stay sent; the next try sends "
               "its rows again", what, count)  # fmt: skip
