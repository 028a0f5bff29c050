"""A program that copies a topic to two others, stopped with all sent and nothing committed.

    stopped_sink.py <name server> <from> <once> <twice> <folder> [stop]

One query for each of the two, with a checkpoint of its own. With `stop` each leaves a file
<folder>/<topic>-sent in place of its first commit and waits to be killed; and a task of each fails
once, when it has sent a part of its rows. The first copy is demanded to be exactly once.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from skylarkmq.spark.session import build_session
from skylarkmq.spark.sink import SendReceipt, StreamSink, stream_sink
from skylarkmq.spark.source import SkylarkSource
from tests.spark.conftest import QUICK

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType


class StoppedSink(StreamSink):
    """Says that all is sent, and never commits."""

    place: str
    """What its files begin with."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SendReceipt:  # type: ignore[override]
        failed = Path(f"{self.place}-failed")

        def until_it_fails() -> Iterator[pa.RecordBatch]:
            for batch in iterator:
                yield batch
                if not failed.exists():
                    failed.touch()
                    raise OSError("this try is to fail")

        return super().write(until_it_fails())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        Path(f"{self.place}-sent").touch()
        threading.Event().wait()


class StoppedSource(SkylarkSource):
    """`format("stopped")`."""

    @classmethod
    def name(cls) -> str:
        return "stopped"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:
        sink = stream_sink(self.options, schema, overwrite)
        sink.__class__ = StoppedSink
        assert isinstance(sink, StoppedSink)
        sink.place = self.options["checkpointLocation"]
        return sink


def copy(
    spark: SparkSession, name_server: str, source: str, target: str, folder: Path, stop: bool
) -> StreamingQuery:
    """Start a query that copies a topic."""
    return (
        spark.readStream.format("skylarkmq")
        .schema("topic string, brokerName string, queueId int, queueOffset bigint, body binary")
        .options(nameServer=name_server, topic=source, startingOffsets="earliest")
        .load()
        .writeStream.format("stopped" if stop else "skylarkmq")
        .options(nameServer=name_server, topic=target, sendBatchRows="10")
        .option("idempotencyColumns", "topic,brokerName,queueId,queueOffset")
        .option("delivery", "exactlyOnce" if target.endswith("once") else "auto")
        .option("checkpointLocation", str(folder / target))
        .trigger(availableNow=True)
        .start()
    )


def main(name_server: str, source: str, once: str, twice: str, folder: str, *stop: str) -> None:
    small = {"spark.sql.execution.arrow.maxRecordsPerBatch": 20}  # some rows go early
    spark = build_session("stopped sink", "local[2,4]", **QUICK, **small)
    spark.dataSource.register(StoppedSource)
    queries = [
        copy(spark, name_server, source, target, Path(folder), bool(stop))
        for target in (once, twice)
    ]
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
