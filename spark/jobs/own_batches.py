"""Batches of topics that a job's driver plans itself, for a session of Spark Connect.

There `foreachBatch` runs its function in a process of the server, without anything of the job's.
Here the job stays in its own process, and Spark only reads: each batch is a batch read between two
offsets, which the planner of the stream has chosen.

    StreamPlanner --end of the batch--> a read of the ranges --> take(frame, end)

Nothing is noted: a job keeps where its last batch ended together with what came of it.

Driver process, main thread. Importing this loads no pyspark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.offsets import OffsetRange, QueueKey, QueueOffsets
from skylarkmq.spark.options import SOURCE_OPTIONS, SUBJECTS, SourceOptions
from skylarkmq.spark.reading.planning import NOWHERE, Limit, StreamPlanner
from skylarkmq.spark.reading.positions import POSITION_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OF_STREAMS: Final = frozenset(
    each.name.lower()
    for each in (*SUBJECTS, *POSITION_OPTIONS, *SOURCE_OPTIONS)
    if each in SUBJECTS or each in POSITION_OPTIONS or each.only == "stream"
) | {"commitoffsets"}
"""Options, in lower case, that a batch read takes from the batch instead, or not at all."""


class OwnBatches:
    """The batches of one run of a job."""

    def __init__(
        self,
        planner: StreamPlanner,
        source: SourceOptions,
        read: Callable[[list[OffsetRange]], Any],
    ) -> None:
        """Ask no broker yet.

        Args:
            read: returns what `take` is given of the messages in some ranges.
        """
        self._planner = planner
        self._limit = Limit(source.max_offsets_per_trigger, source.min_offsets_per_trigger)
        self._read = read
        self._at: QueueOffsets | None = None

    def begin(self, *, to_the_ends: bool) -> None:
        """Find out where to begin.

        Args:
            to_the_ends: the run ends where the queues end now.
        """
        if to_the_ends:
            self._planner.freeze()
        self._at = self._planner.initial() or self._planner.latest(NOWHERE, self._limit)

    def take_next(self, take: Callable[[Any, QueueOffsets], None]) -> bool:
        """Give the next batch, and where it ends, to `take`; return whether there was one."""
        start = self._at
        assert start is not None, "begin() comes first"
        end = self._planner.latest(start, self._limit)
        if end == start:
            return False
        take(self._read(self._planner.plan(start, end)), end)
        self._at = end
        return True

    @property
    def behind(self) -> int | None:
        """Messages between the last batch and the ends of the queues; None: not known yet."""
        report = self._planner.report()
        return None if report is None else sum(report["behind"].values())


def own_batches(options: Mapping[str, str], read: Any) -> OwnBatches:
    """Return the batches of a source with these options; see `OwnBatches`."""
    source = SourceOptions.from_options(options, streaming=True)
    planner = StreamPlanner(BlockingClient(source.connection), source)
    return OwnBatches(planner, source, read)


def reader_of(
    spark: SparkSession, options: Mapping[str, str], schema: str | None
) -> Callable[[list[OffsetRange]], DataFrame]:
    """Return what makes a data frame of the messages in ranges.

    Args:
        options: of the stream.
        schema: the columns as DDL; None: all.
    """
    from skylarkmq.spark.schema import ddl

    kept = {name: value for name, value in options.items() if name.lower() not in _OF_STREAMS}

    def read(ranges: list[OffsetRange]) -> DataFrame:
        if not ranges:
            return spark.createDataFrame([], schema or ddl())
        reader = spark.read.format("skylarkmq").schema(schema or ddl())
        return reader.options(**kept, **between(ranges)).load()

    return read


def between(ranges: Iterable[OffsetRange]) -> dict[str, str]:
    """Return the options that make a batch read of ranges; those of a queue follow one another."""
    starts: dict[QueueKey, int] = {}
    ends: dict[QueueKey, int] = {}
    for each in ranges:
        starts[each.key] = min(each.start, starts.get(each.key, each.start))
        ends[each.key] = max(each.end, ends.get(each.key, each.end))
    queues: dict[str, dict[str, list[int]]] = {}
    for topic, broker, number in starts:
        queues.setdefault(topic, {}).setdefault(broker, []).append(number)
    return {
        "assign": json.dumps(queues),
        "startingOffsets": json.dumps(QueueOffsets(starts).nested()),
        "endingOffsets": json.dumps(QueueOffsets(ends).nested()),
    }
