"""Columns of bodies in an archive's files: other commands keep them, and other engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from skylarkmq.spark.archive.removal import erase
from skylarkmq.spark.archive.table import ArchiveTable
from skylarkmq.spark.archive.writer import WritePlan, write_batches
from skylarkmq.spark.archive_table import read_batches
from skylarkmq.spark.jobs.archive_typed import prepare
from skylarkmq.spark.storage import Location
from skylarkmq.spark.typed.topic_schema import TopicSchema
from tests.spark.support.archives import (
    batch,
    commit,
    open_table,
    places,
    row,
    rows_of,
)

SCHEMA = TopicSchema("json", columns={"id": "bigint", "items": "array<struct<n:int,m:string>>"})


def message(offset: int) -> dict[str, Any]:
    """A message whose body says its offset; every fifth is no JSON."""
    body = json.dumps({"id": offset, "items": [{"n": offset, "m": "m"}]}).encode()
    return row(("orders", "broker-a", 0, offset), body=body if offset % 5 else b"no")


def add(
    table: ArchiveTable, start: int, end: int, schema: TopicSchema | None = SCHEMA
) -> dict[str, Any]:
    if schema is not None:
        prepare(table, schema, "orders")
    rows = [batch([message(offset) for offset in range(start, end)])]
    report = write_batches(WritePlan(table.location, typed=schema), rows)
    commit(table, [report])
    return report


def said(rows: pa.Table) -> dict[int, Any]:
    return {
        offset: (value, bool(reason))
        for offset, value, reason in zip(
            rows["queueOffset"].to_pylist(),
            rows["value"].to_pylist(),
            rows["quarantine"].to_pylist(),
            strict=True,
        )
    }


def wanted(offset: int) -> Any:
    if offset % 5 == 0:
        return None, True
    return {"id": offset, "items": [{"n": offset, "m": "m"}]}, False


def test_erase_and_optimize_keep_the_columns(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    add(table, 0, 10, schema=None)
    assert sum(add(table, 10, 20)["reasons"].values()) == 2
    expected = {offset: wanted(offset) if offset >= 10 else (None, False) for offset in range(20)}
    assert said(rows_of(tmp_path)) == expected
    gone = erase(
        table, "value['id'] IN (12, 13) OR quarantine IS NOT NULL AND \"queueOffset\" = 15"
    )
    assert gone.count() == 3
    for offset in (12, 13, 15):
        del expected[offset]
    assert said(rows_of(tmp_path)) == expected
    DeltaTable(str(tmp_path)).optimize.compact()
    assert said(rows_of(tmp_path)) == expected
    assert len(places(rows_of(tmp_path))) == 17


def test_old_files_are_read_as_the_table_is_now(place: Location) -> None:
    """On a disk and in an object store."""
    table = ArchiveTable.open_or_make(place)
    add(table, 0, 10, schema=None)
    add(table, 10, 20)
    columns = pa.schema([table.log.columns().field(name) for name in
                         ("queueOffset", "value", "quarantine")])  # fmt: skip
    found = pa.Table.from_batches(read_batches(table.location, table.files(), columns), columns)
    older = dict.fromkeys(range(10), (None, False))
    assert said(found) == older | {offset: wanted(offset) for offset in range(10, 20)}


def test_the_columns_have_statistics_in_the_file_and_none_in_the_log(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    (file,) = add(table, 0, 10)["files"]
    assert not [name for name in file["stats"]["minValues"] if name.startswith("value")]
    group = pq.ParquetFile(tmp_path / file["path"]).metadata.row_group(0)
    by_path = {group.column(at).path_in_schema: group.column(at) for at in
               range(group.num_columns)}  # fmt: skip
    assert by_path["value.id"].statistics.max == 9
    assert "RLE_DICTIONARY" in by_path["value.items.list.element.n"].encodings
