# pyright: reportUnknownMemberType=false
"""The source as a stream: `spark.readStream.format("skylarkmq")`, on the planner's decisions.

    offsets, partitions, commit   the query's runner, one Python process at the driver
    read                          executors, from a copy of the reader that was pickled before

Spark builds the reader twice, and pickles the one that plans nothing: nothing is opened before
the first question. Offsets are JSON objects, see offsets.py.
Source: apache/spark@v4.3.0 python/pyspark/sql/streaming/python_streaming_source_runner.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.offsets import QueueOffsets
from skylarkmq.spark.options import SourceOptions
from skylarkmq.spark.reading.range_read import read_range
from skylarkmq.spark.reading.stream_planner import NO_LIMIT, Limit, StreamPlanner
from skylarkmq.spark.reading.write_back import OffsetWriteBack

if TYPE_CHECKING:
    import pyarrow as pa


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's source. Picklable; connected to nobody before the first question."""

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
        """Return where the queues end, for the progress of the query."""
        found = self._planner().report()
        return found.to_json() if found is not None else None

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the run end where the queues end now."""
        self._planner().freeze()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return one partition for each range of messages in a batch."""
        ranges = self._planner().plan(QueueOffsets.from_json(start), QueueOffsets.from_json(end))
        return [InputPartition(each) for each in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range."""
        return read_range(partition.value, self._options.reading, self._columns)

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
            write_back = None
            if options.commit_offsets:
                write_back = OffsetWriteBack(options.connection, options.reading.group)
            self._made = StreamPlanner(client, options, client.clock, write_back)
        return self._made

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}
