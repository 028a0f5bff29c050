# pyright: reportUnknownMemberType=false
"""How rows come to the tasks of a replay: a data source that only writes.

    rows.write.format("skylarkmq-replay").mode("append").save()

For the job `replay` alone. Not `mapInArrow`, since that asks for pandas. What tasks are told holds
credentials, so it is part of the class that is registered and no option, which plans would show.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from skylarkmq.spark.jobs.replaying.task import ReplaySetup, send_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

FORMAT: Final = "skylarkmq-replay"


class ReplayWriter(DataSourceArrowWriter):
    """Sends the rows of one task. Picklable."""

    def __init__(self, setup: ReplaySetup) -> None:
        self._setup = setup

    def write(  # type: ignore[override]
        self, iterator: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        """Send a task's rows, in their order; on an executor."""
        send_rows(self._setup, iterator)
        return WriterCommitMessage()


def write(rows: DataFrame, setup: ReplaySetup) -> None:
    """Have Spark's tasks send the rows, partition by partition; at the driver.

    Raises:
        Exception: what Spark raises because a task failed.
    """

    class ReplaySink(DataSource):
        """Goes to the workers by value, and `setup` with it."""

        @classmethod
        def name(cls) -> str:
            return FORMAT

        def writer(self, schema: StructType, overwrite: bool) -> ReplayWriter:
            return ReplayWriter(setup)

    session = rows.sparkSession
    session.dataSource.register(ReplaySink)
    # Spark looks a format up in the active session, which is a thread's own; this makes it ours.
    session.createDataFrame([], "nothing int")
    rows.write.format(FORMAT).mode("append").save()
