"""A task's part of an archive: Arrow batches in, Parquet files of the table and a report out.

    report (JSON)  {"files": [{"path": "topic=T/date=2026-01-31/part-3f9c02d1-000.parquet",
                               "topic": "T", "date": "2026-01-31", "rows": 3, "size": 2469,
                               "stats": {...}}, ...],
                    "spans": {...},      the offsets that the files hold, once each
                    "repeated": 0,       rows left out because the table has them
                    "reasons": {}}       with a schema of bodies: why some were not decoded

    stats          as Delta's log has them: numRecords, minValues, maxValues and nullCount

Rows keep their order. What is buffered is bounded by BUFFER_BYTES beside one batch, and the files
that are open at once by OPEN_MAX. Spark worker; nothing outlives a task. A task that is tried again
writes other files: names hold a token of the attempt. Files that no commit names are no part of the
table.

Source: delta-io/delta PROTOCOL.md (Per-file Statistics)
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple, Self, cast
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from skylarkmq.spark import schema
from skylarkmq.spark.archive.durability import sync_files
from skylarkmq.spark.archive.spans import Spans
from skylarkmq.spark.archive.state import ArchiveError
from skylarkmq.spark.offsets import QueueKey
from skylarkmq.spark.storage import Location
from skylarkmq.spark.typed.rows import TypedRows, columns_of_bodies, leaf_paths
from skylarkmq.spark.typed.topic_schema import TopicSchema

BUFFER_BYTES: Final = 64 * 1024 * 1024
"""Of all files together; the fullest one's rows are written when it is reached."""
GROUP_BYTES: Final = 32 * 1024 * 1024
"""Of Arrow data in one row group."""
OPEN_MAX: Final = 16
FILE_BYTES: Final = 128 * 1024 * 1024
COMPRESSION: Final = "zstd"
COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "none")
STATISTICS: Final = (
    "brokerName", "queueId", "queueOffset", "bornTimestamp", "storeTimestamp", "reconsumeTimes",
    "physicalOffset", "storeSize",
)  # fmt: skip
"""Columns whose least and greatest values stand in the log, so that readers pass files over.

None that holds what a user wrote, or an address: an erased message's would stay in the log.
"""
_DAY_US: Final = 86_400_000_000
_EPOCH: Final = datetime.date(1970, 1, 1).toordinal()
# A dictionary of bodies or of ids that differ in every row is built for nothing.
_WITH_DICTIONARY: Final = [
    "brokerName", "keys", "tags", "bornHost", "storeHost", "properties.key_value.key",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What every task of a batch is told; picklable. Holds secrets of the store: no repr."""

    location: Location = field(repr=False)
    file_bytes: int = FILE_BYTES
    compression: str = COMPRESSION
    known: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """`Spans.to_json` of what the table has and this batch may bring again."""
    typed: TopicSchema | None = None
    """What makes columns of bodies; None: nothing does."""


class _Rows(NamedTuple):
    """A stretch of a batch: one queue, rising offsets without a hole, [start, end)."""

    key: QueueKey
    place: int
    start: int
    end: int


class TaskWriter:
    """Writes one task's rows; a context manager. `close` gives the report."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._filesystem = plan.location.filesystem()
        self._token = uuid.uuid4().hex
        self._known = Spans.from_json(plan.known)
        self._typed = None if plan.typed is None else TypedRows(plan.typed)
        self._columns = file_schema(plan.typed)
        self._open: dict[tuple[str, str], TableFile] = {}
        self._done: list[dict[str, Any]] = []
        self._runs: list[_Rows] = []
        self._count = 0
        self.repeated = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for file in self._open.values():
            file.abandon()
        self._open.clear()
        if isinstance(error, Exception):
            for report in self._done:
                self._filesystem.delete_file(report["path"])

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows with at least the columns of `schema.COLUMNS`, none of them without a time.

        Raises:
            ArchiveError: a row without its place.
        """
        batch = self._without_known(batch)
        self._note(batch)
        if self._typed is not None:
            batch = self._typed.add_columns(batch)
        for partition, rows in _by_partition(batch):
            self._file(partition).add(rows)
        while sum(file.buffered for file in self._open.values()) > BUFFER_BYTES:
            max(self._open.values(), key=lambda file: file.buffered).write_group()
        for partition, file in list(self._open.items()):
            if file.size >= self._plan.file_bytes:
                self._close_file(partition)

    def close(self) -> dict[str, Any]:
        """End the files, sync them, and return the report.

        Raises:
            OverlapError: an offset came twice.
        """
        for partition in list(self._open):
            self._close_file(partition)
        sync_files(self._plan.location, [file["path"] for file in self._done])
        spans = Spans.of((rows.key, rows.start, rows.end) for rows in self._runs)
        return {
            "files": self._done,
            "spans": spans.to_json(),
            "repeated": self.repeated,
            "reasons": {} if self._typed is None else dict(self._typed.reasons),
        }

    def _note(self, batch: pa.RecordBatch) -> None:
        """Take note of the offsets: the commit refuses those that come twice."""
        for rows in _stretches(batch):
            last = self._runs[-1] if self._runs else None
            if last is not None and last.key == rows.key and last.end == rows.start:
                self._runs[-1] = last._replace(end=rows.end)
            else:
                self._runs.append(rows)

    def _without_known(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Leave out rows that the table has: a batch that comes again after a crash."""
        if not self._known:
            return batch
        kept: list[pa.RecordBatch] = []
        repeated = 0
        for rows in _stretches(batch):
            start = rows.start
            for low, high in self._known.runs_within(rows.key, rows.start, rows.end):
                low, high = max(low, rows.start), min(high, rows.end)
                kept.append(batch.slice(rows.place + start - rows.start, low - start))
                repeated += high - low
                start = high
            kept.append(batch.slice(rows.place + start - rows.start, rows.end - start))
        if not repeated:
            return batch
        self.repeated += repeated
        return one_batch(pa.Table.from_batches(kept, batch.schema))

    def _file(self, partition: tuple[str, str]) -> TableFile:
        file = self._open.pop(partition, None)
        if file is None:
            if len(self._open) >= OPEN_MAX:
                self._close_file(next(iter(self._open)))
            path = file_path(*partition, f"{self._token}-{self._count:03d}")
            self._count += 1
            file = TableFile(
                self._filesystem, path, partition, self._plan.compression, self._columns
            )
        self._open[partition] = file  # the one used last stands last
        return file

    def _close_file(self, partition: tuple[str, str]) -> None:
        self._done.append(self._open.pop(partition).close())


def file_path(topic: str, date: str, token: str) -> str:
    """Return where a new file lies below the table: topic=%25RETRY%25g/date=2026-01-31/...

    The log has the partition's values, and polars takes them from the path all the same: so they
    stand there too, encoded as Delta's other writers do.
    """
    return f"topic={quote(topic, safe='')}/date={date}/part-{token}.parquet"


class TableFile:
    """One Parquet file of the table while it is written.

    Args:
        path: below the table.
        partition: topic and date, which stand in the log and not in the file.
        columns: of the rows; by default those of the source.
    """

    def __init__(
        self,
        filesystem: FileSystem,
        path: str,
        partition: tuple[str, str],
        compression: str = COMPRESSION,
        columns: pa.Schema | None = None,
    ) -> None:
        self.buffered = 0
        self._filesystem = filesystem
        self._path = path
        self._partition = partition
        self._schema = file_schema() if columns is None else columns
        known = set(schema.names())
        added = [
            path for each in self._schema if each.name not in known for path in leaf_paths(each)
        ]
        self._file = filesystem.open_output_stream(path)
        self._metadata: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            self._file,
            self._schema,
            compression=cast("Any", compression),
            # Names of columns, which the stubs forgot.
            use_dictionary=cast("Any", [*_WITH_DICTIONARY, *added]),
            write_statistics=cast("Any", [*STATISTICS, "tags", *added]),
            coerce_timestamps="us",
            metadata_collector=self._metadata,
        )
        self._batches: list[pa.RecordBatch] = []

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._file.tell()

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows with at least the columns of the file."""
        if not rows.num_rows:
            return
        rows = rows.select(self._schema.names)
        self._batches.append(rows)
        self.buffered += rows.nbytes
        if self.buffered >= GROUP_BYTES:
            self.write_group()

    def write_group(self) -> None:
        """Write what is buffered as one row group."""
        table = pa.Table.from_batches(self._batches).cast(self._schema)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._batches.clear()
        self.buffered = 0

    def close(self) -> dict[str, Any]:
        """End the file; return what a report says of it. It is not yet synced."""
        if self._batches:
            self.write_group()
        self._writer.close()
        size = self._file.tell()
        self._file.close()
        (metadata,) = self._metadata
        topic, date = self._partition
        return {
            "path": self._path,
            "topic": topic,
            "date": date,
            "rows": metadata.num_rows,
            "size": size,
            "stats": statistics(metadata),
        }

    def abandon(self) -> None:
        """Let go of the file of a task that fails, and remove it: no commit will name it."""
        self._batches.clear()
        with suppress(Exception):
            self._writer.close()
            self._file.close()
        with suppress(Exception):
            self._filesystem.delete_file(self._path)


def statistics(metadata: pq.FileMetaData) -> dict[str, Any]:
    """Return what the log says of a file's columns."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    names = {metadata.schema.column(at).path: at for at in range(metadata.num_columns)}
    for name in STATISTICS:
        if name not in names:
            continue
        parts: list[Any] = [
            metadata.row_group(group).column(names[name]).statistics
            for group in range(metadata.num_row_groups)
        ]
        nulls[name] = sum(part.null_count for part in parts)
        known = [part for part in parts if part.has_min_max]
        if known:
            least[name] = min(part.min for part in known)
            greatest[name] = max(part.max for part in known)
    return {
        "numRecords": metadata.num_rows,
        "minValues": {name: _in_log(value) for name, value in least.items()},
        "maxValues": {name: _in_log(value) for name, value in greatest.items()},
        "nullCount": nulls,
    }


