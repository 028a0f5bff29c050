"""A task's part of an archive: Arrow batches in, synced Parquet files in the staging folder out.

    report (JSON)  {"files": [[name, rows, size, first_ms, last_ms], ...],   DataFile
                    "spans": {...},      the offsets that the files hold, once each
                    "last_ms": {"v": 1, "o": {...}},   latest storeTimestamp by queue
                    "repeated": 0}       rows left out because the table has them

Rows keep their order. What is buffered is bounded by BUFFER_BYTES beside one batch, and the files
that are open at once by OPEN_MAX. Spark worker; nothing outlives a task. A task that is tried again
writes other files: names hold a token of the attempt.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import datetime
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Self, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from skylarkmq.spark import schema
from skylarkmq.spark.archive.commits import STAGED, ArchiveError, DataFile, partition_folder
from skylarkmq.spark.archive.spans import Spans
from skylarkmq.spark.offsets import QueueKey, QueueOffsets, describe

BUFFER_BYTES: Final = 64 * 1024 * 1024
"""Of all files together; the fullest one's rows are written when it is reached."""
GROUP_BYTES: Final = 32 * 1024 * 1024
"""Of Arrow data in one row group."""
OPEN_MAX: Final = 16
FILE_BYTES: Final = 128 * 1024 * 1024
COMPRESSION: Final = "zstd"
COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "none")
_DAY_US: Final = 86_400_000_000
_HOUR_US: Final = 3_600_000_000
_EPOCH: Final = datetime.date(1970, 1, 1).toordinal()
# A dictionary of bodies or of ids that differ in every row is built for nothing.
_WITH_DICTIONARY: Final = [
    "brokerName", "keys", "tags", "bornHost", "storeHost", "properties.key_value.key",
]  # fmt: skip
_WITH_STATISTICS: Final = ["brokerName", "queueId", "queueOffset", "storeTimestamp", "tags"]


