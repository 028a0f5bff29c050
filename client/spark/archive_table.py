"""An archive: messages in Parquet files, each (topic, broker, queue, offset) exactly once.

    <table>/
      topic=orders/date=2026-01-31/part-000000000017-3f9c02d1-000.parquet     [/hour=05/]
      _skylarkmq/
        table.json                  format and partition columns, written once
        lock                        held (flock) by the job that writes
        commits/000000000017.json   one file a commit: files added and removed, offsets, written once
        snapshots/000000000064.json the sum of all commits up to that one
        staging/<run>/<batch>/topic=.../date=.../part-....parquet.staged

A data file has the columns of `schema.COLUMNS` without `topic`, which is in its path as are `date`
and, where the table was made so, `hour`: of storeTimestamp, in UTC, as the texts 2026-01-31 and 05.
In a path a topic is percent-encoded: `%RETRY%g` is topic=%25RETRY%25g. Body and properties are as
the source gives them.

A commit has four steps; killed between any two of them, or within one, nothing is lost or doubled:

    1  tasks write and sync staged files
    2  the driver writes commits/N.json, whole or not at all: THE commit
    3  it removes the files that N replaces (compaction alone), then renames N's files into place
    4  it empties the staging folder

The next writer does 3 and 4 for the last commit, if need be, before all else. Staged files that no
commit names are rubbish.

    reader                                       sees
    `files`, `read`, `dataset` of this module    every committed message once, also between 2 and 3
    one that lists the folder (Spark, pyarrow,   every message at most once, and once after step 3:
    `**/*.parquet`)                              names that start with _ are passed over, and staged
                                                 files do not end in .parquet

The commits also hold which offsets of each queue are there: a commit that would add one again is
refused, and a new run goes on where the table ends. So there is no checkpoint to lose. The table
lies on a local disk, or on one that driver and executors mount at the same path.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame, SparkSession


class ArchivedFile(NamedTuple):
    """A committed data file, where it lies now."""

    path: str
    """Absolute."""
    base: str
    """The folder above its topic=... folder."""
    topic: str
    date: str
    hour: str | None
    rows: int
    size: int
    """Bytes."""
    first_ms: int
    last_ms: int
    """The least and the greatest storeTimestamp, ms since the epoch."""


def files(
    path: str | Path,
    *,
    topics: Collection[str] | None = None,
    start_ms: int | None = None,
    end_ms: int | None = None,
) -> list[ArchivedFile]:
    """Return the committed files, oldest commit first; needs neither Spark nor pyarrow.

    Args:
        topics: of these alone.
        start_ms, end_ms: files that may hold messages stored in [start_ms, end_ms) alone.

    Raises:
        ArchiveError: no archive there, or a damaged one.
    """
    raise NotImplementedError


def read(
    spark: SparkSession,
    path: str | Path,
    *,
    topics: Collection[str] | None = None,
    start_ms: int | None = None,
    end_ms: int | None = None,
) -> DataFrame:
    """Return the committed messages: `schema.COLUMNS` in order, then date and, if there, hour.

    Arguments choose FILES as in `files`: filter storeTimestamp for exact times. In a file each
    queue's messages stand in rising order.
    """
    raise NotImplementedError


def dataset(path: str | Path, *, topics: Collection[str] | None = None) -> ds.Dataset:
    """Return the committed messages as a pyarrow dataset with the columns that `read` gives."""
    raise NotImplementedError
