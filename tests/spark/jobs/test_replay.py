"""The job replay: what it refuses, and a run through Spark that ends early and goes on."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from skylarkmq.protocol.message import MessageQueue
from skylarkmq.spark.archive.table import ArchiveTable
from skylarkmq.spark.jobs import replay
from skylarkmq.spark.jobs.common import JobError, JobSettings
from skylarkmq.spark.jobs.replay import (
    ReplayOptions,
    extended,
    ledger_place,
    selection_of,
    share_out,
)
from skylarkmq.spark.jobs.replay_ledger import Done, Ledger, ReplayPlan, Selection
from skylarkmq.spark.jobs.reporting import Summary
from skylarkmq.spark.writing.unique_keys import key_of_values
from skylarkmq.testing.threaded import SyncBroker
from tests.spark.support.archives import T0_MS, append, here, open_table, rows_of, run_of
from tests.spark.support.s3_server import S3Server

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


def selected(options: ReplayOptions, settings: JobSettings) -> Selection:
    """The selection of a run."""
    return selection_of(options, settings, ArchiveTable.open(here(Path(options.archive))))


def test_what_is_selected(tmp_path: Path) -> None:
    path = archive_of(tmp_path / "archive")
    options = ReplayOptions(path, "again", start_ms=5, where=" tags = 'A' ")
    settings = JobSettings()
    selection = selected(options, settings)
    assert selection == Selection(path, ("orders",), "again", 5, None, "tags = 'A'", False)
    place = ledger_place(options, selection, settings)
    assert place.path == Path(f"{path}.replays/again-{selection.name}")
    for mine in (str(tmp_path / "mine"), "s3://bucket/mine"):
        options = ReplayOptions(path, "again", ledger=mine)
        assert str(ledger_place(options, selection, settings)) == mine


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
    with pytest.raises(JobError, match=text) as caught:
        selected(replace(options, archive=path), JobSettings())
    assert caught.value.exit_code == 2


def test_into_its_source_by_force(tmp_path: Path) -> None:
    path = archive_of(tmp_path / "archive", count=1)
    assert selected(ReplayOptions(path, "orders", force=True), JobSettings()).target == "orders"


QUEUES = [MessageQueue("T", "a", number) for number in range(4)]
TARGETS = [MessageQueue("again", "a", number) for number in range(2)]
SELECTION = Selection("/data", ("T",), "again")


def test_queues_that_come_later_get_the_next_numbers() -> None:
    first = extended(None, SELECTION, QUEUES[1:3], TARGETS)
    assert list(first.targets) == QUEUES[1:3]
    second = extended(first, SELECTION, QUEUES, TARGETS)
    assert list(second.targets) == [*QUEUES[1:3], QUEUES[0], QUEUES[3]]
    assert {**second.targets, **first.targets} == second.targets


def test_a_plan_that_does_not_fit() -> None:
    plan = ReplayPlan(SELECTION, {QUEUES[0]: TARGETS[1]})
    other = Selection("/data", ("T",), "again", 5)
    with pytest.raises(JobError, match="the ledger belongs to another replay"):
        extended(plan, other, [], TARGETS)
    with pytest.raises(JobError, match="queue 1 of topic again on broker a takes no messages now"):
        extended(plan, SELECTION, [], TARGETS[:1])


def test_tasks_have_about_equally_much() -> None:
    counts = dict(zip(QUEUES, (100, 10, 60, 50), strict=True))
    assert share_out(counts, 2) == {QUEUES[0]: 0, QUEUES[2]: 1, QUEUES[3]: 1, QUEUES[1]: 0}
    assert set(share_out(counts, 99).values()) == {0, 1, 2, 3}
    assert share_out({QUEUES[0]: 0}, 5) == {QUEUES[0]: 0}


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


@pytest.mark.spark
def test_through_spark(spark: SparkSession, broker: SyncBroker, topic: str, tmp_path: Path) -> None:
    path = archive_of(tmp_path / "archive")
    settings = JobSettings(name_server=broker.namesrv_addr, show_progress=False)
    start_ms, end_ms = T0_MS + 60_000, T0_MS + 60_001

    where = "queueId < 2 OR queueOffset % 2 = 0"
    options = ReplayOptions(path, topic, (), start_ms, end_ms, where)

    def run(rate: float | None = None, *, dry_run: bool = False) -> Summary:
        return replay.run(replace(options, rate=rate, dry_run=dry_run), settings)

    dry = run(dry_run=True)
    assert dry.figures["messages_to_send"] == 100
    assert not Path(dry.figures["ledger"]).exists()
    rows = {(row[0], row[2]): row[3:8] for row in dry.tables[0].rows}
    assert rows[("orders", 2)] == ("broker-a 2", 20, 20 * len("orders/broker-a/2/40"), 40, 78)

    # As an earlier run left it: queue 0 is done up to its offset 50.
    plan = extended(
        None,
        selected(options, settings),
        [MessageQueue("orders", "broker-a", number) for number in range(3)],
        [MessageQueue(topic, "broker-a", number) for number in range(4)],
    )
    with Ledger(settings.location(dry.figures["ledger"])) as ledger:
        ledger.begin(plan)
        ledger.claim(0)
        ledger.record(0, Done(50, 10, 200))
    done = run(rate=1000.0)
    assert (done.exit_code, done.figures["messages_sent"]) == (0, 90)
    assert done.figures["sent_by_earlier_runs"] == 10
    archived = rows_of(Path(path)).to_pylist()
    wanted: dict[int, list[tuple[bytes, str]]] = defaultdict(list)
    for row in sorted(archived, key=lambda each: each["queueOffset"]):
        place = [row[name] for name in ("topic", "brokerName", "queueId", "queueOffset")]
        skipped = {0: row["queueOffset"] < 50, 2: row["queueOffset"] % 2 == 1}
        if row["queueOffset"] >= 40 and not skipped.get(row["queueId"]):
            wanted[row["queueId"]].append((row["body"], key_of_values(place)))
    for queue_id in range(4):
        stored = broker.messages(topic, queue_id)
        assert [(each.body, each.unique_key) for each in stored] == wanted[queue_id]
        assert all(each.properties["ä"] == "é" for each in stored)
    rest = run()
    assert rest.figures["messages_sent"] == 0
    assert "Earlier runs have sent all of it" in rest.notes[0]
    assert len(broker.messages(topic)) == 90
    assert json.loads(rest.as_json())["tables"]["by source queue"][0]["sent_before"] == 40
    with pytest.raises(JobError, match=r"--where .* is no condition"):
        replay.run(ReplayOptions(path, topic, where="tgas = 1"), settings)
