"""Rows and archives for tests, without a JVM, and what ends a writer at every one of its steps."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from skylarkmq.spark import archive_table, schema
from skylarkmq.spark.archive import durability
from skylarkmq.spark.archive.delta_log import DeltaLog
from skylarkmq.spark.archive.spans import Spans
from skylarkmq.spark.archive.table import ArchiveTable
from skylarkmq.spark.archive.writer import TableFile, WritePlan, write_batches
from skylarkmq.spark.offsets import QueueKey
from skylarkmq.spark.storage import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        "keys": f"k{offset} q{queue}", "tags": "A" if offset % 2 else None, "body": body,
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


def here(path: Path) -> Location:
    """The place of a path."""
    return Location.parse(str(path), environment={})


def open_table(path: Path, **more: Any) -> ArchiveTable:
    """An archive to write into, made if need be."""
    return ArchiveTable.open_or_make(here(path), **more)


def reports_of(
    table: ArchiveTable, tasks: Iterable[Sequence[dict[str, Any]]], known: Spans | None = None
) -> list[dict[str, Any]]:
    """Do what a batch's tasks do; each has one Arrow batch."""
    plan = WritePlan(table.location, known=(known or Spans()).to_json())
    return [write_batches(plan, [batch(rows)]) for rows in tasks]


def commit(table: ArchiveTable, reports: Iterable[dict[str, Any]]) -> None:
    """Commit what tasks report."""
    files, spans = [], Spans()
    for report in reports:
        files += report["files"]
        spans.add_all(Spans.from_json(report["spans"]))
    table.append(files, spans)


def append(table: ArchiveTable, *tasks: Sequence[dict[str, Any]]) -> None:
    """Write and commit a batch."""
    commit(table, reports_of(table, tasks))


def places(table: pa.Table) -> list[Place]:
    """The places of a table's rows, sorted."""
    columns = (
        table[name].to_pylist() for name in ("topic", "brokerName", "queueId", "queueOffset")
    )
    return sorted(zip(*columns, strict=True))


def rows_of(path: Path, **more: Any) -> pa.Table:
    """All rows, as deltalake and pyarrow read them, who know nothing of us."""
    return DeltaTable(str(path), **more).to_pyarrow_table()


def committed(path: Path) -> list[Place]:
    """What any reader of the Delta table sees."""
    return places(rows_of(path)) if DeltaTable.is_deltatable(str(path)) else []


def differences(spark: SparkSession, path: Path, name_server: str, topic: str) -> list[Any]:
    """What a topic and its archive do not both have, or not as often; in all columns."""
    names = [name for name in schema.names() if name != "properties"]  # Spark compares no maps
    columns = [*names, "map_entries(properties) AS entries"]
    source = spark.read.format("skylarkmq").options(nameServer=name_server, topic=topic)
    there = source.load().selectExpr(*columns)
    archived = archive_table.read(spark, path, topics=[topic]).selectExpr(*columns)
    return [*there.exceptAll(archived).collect(), *archived.exceptAll(there).collect()]


def documented(path: Path) -> None:
    """The archive that the programs of its page read: 20 messages of a topic, in two batches."""
    table = open_table(path)
    table.begin({QueueKey("orders", "broker-a", 0): 0})
    for number in range(2):
        append(table, run_of("orders", 0, number * 10, number * 10 + 10))


class Killed(BaseException):
    """kill -9, as far as a test can have it: nobody handles it."""


STEPS = (
    (DeltaLog, "_write"),
    (DeltaLog, "make_durable"),
    (DeltaLog, "_write_checkpoint"),
    (DeltaLog, "_clean_up"),
    (TableFile, "write_group"),
    (TableFile, "close"),
    (durability, "sync_path"),
)


@contextmanager
def dying_after(steps: int) -> Iterator[list[str]]:
    """End the writer with Killed before step number `steps`; gives the names of those before.

    A step is whatever changes the disk, and the moment after it: killed before the next one.
    """
    done: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in STEPS:
            original = getattr(owner, name)

            def step(
                *arguments: Any, _original: Any = original, _name: str = name, **more: Any
            ) -> Any:
                if len(done) == steps:
                    raise Killed(_name)
                done.append(_name)
                return _original(*arguments, **more)

            patch.setattr(owner, name, step)
        yield done
