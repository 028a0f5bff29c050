# pyright: reportUnknownMemberType=false
"""The source as Spark calls it: a batch, a stream, and the range that one task reads.

    BatchReader     `spark.read.format("skylarkmq")`
        __init__, partitions                planner, a short-lived Python process at the driver
    StreamReader    `spark.readStream.format("skylarkmq")`, on the planner's decisions
        offsets, partitions, commit         the query's runner, one Python process at the driver
    read_ranges     executors: pulls, records, Arrow batches; the client is the thread's own

Every action on a data frame plans anew, so "latest" is where the queues end at that time. Spark
builds a stream's reader twice, and pickles the one that plans nothing: nothing is opened before the
first question. Offsets are JSON objects, see offsets.py.
Source: apache/spark@v4.3.0 python/pyspark/sql/worker/plan_data_source_read.py,
python/pyspark/sql/streaming/python_streaming_source_runner.py
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from skylarkmq.client.namespace import Namespace
from skylarkmq.spark.batches import BatchBuilder
from skylarkmq.spark.clients import client_for
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.errors import DataLost, NoProgress
from skylarkmq.spark.offsets import OffsetRange, QueueOffsets
from skylarkmq.spark.options import ReadSettings, SourceOptions
from skylarkmq.spark.reading.key_lookup import having_keys
from skylarkmq.spark.reading.planning import NO_LIMIT, BatchPlanner, Limit, StreamPlanner, pack
from skylarkmq.spark.reading.ranges import Block, RangeReader
from skylarkmq.spark.reading.write_back import OffsetWriteBack

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)
OnLoss = Callable[[DataLost], None] | None
Open = Callable[[OffsetRange, ReadSettings, OnLoss], Iterable[Block]]


def read_ranges(
    wanted: Sequence[OffsetRange] | None,
    settings: ReadSettings,
    columns: Sequence[str],
    open_range: Open | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ranges, one range after the other and each in order, in batches of
    bounded rows and bytes.

    Args:
        wanted: None for the one task of a read that has nothing to read.
        open_range: returns blocks in order that together cover a range; None: pulls them.

    Raises:
        DataLost: with failOnDataLoss, when messages are gone.
        CorruptRecordError: a record is damaged, or with onCorruption=fail its body cannot be read.
        RocketMQError: refused, or no broker answered for `retryTimeoutMs`.
    """

    def on_loss(loss: DataLost) -> None:
        log.warning("failOnDataLoss=false, going on: %s", loss)

    builder = BatchBuilder(
        columns,
        max_rows=settings.batch_rows,
        max_bytes=settings.batch_bytes,
        topic_name=Namespace(settings.connection.namespace).unwrap,
        on_corruption=settings.on_corruption,
    )
    tags = settings.tags  # compared as text: brokers compare hashes
    counts = not settings.filters and settings.fail_on_data_loss
    for each in wanted or ():
        count_before = builder.rows + builder.skipped
        blocks = (open_range or _pull)(
            each, settings, None if settings.fail_on_data_loss else on_loss
        )
        at, left_out = each.start, 0
        for block in blocks:
            left_out += 0 if block.records else block.end - block.start
            yield from builder.add(
                block.records,
                broker_name=each.broker_name,
                start=max(at, block.start),
                end=min(block.end, each.end),
                tags=tags,
            )
            at = max(at, block.end)
        if counts:
            _check_count(each, builder.rows + builder.skipped - count_before + left_out)
    last = builder.finish()
    if last is not None:
        yield last


def _pull(wanted: OffsetRange, settings: ReadSettings, on_loss: OnLoss) -> Iterable[Block]:
    return RangeReader(client_for(settings.connection), wanted, settings, on_loss)


def _check_count(wanted: OffsetRange, count: int) -> None:
    """Refuse to end a range with fewer messages than it has: the last line of defence."""
    if count == wanted.message_count:
        return
    raise NoProgress(
        f"{wanted} gave {count} messages instead of {wanted.message_count}",
        hint="Its broker's consume queue and log disagree: see `skylarkmq store verify`, or set "
        "failOnDataLoss=false to go on",
    )


def _tasks(ranges: Sequence[OffsetRange], options: SourceOptions) -> list[InputPartition]:
    """Return one partition for each task."""
    tasks = pack(
        ranges,
        together=options.together,
        min_partitions=options.min_partitions,
        max_partitions=options.max_partitions,
    )
    return [InputPartition(each) for each in tasks]


class BatchReader(DataSourceReader):
    """Reads what lies between two positions of each queue. Picklable; not connected."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each range of messages. Asks name servers and brokers."""
        client = BlockingClient(self._options.connection)
        try:
            client.await_start()
            ranges = BatchPlanner(client, self._options).plan()
            return _tasks(ranges, self._options)
        finally:
            client.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range; a read without any has one partition of None."""
        reading, keys = self._options.reading, self._options.keys
        if not keys:
            return read_ranges(partition.value, reading, self._columns)
        columns = dict.fromkeys((*self._columns, "keys"))
        batches = read_ranges(partition.value, reading, tuple(columns))
        return (having_keys(each, keys).select(self._columns) for each in batches)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's source. Picklable; connected at the first question."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._made: StreamPlanner | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query starts."""
        return self._planner().initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return what the options allow; a minimum beside a maximum is kept in the planner."""
        high = self._options.max_offsets_per_trigger
        low = self._options.min_offsets_per_trigger
        if high is not None:
            return ReadMaxRows(high)
        return ReadMinRows(low) if low is not None else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return how far the next batch goes; `start` when there is nothing for it."""
        found = self._planner().latest(QueueOffsets.from_json(start), self._limit(limit))
        return found.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return where the queues end, with the figures that there are, for the progress."""
        return self._planner().report()

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the run end where the queues end now."""
        self._planner().freeze()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return one partition for each range of messages in a batch."""
        ranges = self._planner().plan(QueueOffsets.from_json(start), QueueOffsets.from_json(end))
        return _tasks(ranges, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range."""
        return read_ranges(partition.value, self._options.reading, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Take note that all below `end` is in the sink."""
        self._planner().commit(QueueOffsets.from_json(end))

    def stop(self) -> None:
        """Write the group's offsets, if Spark says at all that the query ends."""
        if self._made is not None:
            self._made.close()

    def _limit(self, limit: ReadLimit) -> Limit:
        """Return Spark's limit as ours: a minimum of the options goes with their maximum."""
        if isinstance(limit, ReadMaxRows):
            low = self._options.min_offsets_per_trigger
            return Limit(limit.max_rows, low)
        return Limit(None, limit.min_rows) if isinstance(limit, ReadMinRows) else NO_LIMIT

    def _planner(self) -> StreamPlanner:
        if self._made is None:
            options = self._options
            client = BlockingClient(options.connection)
            client.await_start()
            write_back = None
            if options.commit_offsets:
                write_back = OffsetWriteBack(options.connection, options.reading.group)
            self._made = StreamPlanner(client, options, write_back)
        return self._made

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}
