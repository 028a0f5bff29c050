"""The job `archive` against a broker in this process: once through Spark, the rest without."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from skylarkmq.client import Message
from skylarkmq.client.errors import NotFound
from skylarkmq.client.sync import Producer
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.spark import archive_table
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.jobs import archive
from skylarkmq.spark.jobs.archive import HOLE_COLUMNS, ArchiveOptions
from skylarkmq.spark.jobs.common import JobSettings
from skylarkmq.spark.jobs.reporting import Summary
from skylarkmq.spark.settings import ConnectionSettings
from skylarkmq.testing.threaded import SyncBroker
from tests.spark.support.archives import append, committed, listed, open_writer, run_of
from tests.support.raw_client import send_fields

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BODIES = [b"", b"text", bytes(range(256)), b"z" * 100_000]


def fill(broker: SyncBroker, topic: str, first: int, count: int) -> None:
    with Producer(namesrv_addr=broker.namesrv_addr) as producer:
        queues = sorted(producer.queues(topic))
        for number in range(first, first + count):
            message = Message(
                topic,
                BODIES[number % len(BODIES)],
                tags="AB"[number % 2],
                keys=(f"k{number}", "all"),
                properties={"n": str(number), "ä €": "=\t'"},
            )
            producer.send(message, queue=queues[number % len(queues)])


def go(broker: SyncBroker, topics: Sequence[str], table: Path, **more: Any) -> Summary:
    settings = JobSettings(name_server=broker.namesrv_addr)
    return archive.run(ArchiveOptions(tuple(topics), str(table), **more), settings)


@pytest.mark.spark
def test_twice_and_compacted(
    spark: SparkSession, broker: SyncBroker, topic: str, tmp_path: Path
) -> None:
    """Rows are the source's, from the commits and by listing, for a topic that looks a number."""
    table, topics = tmp_path / "table", [topic, "%RETRY%007", "007"]
    broker.create_topic("007", 1)
    broker.create_topic("%RETRY%007", 1)
    for name in topics:
        fill(broker, name, 0, 100)
    first = go(broker, topics, table, batch_messages=80, file_mib=1)
    assert first.figures["messages"] == 300
    assert first.figures["batches"] >= 4
    for name in topics:
        fill(broker, name, 100, 50)
    second = go(broker, topics, table, compact_files=2)
    assert (second.figures["messages"], second.figures["messages_archived_before"]) == (150, 0)
    assert second.figures["files"] == 3 < first.figures["files"]
    assert not list((table / "_skylarkmq" / "staging").iterdir())

    reader = spark.read.format("skylarkmq").options(nameServer=broker.namesrv_addr)
    source = reader.option("topic", ",".join(topics)).load()
    found = archive_table.read(spark, table)
    assert found.columns == [*source.columns, "date"]
    assert rows(found.drop("date")) == rows(source)
    assert rows(found) == sorted(archive_table.dataset(table).to_table().to_pylist(), key=str)
    listing = spark.read.parquet(str(table))
    assert sorted(listing.columns) == sorted(found.columns)
    assert listing.count() == 450
    assert committed(table) == listed(table)
    assert archive_table.read(spark, table, topics=["none"]).columns == found.columns


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted(frame.toArrow().to_pylist(), key=str)


def test_dry_run(broker: SyncBroker, topic: str, tmp_path: Path) -> None:
    fill(broker, topic, 0, 10)
    table = tmp_path / "table"
    found = go(broker, [topic], table, dry_run=True)
    assert found.dry_run and found.figures["messages_to_archive"] == 10
    assert [row[3:] for row in found.tables[0].rows] == [(0, n, n, 0) for n in (3, 3, 2, 2)]
    assert not table.exists()
    latest = go(broker, [topic], table, dry_run=True, starting="latest")
    assert latest.figures["messages_to_archive"] == 0

    with open_writer(table) as writer:
        append(writer, "1", [run_of(topic, 0, 0, 1), run_of(topic, 0, 2, 3)])
    found = go(broker, [topic], table, dry_run=True, starting="latest")
    starts = {row[2]: row[3] for row in found.tables[0].rows}
    assert starts == {0: 3, 1: 0, 2: 0, 3: 0}  # queues 1 to 3 came later: from their start
    assert list(found.tables[1].rows) == [(topic, "broker-a", 0, 1, 2, 1)]
    assert found.tables[1].columns == HOLE_COLUMNS