def _in_log(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        text = value.astimezone(datetime.UTC).isoformat(timespec="milliseconds")
        return text.replace("+00:00", "Z")
    return value


def write_batches(plan: WritePlan, batches: Iterable[pa.RecordBatch]) -> dict[str, Any]:
    """Write a task's batches and return the report."""
    with plan.location.errors(), TaskWriter(plan) as writer:
        for batch in batches:
            writer.add(batch)
        return writer.close()


def file_schema(typed: TopicSchema | None = None) -> pa.Schema:
    """Return the Arrow schema of a data file."""
    found = schema.arrow_schema(name for name in schema.names() if name != "topic")
    for each in () if typed is None else columns_of_bodies(typed):
        found = found.append(each)
    return found


def spans_of(rows: pa.Table) -> Spans:
    """Return the offsets of rows in any order: their topic, brokerName, queueId, queueOffset.

    An offset that is there more than once counts once.
    """
    types: dict[str, pa.DataType] = {
        "topic": pa.string(),
        "brokerName": pa.string(),
        "queueId": pa.int32(),
        "queueOffset": pa.int64(),
    }
    place = pa.schema(list(types.items()))
    plain = rows.select(place.names).cast(place)
    ordered = plain.sort_by([(name, "ascending") for name in plain.column_names])
    spans = Spans()
    for batch in ordered.combine_chunks().to_batches():
        for part in _stretches(batch):
            spans.merge(part.key, part.start, part.end)
    return spans


def _stretches(batch: pa.RecordBatch) -> Iterator[_Rows]:
    """Cut a batch where the queue changes, or where an offset does not follow the one before."""
    count = batch.num_rows
    if not count:
        return
    columns = [batch.column(name) for name in ("topic", "brokerName", "queueId")]
    offsets = batch.column("queueOffset")
    if any(column.null_count for column in (*columns, offsets)):
        raise ArchiveError("a row lacks its topic, broker, queue or offset")
    steps = pc.subtract(offsets.slice(1), offsets.slice(0, count - 1))
    follows = pc.equal(steps, pa.scalar(1, pa.int64()))
    for column in columns:
        follows = pc.and_(follows, pc.equal(column.slice(1), column.slice(0, count - 1)))
    breaks = cast("list[int]", pc.indices_nonzero(pc.invert(follows)).to_pylist())
    places = [0, *(place + 1 for place in breaks), count]
    for place, end in pairwise(places):
        key = QueueKey(*(column[place].as_py() for column in columns))
        start = offsets[place].as_py()
        yield _Rows(key, place, start, start + end - place)


def _by_partition(batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, str], pa.RecordBatch]]:
    """Yield the rows of each topic and date, in their order."""
    if not batch.num_rows:
        return
    times = batch.column("storeTimestamp")
    if times.null_count:
        raise ArchiveError("a row lacks its storeTimestamp")
    days = pc.divide(times.cast(pa.int64()), _DAY_US)
    keys = pa.table({"topic": batch.column("topic"), "day": days})
    found = keys.group_by(["topic", "day"], use_threads=False).aggregate([]).to_pylist()
    for entry in found:
        topic, day = entry["topic"], entry["day"]
        rows = batch
        if len(found) > 1:
            same = pc.and_(pc.equal(keys["topic"], topic), pc.equal(days, day))
            rows = batch.filter(_one(same))
        yield (topic, datetime.date.fromordinal(_EPOCH + day).isoformat()), rows


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one batch."""
    return pa.RecordBatch.from_arrays([_one(c) for c in table.columns], schema=table.schema)


def _one(column: Any) -> Any:
    """Return a column, an Array or a ChunkedArray, as one Array."""
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return column
