"""A program that has Spark only by a Spark Connect server: what it reads, writes and follows.

    connect_client.py <sc://host:port> <name server> <topic> <target topic> <folder>

Standard output is a JSON document of what came of it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from skylarkmq.spark import build_session
from skylarkmq.spark.jobs.common import JobSettings, UsageError
from skylarkmq.spark.jobs.running import open_session
from skylarkmq.spark.progress import last_progress
from skylarkmq.spark.session import is_connect


def main(server: str, name_server: str, topic: str, target: str, folder: Path) -> dict[str, Any]:
    spark = build_session("connect", server)
    options = {"nameServer": name_server, "topic": topic}

    def load(**more: str) -> DataFrame:
        return spark.read.format("skylarkmq").options(**options, **more).load()

    messages = load()
    told: dict[str, Any] = {
        "is_connect": is_connect(spark),
        "count": messages.count(),
        "one": [bytes(row.body).decode() for row in load(keys="k7").collect()],
        "listed": messages.where("queueOffset IN (0, 90)").count(),
    }
    query = (
        spark.readStream.format("skylarkmq")
        .schema("body binary, queueId int")
        .options(**options, startingOffsets="earliest", maxOffsetsPerTrigger=300)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "table"))
    )
    query.awaitTermination(300)
    progress = last_progress(query)
    told["streamed"] = spark.read.parquet(str(folder / "table")).select("body").distinct().count()
    told["behind"] = None if progress is None else progress.behind
    rows = messages.select("body", f.col("keys").alias("keys"))
    sink = rows.write.format("skylarkmq").mode("append")
    sink.options(nameServer=name_server, topic=target, idempotencyColumns="keys").save()
    written = spark.read.format("skylarkmq").options(nameServer=name_server, topic=target).load()
    told["written"] = written.select("body").distinct().count()
    try:
        with open_session("job", JobSettings()):
            told["job"] = "runs"
    except UsageError:
        told["job"] = "is refused"
    spark.stop()
    return told


if __name__ == "__main__":
    found = main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], Path(sys.argv[5]))
    sys.stdout.write(json.dumps(found))
