"""The job `archive` against a broker in this process: once through Spark, the rest without."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from skylarkmq.client import Message
from skylarkmq.client.errors import NotFound
from skylarkmq.client.sync import Admin, Producer
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.spark import archive_table
from skylarkmq.spark.archive.sink import REPORTS
from skylarkmq.spark.archive.spans import Spans
from skylarkmq.spark.archive.state import ArchiveError
from skylarkmq.spark.archive.writer import WritePlan
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.jobs import archive
from skylarkmq.spark.jobs.archive import HOLE_COLUMNS, ArchiveOptions
from skylarkmq.spark.jobs.common import JobSettings
from skylarkmq.spark.jobs.reporting import Summary
from skylarkmq.spark.offsets import QueueKey, QueueOffsets
from skylarkmq.spark.settings import ConnectionSettings
from skylarkmq.testing.threaded import SyncBroker
from tests.spark.support.archives import (
    append,
    committed,
    open_table,
    places,
    reports_of,
    rows_of,
    run_of,
)
from tests.spark.support.scripted_brokers import late_broker, waiting_for
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
def test_twice_and_read_by_others(
    spark: SparkSession, broker: SyncBroker, topic: str, tmp_path: Path
) -> None:
    """Rows are the source's for a topic that looks a number, by our reader and by others."""
    import duckdb
    import polars

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
    DeltaTable(str(table)).optimize.compact()
    second = go(broker, topics, table)
    assert (second.figures["messages"], second.figures["messages_archived_before"]) == (150, 0)
    assert second.figures["files"] < first.figures["files"]
    assert not list((table / REPORTS).iterdir())

    reader = spark.read.format("skylarkmq").options(nameServer=broker.namesrv_addr)
    source = reader.option("topic", ",".join(topics)).load()
    found = archive_table.read(spark, table)
    assert found.columns == [*source.columns, "date"]
    assert rows(found.drop("date")) == rows(source)
    assert rows(found) == sorted(rows_of(table).to_pylist(), key=str)
    assert len(set(committed(table))) == found.count() == 450
    none = archive_table.read(spark, table, topics=["none"])
    assert (none.columns, none.count()) == (found.columns, 0)
    few = archive_table.read(spark, table, topics=["007"], columns=["queueOffset", "topic", "date"])
    assert few.columns == ["queueOffset", "topic", "date"]
    assert sorted(few.toArrow()["queueOffset"].to_pylist()) == list(range(150))
    polars_rows = polars.scan_delta(str(table)).select(PLACE).collect().to_arrow()
    duck = duckdb.arrow(DeltaTable(str(table)).to_pyarrow_dataset()).select(*PLACE)
    for other in (polars_rows, duck.to_arrow_table()):
        assert places(other) == committed(table)


PLACE = ("topic", "brokerName", "queueId", "queueOffset")


@pytest.mark.spark
def test_two_runs_at_once(
    spark: SparkSession, broker: SyncBroker, topic: str, tmp_path: Path
) -> None:
    """A second run archives the same topic while the first one's batch is written."""
    fill(broker, topic, 0, 80)
    table = tmp_path / "table"
    plans: list[WritePlan] = []
    write_files = archive.write_files

    def meanwhile(frame: DataFrame, plan: WritePlan) -> list[dict[str, Any]]:
        reports = write_files(frame, plan)
        plans.append(plan)
        if len(plans) == 1:
            other = open_table(table)
            append(other, run_of(topic, 0, 0, 5), run_of(topic, 1, 0, 20))
        return reports

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive, "write_files", meanwhile)
        done = go(broker, [topic], table)
    assert len(plans) == 2
    assert (done.figures["messages"], done.figures["messages_archived_before"]) == (55, 25)
    assert len(set(committed(table))) == len(committed(table)) == 80
    files = {str(path.relative_to(table)) for path in table.rglob("part-*.parquet")}
    assert files == {file.name for file in open_table(table).files()}  # no orphan is left


class Frame:
    """Rows as tasks of a batch would be given them."""

    def __init__(self, *tasks: list[dict[str, Any]]) -> None:
        self.tasks = tasks

    def coalesce(self, count: int) -> Frame:
        """As they are."""
        return self


