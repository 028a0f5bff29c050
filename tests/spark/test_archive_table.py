"""The reader for a Spark without jars, but for Spark itself: which files, which rows, what not."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from skylarkmq.spark import archive_table
from skylarkmq.spark.archive.delta_log import DataFile, DeltaLog
from skylarkmq.spark.archive.removal import erase, expire
from skylarkmq.spark.archive.state import ArchiveError
from skylarkmq.spark.archive.table import table_schema
from tests.spark.support.archives import (
    DAY_MS,
    T0_MS,
    append,
    committed,
    here,
    open_table,
    places,
    row,
    run_of,
)


def test_rows_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = open_table(tmp_path)
    append(table, run_of("%RETRY%g", 0, 0, 50), run_of("T", 1, 0, 3, stored_ms=T0_MS + DAY_MS))
    monkeypatch.setattr(archive_table, "BATCH_ROWS", 20)
    batches = list(archive_table.read_batches(here(tmp_path), table.files(), table_schema()))
    assert {batch.num_rows for batch in batches} == {20, 10, 3}
    found = pa.Table.from_batches(batches)
    assert places(found) == committed(tmp_path)
    for each in found.to_pylist():
        day = 1 if each["topic"] == "T" else 0
        key = (each["topic"], "broker-a", each["queueId"], each["queueOffset"])
        expected = row(key, T0_MS + day * DAY_MS)
        assert str(each.pop("date")) == f"2026-01-0{1 + day}"
        assert each == expected


def test_columns_that_a_file_lacks(tmp_path: Path) -> None:
    """As files have that are older than a column; and any order, as a projection has."""
    table = open_table(tmp_path)
    append(table, run_of("T", 0, 0, 3))
    wanted = pa.schema([("value", pa.struct([("a", pa.int64())])), ("date", pa.date32()),
                        ("queueOffset", pa.int64())])  # fmt: skip
    (batch,) = archive_table.read_batches(here(tmp_path), table.files(), wanted)
    assert batch.schema == wanted
    assert batch.column("value").null_count == 3
    assert batch.column("queueOffset").to_pylist() == [0, 1, 2]


@pytest.mark.slow  # for its memory
def test_large_bodies_make_small_batches(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    append(table, [row(("T", "b", 0, n), body=bytes([n]) * 1_000_000) for n in range(12)])
    batches = list(archive_table.read_batches(here(tmp_path), table.files(), table_schema()))
    assert max(batch.num_rows for batch in batches) <= 4


def test_which_files_may_hold_it() -> None:
    def file(name: str, topic: str, first: int | None, last: int | None) -> DataFile:
        return DataFile(name, topic, "2026-01-01", 1, 1, first, last, 0, 0)

    files = [file("a", "T", 0, 9), file("b", "T", 10, 19), file("c", "U", 0, 9),
             file("d", "T", None, None)]  # fmt: skip

    def names(**bounds: Any) -> str:
        return "".join(each.name for each in archive_table.choose(files, **bounds))

    assert names() == "abcd"
    assert names(topics=["U"]) == "c"
    assert names(start_ms=10) == "bd"
    assert names(end_ms=10) == "acd"
    assert names(start_ms=9, end_ms=11, topics=["T"]) == "abd"


def test_tasks_have_about_equally_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_table, "TASK_BYTES", 10)
    files = [
        DataFile(str(n), "T", "", size, 1, 0, 0, 0, 0) for n, size in enumerate([4, 6, 1, 30, 2])
    ]
    tasks = archive_table.tasks_of(files)
    assert [[each.size for each in task] for task in tasks] == [[4, 6], [1], [30], [2]]
    assert archive_table.tasks_of([]) == []


def test_a_deletion_vector_is_refused(tmp_path: Path) -> None:
    """Another engine has deleted rows without writing the file anew: they must not come back."""
    table = open_table(tmp_path)
    append(table, run_of("T", 0, 0, 4))
    table.log.require_plain()
    delete_by_vector(tmp_path, [1])
    log = DeltaLog.open(here(tmp_path))
    assert log is not None
    with pytest.raises(ArchiveError, match="deletion vectors") as refused:
        log.require_plain()
    assert "REORG" in str(refused.value)
    table.reload()
    for remove in (lambda: erase(table, "queueOffset = 2"), lambda: expire(table, topics=["T"])):
        with pytest.raises(ArchiveError, match="deletion vectors"):
            remove()


def delete_by_vector(path: Path, rows: list[int]) -> None:
    """Write the commit of an engine that marks rows of the only file as deleted.

    Source: delta-io/delta PROTOCOL.md (Deletion Vectors: format, inline storage)
    """
    container = struct.pack("<II", 12346, 1) + struct.pack("<HH", 0, len(rows) - 1)
    container += struct.pack("<I", 16) + struct.pack(f"<{len(rows)}H", *rows)
    bitmap = struct.pack("<IQ", 1681511377, 1) + struct.pack("<I", 0) + container
    padded = bitmap + bytes(-len(bitmap) % 4)
    encoded = base64.b85encode(padded).decode()
    z85 = dict(zip(B85, Z85, strict=True))
    vector = {
        "storageType": "i", "pathOrInlineDv": "".join(z85[c] for c in encoded),
        "sizeInBytes": len(bitmap), "cardinality": len(rows),
    }  # fmt: skip
    log = path / "_delta_log"
    lines = [json.loads(line) for line in (log / f"{1:020d}.json").read_text().splitlines()]
    (add,) = (line["add"] for line in lines if "add" in line)
    remove = {"path": add["path"], "dataChange": True, "deletionTimestamp": 1}
    features = ["deletionVectors"]
    protocol = {
        "minReaderVersion": 3, "minWriterVersion": 7,
        "readerFeatures": features, "writerFeatures": features,
    }  # fmt: skip
    actions = [
        {"protocol": protocol},
        {"remove": remove},
        {"add": {**add, "deletionVector": vector}},
    ]
    version = DeltaTable(str(path)).version() + 1
    (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))


B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def test_renamed_columns_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = open_table(tmp_path)
    configuration = {**table.log.table.metadata().configuration, "delta.columnMapping.mode": "name"}

    class Mapped:
        def __init__(self) -> None:
            self.configuration = configuration

    monkeypatch.setattr(DeltaTable, "metadata", lambda delta: Mapped())
    with pytest.raises(ArchiveError, match="column mapping"):
        table.log.require_plain()
