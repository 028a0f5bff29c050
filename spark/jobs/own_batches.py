"""Batches of topics that a job's driver plans itself, for a session of Spark Connect.

There `foreachBatch` runs its function in a process of the server, without anything of the job's.
Here the job stays in its own process, and Spark only reads: each batch is a batch read between two
offsets, which the planner of the stream has chosen.

    StreamPlanner --end of the batch--> the book --> a read of the ranges --> take(frame, number)

    <checkpoint>/metadata   {"id": ...}: a new book has a new one, as Spark's checkpoints do
    <checkpoint>/book       the batch that was begun last: number, offsets, whether it is done

A batch is in the book before it is taken, so one that a crash cut short comes again with the same
offsets and the same number.

Driver process, main thread. Importing this loads no pyspark.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.jobs.common import JobError
from skylarkmq.spark.ledgers.objects import objects_at
from skylarkmq.spark.offsets import OffsetRange, QueueKey, QueueOffsets
from skylarkmq.spark.options import SOURCE_OPTIONS, SUBJECTS, SourceOptions
from skylarkmq.spark.reading.planning import NOWHERE, Limit, StreamPlanner
from skylarkmq.spark.reading.positions import POSITION_OPTIONS
from skylarkmq.spark.storage import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

METADATA: Final = "metadata"
BOOK: Final = "book"
VERSION: Final = 1
_OF_STREAMS: Final = frozenset(
    each.name.lower()
    for each in (*SUBJECTS, *POSITION_OPTIONS, *SOURCE_OPTIONS)
    if each in SUBJECTS or each in POSITION_OPTIONS or each.only == "stream"
) | {"commitoffsets"}
"""Options, in lower case, that a batch read takes from the batch instead, or not at all."""


@dataclass(frozen=True, slots=True)
class Step:
    """A batch: its number, and the offsets that it lies between."""

    number: int
    start: QueueOffsets
    end: QueueOffsets
    done: bool


class Book:
    """Where a job stands, in a folder of this machine. Driver; one job at a time."""

    def __init__(self, checkpoint: str) -> None:
        """Make the folder if need be.

        Args:
            checkpoint: its path, or the path as a `file:` address.
        """
        self._objects = objects_at(Location.parse(checkpoint))
        if self._objects.read(METADATA) is None:
            self._objects.write(METADATA, json.dumps({"id": str(uuid.uuid4())}).encode(), None)

    def last(self) -> Step | None:
        """Return the batch that was begun last, None before the first.

        Raises:
            JobError: the book is of a newer release, or damaged.
        """
        stored = self._objects.read(BOOK)
        if stored is None:
            return None
        place = self._objects.place.child(BOOK)
        try:
            found = json.loads(stored.data)
        except ValueError as error:
            raise JobError(f"{place} is damaged: {error}") from error
        if found.get("v") != VERSION:
            raise JobError(f"{place} was written by a newer release")
        start, end = (QueueOffsets.from_json(found[name]) for name in ("start", "end"))
        return Step(int(found["batch"]), start, end, bool(found["done"]))

    def write(self, step: Step) -> None:
        """Write a batch down, durably."""
        document = {
            "v": VERSION,
            "batch": step.number,
            "start": step.start.to_json(),
            "end": step.end.to_json(),
            "done": step.done,
        }
        before = self._objects.read(BOOK)
        tag = None if before is None else before.tag
        self._objects.write(BOOK, json.dumps(document).encode(), tag)


class OwnBatches:
    """The batches of one run of a job."""

    def __init__(
        self,
        planner: StreamPlanner,
        source: SourceOptions,
        book: Book,
        read: Callable[[list[OffsetRange]], Any],
    ) -> None:
        """Ask no broker yet.

        Args:
            read: returns what `take` is given of the messages in some ranges.
        """
        self._planner = planner
        self._limit = Limit(source.max_offsets_per_trigger, source.min_offsets_per_trigger)
        self._book = book
        self._read = read
        self._step: Step | None = None

    def begin(self, *, to_the_ends: bool) -> None:
        """Find out where to go on.

        Args:
            to_the_ends: the run ends where the queues end now.
        """
        planner, self._step = self._planner, self._book.last()
        if to_the_ends:
            planner.freeze()
        if self._step is None:
            at = planner.initial() or planner.latest(NOWHERE, self._limit)
            self._step = Step(-1, at, at, done=True)
            self._book.write(self._step)

    def take_next(self, take: Callable[[Any, int], None]) -> bool:
        """Give the next batch to `take`; return whether there was one."""
        step = self._step
        assert step is not None, "begin() comes first"
        if step.done:
            end = self._planner.latest(step.end, self._limit)
            if end == step.end:
                return False
            step = Step(step.number + 1, step.end, end, done=False)
            self._book.write(step)
        take(self._read(self._planner.plan(step.start, step.end)), step.number)
        self._step = Step(step.number, step.start, step.end, done=True)
        self._book.write(self._step)
        return True

    @property
    def behind(self) -> int | None:
        """Messages between the last batch and the ends of the queues; None: not known yet."""
        report = self._planner.report()
        return None if report is None else sum(report["behind"].values())


def own_batches(options: Mapping[str, str], checkpoint: str, read: Any) -> OwnBatches:
    """Return the batches of a source with these options; see `OwnBatches`."""
    source = SourceOptions.from_options(options, streaming=True)
    planner = StreamPlanner(BlockingClient(source.connection), source)
    return OwnBatches(planner, source, Book(checkpoint), read)


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
