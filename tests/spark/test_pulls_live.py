"""Ranges of a real broker: whole, filtered, over restarts, kills and cut connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from skylarkmq.client import Message
from skylarkmq.client.errors import FilterRefused
from skylarkmq.client.sync import Producer
from skylarkmq.protocol.message import MessageExt, MessageQueue
from skylarkmq.protocol.record import decode_messages
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.errors import DataLost
from skylarkmq.spark.offsets import OffsetRange
from skylarkmq.spark.options import ReadSettings
from skylarkmq.spark.reading.ranges import RangeReader
from skylarkmq.spark.settings import ConnectionSettings
from skylarkmq.testing.threaded import SyncBroker, run_broker_sync

COUNT = 2000


@pytest.fixture(scope="module")
def own_broker() -> Iterator[SyncBroker]:
    """A broker of this file's own, because it is killed and restarted."""
    with run_broker_sync(settings={"enablePropertyFilter": "true"}) as broker:
        broker.create_topic("T", 1)
        with Producer(namesrv_addr=broker.namesrv_addr) as producer:
            producer.send_many(
                [
                    Message(
                        "T", b"%d" % number, tags="ab"[number % 2], properties={"n": str(number)}
                    )
                    for number in range(COUNT)
                ]
            )
        yield broker


@pytest.fixture
def client(own_broker: SyncBroker) -> Iterator[BlockingClient]:
    found = BlockingClient(ConnectionSettings((own_broker.namesrv_addr,), retry_timeout_s=30))
    yield found
    found.close()


QUEUE = MessageQueue("T", "broker-a", 0)


def bodies(messages: list[MessageExt]) -> list[int]:
    return [int(message.body) for message in messages]


def reader_of(client: BlockingClient, start: int, end: int, **settings: Any) -> RangeReader:
    reading = ReadSettings(client.settings, "g", **settings)
    return RangeReader(client, OffsetRange(*QUEUE, start, end), reading)


def read(reader: RangeReader) -> list[MessageExt]:
    return [message for block in reader for message in decode_messages(block.records)]


@pytest.mark.parametrize("max_bytes", [1000, 256 * 1024, 4 << 20])
@pytest.mark.parametrize("in_flight", [1, 8])
def test_a_whole_range(client: BlockingClient, max_bytes: int, in_flight: int) -> None:
    reader = reader_of(client, 3, COUNT - 2, pull_bytes=max_bytes, pulls_in_flight=in_flight)
    assert bodies(read(reader)) == list(range(3, COUNT - 2))


def test_tags(client: BlockingClient) -> None:
    reader = reader_of(client, 5, COUNT, expression="a")
    assert bodies(read(reader)) == list(range(6, COUNT, 2))


def test_sql92(client: BlockingClient) -> None:
    wanted = "n BETWEEN 100 AND 1200 AND TAGS = 'b'"
    reader = reader_of(client, 0, 1100, expression=wanted, sql92=True)
    assert bodies(read(reader)) == list(range(101, 1100, 2))


def test_an_expression_that_the_broker_cannot_read(client: BlockingClient) -> None:
    with pytest.raises(FilterRefused, match=r"127\.0\.0\.1"):
        read(reader_of(client, 0, 10, expression="n BETWEEN", sql92=True))


def test_a_range_beyond_the_end_is_a_loss(client: BlockingClient) -> None:
    with pytest.raises(DataLost, match=f"wanted from queue offset {COUNT}.*up to {COUNT}"):
        read(reader_of(client, COUNT - 10, COUNT + 5))


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("filtered", [False, True])
def test_a_broker_that_restarts_in_the_middle(
    own_broker: SyncBroker, client: BlockingClient, kill: bool, filtered: bool
) -> None:
    wanted = "a" if filtered else "*"
    reader = reader_of(client, 0, COUNT, expression=wanted, pull_count=50, pulls_in_flight=4)
    messages: list[MessageExt] = []
    for index, block in enumerate(reader):
        messages += decode_messages(block.records)
        if index in (2, 9):
            own_broker.restart(kill=kill)
    assert bodies(messages) == list(range(0, COUNT, 2 if filtered else 1))
