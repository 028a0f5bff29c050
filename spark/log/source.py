"""`format("skylarkmq-commitlog")`: the log files of a store as a table, without a broker.

    spark.read.format("skylarkmq-commitlog").load("/data/store")

Reads a stopped store, a copy, a dead broker's disk, also the store of a broker that runs, ours or
RocketMQ's, in the columns of the live source, of which brokerName is missing and segment, position,
crcOk and recordKind are added. Files are cut at records, and each piece is a task; under
`onCorruption=stop` one task reads all, because no other task can know what counts after damage.

The folder must be visible on every executor under the same path. Nothing is ever written to it: no
lock, no mark.

The driver lists and cuts the files; executors read them.
Source: apache/spark@v4.3.0 python/pyspark/sql/datasource.py (DataSource, DataSourceReader)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from skylarkmq.client.errors import NotSupported, RocketMQError
from skylarkmq.common.read_only_files import ReadOnlyFiles
from skylarkmq.spark.log.log_batches import LogBatches, SegmentRange
from skylarkmq.spark.log.log_options import LogOptions
from skylarkmq.spark.option_reading import refuse_catalog_tables
from skylarkmq.spark.schema import LOG_COLUMNS, ddl, struct_projection
from skylarkmq.store.folder import StorePaths
from skylarkmq.store.log.mapped_file import NAME_DIGITS
from skylarkmq.store.stopped.segments import SegmentFile

if TYPE_CHECKING:
    import pyarrow as pa

LOGGER: Final = logging.getLogger(__name__)


class LogNotFoundError(RocketMQError):
    """There is no log where one was asked for, or none that may be read."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log file: its path, the physical offset of its first byte, its bytes."""

    path: str
    base: int
    size: int


class LogPartition(InputPartition):
    """What one task reads, in order."""

    def __init__(self, spans: Sequence[SegmentRange]) -> None:
        super().__init__(tuple(spans))
        self.spans = tuple(spans)


