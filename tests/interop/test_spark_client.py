"""The Spark connector's blocking client against RocketMQ's own broker, as against ours."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from skylarkmq.protocol.message import MessageExt, MessageQueue
from skylarkmq.protocol.record import decode_messages
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.errors import DataLost, SendFailed
from skylarkmq.spark.offsets import OffsetRange
from skylarkmq.spark.options import ReadSettings
from skylarkmq.spark.reading.ranges import RangeReader
from skylarkmq.spark.reading.write_back import OffsetWriteBack
from skylarkmq.spark.settings import ConnectionSettings
from skylarkmq.spark.writing.window import Outgoing, SendWindow
from tests.interop.servers import Broker
from tests.spark.support.sent_messages import batch_of

pytestmark = pytest.mark.interop

COUNT = 600
WAIT_S = 30.0


@pytest.fixture
def client(broker: Broker) -> Iterator[BlockingClient]:
    found = BlockingClient(ConnectionSettings((broker.namesrv,)))
    yield found
    found.close()


def outgoing(number: int) -> Outgoing:
    key = f"key-{number:06}"
    properties = f"TAGS\x01{'ab'[number % 2]}\x02UNIQ_KEY\x01{key}"
    return Outgoing(b"%d" % number, properties.encode(), key)


def fill(client: BlockingClient, topic: str) -> MessageQueue:
    """Store COUNT messages in one queue: batches and single ones."""
    queue = client.write_queues(topic)[0]
    window = SendWindow(client, group="spark-sink")
    number = 0
    while number < COUNT:
        size = 1 if number < 20 else 50
        messages = [outgoing(it) for it in range(number, min(COUNT, number + size))]
        window.send(queue, batch_of(messages))
        number += size
    receipts = window.flush()
    assert sum(it.count for it in receipts) == COUNT
    firsts = [it.first_queue_offset for it in receipts]
    assert firsts == sorted(set(firsts))
    deadline_s = time.monotonic() + WAIT_S
    while topic not in client.topics() or client.max_offset(queue) < COUNT:
        assert time.monotonic() < deadline_s, "the topic does not appear"
    return queue


def read(reader: RangeReader) -> list[MessageExt]:
    return [message for block in reader for message in decode_messages(block.records)]


def numbers(messages: list[MessageExt]) -> list[int]:
    return [int(message.body) for message in messages]


def test_all_of_it(client: BlockingClient, broker: Broker, topic: str, group: str) -> None:
    """One test, because each topic takes a broker of its own kind a moment to show."""
    queue = fill(client, topic)
    assert queue in client.read_queues(topic)
    assert client.min_offset(queue) == 0

    def reader(start: int, end: int, **settings: Any) -> RangeReader:
        reading = ReadSettings(client.settings, group, **settings)
        return RangeReader(client, OffsetRange(*queue, start, end), reading)

    messages = read(reader(0, COUNT))
    assert numbers(messages) == list(range(COUNT))
    assert messages[7].properties["UNIQ_KEY"] == "key-000007"
    assert numbers(read(reader(5, 333, pull_count=7))) == list(range(5, 333))
    assert numbers(read(reader(0, 500, expression="b"))) == list(range(1, 500, 2))

    with pytest.raises(DataLost) as caught:
        read(reader(COUNT - 5, COUNT + 50))
    assert (caught.value.available, caught.value.lost) == (COUNT, 50)

    stored_ms = messages[300].store_timestamp
    first = next(it for it in range(COUNT) if messages[it].store_timestamp >= stored_ms)
    assert client.offset_at(queue, stored_ms) == first
    assert client.offset_at(queue, messages[-1].store_timestamp + 60_000) == COUNT
    assert client.offset_at(queue, 0) == 0

    back = OffsetWriteBack(client.settings, group)
    back.put({queue: 321})
    back.close()
    assert client.committed_offsets(group, [queue]) == {queue: 321}


def test_a_message_that_is_too_large(client: BlockingClient, topic: str) -> None:
    window = SendWindow(client, group="spark-sink")
    big = Outgoing(bytes(4 * 1024 * 1024 + 1), b"UNIQ_KEY\x01big", "big")
    window.send(client.write_queues(topic)[0], big)
    with pytest.raises(SendFailed, match="maxMessageSize"):
        window.flush()
