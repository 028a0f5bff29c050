"""Ways to read or write the same messages, each timed by itself; and what a process costs.

`plain` decodes in this process, without Spark: the floor. `tuples` is a data source that yields
rows one by one from the same pulls, as a first version of any source would: the baseline.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from skylarkmq.protocol.record import decode_messages
from skylarkmq.spark.batches import BatchBuilder
from skylarkmq.spark.clients import client_for
from skylarkmq.spark.log.log_options import LogOptions
from skylarkmq.spark.log.source import CommitLogReader
from skylarkmq.spark.offsets import OffsetRange
from skylarkmq.spark.options import ReadSettings
from skylarkmq.spark.reading.ranges import Block, RangeReader
from skylarkmq.spark.schema import COLUMNS, LOG_COLUMNS, ddl, names
from skylarkmq.spark.settings import ConnectionSettings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

TRIGGERS = 15
ARROW_ROWS = 2000
"""Of a batch of made-up rows."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Timed:
    """What one run of a road took."""

    rows: int
    seconds: float
    cpu_s: float
    """Of this process and its Python workers."""
    jvm_cpu_s: float = 0.0

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds

    def a_row_us(self, seconds: float) -> float:
        """Some of its seconds as microseconds a row."""
        return seconds / self.rows * 1e6


def timed(road: Callable[[], int], but: int = 0) -> Timed:
    """Run a road, which returns how many rows it moved; the CPU time of child `but` is not its."""
    before, started = cpu_of_tree(os.getpid(), but), time.perf_counter()
    rows = road()
    seconds = time.perf_counter() - started
    after = cpu_of_tree(os.getpid(), but)
    return Timed(rows, seconds, after[0] - before[0], after[1] - before[1])