class CommitLogSource(DataSource):
    """The format. Driver."""

    def __init__(self, options: dict[str, str]) -> None:
        """Take the options; refuse a table of Spark's catalog (OptionError)."""
        super().__init__(options)
        refuse_catalog_tables(options, self.name())

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "skylarkmq-commitlog"

    def schema(self) -> str:
        """Return all columns."""
        return ddl(LOG_COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the columns that are asked for.

        Raises:
            OptionError: an option is unknown, missing or wrong.
            SchemaError: a column is not one of a log's.
        """
        names = struct_projection(schema.fields, LOG_COLUMNS)
        return CommitLogReader(LogOptions.parse(self.options), names)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Refuse: files end, topics go on."""
        raise NotSupported(
            "skylarkmq-commitlog reads a log as it is now and has no stream",
            hint="Use spark.read, or readStream.format('skylarkmq') to follow a topic",
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refuse: a store has one writer, its broker."""
        raise _read_only()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Refuse: a store has one writer, its broker."""
        raise _read_only()


class CommitLogReader(DataSourceReader):
    """Plans in the driver, reads in executors. Picklable; holds no open file."""

    def __init__(self, options: LogOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = tuple(names)

    def partitions(self) -> list[InputPartition]:
        """Return the pieces of the log. Driver.

        Raises:
            LogNotFoundError: there is no log at the path.
        """
        spans = plan(list_log(self._options.path), self._options)
        if self._options.on_corruption == "stop":
            return [LogPartition(spans)] if spans else []
        return [LogPartition([span]) for span in spans]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one piece. Executor.

        Raises:
            DamagedLogError: there is damage, and `onCorruption` is fail.
            LogNotFoundError: the log's folder is not visible here.
        """
        assert isinstance(partition, LogPartition)
        return read_spans(partition.spans, self._names, self._options)


def _read_only() -> NotSupported:
    return NotSupported(
        "skylarkmq-commitlog only reads",
        hint="To send rows to a topic use write.format('skylarkmq').mode('append')",
    )


def list_log(path: str) -> list[LogFile]:
    """Return the log files of a store, in order: its folder, its commitlog folder, or one file.

    Raises:
        LogNotFoundError: there is none, or it may not be read.
    """
    with _permitted(path):
        return _listed(path)


def _listed(path: str) -> list[LogFile]:
    files, given = ReadOnlyFiles(), Path(path)
    if _is_log_name(given.name) and files.exists(given) and not files.is_folder(given):
        return [LogFile(str(given), int(given.name), files.size(given))]
    if not files.is_folder(given):
        raise LogNotFoundError(
            f"{path} is not a folder on this machine",
            hint="load(path) names the store's folder (storePathRootDir), which the driver and "
            "every executor must see under the same path",
        )
    inner = StorePaths(given).commit_log
    folder = inner if files.is_folder(inner) else given
    names = [name for name in files.list(folder) if _is_log_name(name)]
    if not names:
        raise LogNotFoundError(
            f"{folder} holds no log file: none with a name of {NAME_DIGITS} digits",
            hint="Name the store's folder, which holds the folder commitlog, or that folder itself",
        )
    found: list[LogFile] = []
    for name in names:
        with suppress(FileNotFoundError):  # it expired just now
            found.append(LogFile(str(folder / name), int(name), files.size(folder / name)))
    return found


def plan(log: Sequence[LogFile], options: LogOptions) -> list[SegmentRange]:
    """Return the ranges that hold all records, in order; files made ahead of need have none.

    What the disk cannot read is for the task to tell that has it in its range.
    """
    files = list(log)
    while files and _is_blank(files[-1]):
        files.pop()
    spans: list[SegmentRange] = []
    for place, found in enumerate(files):
        with open_log(found.path, found.base, patient=True) as opened:
            starts, size = [0], found.size  # gone: `read_spans` tells what that means
            if opened is not None:
                size = opened.size
                if 0 < options.max_partition_bytes < size:
                    starts = opened.cuts(options.max_partition_bytes, size)
        spans += [
            SegmentRange(found.path, found.base, begin, end, is_cut=end != size)
            for begin, end in zip(starts, [*starts[1:], size], strict=True)
        ]
        if place + 1 < len(log):
            following = log[place + 1].base - found.base
            spans[-1] = replace(spans[-1], next_file=following)
    if spans:
        spans[-1] = replace(spans[-1], is_last=True)
    return spans


def _is_blank(found: LogFile) -> bool:
    with open_log(found.path, found.base, patient=True) as opened:
        return opened is not None and opened.is_blank()


def read_spans(
    spans: Sequence[SegmentRange], names: Sequence[str], options: LogOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the records of ranges, one after the other."""
    reader = LogBatches(names, options)
    for span in spans:
        patient = options.on_corruption != "fail"
        with open_log(span.path, span.base, patient=patient) as opened:
            if opened is not None:
                yield from reader.read(opened, span)
            elif _has_older(Path(span.path)):
                reader.miss(span, "the file is gone, and it did not expire: older ones are there")
            else:
                LOGGER.warning("%s was deleted since the log was listed: it expired", span.path)
        if reader.stopped:
            return


@contextmanager
def open_log(path: str, base: int, *, patient: bool) -> Generator[SegmentFile | None]:
    """Open a log file for reading alone; None when it was deleted in the meantime.

    Args:
        patient: what the disk cannot read counts as damage instead of raising OSError.

    Raises:
        LogNotFoundError: its whole folder is not there, or the file may not be read.
    """
    files = ReadOnlyFiles(patient=patient)
    try:
        with _permitted(path):
            file = files.open(Path(path))
    except FileNotFoundError:
        if not files.is_folder(Path(path).parent):
            raise LogNotFoundError(
                f"{Path(path).parent} is not a folder on this executor",
                hint="Mount or copy the store so that every executor sees it under the same path",
            ) from None
        yield None
        return
    try:
        yield SegmentFile(file, base)
    finally:
        file.close()


@contextmanager
def _permitted(path: str) -> Generator[None]:
    try:
        yield
    except PermissionError as error:
        raise LogNotFoundError(
            f"{error.filename or path} may not be read by user {os.getuid()}",
            hint="The user that Spark runs as, in driver and executors, needs the right to read "
            "the files and to list and enter their folders; it needs no right to write",
        ) from error


def _has_older(path: Path) -> bool:
    """Return whether an older log file is there: brokers delete the oldest first."""
    names = ReadOnlyFiles().list(path.parent)
    return any(_is_log_name(name) and name < path.name for name in names)


def _is_log_name(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()
