"""Rows and archives for tests, without a JVM, and a disk that a writer dies on."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.dataset as ds

from skylarkmq.spark import archive_table, schema
from skylarkmq.spark.archive.commits import STAGING, ArchiveWriter, open_files
from skylarkmq.spark.archive.writer import WritePlan, write_batches
from skylarkmq.spark.durable_folder import DurableFolder
from skylarkmq.spark.offsets import QueueOffsets

DAY_MS = 86_400_000
T0_MS = 1_767_225_600_000  # 2026-01-01T00:00Z

Place = tuple[str, str, int, int]
"""Topic, broker, queue, offset."""


def row(place: Place, stored_ms: int = T0_MS, body: bytes | None = None) -> dict[str, Any]:
    """A message of a place; every value follows from its arguments."""
    topic, broker, queue, offset = place
    body = f"{topic}/{broker}/{queue}/{offset}".encode() if body is None else body
    at = datetime.datetime.fromtimestamp(stored_ms / 1000, datetime.UTC)
    return {
        "topic": topic, "brokerName": broker, "queueId": queue, "queueOffset": offset,
        "msgId": f"{queue:08X}{offset:08X}", "offsetMsgId": f"{offset:032X}",
        "keys": f"k{offset}", "tags": "A" if offset % 2 else None, "body": body,
        "properties": [("KEYS", f"k{offset}"), ("ä", "\x00 ")],
        "bornTimestamp": at, "storeTimestamp": at,
        "bornHost": "127.0.0.1:1", "storeHost": "127.0.0.1:2", "reconsumeTimes": 0, "flag": 0,
        "sysFlag": 0, "bodyCRC": crc32(body) & 0x7FFFFFFF, "physicalOffset": offset * 100,
        "storeSize": 100, "preparedTransactionOffset": 0,
    }  # fmt: skip


def batch(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """Rows as the source gives them."""
    return pa.RecordBatch.from_pylist(list(rows), schema=schema.arrow_schema(schema.names()))


def run_of(topic: str, queue: int, start: int, end: int, **more: Any) -> list[dict[str, Any]]:
    """The messages [start, end) of a queue."""
    return [row((topic, "broker-a", queue, offset), **more) for offset in range(start, end)]


def open_writer(files: DurableFolder | Path, **more: Any) -> ArchiveWriter:
    """A writer whose clock stands still."""
    files = files if isinstance(files, DurableFolder) else open_files(files)
    return ArchiveWriter(files, now_ms=lambda: T0_MS, **more)


def stage(
    writer: ArchiveWriter, name: str, tasks: Iterable[Sequence[dict[str, Any]]], **plan: Any
) -> list[dict[str, Any]]:
    """Do what a batch's tasks do; each has one Arrow batch."""
    told = WritePlan(
        str(writer.files.root / STAGING / writer.stage(name)),
        writer.state.number + 1,
        hourly=writer.hourly,
        known=writer.state.spans.to_json(),
        known_last_ms=QueueOffsets(writer.state.last_ms).to_json(),
        **plan,
    )
    return [write_batches(told, [batch(rows)]) for rows in tasks]


def append(
    writer: ArchiveWriter, name: str, tasks: Iterable[Sequence[dict[str, Any]]], **plan: Any
) -> int:
    """Stage and commit."""
    return writer.append(name, stage(writer, name, tasks, **plan))


def places(table: pa.Table) -> list[Place]:
    """The places of a table's rows, sorted."""
    columns = (
        table[name].to_pylist() for name in ("topic", "brokerName", "queueId", "queueOffset")
    )
    return sorted(zip(*columns, strict=True))


def committed(path: Path) -> list[Place]:
    """What a reader of the commits sees."""
    return places(archive_table.dataset(path).to_table())


def listed(path: Path) -> list[Place]:
    """What a reader sees who lists the folder and knows nothing of commits."""
    if not list(path.glob("**/*.parquet")):
        return []
    columns = pa.schema([("topic", pa.string()), ("date", pa.string()), ("hour", pa.string())])
    form = ds.partitioning(columns, flavor="hive")
    return places(ds.dataset(path, format="parquet", partitioning=form).to_table())


class Killed(BaseException):
    """kill -9, as far as a test can have it: nobody handles it."""


class DyingFolder(DurableFolder):
    """A disk whose writer dies at its n-th change; a file or folder may be left half done."""

    def __init__(self, root: Path, changes_left: int) -> None:
        super().__init__(root)
        self.changes_left = changes_left

    def _change(self) -> bool:
        """Count a change; True when the writer dies at it."""
        self.changes_left -= 1
        return self.changes_left < 0

    def make_folder(self, name: str) -> None:
        if self._change():
            raise Killed
        super().make_folder(name)

    def create(self, name: str, data: bytes) -> None:
        if self._change():
            super().create(name, data[: len(data) // 2])
            raise Killed
        super().create(name, data)

    def rename(self, old: str, new: str) -> None:
        if self._change():
            raise Killed
        super().rename(old, new)

    def rename_new(self, old: str, new: str) -> None:
        if self._change():
            raise Killed
        super().rename_new(old, new)

    def remove(self, name: str) -> None:
        if self._change():
            raise Killed
        super().remove(name)

    def remove_folder(self, name: str) -> None:
        if self._change():
            for file in list(self.files_below(name))[:1]:
                super().remove(file)
            raise Killed
        super().remove_folder(name)

    def sync_folder(self, name: str) -> None:
        if self._change():
            raise Killed
        super().sync_folder(name)