def test_compaction_alone(tmp_path: Path) -> None:
    table = tmp_path / "table"
    with open_writer(table, hourly=True) as writer:
        for number in range(4):
            append(writer, str(number), [run_of("T", 0, number * 5, number * 5 + 5)])
    before = committed(table)

    def compact(*more: str) -> tuple[int, str]:
        done = CliRunner().invoke(archive.main, [str(table), "--compact", *more])
        return done.exit_code, done.output

    assert compact("--dry-run")[0] == 0
    code, output = compact()
    assert code == 0 and "files after" in output
    assert len(archive_table.files(table)) == 1
    assert committed(table) == listed(table) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{}"], "name topics, or --pattern"),
        (["T", "{}", "--pattern", "x"], "one of the two"),
        (["{}", "--pattern", "("], "--pattern: "),
        (["T", "{}", "--compact"], "the table alone"),
        (["T", "{}", "--min-messages", "5"], "goes with --follow"),
        (["T", "{}", "--follow", "1s", "--min-messages", "5", "--batch-messages", "4"], "as many"),
        (["T", "{}", "--option", "SUBEXPRESSION=a"], "holds whole topics"),
        (["T", "{}", "--option", "startingOffsets=latest"], "use --starting"),
        (["T", "{}", "--option", "pullBatchSiz=9"], "did you mean pullBatchSize"),
        (["T", "{}", "--starting", "noon"], "earliest, latest, or milliseconds since 1970"),
        (["{}", "--compact"], "no archive"),
    ],
)
def test_refused(arguments: list[str], words: str, tmp_path: Path) -> None:
    given = [argument.format(tmp_path / "table") for argument in arguments]
    done = CliRunner().invoke(archive.main, [*given, "--name-server", "127.0.0.1:1"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "table").exists()


def test_not_an_archive(broker: SyncBroker, topic: str, tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("x")
    with pytest.raises(archive_table.ArchiveError, match="is not empty, and no archive"):
        go(broker, [topic], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_no_such_topic(broker: SyncBroker, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="topic nowhere does not exist"):
        go(broker, ["nowhere"], tmp_path / "table")
    assert not (tmp_path / "table").exists()


@pytest.mark.spark
def test_a_message_that_cannot_be_read_is_a_hole_or_stays_as_stored(
    spark: SparkSession, broker: SyncBroker, topic: str, tmp_path: Path
) -> None:
    """Its body begins as zlib does and is none; the broker cannot tell."""
    broker.create_topic(one := f"{topic}_one", 1)
    options = ConnectionSettings(name_servers=(broker.namesrv_addr,))
    with closing(BlockingClient(options)) as client:
        (queue,) = client.write_queues(one)
        for body, flag in ((b"first", "0"), (b"\x78\x9cjunk", "1"), (b"last", "0")):
            request = RemotingCommand(310, ext_fields=send_fields(one, 0, f=flag), body=body)
            assert client.call(client.master_of(queue), request).code == 0

    def archived(policy: str) -> tuple[Summary, dict[int, bytes]]:
        settings = JobSettings(name_server=broker.namesrv_addr, options={"onCorruption": policy})
        table = tmp_path / policy
        summary = archive.run(ArchiveOptions((one,), str(table)), settings)
        rows = archive_table.dataset(table).to_table().to_pylist()
        return summary, {row["queueOffset"]: row["body"] for row in rows}

    with pytest.raises(Exception, match=r"queue offset 1.*the producer at 127\.0\.0\.1"):
        archived("fail")
    skipped, found = archived("skip")
    assert found == {0: b"first", 2: b"last"}
    (holes,) = [each for each in skipped.tables if "holes" in each.title]
    assert [row[3:] for row in holes.rows] == [(1, 2, 1)]
    assert archived("raw")[1] == {0: b"first", 1: b"\x78\x9cjunk", 2: b"last"}
