"""An archive as others read it, who know nothing of us, whatever the topic's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from skylarkmq.spark.archive.removal import erase
from tests.spark.support.archives import (
    DAY_MS,
    T0_MS,
    Place,
    append,
    documented,
    open_table,
    places,
    run_of,
)
from tests.test_documents import ARCHIVE, PROMISE, SNIPPETS, SPARK_MARK

pytestmark = pytest.mark.slow  # for the memory that polars and DuckDB take
PLACE = ("topic", "brokerName", "queueId", "queueOffset")
TOPICS = ("%RETRY%g", "%DLQ%a|b", "007", "null", "orders")


def by_pyarrow(path: Path) -> pa.Table:
    return DeltaTable(str(path)).to_pyarrow_table(columns=list(PLACE))


def by_datafusion(path: Path) -> pa.Table:
    query = QueryBuilder().register("archive", DeltaTable(str(path)))
    columns = ", ".join(f'"{name}"' for name in PLACE)
    return pa.table(query.execute(f"SELECT {columns} FROM archive").read_all())


def by_polars(path: Path) -> pa.Table:
    import polars

    return polars.scan_delta(str(path)).select(PLACE).collect().to_arrow()


def by_duckdb(path: Path) -> pa.Table:
    import duckdb

    # Its own extension for Delta is loaded from the network: deltalake reads for it here.
    archive = DeltaTable(str(path)).to_pyarrow_dataset()
    with duckdb.connect() as session:
        session.register("archive", archive)
        return session.sql(f"SELECT {', '.join(PLACE)} FROM archive").to_arrow_table()


READERS = (by_pyarrow, by_datafusion, by_polars, by_duckdb)


@pytest.mark.parametrize("read", READERS)
def test_every_topic(tmp_path: Path, read: Callable[[Path], pa.Table]) -> None:
    table = open_table(tmp_path)
    rows = [row for topic in TOPICS for row in run_of(topic, 0, 0, 3)]
    more = [row for topic in TOPICS for row in run_of(topic, 0, 3, 5)]
    append(table, rows, more)
    everything: list[Place] = sorted(
        (topic, "broker-a", 0, offset) for topic in TOPICS for offset in range(5)
    )
    assert places(read(tmp_path)) == everything
    DeltaTable(str(tmp_path)).optimize.compact()
    assert places(read(tmp_path)) == everything
    table.reload()
    erase(table, "queueOffset = 2")
    assert places(read(tmp_path)) == [place for place in everything if place[3] != 2]


@pytest.mark.parametrize("number", range(3))
def test_filters_pass_files_over(tmp_path: Path, number: int) -> None:
    """Files that the log shows to hold nothing of it are not there any more, and nobody minds."""
    import polars

    table = open_table(tmp_path)
    for day in range(3):
        rows = run_of("%RETRY%g", 0, day * 5, day * 5 + 5, stored_ms=T0_MS + day * DAY_MS)
        append(table, rows + run_of("orders", 0, day * 5, day * 5 + 5))
    wanted = [f for f in table.files() if f.topic == "%RETRY%g" and f.first_offset == number * 5]
    assert len(wanted) == 1
    for file in table.files():
        if file not in wanted:
            (tmp_path / file.name).unlink()
    low, high = number * 5, number * 5 + 4
    filters = polars.col("queueOffset").is_between(low, high) & (polars.col("topic") == "%RETRY%g")
    found = polars.scan_delta(str(tmp_path)).filter(filters).select("queueOffset").collect()
    assert found["queueOffset"].to_list() == list(range(low, high + 1))
    condition = f"topic = '%RETRY%g' AND queueOffset BETWEEN {low} AND {high}"
    delta = DeltaTable(str(tmp_path))
    dataset = delta.to_pyarrow_dataset(
        file_pruning_predicate=f"topic = '%RETRY%g' AND queueOffset >= {low}"
        f" AND queueOffset <= {high}"
    )
    assert dataset.to_table(columns=["queueOffset"]).num_rows == 5
    scanned = delta.scan(columns=["queueOffset"], predicate=condition)
    assert pa.table(scanned).num_rows == 5


@pytest.mark.parametrize(
    "name",
    [name for name, block in SNIPPETS.items() if ARCHIVE in block and SPARK_MARK not in block],
)
def test_a_program_of_the_documentation(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documented(tmp_path / "archive")
    program = SNIPPETS[name].replace(ARCHIVE, str(tmp_path / "archive"))
    exec(compile(program, name, "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed == [text.strip() for text in PROMISE.findall(program)]
