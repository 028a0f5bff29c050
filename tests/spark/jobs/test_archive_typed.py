"""The job `archive` with --schema: columns of bodies in the table, and what becomes of the rest."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from skylarkmq.client import Message
from skylarkmq.client.sync import Producer
from skylarkmq.protocol.compression import CompressionKind
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.spark import archive_table
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.jobs import archive, archive_typed
from skylarkmq.spark.jobs.archive import ArchiveOptions
from skylarkmq.spark.jobs.common import JobSettings, UsageError
from skylarkmq.spark.jobs.reporting import Summary
from skylarkmq.spark.settings import ConnectionSettings
from skylarkmq.testing.threaded import SyncBroker
from tests.spark.support.archives import append, differences, open_table, rows_of, run_of
from tests.support.raw_client import send_fields

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fill(broker: SyncBroker, topic: str, *bodies: bytes, **settings: Any) -> None:
    with Producer(namesrv_addr=broker.namesrv_addr, **settings) as producer:
        for body in bodies:
            producer.send(Message(topic, body))


def go(broker: SyncBroker, topic: str, table: Path, **more: Any) -> Summary:
    settings = JobSettings(name_server=broker.namesrv_addr)
    return archive.run(ArchiveOptions((topic,), str(table), **more), settings)


def schema_file(folder: Path, **columns: str) -> str:
    path = folder / "schema.json"
    path.write_text(json.dumps({"version": 1, "format": "json", "columns": columns}))
    return str(path)


def values(table: Path) -> list[Any]:
    return [row["value"] for row in rows_of(table).sort_by("storeTimestamp").to_pylist()]


@pytest.mark.spark
def test_archive_by_a_schema_then_by_one_that_has_grown(
    spark: SparkSession, broker: SyncBroker, topic: str, tmp_path: Path
) -> None:
    table, schema = tmp_path / "table", schema_file(tmp_path, id="bigint", price="double")
    fill(broker, topic, *(b'{"id": %d, "price": %d.5}' % (at, at) for at in range(20)))
    fill(broker, topic, b"no json", b'{"id": "x"}', b'{"id": "y"}')
    first = go(broker, topic, table, schema=schema)
    assert (first.figures["messages"], first.figures["quarantined"]) == (23, 3)
    quarantine = {table.title: table for table in first.tables}["quarantine"]
    assert quarantine.rows[0] == ("JSON: Expected `int | null`, got `str` - at `$.id`", 2)
    found = sorted(values(table)[:20], key=lambda value: value["id"])
    assert found == [{"id": at, "price": at + 0.5} for at in range(20)]

    grown = {"id": "bigint", "note": "struct<text:string,at:timestamp_ntz>"}
    fill(broker, topic, b'{"id": 99, "note": {"text": "n", "at": "2026-01-31T08:00:00"}}')
    second = go(broker, topic, table, schema=schema_file(tmp_path, **grown))
    assert second.notes == (
        "New columns: value.note; older rows have null there.",
        "The schema has no value.price (any more): null from here on.",
    )
    read_by_all(spark, table)
    assert differences(spark, table, broker.namesrv_addr, topic) == []


def read_by_all(spark: SparkSession, table: Path) -> None:
    """Spark, DuckDB and polars agree with pyarrow, also on files older than a column."""
    import duckdb
    import polars

    rows = rows_of(table).sort_by([("queueId", "ascending"), ("queueOffset", "ascending")])
    expected = list(zip(rows["value"].to_pylist(), rows["quarantine"].to_pylist(), strict=True))
    assert len(expected) == 24
    frame = archive_table.read(spark, table).orderBy("queueId", "queueOffset")
    in_spark = frame.select("value", "quarantine").toArrow()
    assert list(zip(*in_spark.to_pydict().values(), strict=True)) == expected
    assert frame.selectExpr("sum(value.id)").first() == (sum(range(20)) + 99,)
    duck = duckdb.arrow(DeltaTable(str(table)).to_pyarrow_dataset())
    assert duck.aggregate("max(value.note.text), count(quarantine)").fetchall() == [("n", 3)]
    lazy = polars.scan_delta(str(table)).select(polars.col("value").struct.field("id"))
    assert lazy.collect()["id"].sum() == sum(range(20)) + 99


@pytest.mark.spark
def test_bodies_that_are_packed_and_one_that_only_says_so(
    spark: SparkSession, broker: SyncBroker, topic: str, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    text = b'{"text": "%s"}' % (b"x" * 5000)
    fill(broker, topic, text, compression=CompressionKind.LZ4.name.lower())
    connection = ConnectionSettings.from_options({"nameServer": broker.namesrv_addr})
    with closing(BlockingClient(connection)) as client:
        queue = client.write_queues(topic)[0]
        # Only its first two bytes are zlib's, so the broker takes it.
        fields = send_fields(topic, queue.queue_id, f="1")
        request = RemotingCommand(310, ext_fields=fields, body=b"\x78\x9cjunk")
        assert client.call(client.master_of(queue), request).code == 0
    done = go(broker, topic, table, schema=schema_file(tmp_path, text="string"))
    assert (done.figures["messages"], done.figures["quarantined"]) == (2, 1)
    rows = {row["value"] is None: row for row in rows_of(table).to_pylist()}
    assert rows[False]["value"] == {"text": "x" * 5000}
    assert rows[False]["body"] == text
    assert rows[True]["body"] == b"\x78\x9cjunk"
    assert "compressed body is cut" in rows[True]["quarantine"]


def test_options_that_contradict(tmp_path: Path) -> None:
    settings = JobSettings(name_server="127.0.0.1:1")
    for more, why in (
        ({"new_columns": True}, "goes with --schema"),
        ({"schema": "a.json", "pattern": ".*"}, "of one topic"),
    ):
        topics = () if "pattern" in more else ("orders",)
        options = ArchiveOptions(topics, str(tmp_path), **more)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=why):
            archive.check(options, settings)
    with pytest.raises(UsageError, match="of one topic"):
        archive.check(ArchiveOptions(("a", "b"), str(tmp_path), schema="a.json"), settings)


def test_a_table_has_one_schema(tmp_path: Path) -> None:
    table = open_table(tmp_path / "table")
    append(table, run_of("orders", 0, 0, 3))
    schema = archive_typed.load(schema_file(tmp_path, id="int"))
    with pytest.raises(UsageError, match="has topic orders too"):
        archive_typed.prepare(table, schema, "refunds", new_columns=False)
    made = archive_typed.prepare(table, schema, "orders", new_columns=False)
    assert made.notes == ("The table gets the columns value and quarantine.",)
    assert archive_typed.prepare(table, schema, "orders", new_columns=False).notes == ()
    assert rows_of(tmp_path / "table")["value"].to_pylist() == [None] * 3
    version = table.log.version
    more = archive_typed.load(schema_file(tmp_path, id="int", name="string"))
    told = archive_typed.prepare(table, more, "orders", new_columns=False, dry_run=True)
    assert told.notes == ("New columns: value.name; older rows have null there.",)
    assert table.log.version == version
    with pytest.raises(UsageError, match="give --schema"):
        archive.prepared(ArchiveOptions(("orders",), ""), None, table)

    wider = archive_typed.load(schema_file(tmp_path, id="bigint"))
    with pytest.raises(UsageError, match=r"value\.id is int in the table.*--new-columns"):
        archive_typed.prepare(table, wider, "orders", new_columns=False)
    moved = archive_typed.prepare(table, wider, "orders", new_columns=True)
    assert moved.notes == (
        "value.id no longer fits: from here on it is in value.id_bigint, and value.id is null.",
    )
    # Another run's table, loaded before: it finds out, and goes on.
    append(table, run_of("orders", 0, 3, 5))
    assert archive_typed.prepare(table, wider, "orders", new_columns=False).notes == ()


def test_two_runs_that_change_the_columns(tmp_path: Path) -> None:
    first, second = open_table(tmp_path / "table"), open_table(tmp_path / "table")
    schema = archive_typed.load(schema_file(tmp_path, id="int"))
    archive_typed.prepare(first, schema, "orders", new_columns=False)
    other = archive_typed.load(schema_file(tmp_path, name="string"))
    made = archive_typed.prepare(second, other, "orders", new_columns=False)
    assert [field.name for field in made.plan.kind] == ["id", "name"]
    append(first, run_of("orders", 0, 0, 2))  # planned for the columns before
    assert len(rows_of(tmp_path / "table")) == 2


def test_a_file_that_is_no_schema(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        archive_typed.load(str(tmp_path / "gone.avsc"))
    with pytest.raises(UsageError, match="keys of string"):
        archive_typed.load(schema_file(tmp_path, days="map<date,int>"))


@pytest.mark.parametrize(("given", "instead"), [("--sample 100", "schema_of_json")])
def test_an_option_that_is_gone_says_what_to_do(given: str, instead: str) -> None:
    done = CliRunner().invoke(archive.main, ["run", *given.split()])
    assert done.exit_code == 2
    assert f"there is no option {given.split()[0]}" in done.output and instead in done.output
