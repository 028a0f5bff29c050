"""Messages, bytes and delay by window of time, topic and tag, with Spark's own windows.

    stream of messages --watermark, window()--> windows that have closed --> Delta Lake table

    python -m examples.windows orders /data/windows --name-server 127.0.0.1:9876

A batch is one transaction of the table, under the number that Spark gives it. So each window is
there once, also when Spark repeats a batch after a kill. The same command goes on where it ended. A
message that comes after its window has closed is left out: a longer watermark waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import functions as f

from skylarkmq.spark import build_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = (
    "topic string, tags string, storeSize int, bornTimestamp timestamp, storeTimestamp timestamp"
)


def by_window(messages: DataFrame, window: str, watermark: str) -> DataFrame:
    """Count messages. Their delay is the time from the producer to the broker."""
    delay_ms = f.unix_millis("storeTimestamp") - f.unix_millis("bornTimestamp")
    rows = messages.withWatermark("storeTimestamp", watermark).groupBy(
        f.window("storeTimestamp", window).alias("at"), "topic", "tags"
    )
    counted = rows.agg(
        f.count("*").alias("messages"),
        f.sum("storeSize").alias("bytes"),
        f.avg(delay_ms).alias("meanDelayMs"),
        f.max(delay_ms).alias("maxDelayMs"),
    )
    return counted.select("at.start", "at.end", "*").drop("at")


def write(batch: DataFrame, number: int, table: str, query: str) -> None:
    """Put a batch into the table, unless it is there: after a kill Spark repeats a batch."""
    rows = batch.toArrow()  # also of a repeated batch: this brings Spark's own state up to date
    last = DeltaTable(table).transaction_version(query) if DeltaTable.is_deltatable(table) else None
    if last is None or number > last:
        commit = CommitProperties(app_transactions=[Transaction(query, number)])
        write_deltalake(table, rows, mode="append", commit_properties=commit)


def count(
    spark: SparkSession, options: dict[str, str], table: str, window: str, watermark: str
) -> None:
    """Count what is there now, from where the last run ended."""
    source = spark.readStream.format("skylarkmq").schema(COLUMNS).options(**options)
    windows = by_window(source.load(), window, watermark)

    def take(batch: DataFrame, number: int) -> None:
        [query] = (each.id for each in spark.streams.active if each.name == table)
        write(batch, number, table, query)

    writer = windows.writeStream.foreachBatch(take).queryName(table).trigger(availableNow=True)
    writer.option("checkpointLocation", f"{table}.checkpoint").start().awaitTermination()


@click.command()
@click.argument("topic")
@click.argument("table")
@click.option("--name-server", required=True, metavar="HOST:PORT")
@click.option("--window", default="1 minute", show_default=True, help="Length of a window.")
@click.option("--watermark", default="10 minutes", show_default=True, help="Wait for messages.")
def main(topic: str, table: str, name_server: str, window: str, watermark: str) -> None:
    """Count the messages of TOPIC by window and tag, into the Delta Lake table TABLE."""
    options = {"nameServer": name_server, "topic": topic, "startingOffsets": "earliest"}
    count(build_session("windows", "local[2]"), options, table, window, watermark)


if __name__ == "__main__":
    main()
