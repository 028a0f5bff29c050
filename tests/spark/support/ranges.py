"""Ranges read from a model of a broker, their blocks checked on the way."""

from __future__ import annotations

from typing import Any

from skylarkmq.spark.errors import DataLost
from skylarkmq.spark.offsets import OffsetRange
from skylarkmq.spark.options import ReadSettings
from skylarkmq.spark.reading.ranges import RangeReader, offsets_of
from tests.spark.support.queue_model import QUEUE, FakePullClient


def range_reader(
    client: FakePullClient, start: int, end: int, on_data_loss: Any = None, **settings: Any
) -> RangeReader:
    """A reader of the model's queue; `settings` are those of `ReadSettings`."""
    reading = ReadSettings(client.settings, "g", **settings)
    return RangeReader(client.typed, OffsetRange(*QUEUE, start, end), reading, on_data_loss)


def read(
    client: FakePullClient, start: int, end: int, **settings: Any
) -> tuple[list[int], list[DataLost]]:
    """All queue offsets of a range, after a check of the blocks; and what was lost."""
    lost: list[DataLost] = []
    reader = range_reader(client, start, end, **{"on_data_loss": lost.append, **settings})
    offsets: list[int] = []
    at = start
    for block in reader:
        assert at <= block.start < block.end <= end
        inside = [offset for offset, _ in offsets_of(block.records)]
        assert all(block.start <= offset < block.end for offset in inside)
        offsets += inside
        at = block.end
    assert not client.under_way
    return offsets, lost
