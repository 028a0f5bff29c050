"""A program for spark-submit: a topic into Parquet, with a stop in the middle of a batch.

    killed_executor.py <name server> <topic> <folder>

The formats are not registered: Spark finds them. Tasks that have handed rows with a queue offset of
STOP_AT or more on write their process number to <folder>/stopped-<number>, and go on once there is
a file <folder>/go. The last line of standard output is a JSON document of what came of it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

STOP_AT = 150
LOOK_EVERY_S = 0.05


def main(name_server: str, topic: str, folder: Path) -> None:
    go = folder / "go"

    def stop(queue_offset: int) -> int:
        """Runs in the executors' Python. Spark hands rows on a hundred at a time."""
        if queue_offset >= STOP_AT and not go.exists():
            (folder / f"stopped-{os.getpid()}").touch()
            while not go.exists():
                time.sleep(LOOK_EVERY_S)
        return queue_offset

    spark = SparkSession.builder.appName("killed executor").getOrCreate()
    messages = (
        spark.readStream.format("skylarkmq")
        .schema("topic string, brokerName string, queueId int, queueOffset bigint, body binary")
        .option("nameServer", name_server)
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 400)
        .option("arrowBatchRows", 40)
        .load()
    )
    out = str(folder / "archive")
    stopping = udf(stop, "bigint", useArrow=False)
    query = (
        messages.withColumn("queueOffset", stopping("queueOffset"))
        .writeStream.format("parquet")
        .option("path", out)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    ended = query.awaitTermination(900)
    rows = spark.read.parquet(out).select("brokerName", "queueId", "queueOffset", "body").collect()
    assert spark._jvm is not None
    told = {
        "ended": ended,
        "java": spark._jvm.java.lang.System.getProperty("java.home"),
        "master": spark.sparkContext.master,
        "rows": sorted([row[0], row[1], row[2], bytes(row[3]).decode()] for row in rows),
    }
    spark.stop()
    sys.stdout.write(f"\n{json.dumps(told)}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
