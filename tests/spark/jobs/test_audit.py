"""The job `audit` through Spark: sides that agree, then one thing wrong of every kind."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from skylarkmq.client import Message, TransactionState
from skylarkmq.client.sync import Producer
from skylarkmq.spark import archive_table
from skylarkmq.spark.archive.commits import STAGING
from skylarkmq.spark.archive.writer import StagedFile
from skylarkmq.spark.jobs import archive, audit
from skylarkmq.spark.jobs.archive import ArchiveOptions
from skylarkmq.spark.jobs.audit import StoreOptions, TopicOptions, check_files
from skylarkmq.spark.jobs.common import JobSettings
from skylarkmq.testing.threaded import SyncBroker, run_broker_sync
from tests.spark.support.archives import append, batch, open_writer
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


def tamper(table: Path) -> None:
    """Of queue 0 lose offset 3 and have 4 twice; change a body of queue 1 and a key of queue 2."""
    with open_writer(table) as writer:
        old = [file for file in writer.state.files.values()]
        rows = archive_table.dataset(table).to_table().to_pylist()
        kept = [row for row in rows if (row["queueId"], row["queueOffset"]) != (0, 3)]
        for row in rows:
            place = (row["queueId"], row["queueOffset"])
            if place == (0, 4):
                kept.append(row)
            elif place == (1, 5):
                row["body"] = b"y" + row["body"][1:]
            elif place == (2, 6):
                row["keys"] = "other"
        stage = f"{table}/{STAGING}/{writer.stage('tampered')}"
        out = StagedFile(stage, f"{old[0].folder}/part-tampered.parquet")
        out.add(batch(kept))
        writer.replace("tampered", [out.close()], [file.name for file in old])


def archived_meanwhile(table: Path) -> Any:
    """`check_files` behind a run of the archive; then its first file is somewhere else.

    The first time that is after the check, as when a job compacts files while they are read.
    """
    early: list[Any] = []

    def check(path: str, topics: tuple[str, ...]) -> Any:
        if early:
            return check_files(path, topics)
        early.append(check_files(path, topics))
        file = Path(archive_table.files(table)[0].path)
        with open_writer(table) as writer:
            place = (*writer.state.queues()[0], 20)
            append(writer, "more", [[message(place)]])
        shutil.copy(file, file.with_name("copy.parquet"))
        file.unlink()
        return early[0]

    return check


def found(summary: Any) -> list[tuple[object, ...]]:
    """Kind, queue, first offset, number and what of each difference."""
    rows = summary.tables[0].rows if summary.tables else []
    return sorted((row[0], row[3], row[4], row[6], row[7]) for row in rows)


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
        assert pq.read_metadata(archive_table.files(table)[0].path).num_rows == 80

        with pytest.MonkeyPatch.context() as patch:
            # More is archived while the two sides are compared: that is no difference.
            patch.setattr(audit, "check_files", archived_meanwhile(table))
            lost = audit.audit_topic(TopicOptions(str(table), ()), settings)
        assert found(lost) == [("missing", queue, 0, 20, "") for queue in range(4)]
        assert [row[0] for row in lost.tables[1].rows] == ["gone", "stray"]
        assert len(lost.notes) == 2
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
