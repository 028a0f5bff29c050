"""The example `windows`: each closed window once, also when Spark repeats its batches."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException

from examples import windows
from skylarkmq.client import Message
from skylarkmq.client.sync import Producer
from skylarkmq.testing.threaded import SyncBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WINDOW_MS = 50


def fill(broker: SyncBroker, topic: str, numbers: range) -> None:
    with Producer(namesrv_addr=broker.namesrv_addr) as producer:
        for number in numbers:
            tag = ("red", "blue", None)[number % 3]
            producer.send(Message(topic, b"x" * number, tags=tag))


@pytest.mark.spark
def test_each_closed_window_is_there_once(
    spark: SparkSession,
    broker: SyncBroker,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, committed = str(tmp_path / "windows"), 0

    def write_and_die(*arguments: Any, **more: Any) -> None:
        """End the query as a kill does between the table's commit and Spark's own."""
        nonlocal committed
        write(*arguments, **more)
        committed += 1
        raise ConnectionAbortedError

    write = windows.write_deltalake
    monkeypatch.setattr(windows, "write_deltalake", write_and_die)
    options = {"nameServer": broker.namesrv_addr, "topic": topic, "startingOffsets": "earliest"}

    def count() -> None:
        windows.count(spark, options, table, f"{WINDOW_MS} milliseconds", "0 seconds")

    fill(broker, topic, range(400))
    for batch in (1, 2):  # with the messages; with the windows that they have closed
        with pytest.raises(StreamingQueryException):
            count()
        assert committed == batch
    monkeypatch.undo()
    count()
    fill(broker, topic, range(50))  # these close what was open before
    count()

    wanted: dict[tuple[int, str | None], Counter[str]] = {}
    for message in broker.messages(topic):
        start = message.store_timestamp - message.store_timestamp % WINDOW_MS
        sums = wanted.setdefault((start, message.tags), Counter())
        sums.update(messages=1, bytes=message.store_size)
    last = max(start for start, _ in wanted)
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    found = {(int(row["start"].timestamp() * 1000), row["tags"]): row for row in rows}
    assert len(rows) == len(found) > 1
    assert found.keys() == {window for window in wanted if window[0] < last}
    for window, row in found.items():
        assert {name: row[name] for name in ("messages", "bytes")} == wanted[window]
        assert row["topic"] == topic
        assert 0 <= row["meanDelayMs"] <= row["maxDelayMs"]