def cpu_of_tree(pid: int, but: int = 0) -> tuple[float, float]:
    """CPU seconds of a process and of all below it, without JVMs, and that of the JVMs.

    Threads that ended count, and processes that ended and were waited for.
    """
    parents: dict[int, list[int]] = {}
    spent: dict[int, tuple[bool, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
        except OSError:  # it has just ended
            continue
        fields, number = rest.split(), int(path.parent.name)
        parents.setdefault(int(fields[1]), []).append(number)
        spent[number] = name == "java", sum(map(int, fields[11:15])) / TICKS
    totals, waiting = [0.0, 0.0], [pid]
    while waiting:
        number = waiting.pop()
        if number == but or number not in spent:
            continue
        is_java, seconds = spent[number]
        totals[is_java] += seconds
        waiting += parents.get(number, [])
    return totals[0], totals[1]


def ranges_of(name_server: str, topic: str) -> list[OffsetRange]:
    """All that the topic holds now, a range a queue."""
    client = client_for(ConnectionSettings.from_options({"nameServer": name_server}))
    queues = client.read_queues(topic)
    lows, highs = client.min_offsets(queues), client.max_offsets(queues)
    return [OffsetRange(*queue, lows[queue], highs[queue]) for queue in queues]


def raw_blocks(name_server: str, part: OffsetRange) -> Iterator[Block]:
    """Records of a range, pulled as the source does."""
    settings = ConnectionSettings.from_options({"nameServer": name_server})
    yield from RangeReader(client_for(settings), part, ReadSettings(settings, "bench-spark"))


def pull_only(name_server: str, parts: list[OffsetRange]) -> int:
    """Fetch and throw away: what the wire and the broker allow."""
    return sum(block.end - block.start for part in parts for block in raw_blocks(name_server, part))


def plain(name_server: str, parts: list[OffsetRange]) -> int:
    """Fetch and decode into Arrow batches, all columns, without Spark."""
    rows = 0
    for part in parts:
        builder = BatchBuilder(names(COLUMNS))
        for block in raw_blocks(name_server, part):
            full = builder.add(
                block.records, broker_name=part.broker_name, start=block.start, end=block.end
            )
            rows += sum(batch.num_rows for batch in full)
        last = builder.finish()
        rows += last.num_rows if last is not None else 0
    return rows


class TuplePartition(InputPartition):
    """One queue's range."""

    def __init__(self, part: OffsetRange) -> None:
        super().__init__(part)
        self.part = part


class TupleReader(DataSourceReader):
    """Yields a tuple a message."""

    def __init__(self, name_server: str, topic: str) -> None:
        self.name_server = name_server
        self.topic = topic

    def partitions(self) -> list[InputPartition]:
        return [TuplePartition(part) for part in ranges_of(self.name_server, self.topic)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, TuplePartition)
        part = partition.part
        for block in raw_blocks(self.name_server, part):
            for m in decode_messages(block.records):
                yield (
                    m.topic, part.broker_name, m.queue_id, m.queue_offset,
                    m.msg_id, m.offset_msg_id,
                    m.properties.get("KEYS"), m.tags, m.body, m.properties,
                    datetime.fromtimestamp(m.born_timestamp / 1000, UTC),
                    datetime.fromtimestamp(m.store_timestamp / 1000, UTC),
                    str(m.born_host), str(m.store_host), m.reconsume_times, m.flag, m.sys_flag,
                    m.body_crc, m.physical_offset, m.store_size, m.prepared_transaction_offset,
                )  # fmt: skip


class TupleSource(DataSource):
    """`format("bench-tuples")`."""

    @classmethod
    def name(cls) -> str:
        return "bench-tuples"

    def schema(self) -> str:
        return ddl(COLUMNS)

    def reader(self, schema: Any) -> DataSourceReader:
        return TupleReader(self.options["nameServer"], self.options["topic"])


def read_through(
    spark: SparkSession, name: str, options: dict[str, str], schema: str | None = None
) -> None:
    """Read all by a format and drop it; all columns, or those of a schema."""
    reader = spark.read.format(name).options(**options)
    drop((reader.schema(schema) if schema else reader).load())


def drop(frame: DataFrame) -> None:
    """Compute every row and column of it, for nobody."""
    frame.write.format("noop").mode("append").save()


def sink_through(spark: SparkSession, name_server: str, topic: str, size: int, count: int) -> int:
    """Write so many made-up messages into a topic."""
    frame = spark.range(count, numPartitions=1).selectExpr(
        f"cast(repeat('x', {size}) as binary) as body", "'bench' as tags", "cast(id as string) keys"
    )
    options = {"nameServer": name_server, "topic": topic}
    frame.write.format("skylarkmq").options(**options).mode("append").save()
    return count


def made_up_rows(size: int, count: int) -> list[pa.RecordBatch]:
    """The rows of `sink_through`, as Spark hands them to a task, and a number that tells them."""
    import pyarrow as pa

    body = pa.array([os.urandom(size) for _ in range(ARROW_ROWS)], pa.binary())
    return [
        pa.record_batch(
            [
                body,
                pa.array(["bench"] * ARROW_ROWS),
                pa.array([str(number) for number in range(start, start + ARROW_ROWS)]),
                pa.array(range(start, start + ARROW_ROWS), pa.int64()),
            ],
            names=["body", "tags", "keys", "number"],
        )
        for start in range(0, count, ARROW_ROWS)
    ]


def sink_alone(rows: list[pa.RecordBatch], options: dict[str, str]) -> int:
    """Send made-up rows as a task of the sink does, without Spark."""
    from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

    from skylarkmq.spark.sink import batch_sink

    names_of = [
        name
        for name in rows[0].schema.names
        if name != "number" or "number" in options.get("idempotencyColumns", "")
    ]
    kinds = {"body": BinaryType(), "number": LongType()}
    schema = StructType([StructField(name, kinds.get(name, StringType())) for name in names_of])
    sink = batch_sink(options, schema, overwrite=False)
    return sink.write(iter([batch.select(names_of) for batch in rows])).count


def log_plain(store: Path) -> int:
    """Read and decode a store's whole log, all columns, without Spark."""
    reader = CommitLogReader(LogOptions.parse({"path": str(store)}), names(LOG_COLUMNS))
    return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))


def log_through(spark: SparkSession, store: Path, count: int) -> int:
    """Read a store's log, all columns; `count` is how many messages it has by now."""
    drop(spark.read.format("skylarkmq-commitlog").load(str(store)))
    return count


def trigger_ms(
    spark: SparkSession, name_server: str, topic: str, checkpoint: Path, limit_s: float
) -> float:
    """Median time of a micro-batch of a hundred messages into the noop sink, after the first."""
    query = (
        spark.readStream.format("skylarkmq")
        .options(
            nameServer=name_server, topic=topic, startingOffsets="earliest",
            maxOffsetsPerTrigger="100",
        )
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )  # fmt: skip
    deadline = time.monotonic() + limit_s
    try:
        while len(query.recentProgress) <= TRIGGERS:
            if time.monotonic() > deadline or not query.isActive:
                raise RuntimeError(f"{len(query.recentProgress)} triggers: {query.exception()}")
            time.sleep(0.1)
        spent = [one["durationMs"]["triggerExecution"] for one in query.recentProgress[1:]]
    finally:
        query.stop()
    return median(spent)