@dataclass(frozen=True, slots=True)
class WritePlan:
    """What every task of a batch is told; picklable."""

    stage_folder: str
    """Absolute; the first task makes it."""
    commit_number: int
    hourly: bool = False
    file_bytes: int = FILE_BYTES
    compression: str = COMPRESSION
    known: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """`Spans.to_json` of what the table holds of these topics."""
    known_last_ms: Mapping[str, Any] = field(default_factory=lambda: QueueOffsets().to_json())

    def as_json(self) -> dict[str, Any]:
        """Return the fields; `WritePlan(**fields)` makes it again."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


class _Rows(NamedTuple):
    """A stretch of a batch: one queue, rising offsets without a hole, [start, end)."""

    key: QueueKey
    place: int
    start: int
    end: int


class StagedWriter:
    """Writes one task's rows; a context manager. `close` gives the report."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._token = uuid.uuid4().hex[:8]
        self._known = Spans.from_json(plan.known)
        self._known_last_ms = dict(QueueOffsets.from_json(plan.known_last_ms))
        self._open: dict[str, StagedFile] = {}
        self._done: list[DataFile] = []
        self._runs: list[_Rows] = []
        self._last_ms: dict[QueueKey, int] = {}
        self._count = 0
        self.repeated = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.abandon()
        self._open.clear()

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows with at least the columns of `schema.COLUMNS`, none of them without a time.

        Raises:
            ArchiveError: offsets that the table has, with other messages.
        """
        batch = self._without_known(batch)
        self._note(batch)
        for folder, rows in self._by_folder(batch):
            self._file(folder).add(rows)
        while sum(file.buffered for file in self._open.values()) > BUFFER_BYTES:
            max(self._open.values(), key=lambda file: file.buffered).write_group()
        for folder, file in list(self._open.items()):
            if file.size >= self._plan.file_bytes:
                self._close_file(folder)

    def close(self) -> dict[str, Any]:
        """Sync the files and return the report."""
        for folder in list(self._open):
            self._close_file(folder)
        spans = Spans.of((rows.key, rows.start, rows.end) for rows in self._runs)
        return {
            "files": [list(file) for file in self._done],
            "spans": spans.to_json(),
            "last_ms": QueueOffsets(self._last_ms).to_json(),
            "repeated": self.repeated,
        }

    def _note(self, batch: pa.RecordBatch) -> None:
        """Take note of the offsets: the commit refuses those that come twice."""
        for rows in _stretches(batch):
            last = self._runs[-1] if self._runs else None
            if last is not None and last.key == rows.key and last.end == rows.start:
                self._runs[-1] = last._replace(end=rows.end)
            else:
                self._runs.append(rows)
            stored_ms = _last_ms(batch.slice(rows.place, rows.end - rows.start))
            self._last_ms[rows.key] = max(stored_ms, self._last_ms.get(rows.key, 0))

    def _without_known(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Leave out rows that the table has: a batch that comes again after a crash."""
        kept: list[pa.RecordBatch] = []
        repeated = 0
        for rows in _stretches(batch):
            start = rows.start
            for low, high in self._known_within(rows):
                kept.append(batch.slice(rows.place + start - rows.start, low - start))
                again = batch.slice(rows.place + low - rows.start, high - low)
                self._check_same(rows.key, low, again)
                repeated += high - low
                start = high
            kept.append(batch.slice(rows.place + start - rows.start, rows.end - start))
        if not repeated:
            return batch
        self.repeated += repeated
        table = pa.Table.from_batches(kept, batch.schema).combine_chunks()
        return pa.RecordBatch.from_arrays(
            [_one(column) for column in table.columns], schema=batch.schema
        )

    def _known_within(self, rows: _Rows) -> Iterator[tuple[int, int]]:
        start = rows.start
        while start < rows.end:
            run = self._known.first_run_within(rows.key, start, rows.end)
            if run is None:
                return
            start = min(run[1], rows.end)
            yield max(run[0], rows.start), start

    def _check_same(self, key: QueueKey, offset: int, again: pa.RecordBatch) -> None:
        """Refuse new messages under offsets of old ones, which would be dropped as known."""
        latest = self._known_last_ms.get(key)
        if latest is not None and _last_ms(again) > latest:
            raise ArchiveError(
                f"{describe(key)}: the archive has the messages of offsets from {offset} on, and "
                "the broker has later ones there: the topic was made anew, or the broker lost "
                "its last messages in a crash and uses their offsets again",
                hint="Archive into another folder from here on",
            )

    def _by_folder(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield the rows of each partition with its folder, in their order."""
        if not batch.num_rows:
            return
        unit = _HOUR_US if self._plan.hourly else _DAY_US
        units = pc.divide(batch.column("storeTimestamp").cast(pa.int64()), unit)
        keys = pa.table({"topic": batch.column("topic"), "unit": units})
        found = keys.group_by(["topic", "unit"], use_threads=False).aggregate([]).to_pylist()
        for entry in found:
            topic, number = entry["topic"], entry["unit"]
            rows = batch
            if len(found) > 1:
                same = pc.and_(pc.equal(keys["topic"], topic), pc.equal(units, number))
                rows = batch.filter(_one(same))
            yield self._folder(topic, number), rows

    def _folder(self, topic: str, number: int) -> str:
        day, hour = divmod(number, 24) if self._plan.hourly else (number, 0)
        date = datetime.date.fromordinal(_EPOCH + day).isoformat()
        return partition_folder(topic, date, f"{hour:02d}" if self._plan.hourly else None)

    def _file(self, folder: str) -> StagedFile:
        file = self._open.pop(folder, None)
        if file is None:
            if len(self._open) >= OPEN_MAX:
                self._close_file(next(iter(self._open)))
            name = f"part-{self._plan.commit_number:012d}-{self._token}-{self._count:03d}.parquet"
            self._count += 1
            file = StagedFile(self._plan.stage_folder, f"{folder}/{name}", self._plan.compression)
        self._open[folder] = file  # the one used last stands last
        return file

    def _close_file(self, folder: str) -> None:
        self._done.append(self._open.pop(folder).close())


class StagedFile:
    """One Parquet file while it is written; `stage_folder` is absolute, `name` below the table."""

    def __init__(self, stage_folder: str, name: str, compression: str = COMPRESSION) -> None:
        path = Path(stage_folder) / f"{name}{STAGED}"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.buffered = 0
        self._name = name
        self._schema = file_schema()
        self._file: IO[bytes] = path.open("xb")
        self._writer = pq.ParquetWriter(
            self._file,
            self._schema,
            compression=cast("Any", compression),
            use_dictionary=cast("Any", _WITH_DICTIONARY),  # columns too, which the stubs forgot
            write_statistics=_WITH_STATISTICS,
            coerce_timestamps="us",
        )
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._first_ms: int | None = None
        self._last_ms = 0

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._file.tell()

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows with at least the columns of a data file."""
        rows = rows.select(self._schema.names)
        first_ms, last_ms = _first_ms(rows), _last_ms(rows)
        self._first_ms = first_ms if self._first_ms is None else min(first_ms, self._first_ms)
        self._last_ms = max(last_ms, self._last_ms)
        self._rows += rows.num_rows
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

    def close(self) -> DataFile:
        """Sync the file; return what a commit says of it."""
        if self._batches:
            self.write_group()
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        size = self._file.tell()
        self._file.close()
        return DataFile(self._name, self._rows, size, self._first_ms or 0, self._last_ms)

    def abandon(self) -> None:
        """Let go of the file of a task that fails; the next writer removes it."""
        self._batches.clear()
        self._file.close()


def write_batches(plan: WritePlan, batches: Iterable[pa.RecordBatch]) -> dict[str, Any]:
    """Write a task's batches and return the report."""
    with StagedWriter(plan) as writer:
        for batch in batches:
            writer.add(batch)
        return writer.close()


def file_schema() -> pa.Schema:
    """Return the Arrow schema of a data file."""
    return schema.arrow_schema(name for name in schema.names() if name != "topic")


def _stretches(batch: pa.RecordBatch) -> Iterator[_Rows]:
    """Cut a batch where the queue changes, or where an offset does not follow the one before."""
    count = batch.num_rows
    if not count:
        return
    columns = [batch.column(name) for name in ("topic", "brokerName", "queueId")]
    offsets = batch.column("queueOffset")
    if any(column.null_count for column in (*columns, offsets, batch.column("storeTimestamp"))):
        raise ArchiveError("a row lacks its topic, broker, queue, offset or storeTimestamp")
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


def _first_ms(rows: pa.RecordBatch) -> int:
    return int(pc.min(rows.column("storeTimestamp").cast(pa.int64())).as_py()) // 1000


def _last_ms(rows: pa.RecordBatch) -> int:
    return int(pc.max(rows.column("storeTimestamp").cast(pa.int64())).as_py()) // 1000


def _one(column: Any) -> Any:
    """Return a column, an Array or a ChunkedArray, as one Array."""
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return column
