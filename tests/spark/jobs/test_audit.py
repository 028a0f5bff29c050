"""The job `audit` through Spark: sides that agree, then one thing wrong of every kind."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from skylarkmq.client import Message, TransactionState
from skylarkmq.client.sync import Producer
from skylarkmq.spark.archive.removal import erase, expire, vacuum
from skylarkmq.spark.archive.table import ArchiveTable
from skylarkmq.spark.archive.writer import TableFile
from skylarkmq.spark.jobs import archive, audit
from skylarkmq.spark.jobs.archive import ArchiveOptions
from skylarkmq.spark.jobs.audit import StoreOptions, TopicOptions, check_files
from skylarkmq.spark.jobs.common import JobSettings
from skylarkmq.testing.threaded import SyncBroker, run_broker_sync
from tests.spark.support.archives import append, batch, open_table, rows_of
from tests.spark.support.archives import row as message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNIT_SIZE = 20


def fill(broker: SyncBroker, topic: str, count: int) -> None:
    with Producer(namesrv_addr=broker.namesrv_addr) as producer:
        queues = sorted(producer.queues(topic))
        for number in range(count):
            body, tags = b"x%d" % number * 9, "AB"[number % 2]
            producer.send(Message(topic, body, tags=tags), queue=queues[number % len(queues)])


def fill_in_transactions(broker: SyncBroker, topic: str) -> None:
    """Commit one message and roll one back: two halves, two answers to them, one message."""
    with Producer(
        namesrv_addr=broker.namesrv_addr, group="payments", check=lambda _: TransactionState.UNKNOWN
    ) as producer:
        with producer.transaction(Message(topic, b"paid")):
            pass
        with producer.transaction(Message(topic, b"not paid")) as transaction:
            transaction.rollback()


def tamper(path: Path) -> None:
    """Of queue 0 lose offset 3 and have 4 twice; change a body of queue 1 and a key of queue 2."""
    table = open_table(path)
    rows = rows_of(path).to_pylist()
    kept = [row for row in rows if (row["queueId"], row["queueOffset"]) != (0, 3)]
    for row in rows:
        place = (row["queueId"], row["queueOffset"])
        if place == (0, 4):
            kept.append(row)
        elif place == (1, 5):
            row["body"] = b"y" + row["body"][1:]
        elif place == (2, 6):
            row["keys"] = "other"
    replace_by(table, kept)


def replace_by(table: ArchiveTable, rows: list[dict[str, Any]]) -> None:
    """Other rows in the place of all; what the archive says of its offsets stays."""
    old = table.files()
    out = TableFile(table.location.filesystem(), "part-other.parquet", (old[0].topic, old[0].date))
    out.add(batch(rows))
    actions = [*map(table.remove_action, old), table.add_action(out.close())]
    delta = DeltaTable(table.location.uri)
    partitions = delta.metadata().partition_columns
    delta.create_write_transaction(actions, "append", delta.schema(), partitions)


def deleted_meanwhile(path: Path, times: int) -> Any:
    """`check_files`, after which another job replaces what it has seen, and deletes it."""
    left = [times]

    def check(table: ArchiveTable, topics: tuple[str, ...]) -> Any:
        seen = check_files(table, topics)
        if left[0]:
            left[0] -= 1
            writer = open_table(path)
            append(writer, [message((*writer.state.queues()[0], 20))])
            DeltaTable(str(path)).optimize.compact()
            vacuum(writer, retention_hours=0)
        return seen

    return check


def found(summary: Any) -> list[tuple[object, ...]]:
    """Kind, queue, first offset, number and what of each difference."""
    rows = summary.tables[0].rows if summary.tables else []
    return sorted((row[0], row[3], row[4], row[6], row[7]) for row in rows)


@pytest.mark.spark
def test_what_was_removed(
    spark: SparkSession, broker: SyncBroker, topic: str, tmp_path: Path
) -> None:
    """The brokers have it still, the archive may not; and one that is there again is told."""
    fill(broker, topic, 80)
    settings = JobSettings(name_server=broker.namesrv_addr)
    archive.run(ArchiveOptions((topic,), str(tmp_path / "table")), settings)
    table = open_table(tmp_path / "table")
    rows = rows_of(tmp_path / "table").to_pylist()
    erase(table, "queueId = 1 AND queueOffset IN (3, 7)")
    options = TopicOptions(str(tmp_path / "table"), (topic,))
    sound = audit.audit_topic(options, settings)
    assert (sound.exit_code, found(sound)) == (0, [])
    assert sound.figures["messages_removed_from_archive"] == 2
    assert sound.figures["messages_compared"] == sound.figures["messages_in_archive"] == 78
    replace_by(table, rows)
    back = audit.audit_topic(options, settings)
    assert found(back) == [("extra", 1, at, 1, audit.REMOVED) for at in (3, 7)]

    table.reload()
    expire(table, topics=[topic])
    fill(broker, topic, 4)
    archive.run(ArchiveOptions((topic,), str(tmp_path / "table")), settings)
    sound = audit.audit_topic(options, settings)
    assert (sound.exit_code, found(sound)) == (0, [])
    assert sound.figures["messages_removed_from_archive"] == 80
    assert sound.figures["messages_compared"] == sound.figures["messages_in_archive"] == 4


@pytest.mark.spark
def test_files_that_go_while_they_are_read(
    spark: SparkSession, broker: SyncBroker, topic: str, tmp_path: Path
) -> None:
    settings = JobSettings(name_server=broker.namesrv_addr)
    table = tmp_path / "table"
    for _ in range(2):
        fill(broker, topic, 40)
        archive.run(ArchiveOptions((topic,), str(table)), settings)
    options = TopicOptions(str(table), ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit, "check_files", deleted_meanwhile(table, 1))
        sound = audit.audit_topic(options, settings)
    # What was archived meanwhile counts for the version that was read in the end.
    assert found(sound) == [("extra", 0, 20, 1, "")]
    largest = max(open_table(table).files(), key=lambda file: file.rows or 0)
    (table / largest.name).unlink()
    lost = audit.audit_topic(options, settings)
    assert {row[0] for row in lost.tables[0].rows} == {"extra", "missing"}
    assert [row[0] for row in lost.tables[1].rows] == ["gone"]
    assert len(lost.notes) == 1 + 1


@pytest.mark.spark
def test_topic_and_store(spark: SparkSession, tmp_path: Path) -> None:
    table, store = tmp_path / "table", tmp_path / "store"
    with run_broker_sync(store=store) as broker:
        broker.create_topic("orders", 4)
        fill(broker, "orders", 80)
        settings = JobSettings(name_server=broker.namesrv_addr)
        archive.run(ArchiveOptions(("orders",), str(table)), settings)
        sound = audit.audit_topic(TopicOptions(str(table), ()), settings)
        assert (sound.exit_code, found(sound)) == (0, [])
        assert sound.figures["messages_compared"] == sound.figures["messages_in_archive"] == 80

        tamper(table)
        fill(broker, "orders", 4)
        wrong = audit.audit_topic(TopicOptions(str(table), ("orders",)), settings)
        assert (wrong.exit_code, wrong.figures["messages_not_archived_yet"]) == (1, 4)
        assert found(wrong) == [
            ("differing", 1, 5, 1, "body, checksum"),
            ("differing", 2, 6, 1, "other_columns"),
            ("duplicate", 0, 4, 1, ""),
            ("missing", 0, 3, 1, ""),
        ]
        assert wrong.figures["messages_in_archive"] == 80
        fill_in_transactions(broker, "payments")

    sound = audit.audit_store(StoreOptions(str(store)), JobSettings())
    assert (sound.exit_code, found(sound)) == (0, [])
    assert sound.figures["records_in_log"] == sound.figures["units_in_queues"] == 84 + 5
    units = next((store / "consumequeue" / "orders" / "2").iterdir())
    with units.open("r+b") as file:
        file.seek(7 * UNIT_SIZE)
        unit = struct.unpack(">qiq", file.read(UNIT_SIZE))
        file.seek(7 * UNIT_SIZE)
        file.write(struct.pack(">qiq", unit[0] + 1, *unit[1:]))  # leads one byte too far
        file.seek(20 * UNIT_SIZE)
        file.write(bytes(UNIT_SIZE))  # the last one is lost
        file.seek(21 * UNIT_SIZE)
        file.write(struct.pack(">qiq", unit[0], *unit[1:]))  # and one leads to another's record
    wrong = audit.audit_store(StoreOptions(str(store)), JobSettings())
    assert wrong.exit_code == 1
    assert found(wrong) == [
        ("differing", 2, 7, 1, "place"),
        ("extra", 2, 21, 1, ""),
        ("missing", 2, 20, 1, ""),
    ]
