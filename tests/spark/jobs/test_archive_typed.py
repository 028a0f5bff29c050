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
def test_a_table_gets_columns_of_bodies_and_every_engine_reads_them(
    spark: SparkSession, broker: SyncBroker, topic: str, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    fill(broker, topic, b'{"id": 100}')
    assert go(broker, topic, table).figures["messages"] == 1
    columns = {"id": "bigint", "note": "struct<text:string,at:timestamp_ntz>"}
    schema = schema_file(tmp_path, **columns)
    fill(broker, topic, *(b'{"id": %d, "price": %d.5}' % (at, at) for at in range(19)))
    fill(broker, topic, b"no json", b'{"id": "x"}', b'{"id": "y"}')
    fill(broker, topic, b'{"id": 99, "note": {"text": "n", "at": "2026-01-31T08:00:00"}}')
    second = go(broker, topic, table, schema=schema)
    assert (second.figures["messages"], second.figures["quarantined"]) == (23, 3)
    assert second.notes == ("The table gets the columns value and quarantine.",)
    quarantine = {table.title: table for table in second.tables}["quarantine"]
    assert quarantine.rows[0] == ("JSON: Expected `int | null`, got `str` - at `$.id`", 2)
    older, *found = values(table)
    assert older is None
    assert sorted(value["id"] for value in found if value) == [*range(19), 99]
    read_by_all(spark, table)
    assert differences(spark, table, broker.namesrv_addr, topic) == []


def read_by_all(spark: SparkSession, table: Path) -> None:
    """Spark, DuckDB and polars agree with pyarrow, also on a file older than the columns."""
    import duckdb
    import polars

    rows = rows_of(table).sort_by([("queueId", "ascending"), ("queueOffset", "ascending")])
    expected = list(zip(rows["value"].to_pylist(), rows["quarantine"].to_pylist(), strict=True))
    assert len(expected) == 24
    frame = archive_table.read(spark, table).orderBy("queueId", "queueOffset")
    in_spark = frame.select("value", "quarantine").toArrow()
    assert list(zip(*in_spark.to_pydict().values(), strict=True)) == expected
    assert frame.selectExpr("sum(value.id)").first() == (sum(range(19)) + 99,)
    duck = duckdb.arrow(DeltaTable(str(table)).to_pyarrow_dataset())
    assert duck.aggregate("max(value.note.text), count(quarantine)").fetchall() == [("n", 3)]
    lazy = polars.scan_delta(str(table)).select(polars.col("value").struct.field("id"))
    assert lazy.collect()["id"].sum() == sum(range(19)) + 99


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
    for topics, pattern in (((), ".*"), (("a", "b"), None)):
        options = ArchiveOptions(topics, str(tmp_path), pattern=pattern, schema="a.json")
        with pytest.raises(UsageError, match="of one topic"):
            archive.check(options, settings)


def test_a_table_has_one_schema(tmp_path: Path) -> None:
    table = open_table(tmp_path / "table")
    append(table, run_of("orders", 0, 0, 3))
    schema = archive_typed.load(schema_file(tmp_path, id="int", n="int"))
    with pytest.raises(UsageError, match="has topic orders too"):
        archive_typed.prepare(table, schema, "refunds")
    version = table.log.version
    told = archive_typed.prepare(table, schema, "orders", dry_run=True)
    assert table.log.version == version
    made = archive_typed.prepare(table, schema, "orders")
    assert made.notes == told.notes == ("The table gets the columns value and quarantine.",)
    assert archive_typed.prepare(table, schema, "orders").notes == ()
    assert rows_of(tmp_path / "table")["value"].to_pylist() == [None] * 3
    version = table.log.version
    with pytest.raises(UsageError, match="give --schema"):
        archive.prepared(ArchiveOptions(("orders",), ""), None, table)
    for columns, why in (
        (
            {"id": "bigint", "n": "int"},
            r"value\.id is int32 in the table and int64 in the schema: ",
        ),
        ({"id": "int"}, r"value\.n is int32 in the table and missing in the schema: "),
        ({"id": "int", "n": "int", "x": "date"}, r"value\.x is missing in the table and date32"),
        ({"n": "int", "id": "int"}, "the table has the columns in the order id, n: "),
    ):
        other = archive_typed.load(schema_file(tmp_path, **columns))
        with pytest.raises(UsageError, match=f"^{why}.*or archive into another table$"):
            archive_typed.prepare(table, other, "orders")
    assert table.log.version == version


def test_two_runs_that_make_the_columns(tmp_path: Path) -> None:
    first, second, third = (open_table(tmp_path / "table") for _ in range(3))
    schema = archive_typed.load(schema_file(tmp_path, id="int"))
    archive_typed.prepare(first, schema, "orders")
    assert archive_typed.prepare(second, schema, "orders").notes == ()
    other = archive_typed.load(schema_file(tmp_path, name="string"))
    with pytest.raises(UsageError, match=r"value\.name is missing in the table"):
        archive_typed.prepare(third, other, "orders")


def test_a_file_that_is_no_schema(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        archive_typed.load(str(tmp_path / "gone.json"))
    with pytest.raises(UsageError, match="keys of string"):
        archive_typed.load(schema_file(tmp_path, days="map<date,int>"))


@pytest.mark.parametrize(
    ("given", "instead"),
    [("--sample 100", "schema_of_json"), ("--new-columns", "into another table")],
)
def test_an_option_that_is_gone_says_what_to_do(given: str, instead: str) -> None:
    done = CliRunner().invoke(archive.main, ["run", *given.split()])
    assert done.exit_code == 2
    assert f"there is no option {given.split()[0]}" in done.output and instead in done.output
