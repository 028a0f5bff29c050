"""A replay on Spark: what is selected is counted by source queue, shared out, and sent in order.

    archive --files of the time range--> rows --where--> counts by source queue
                                          |
                      rows of one source queue to one task, sorted by offset --> target

Driver process. Tasks run in parallel, one source queue after another in each.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from skylarkmq.protocol.message import MessageQueue
from skylarkmq.spark import archive_table
from skylarkmq.spark.jobs.common import USAGE, JobError, StopRequest, explain
from skylarkmq.spark.jobs.quiet import hush
from skylarkmq.spark.jobs.replaying.ledger import Selection
from skylarkmq.spark.jobs.replaying.task import COLUMNS, ReplaySetup

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

POLL_S: Final = 0.5
JOB_GROUP: Final = "skylarkmq-replay"
_QUEUE: Final = ("topic", "brokerName", "queueId")
_KEY_SEPARATOR: Final = "\x01"


@dataclass(frozen=True, slots=True)
class Selected:
    """What of one source queue is selected."""

    count: int
    size: int | None
    """Bytes of bodies; None when they were not looked at."""
    first_offset: int
    last_offset: int
    first_stored: str
    last_stored: str
    """storeTimestamp of the first and the last by offset's extremes, ISO 8601 in UTC."""


def select(spark: SparkSession, selection: Selection) -> DataFrame:
    """Return the selected rows, unsorted.

    Raises:
        JobError: `where` is no condition on the archive's columns.
        ArchiveError: no archive there.
    """
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f

    rows = archive_table.read(
        spark,
        selection.archive,
        topics=selection.topics,
        start_ms=selection.start_ms,
        end_ms=selection.end_ms,
    )
    if selection.start_ms is not None:
        rows = rows.where(f.col("storeTimestamp") >= f.timestamp_millis(f.lit(selection.start_ms)))
    if selection.end_ms is not None:
        rows = rows.where(f.col("storeTimestamp") < f.timestamp_millis(f.lit(selection.end_ms)))
    if selection.where:
        try:
            rows = rows.where(selection.where)
        except (AnalysisException, ParseException) as error:
            raise JobError(
                f"--where {selection.where!r} is no condition on the columns of the archive: "
                f"{explain(error)}",
                exit_code=USAGE,
            ) from error
    return rows


def count(
    rows: DataFrame, from_offsets: Mapping[MessageQueue, int], *, with_sizes: bool
) -> dict[MessageQueue, Selected]:
    """Return what is selected by source queue, below `from_offsets` nothing. Runs a Spark job."""
    from pyspark.sql import functions as f

    stored = [
        f.date_format(aggregate("storeTimestamp"), "yyyy-MM-dd'T'HH:mm:ss.SSSXXX").alias(name)
        for name, aggregate in (("first_stored", f.min), ("last_stored", f.max))
    ]
    size = f.sum(f.length("body")) if with_sizes else f.lit(None)
    counted = (
        from_on(rows, from_offsets)
        .groupBy(*_QUEUE)
        .agg(
            f.count(f.lit(1)).alias("count"),
            size.alias("size"),
            f.min("queueOffset").alias("first_offset"),
            f.max("queueOffset").alias("last_offset"),
            *stored,
        )
        .collect()
    )
    found = {MessageQueue(*row[:3]): Selected(*row[3:]) for row in counted}
    return dict(sorted(found.items()))


def from_on(rows: DataFrame, from_offsets: Mapping[MessageQueue, int]) -> DataFrame:
    """Return the rows at these offsets and behind; of queues that are not named all."""
    from pyspark.sql import functions as f

    known = {queue: offset for queue, offset in from_offsets.items() if offset}
    if not known:
        return rows
    return rows.where(f.col("queueOffset") >= f.coalesce(by_queue(known), f.lit(0)))


def share_out(counts: Mapping[MessageQueue, int], tasks_max: int) -> dict[MessageQueue, int]:
    """Return a task number for each source queue, so that tasks have about equally much."""
    loads = [0] * max(1, min(tasks_max, len(counts)))
    found: dict[MessageQueue, int] = {}
    for queue in sorted(counts, key=lambda each: (-counts[each], each)):
        task = loads.index(min(loads))
        loads[task] += counts[queue]
        found[queue] = task
    return found


def send(
    spark: SparkSession,
    rows: DataFrame,
    setup: ReplaySetup,
    tasks: Mapping[MessageQueue, int],
    on_poll: Callable[[], None],
) -> bool:
    """Send the rows; True when all are sent, False when a signal ended it before.

    Raises:
        Exception: what Spark raised because a task failed.
    """
    from skylarkmq.spark.jobs.replaying.sink import write

    names = [name for name, _ in COLUMNS]
    plan = (
        rows.select(*names)
        .repartitionById(max(tasks.values()) + 1, by_queue(tasks))
        .sortWithinPartitions(*_QUEUE, "queueOffset")
    )
    context = spark.sparkContext
    failures: list[BaseException] = []

    def act() -> None:
        try:
            context.setJobGroup(JOB_GROUP, "replay", interruptOnCancel=True)
            write(plan, setup)
        except BaseException as error:  # raised again below, in the main thread
            failures.append(error)

    thread = threading.Thread(target=act, name=JOB_GROUP)
    with StopRequest() as stop:
        thread.start()
        cancelled = False
        while thread.is_alive():
            thread.join(POLL_S)
            on_poll()
            if stop.asked and not cancelled:
                hush()
                context.cancelJobGroup(JOB_GROUP)
                cancelled = True
    if failures and not cancelled:
        raise failures[0]
    return not failures


def by_queue(values: Mapping[MessageQueue, int]) -> Column:
    """Return a column with the value of a row's source queue, null where there is none."""
    from pyspark.sql import functions as f

    if not values:
        return f.lit(None)

    pairs: list[Any] = [
        f.lit(part)
        for part in chain.from_iterable(
            (_KEY_SEPARATOR.join(map(str, queue)), value) for queue, value in values.items()
        )
    ]
    key = f.concat_ws(_KEY_SEPARATOR, *(f.col(name).cast("string") for name in _QUEUE))
    return f.try_element_at(f.create_map(*pairs), key)


def tasks_at_once(spark: SparkSession) -> int:
    """Return how many tasks run at once."""
    return max(1, spark.sparkContext.defaultParallelism)
