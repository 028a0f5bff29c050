# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""Read an archive with Spark, without a jar: on a disk and in an object store alike.

An archive is a Delta table (`archive.table` has its columns and partitions), so whatever reads
Delta Lake reads it: delta-spark, deltalake, pandas, polars, DuckDB. This module is for a Spark
without the jars of Delta and of the object store. Its list of files comes from the log, so it gives
each committed message once whatever jobs and other engines do meanwhile, an OPTIMIZE included.

    from skylarkmq.spark import archive_table

    archive_table.read(spark, "s3://bucket/archive", topics=["orders"], start_ms=1_767_225_600_000)

The tasks read the Parquet files with pyarrow. A version that another engine has changed by deletion
vectors or column mapping is refused: delta-spark reads it.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from skylarkmq.spark.archive.delta_log import DataFile
from skylarkmq.spark.archive.state import ArchiveError
from skylarkmq.spark.archive.table import ArchiveTable
from skylarkmq.spark.storage import Location

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["ArchiveError", "DataFile", "choose", "read", "read_files"]

FORMAT: Final = "skylarkmq-archive-table"
TASK_BYTES: Final = 64 * 1024 * 1024
"""Of files that one task reads."""
BATCH_BYTES: Final = 4 * 1024 * 1024
BATCH_ROWS: Final = 8_192


def read(
    spark: SparkSession,
    place: str | Path | Location,
    *,
    topics: Collection[str] | None = None,
    start_ms: int | None = None,
    end_ms: int | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the committed messages: the columns of the source, then `date` and what was added.

    `topics`, `start_ms` and `end_ms` choose FILES, by what the log says of them: filter topic and
    storeTimestamp for exact bounds. No order is promised: sort by queueOffset where it counts.

    Args:
        place: a path, or a URI of an object store.
        topics: of these alone.
        start_ms, end_ms: files that may hold messages stored in [start_ms, end_ms) alone.
        columns: these alone are read, in this order.
        storage_options: of the object store; those of the environment count as well.

    Raises:
        ArchiveError: no archive there, a damaged one, or one that only delta-spark can read.
        StorageError: the place cannot be used.
    """
    if not isinstance(place, Location):
        place = Location.parse(str(place), storage_options)
    table = ArchiveTable.open(place)
    chosen = choose(table.files(), topics=topics, start_ms=start_ms, end_ms=end_ms)
    return read_files(spark, table, chosen, columns=columns)


def choose(
    files: Sequence[DataFile],
    *,
    topics: Collection[str] | None = None,
    start_ms: int | None = None,
    end_ms: int | None = None,
) -> list[DataFile]:
    """Return the files that may hold such messages, see `read`."""
    return [
        file
        for file in files
        if (topics is None or file.topic in topics)
        and (start_ms is None or file.last_ms is None or file.last_ms >= start_ms)
        and (end_ms is None or file.first_ms is None or file.first_ms < end_ms)
    ]


def read_files(
    spark: SparkSession,
    table: ArchiveTable,
    chosen: Sequence[DataFile],
    *,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Return the messages of some files of a table's loaded version, as `read` does."""
    from pyspark.sql.types import StructType

    table.log.require_plain()
    schema = table.log.table.schema()
    spark_schema = StructType.fromJson(json.loads(schema.to_json()))
    if columns is not None:
        spark_schema = StructType([spark_schema[name] for name in columns])
    spark.dataSource.register(_source(table.location, tuple(chosen), spark_schema, schema))
    return spark.read.format(FORMAT).load()


def tasks_of(files: Sequence[DataFile]) -> list[tuple[DataFile, ...]]:
    """Return which files each task reads: about TASK_BYTES, or one large one."""
    found: list[tuple[DataFile, ...]] = []
    group: list[DataFile] = []
    for file in files:
        if group and sum(other.size for other in group) + file.size > TASK_BYTES:
            found.append(tuple(group))
            group = []
        group.append(file)
    return [*found, tuple(group)] if group else found


def read_batches(
    location: Location, files: Sequence[DataFile], wanted: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some files in the columns of a schema; one that a file lacks is null."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    filesystem = location.filesystem()
    for file in files:
        date = datetime.date.fromisoformat(file.date) if file.date else None
        partition = {"topic": file.topic, "date": date}
        with (
            location.errors(),
            filesystem.open_input_file(file.name) as opened,
            pq.ParquetFile(opened) as source,
        ):
            there = [name for name in wanted.names if name in source.schema_arrow.names]
            for batch in source.iter_batches(_batch_rows(source.metadata), columns=there):
                arrays: list[Any] = []
                for field in wanted:
                    if field.name in there:
                        arrays.append(batch.column(field.name).cast(field.type))
                    elif field.name in partition:
                        value = pa.scalar(partition[field.name], field.type)
                        arrays.append(pa.repeat(value, batch.num_rows))
                    else:
                        arrays.append(pa.nulls(batch.num_rows, field.type))
                yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _batch_rows(metadata: pq.FileMetaData) -> int:
    """Return how many rows of a file make a batch that Spark takes well."""
    size = sum(metadata.row_group(at).total_byte_size for at in range(metadata.num_row_groups))
    return max(1, min(BATCH_ROWS, BATCH_BYTES * metadata.num_rows // max(1, size)))


def _source(
    location: Location, files: tuple[DataFile, ...], spark_schema: StructType, schema: Any
) -> type[Any]:
    """Return the data source of these files: a class that goes to the workers by value.

    Options would do as well, but they are shown, and the store's have secrets.
    """
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    types = {field.name: field.type for field in pa.schema(schema.to_arrow())}
    wanted = pa.schema([(name, types[name]) for name in spark_schema.names])

    class Files(InputPartition):
        """What one task reads."""

        def __init__(self, files: tuple[DataFile, ...]) -> None:
            self.files = files

    class ArchiveReader(DataSourceReader):
        """Reads with pyarrow."""

        def partitions(self) -> list[InputPartition]:
            return [Files(group) for group in tasks_of(files)] or [Files(())]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            assert isinstance(partition, Files)
            return read_batches(location, partition.files, wanted)

    class ArchiveFiles(DataSource):
        """The data source."""

        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> StructType:
            return spark_schema

        def reader(self, schema: StructType) -> ArchiveReader:
            return ArchiveReader()

    return ArchiveFiles