def test_a_queue_that_was_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no part of the run's start, comes back while it runs, and is read from its start."""
    table = open_table(tmp_path)
    append(table, run_of("T", 0, 0, 5), run_of("T", 1, 0, 5))
    started: list[str] = []

    def follow(spark: object, options: dict[str, str], name: str, take: Any, **more: Any) -> None:
        started.append(options["startingOffsets"])
        take(Frame(run_of("T", 0, 5, 8), run_of("T", 1, 0, 7)), QueueOffsets())

    def write(frame: Frame, plan: WritePlan) -> list[dict[str, Any]]:
        assert Spans.from_json(plan.known) == Spans.of([(QueueKey("T", "broker-a", 1), 0, 5)])
        return reports_of(table, frame.tasks, Spans.from_json(plan.known))

    monkeypatch.setattr(archive, "follow_topics", follow)
    monkeypatch.setattr(archive, "write_files", write)
    options = ArchiveOptions(("T",), str(tmp_path), files_per_batch=2)
    here = QueueKey("T", "broker-a", 0)
    found = archive.Survey(QueueOffsets({here: 5}), QueueOffsets(), {here: 0}, {here: 8})
    settings = JobSettings(name_server="127.0.0.1:1")
    spark: Any = None
    run = archive.Archiving(options, settings, table, spark, settings.progress("x"))
    run.stream(found)
    figures = run.summary().figures
    assert json.loads(started[0]) == {"T": {"broker-a": {"0": 5}}}
    assert (figures["messages"], figures["messages_archived_before"]) == (5, 5)
    assert len(set(committed(tmp_path))) == len(committed(tmp_path)) == 15


def test_it_waits_for_a_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = ArchiveOptions(("T",), str(tmp_path / "table"))
    with late_broker() as names, pytest.raises(NotFound, match="topic T does not exist"):
        archive.run(options, JobSettings(name_server=names.address))
    assert [record.getMessage() for record in caplog.records] == [waiting_for(names)]


def anew(broker: SyncBroker, topic: str, count: int) -> None:
    """The topic is deleted, and made and filled again."""
    with Admin(namesrv_addr=broker.namesrv_addr) as admin:
        admin.delete_topic(topic)
    broker.create_topic(topic)
    fill(broker, topic, 0, count)


def archived(broker: SyncBroker, topic: str, path: Path, **more: Any) -> ArchiveOptions:
    """A table that says that it has all there is of a topic, and what archives it."""
    options = ArchiveOptions((topic,), str(path), **more)
    view = archive.view_of(options, JobSettings(name_server=broker.namesrv_addr))
    with closing(view.brokers):
        ends = view.ends_now()
        before, _ = view.fingerprints({key: at - 1 for key, at in ends.items()}, patient=True)
    table = open_table(path)
    tasks = [run_of(topic, key.queue_id, 0, at) for key, at in ends.items()]
    reports = reports_of(table, tasks)
    spans = Spans.of((key, 0, at) for key, at in ends.items())
    table.append(
        [file for report in reports for file in report["files"]], spans, ends.knowing(before)
    )
    return options


@pytest.mark.parametrize("count", [16, 20, 80])
def test_a_topic_made_anew_is_no_part_of_the_table(
    broker: SyncBroker, topic: str, tmp_path: Path, count: int
) -> None:
    """Shorter than what was archived, just as long, and longer."""
    fill(broker, topic, 0, 20)
    settings = JobSettings(name_server=broker.namesrv_addr)
    options = archived(broker, topic, tmp_path, allow_data_loss=True)
    fill(broker, topic, 20, 20)
    assert archive.run(replace(options, dry_run=True), settings).notes == ()
    anew(broker, topic, count)
    (note,) = archive.run(replace(options, dry_run=True), settings).notes
    assert "made anew" in note and "another folder" in note
    with pytest.raises(ArchiveError, match=r"(?s)made anew.*another folder"):
        archive.run(options, settings)
    assert len(committed(tmp_path)) == 20


