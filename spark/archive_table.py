"""An archive: messages in Parquet files, each (topic, broker, queue, offset) exactly once.

    <table>/
      topic=orders/date=2026-01-31/part-000000000017-3f9c02d1-000.parquet     [/hour=05/]
      _skylarkmq/
        table.json                  format and partition columns, written once
        lock                        held (flock) by the job that writes
        commits/000000000017.json   one file a commit: files added and removed, offsets
        snapshots/000000000064.json the sum of all commits up to that one
        staging/<run>/<batch>/topic=.../date=.../part-....parquet.staged
        runs/<run>/                 Spark's checkpoint of the run that writes, gone with it

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
commit names do not count.

    reader                                       sees
    `files`, `read`, `dataset` of this module    every committed message once, also between 2 and 3
    one that lists the folder (Spark, pyarrow,   every message at most once, and once after step 3:
    `**/*.parquet`)                              names that start with _ are passed over, and staged
                                                 files do not end in .parquet

The commits also hold which offsets of each queue are there: a commit that would add one again is
refused, and a new run goes on where the table ends. So there is no checkpoint to lose. The table
lies on a local disk, or on one that driver and executors mount at the same path.
"""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from skylarkmq.spark import schema
from skylarkmq.spark.archive import commits as archive_commits
from skylarkmq.spark.archive.commits import STAGING, ArchiveError, DataFile, TableState, staged_name
from skylarkmq.spark.durable_folder import DurableFolder

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "ArchiveError",
    "ArchivedFile",
    "column_names",
    "dataset",
    "ddl",
    "files",
    "read",
    "state",
]

PARTITION_COLUMNS = ("date", "hour")


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

    A compaction removes files that were handed out before it: read them soon, or start anew.

    Args:
        topics: of these alone.
        start_ms, end_ms: files that may hold messages stored in [start_ms, end_ms) alone.

    Raises:
        ArchiveError: no archive there, or a damaged one.
    """
    found, gone = whereabouts(path)
    if gone:
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        raise ArchiveError(
            f"{gone[0].name}{more} of the archive {archive_commits.open_files(path).root} is gone",
            hint="The job audit lists what was in it. Restore it from a backup",
        )
    return [
        file
        for file in found
        if (topics is None or file.topic in topics)
        and (start_ms is None or file.last_ms >= start_ms)
        and (end_ms is None or file.first_ms < end_ms)
    ]


def whereabouts(path: str | Path) -> tuple[list[ArchivedFile], list[DataFile]]:
    """Return the committed files where they lie, and those that are gone; waits for no writer.

    Raises what `files` does, but for files that are gone.
    """
    table = archive_commits.open_files(path)
    state = archive_commits.load(table)
    while True:
        found, gone = _placed(table, state)
        if not gone:
            return found, gone
        # A writer may just have moved or replaced them; then there is another commit.
        again = archive_commits.load(table)
        back = any(table.size(file.name) is not None for file in gone)
        if again.number == state.number and not back:
            return found, gone
        state = again


def state(path: str | Path) -> TableState:
    """Return what the commits add up to, among it which offsets of each queue are there.

    Raises:
        ArchiveError: no archive there, or a damaged one.
    """
    return archive_commits.load(archive_commits.open_files(path))


def read(
    spark: SparkSession,
    path: str | Path,
    *,
    topics: Collection[str] | None = None,
    start_ms: int | None = None,
    end_ms: int | None = None,
) -> DataFrame:
    """Return the committed messages: `schema.COLUMNS` in order, then date and, if there, hour.

    Arguments choose FILES as in `files`: filter storeTimestamp for exact times. No order is
    promised: sort by queueOffset where it counts.
    """
    return read_files(spark, path, files(path, topics=topics, start_ms=start_ms, end_ms=end_ms))


def read_files(spark: SparkSession, path: str | Path, chosen: Sequence[ArchivedFile]) -> DataFrame:
    """Return the messages of some of the files of the archive `path`, as `read` does."""
    hourly = archive_commits.table_hourly(archive_commits.open_files(path))
    found = spark.createDataFrame([], ddl(hourly))
    parts: list[DataFrame] = []
    for base in sorted({file.base for file in chosen}):
        # The scheme keeps Spark from looking in the cluster's default file system.
        paths = [f"file://{file.path}" for file in chosen if file.base == base]
        reader = spark.read.schema(ddl(hourly)).option("basePath", f"file://{base}")
        parts.append(reader.parquet(*paths).select(*column_names(hourly)))
    for part in parts:
        found = part if part is parts[0] else found.unionAll(part)
    return found


def dataset(path: str | Path, *, topics: Collection[str] | None = None) -> ds.Dataset:
    """Return the committed messages as a pyarrow dataset with the columns that `read` gives.

    Raises what `files` does.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyarrow.fs import LocalFileSystem

    hourly = archive_commits.table_hourly(archive_commits.open_files(path))
    chosen = files(path, topics=topics)
    names = column_names(hourly)
    types: dict[str, pa.DataType] = {column.name: column.arrow for column in schema.COLUMNS}
    types |= {name: pa.string() for name in PARTITION_COLUMNS}
    wanted = pa.schema([(name, types[name]) for name in names])
    keys = pa.schema([(name, pa.string()) for name in _partition_names(hourly)])
    form, disk = ds.ParquetFileFormat(), LocalFileSystem()
    fragments = [
        form.make_fragment(file.path, disk, partition_expression=_expression(file, keys))
        for file in chosen
    ]
    return ds.FileSystemDataset(fragments, wanted, form, disk)


def column_names(hourly: bool) -> tuple[str, ...]:
    """Return the columns of `read` in order."""
    return (*schema.names(), *_partition_names(hourly)[1:])


def ddl(hourly: bool) -> str:
    """Return the columns of `read` as a schema that Spark reads."""
    return ", ".join([schema.ddl(), *(f"{name} string" for name in _partition_names(hourly)[1:])])


def _partition_names(hourly: bool) -> Sequence[str]:
    return ("topic", "date", "hour") if hourly else ("topic", "date")


def _expression(file: ArchivedFile, keys: pa.Schema) -> ds.Expression:
    import pyarrow.dataset as ds

    values = {"topic": file.topic, "date": file.date, "hour": file.hour}
    found = ds.field("topic") == file.topic
    for name in keys.names[1:]:
        found = found & (ds.field(name) == values[name])
    return found


def _placed(table: DurableFolder, state: TableState) -> tuple[list[ArchivedFile], list[DataFile]]:
    """Return where the files lie, and those that are neither in place nor staged."""
    root = str(table.root)
    last = {file.name for file in state.last.add} if state.last else set[str]()
    stage = state.last.stage if state.last else ""
    found: list[ArchivedFile] = []
    gone: list[DataFile] = []
    for file in state.files.values():
        if table.size(file.name) is not None:
            found.append(_archived(file, f"{root}/{file.name}", root))
        elif file.name in last and table.size(staged_name(stage, file.name)) is not None:
            staged = staged_name(stage, file.name)
            found.append(_archived(file, f"{root}/{staged}", f"{root}/{STAGING}/{stage}"))
        else:
            gone.append(file)
    return found, gone


def _archived(file: DataFile, path: str, base: str) -> ArchivedFile:
    return ArchivedFile(
        path,
        base,
        file.value("topic") or "",
        file.value("date") or "",
        file.value("hour"),
        *file[1:],
    )
