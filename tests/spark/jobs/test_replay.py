"""The job replay: what it refuses, and runs through Spark, each message once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from skylarkmq.client import DeduplicationWindow
from skylarkmq.client.errors import RouteNotFound
from skylarkmq.client.sync import Admin
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.spark.archive.table import ArchiveTable
from skylarkmq.spark.jobs import replay
from skylarkmq.spark.jobs.common import JobSettings, UsageError
from skylarkmq.spark.jobs.replay import ReplayOptions, assign, topics_of
from skylarkmq.spark.option_reading import OptionError
from skylarkmq.spark.writing.unique_keys import key_of_values
from skylarkmq.testing.threaded import SyncBroker
from tests.spark.support.archives import T0_MS, append, here, open_table, rows_of, run_of
from tests.spark.support.s3_server import S3Server
from tests.spark.support.scripted_brokers import late_broker, waiting_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def archive_of(folder: Path, topics: tuple[str, ...] = ("orders",), count: int = 40) -> str:
    """An archive of two commits: three queues a topic, a minute between the commits."""
    table = open_table(folder)
    for number in range(2):
        start, end = number * count, (number + 1) * count
        rows = [
            row | {"properties": [("ä", "é"), ("KEYS", "old")]}
            for topic in topics
            for queue in range(3)
            for row in run_of(topic, queue, start, end, stored_ms=T0_MS + number * 60_000)
        ]
        append(table, rows)
    return str(folder)


def chosen(path: str, options: ReplayOptions) -> tuple[str, ...]:
    """The topics of a run."""
    return topics_of(replace(options, archive=path), ArchiveTable.open(here(Path(path))))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (ReplayOptions("", "again"), "say with --topic what to replay.*invoices, orders"),
        (ReplayOptions("", "again", ("nothing",)), "no topic nothing; it has invoices, orders"),
        (ReplayOptions("", "orders", ("orders",)), "come from topic orders.*--force"),
        (ReplayOptions("", "again", ("orders",), 7, 7), "--start is not before --end"),
    ],
)
def test_what_makes_no_sense(tmp_path: Path, options: ReplayOptions, text: str) -> None:
    path = archive_of(tmp_path / "archive", ("orders", "invoices"), 1)
    with pytest.raises(UsageError, match=text):
        chosen(path, options)


def test_into_its_source_by_force(tmp_path: Path) -> None:
    path = archive_of(tmp_path / "archive", count=1)
    assert chosen(path, ReplayOptions("", "orders", force=True)) == ("orders",)


def test_a_queue_goes_to_the_same_queue_in_every_run() -> None:
    sources = [MessageQueue("T", broker, number) for broker in "ab" for number in range(4)]
    targets = [MessageQueue("again", broker, number) for broker in "bc" for number in range(2)]
    plan = assign(sources, targets)
    assert [plan[source] for source in sources[:4]] == targets
    assert [plan[source] for source in sources[4:]] == [*targets[:2], *targets[2:]]
    for source in sources:
        assert assign([source], targets) == {source: plan[source]}


@pytest.mark.parametrize("time", ["2026-01-31T08:00:00", "yesterday", "-5"])
def test_times_have_zones(tmp_path: Path, time: str) -> None:
    result = CliRunner().invoke(replay.main, [str(tmp_path), "again", f"--start={time}"])
    assert result.exit_code == 2
    assert "Invalid value for '--start'" in result.output


def test_wrong_credentials_end_the_command_with_cause_and_cure(s3_server: S3Server) -> None:
    options = {**s3_server.options, "AWS_SECRET_ACCESS_KEY": "not-the-secret-key"}
    given = [f"--storage-option={name}={value}" for name, value in options.items()]
    for more in ([], ["--json"], ["--verbose"]):
        result = CliRunner().invoke(replay.main, [s3_server.place(), "again", *given, *more])
        assert result.exit_code == 3
        assert "the server does not accept the credentials" in result.output
        assert "Check AWS_ACCESS_KEY_ID" in result.output
        for name, value in options.items():
            assert "KEY" not in name or value not in result.output


@pytest.mark.parametrize("option", ["--ledger=x", "--rate=5", "--restart"])
def test_options_that_are_gone_say_what_to_use(tmp_path: Path, option: str) -> None:
    result = CliRunner().invoke(replay.main, [str(tmp_path), "again", option])
    assert result.exit_code == 2
    assert f"there is no option {option.partition('=')[0]}: " in result.output


def test_a_target_without_a_window_is_refused(
    broker: SyncBroker, topic: str, tmp_path: Path
) -> None:
    options = ReplayOptions(archive_of(tmp_path / "archive", count=1), topic)
    settings = JobSettings(name_server=broker.namesrv_addr, show_progress=False)
    with pytest.raises(OptionError, match=f"skylarkmq topic update {topic} --deduplicate"):
        replay.run(options, settings)


def test_it_waits_for_a_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = ReplayOptions(archive_of(tmp_path / "archive", count=1), "again")
    with late_broker() as names, pytest.raises(RouteNotFound):
        replay.run(options, JobSettings(name_server=names.address))
    assert [record.getMessage() for record in caplog.records] == [waiting_for(names)]


@pytest.mark.spark
@pytest.mark.parametrize("keep_ids", [False, True])
def test_through_spark(
    spark: SparkSession, broker: SyncBroker, tmp_path: Path, keep_ids: bool
) -> None:
    target = f"replayed_{keep_ids}"
    with Admin(namesrv_addr=broker.namesrv_addr) as admin:
        admin.create_topic(target, queues=4, deduplication=DeduplicationWindow(600, 1000))
    path = archive_of(tmp_path / "archive")
    settings = JobSettings(
        name_server=broker.namesrv_addr, show_progress=False, options={"sendBatchRows": "7"}
    )
    where = "queueId < 2 OR queueOffset % 2 = 0"
    options = ReplayOptions(
        path, target, (), T0_MS + 60_000, T0_MS + 60_001, where, keep_ids=keep_ids
    )
    assert replay.run(replace(options, dry_run=True), settings).figures["messages_to_send"] == 100
    assert broker.messages(target) == []

    # As a kill leaves it: a part is sent, of two queues the beginning.
    part = f"({where}) AND (queueId = 1 OR queueOffset < 50)"
    broken = replay.run(replace(options, where=part), settings)
    assert broken.figures["messages_sent"] == 55
    done = replay.run(options, settings)
    assert (done.exit_code, done.figures["messages_sent"]) == (0, 100)
    wanted: dict[int, list[tuple[bytes, str]]] = defaultdict(list)
    archived: list[dict[str, Any]] = rows_of(Path(path)).to_pylist()
    for row in sorted(archived, key=lambda each: each["queueOffset"]):
        place = [row[name] for name in ("topic", "brokerName", "queueId", "queueOffset")]
        if row["queueOffset"] >= 40 and (row["queueId"] < 2 or row["queueOffset"] % 2 == 0):
            unique_key = row["msgId"] if keep_ids else key_of_values(place)
            wanted[row["queueId"]].append((row["body"], unique_key))
    for queue_id in range(4):
        stored = broker.messages(target, queue_id)
        assert [(each.body, each.unique_key) for each in stored] == wanted[queue_id]
        assert all(each.properties["ä"] == "é" for each in stored)
    nothing = replay.run(replace(options, where="tags = 'none'"), settings)
    assert (nothing.figures["messages_sent"], len(nothing.notes)) == (0, 1)
    with pytest.raises(UsageError, match=r"--where .* is no condition"):
        replay.run(ReplayOptions(path, target, where="tgas = 1"), settings)
