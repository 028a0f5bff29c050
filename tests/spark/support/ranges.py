"""Ranges read from a model of a broker, their blocks checked on the way."""

from __future__ import annotations

from typing import Any

from skylarkmq.protocol.bodies.group import SubscriptionData
from skylarkmq.spark.errors import DataLost
from skylarkmq.spark.reading.ranges import RangeReader, offsets_of
from tests.spark.support.queue_model import QUEUE, FakePullClient

TAG_A = SubscriptionData(topic="T", sub_string="a", tags_set=["a"], code_set=[97])


def read(
    client: FakePullClient, start: int, end: int, **settings: object
) -> tuple[list[int], list[DataLost]]:
    """All queue offsets of a range, after a check of the blocks; and what was lost."""
    lost: list[DataLost] = []
    given: dict[str, Any] = {"on_data_loss": lost.append, **settings}
    reader = RangeReader(client.typed, QUEUE, start, end, group="g", **given)
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