def test_offsets_that_are_used_again_while_it_runs(
    broker: SyncBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --allow-data-loss the source goes on with them; they are no other run's messages."""
    fill(broker, topic, 0, 20)
    options = archived(broker, topic, tmp_path, allow_data_loss=True, files_per_batch=1)
    settings, spark = JobSettings(name_server=broker.namesrv_addr), cast("Any", None)
    table = open_table(tmp_path)
    run = archive.Archiving(options, settings, table, spark, settings.progress("x"))
    anew(broker, topic, 40)
    monkeypatch.setattr(
        archive, "write_files", lambda frame, plan: reports_of(table, [run_of(topic, 0, 0, 10)])
    )
    with pytest.raises(ArchiveError, match="made anew"):
        run.take(cast("Any", Frame()), QueueOffsets())
    assert len(committed(tmp_path)) == 20


def test_a_queue_that_begins_later_has_its_message_before(
    broker: SyncBroker, topic: str, tmp_path: Path
) -> None:
    fill(broker, topic, 0, 20)
    options = ArchiveOptions((topic,), str(tmp_path), starting="latest")
    view = archive.view_of(options, JobSettings(name_server=broker.namesrv_addr))
    table = open_table(tmp_path)
    with closing(view.brokers):
        table.begin(archive.survey(options, table.state, view).new)
        table = open_table(tmp_path)
        assert table.state.ends.keys() == table.state.start.keys() != set()
        assert not archive.survey(options, table.state, view).used_again
        anew(broker, topic, 40)
        assert len(archive.survey(options, table.state, view).used_again) == 4


@pytest.mark.spark
def test_a_run_notes_the_last_messages(
    spark: SparkSession, broker: SyncBroker, topic: str, tmp_path: Path
) -> None:
    fill(broker, topic, 0, 20)
    go(broker, [topic], tmp_path / "table")
    fill(broker, topic, 20, 20)
    assert go(broker, [topic], tmp_path / "table").figures["messages"] == 20
    anew(broker, topic, 80)
    with pytest.raises(ArchiveError, match="made anew"):
        go(broker, [topic], tmp_path / "table")


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

    append(open_table(table), run_of(topic, 0, 0, 1), run_of(topic, 0, 2, 3))
    found = go(broker, [topic], table, dry_run=True, starting="latest")
    starts = {row[2]: row[3] for row in found.tables[0].rows}
    assert starts == {0: 3, 1: 0, 2: 0, 3: 0}  # queues 1 to 3 came later: from their start
    assert list(found.tables[1].rows) == [(topic, "broker-a", 0, 1, 2, 1)]
    assert found.tables[1].columns == HOLE_COLUMNS


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{}"], "name topics, or --pattern"),
        (["T", "{}", "--pattern", "x"], "one of the two"),
        (["{}", "--pattern", "("], "--pattern: "),
        (["T", "{}", "--min-messages", "5"], "goes with --follow"),
        (["T", "{}", "--follow", "1s", "--min-messages", "5", "--batch-messages", "4"], "as many"),
        (["T", "{}", "--option", "SUBEXPRESSION=a"], "holds whole topics"),
        (["T", "{}", "--option", "startingOffsets=latest"], "use --starting"),
        (["T", "{}", "--option", "pullBatchSiz=9"], "did you mean pullBatchSize"),
        (["T", "{}", "--starting", "noon"], "earliest, latest, or milliseconds since 1970"),
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
    with pytest.raises(ArchiveError, match="is not empty, and no archive"):
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
        rows = rows_of(table).to_pylist()
        return summary, {row["queueOffset"]: row["body"] for row in rows}

    with pytest.raises(Exception, match=r"queue offset 1.*the producer at 127\.0\.0\.1"):
        archived("fail")
    skipped, found = archived("skip")
    assert found == {0: b"first", 2: b"last"}
    (holes,) = [each for each in skipped.tables if "holes" in each.title]
    assert [row[3:] for row in holes.rows] == [(1, 2, 1)]
    assert archived("raw")[1] == {0: b"first", 1: b"\x78\x9cjunk", 2: b"last"}
