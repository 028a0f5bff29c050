# pyright: reportUnknownMemberType=false
"""The source as a batch: `spark.read.format("skylarkmq")`.

    __init__, pushFilters, partitions   planner, a short-lived Python process at the driver
    read                                executors, one call a task

Every action on a data frame plans anew, so "latest" is where the queues end at that time.
Source: apache/spark@v4.3.0 python/pyspark/sql/worker/plan_data_source_read.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.options import SourceOptions
from skylarkmq.spark.reading.batch_planner import BatchPlanner
from skylarkmq.spark.reading.narrowing import EVERYTHING, Narrowing, narrowing_of
from skylarkmq.spark.reading.range_read import read_range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter


class BatchReader(DataSourceReader):
    """Reads what lies between two positions of each queue. Picklable; connected to nobody."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._narrowing: Narrowing = EVERYTHING

    def partitions(self) -> list[InputPartition]:
        """Return one partition for each range of messages. Asks name servers and brokers."""
        client = BlockingClient(self._options.connection)
        try:
            planner = BatchPlanner(client, self._options, client.clock)
            return [InputPartition(each) for each in planner.plan(self._narrowing)]
        finally:
            client.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range; a read without any has one partition of None."""
        tags = self._narrowing.tags
        reading = self._options.reading.narrowed_to(tags)
        return read_range(partition.value, reading, self._columns, tags)


class FilteringBatchReader(BatchReader):
    """Lets Spark's filters narrow what is read, with option filterPushdown=true.

    A reader that has `pushFilters` cannot be planned unless the session's
    spark.sql.python.filterPushdown.enabled is true, so this is a class of its own.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the bounds of the filters, and leave them all to Spark as well."""
        self._narrowing = narrowing_of(filters)
        return filters
