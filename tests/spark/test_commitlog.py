"""The commit log as a table: stores that RocketMQ wrote, ours, damage, options. No JVM."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.client.spark.commitlog import (
    CommitLogReader,
)
from skylarkmq.client.spark.log_options import LogOptions
from skylarkmq.client.spark.schema import LOG_COLUMNS, arrow_schema, names
from skylarkmq.protocol.record import decode_message
from skylarkmq.store.tools.reader import StoppedStore
from skylarkmq.store.tools.walk import PlaceKind, walk
from tests.spark.support.records import row_of, rows_in
from tests.store.test_golden_stores import FOLDER, STORES
from tests.support.archives import unpack

ALL = names(LOG_COLUMNS)


def read_all(path: Path, columns: tuple[str, ...] = ALL, **options: Any) -> list[dict[str, Any]]:
    """All rows as Spark would get them, each partition pickled on its way."""
    given = {"path": str(path), **{name: str(value) for name, value in options.items()}}
    reader = pickle.loads(pickle.dumps(CommitLogReader(LogOptions.parse(given), columns)))
    rows: list[dict[str, Any]] = []
    for partition in reader.partitions():
        for batch in reader.read(pickle.loads(pickle.dumps(partition))):
            batch.validate(full=True)
            assert batch.schema == arrow_schema(columns, LOG_COLUMNS)
            rows += rows_in(batch)
    return rows


def expected_rows(root: Path) -> list[dict[str, Any]]:
    """What the store's own tools and the protocol's decoder make of a store."""
    rows: list[dict[str, Any]] = []
    for place in walk(StoppedStore(root)):
        if place.kind is PlaceKind.MESSAGE:
            row = row_of(decode_message(place.view, place.position))
            del row["brokerName"]
            row["segment"], row["position"] = place.file.path.name, place.position
            row["crcOk"], row["recordKind"] = True, row_kind(row)
            rows.append(row)
    return rows


def row_kind(row: dict[str, Any]) -> str:
    kind = ("message", "prepared", "commit", "rollback")[row["sysFlag"] >> 2 & 3]
    half = row["topic"] == "RMQ_SYS_TRANS_HALF_TOPIC"
    return "prepared" if kind == "message" and half else kind


@pytest.fixture(params=sorted(STORES))
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    unpack(FOLDER / STORES[request.param]["file"], tmp_path)
    return next(path.parent for path in tmp_path.rglob("commitlog"))


@pytest.mark.parametrize("cut", [0, 1024, 20_000])
def test_a_store_that_rocketmq_wrote(golden: Path, cut: int) -> None:
    expected = expected_rows(golden)
    assert len(expected) > 50
    assert read_all(golden, maxBytesPerPartition=cut) == expected
