"""The part of the job `metrics` that runs in Spark: sums of one batch, by window, topic and tag.

Spark sums up what its tasks read, and only a row a window comes to the driver. Plain sums, counts
and extremes alone: a batch that is read again gives the same numbers, however its tasks are cut.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from skylarkmq.protocol.flags import DLQ_GROUP_TOPIC_PREFIX, RETRY_GROUP_TOPIC_PREFIX
from skylarkmq.protocol.properties import RETRY_TOPIC
from skylarkmq.spark.jobs.counting.windows import DELAY_BOUNDS_MS, Partial, Tally, WindowKey

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

_COLUMNS: Final = (
    "topic string, tags string, bornTimestamp timestamp, storeTimestamp timestamp, storeSize int"
)


def columns(*, with_groups: bool, body_bytes: bool) -> str:
    """Return the source's columns that are needed, as a schema: what is not named is not decoded.

    Args:
        with_groups: retry and dead-letter topics are among what is read.
    """
    more = (", properties map<string,string>" if with_groups else "") + (
        ", body binary" if body_bytes else ""
    )
    return _COLUMNS + more


def partials(
    messages: DataFrame, window_ms: int, delay_ms: int, event_time: str, *, body_bytes: bool
) -> list[Partial]:
    """Return the sums of a batch. Runs a Spark job; driver process.

    Args:
        event_time: "store" or "born": which of its times puts a message into a window.
    """
    from pyspark.sql import functions as F

    born, stored = F.unix_millis("bornTimestamp"), F.unix_millis("storeTimestamp")
    event = stored if event_time == "store" else born
    again = F.col("topic").startswith(RETRY_GROUP_TOPIC_PREFIX)
    dead = F.col("topic").startswith(DLQ_GROUP_TOPIC_PREFIX)
    origin = F.col("topic")
    if "properties" in messages.columns:
        sent_to = F.coalesce(F.col("properties").getItem(RETRY_TOPIC), F.col("topic"))
        origin = F.when(again | dead, sent_to).otherwise(F.col("topic"))
    rows = messages.select(
        (event - F.pmod(event, F.lit(window_ms))).alias("start_ms"),
        origin.alias("origin"),
        F.coalesce(F.col("tags"), F.lit("")).alias("tag"),
        (event > stored + F.lit(delay_ms)).alias("ahead"),
        F.least(event, stored).alias("latest_ms"),
        again.alias("again"),
        dead.alias("dead"),
        (~again & ~dead).alias("first"),
        (stored - born).alias("delay_ms"),
        F.col("storeSize").alias("stored_bytes"),
        (F.length("body") if body_bytes else F.lit(0)).alias("body_bytes"),
    )
    grouped = rows.groupBy("start_ms", "origin", "tag", "ahead").agg(*_sums())
    return [_partial(row) for row in grouped.collect()]


def _sums() -> list[Column]:
    from pyspark.sql import functions as F

    def count(condition: Column, name: str) -> Column:
        return F.count_if(condition).alias(name)

    first = F.col("first")
    delay = F.when(first, F.col("delay_ms"))
    return [
        count(first, "messages"),
        count(F.col("again"), "retries"),
        count(F.col("dead"), "dead_letters"),
        F.sum(F.col("stored_bytes").cast("bigint")).alias("stored_bytes"),
        F.sum(F.col("body_bytes").cast("bigint")).alias("body_bytes"),
        F.max("latest_ms").alias("latest_ms"),
        F.sum(delay).alias("delay_ms_sum"),
        F.min(delay).alias("delay_ms_min"),
        F.max(delay).alias("delay_ms_max"),
        *(count(delay <= bound, f"d{n}") for n, bound in enumerate(DELAY_BOUNDS_MS)),
    ]


def _partial(row: Row) -> Partial:
    values: dict[str, Any] = row.asDict()
    tally = Tally(
        messages=values["messages"],
        retries=values["retries"],
        dead_letters=values["dead_letters"],
        stored_bytes=values["stored_bytes"],
        body_bytes=values["body_bytes"],
        delay_ms_sum=values["delay_ms_sum"] or 0,
        delay_ms_min=values["delay_ms_min"],
        delay_ms_max=values["delay_ms_max"],
        delays=[values[f"d{number}"] for number in range(len(DELAY_BOUNDS_MS))],
    )
    key = WindowKey(values["start_ms"], values["origin"], values["tag"])
    return Partial(key, tally, values["latest_ms"], values["ahead"])
