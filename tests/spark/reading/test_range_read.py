"""A task: blocks of records become batches, all of the range or an error."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from skylarkmq.client import Message
from skylarkmq.client.sync import Producer
from skylarkmq.protocol.compression import CompressionKind, compression_flags
from skylarkmq.spark.batches import CorruptRecordError
from skylarkmq.spark.clients import close_all
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.errors import DataLost, NoProgress
from skylarkmq.spark.offsets import OffsetRange, QueueKey
from skylarkmq.spark.options import OnCorruption, ReadSettings, SourceOptions
from skylarkmq.spark.reading.planning import BatchPlanner
from skylarkmq.spark.reading.ranges import Block
from skylarkmq.spark.reading.readers import OnLoss, Open, read_ranges
from skylarkmq.spark.settings import ConnectionSettings
from skylarkmq.testing.threaded import SyncBroker
from tests.spark.support.records import Written, block

SETTINGS = ReadSettings(ConnectionSettings(name_servers=("n:1",)), "g", batch_rows=4)
WANTED = OffsetRange("T", "a", 0, 10, 20)
COLUMNS = ("queueOffset", "brokerName")


def blocks(*spans: tuple[int, int], tags: str = "") -> Open:
    """Opens blocks of these offsets."""

    def give(wanted: OffsetRange, settings: ReadSettings, on_loss: OnLoss) -> Iterable[Block]:
        for start, end in spans:
            if end < start:
                loss = DataLost(wanted.key, end, start, start - end)
                if on_loss is None:
                    raise loss
                on_loss(loss)
                continue
            records = [Written(number, properties=tags.encode()) for number in range(start, end)]
            yield Block(block(*records), start, end)

    return give


def offsets(open_range: Open, **changes: Any) -> list[int]:
    settings = replace(SETTINGS, **changes)
    batches = read_ranges((WANTED,), settings, COLUMNS, open_range=open_range)
    return [row["queueOffset"] for batch in batches for row in batch.to_pylist()]


def test_a_message_that_cannot_be_read_may_be_left_out() -> None:
    def give(wanted: OffsetRange, settings: ReadSettings, on_loss: OnLoss) -> Iterable[Block]:
        flags = compression_flags(CompressionKind.ZLIB)
        records = [Written(number) for number in range(10, 20)]
        records[4] = Written(14, body=b"no zlib", sys_flag=flags)
        yield Block(block(*records), 10, 20)

    def read(policy: OnCorruption) -> list[int]:
        settings = replace(SETTINGS, on_corruption=policy)
        batches = read_ranges((WANTED,), settings, ("queueOffset", "body"), open_range=give)
        return [row["queueOffset"] for batch in batches for row in batch.to_pylist()]

    with pytest.raises(CorruptRecordError):
        read("fail")
    assert read("skip") == [10, 11, 12, 13, 15, 16, 17, 18, 19]
    assert read("raw") == [*range(10, 20)]


def test_blocks_become_batches() -> None:
    batches = list(read_ranges((WANTED,), SETTINGS, COLUMNS, open_range=blocks((10, 13), (13, 20))))
    assert [batch.num_rows for batch in batches] == [4, 4, 2]
    assert batches[0].to_pylist()[0] == {"queueOffset": 10, "brokerName": "a"}


def test_blocks_that_reach_beyond_the_range_or_back() -> None:
    assert offsets(blocks((8, 14), (12, 25))) == list(range(10, 20))


@pytest.mark.parametrize("spans", [[], [(10, 19)], [(11, 20)], [(10, 13), (14, 20)]])
def test_fewer_messages_are_an_error(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(NoProgress, match=r"queue 0 of topic T on broker a \[10, 20\) gave"):
        offsets(blocks(*spans))


def test_messages_that_were_left_out_as_damaged_count() -> None:
    def give(wanted: OffsetRange, settings: ReadSettings, on_loss: OnLoss) -> Iterable[Block]:
        yield Block(block(*map(Written, range(10, 14))), 10, 14)
        yield Block(b"", 14, 15)
        yield Block(block(*map(Written, range(15, 20))), 15, 20)

    assert offsets(give, on_corruption="skip") == [*range(10, 14), *range(15, 20)]


def test_each_range_of_a_task_is_counted() -> None:
    ranges = (WANTED, WANTED._replace(queue_id=1, start=3, end=5))

    def give(wanted: OffsetRange, settings: ReadSettings, on_loss: OnLoss) -> Iterable[Block]:
        yield Block(block(*map(Written, range(wanted.start, wanted.end))), *wanted[3:])

    batches = list(read_ranges(ranges, replace(SETTINGS, batch_rows=50), COLUMNS, open_range=give))
    assert [batch.num_rows for batch in batches] == [12], "all in one batch"

    def short(wanted: OffsetRange, settings: ReadSettings, on_loss: OnLoss) -> Iterable[Block]:
        end = wanted.end + 1 if wanted.queue_id == 0 else wanted.end - 1
        yield Block(block(*map(Written, range(wanted.start, end))), wanted.start, end)

    with pytest.raises(NoProgress, match=r"queue 1 .* gave 1 messages instead of 2"):
        list(read_ranges(ranges, SETTINGS, COLUMNS, open_range=short))


def test_losses() -> None:
    lost = blocks((10, 12), (15, 12), (15, 20))
    with pytest.raises(DataLost):
        offsets(lost)
    assert offsets(lost, fail_on_data_loss=False) == [10, 11, *range(15, 20)]


def test_nothing_to_read() -> None:
    assert list(read_ranges(None, SETTINGS, COLUMNS)) == []


def test_tags_are_compared_as_text() -> None:
    with_tag = blocks((10, 20), tags="TAGS\x01Aa\x02")  # "BB" has the same hash in Java
    assert offsets(with_tag, expression="Aa || C") == list(range(10, 20))
    assert offsets(with_tag, expression="BB") == []


@pytest.fixture
def cluster(broker: SyncBroker, topic: str) -> Iterator[tuple[SourceOptions, BlockingClient]]:
    """A topic with 300 messages: those of tags Aa and BB, which Java's hash does not tell apart."""
    with Producer(namesrv_addr=broker.namesrv_addr) as producer:
        for number in range(300):
            tag = "Aa" if number % 2 else "BB"
            producer.send(Message(topic, str(number), tags=tag, properties={"n": str(number)}))
    options = SourceOptions.from_options(
        {"nameServer": broker.namesrv_addr, "topic": topic, "maxRecordsPerPartition": "30"},
        streaming=False,
    )
    client = BlockingClient(options.connection)
    yield options, client
    client.close()
    close_all()


def bodies(options: SourceOptions, client: BlockingClient, **changes: Any) -> list[int]:
    reading = replace(options.reading, **changes)
    reading = pickle.loads(pickle.dumps(reading))
    ranges = BatchPlanner(client, options).plan()
    return sorted(
        int(row["body"])
        for wanted in ranges
        for batch in read_ranges((wanted,), reading, ("body",))
        for row in batch.to_pylist()
    )


def test_a_real_broker(cluster: tuple[SourceOptions, BlockingClient]) -> None:
    options, client = cluster
    assert bodies(options, client) == list(range(300))
    assert bodies(options, client, expression="Aa") == list(range(1, 300, 2))
    assert bodies(options, client, expression="Aa || BB") == list(range(300))
    assert bodies(options, client, expression="C") == []
    assert bodies(options, client, pull_count=3, batch_rows=1, pulls_in_flight=2) == [*range(300)]


def test_a_range_that_the_broker_does_not_have(
    cluster: tuple[SourceOptions, BlockingClient],
) -> None:
    options, client = cluster
    key = QueueKey(*client.read_queues(options.subject.topics[0])[0])
    end = client.max_offset(key)
    wanted = OffsetRange(*key, end - 5, end + 5)
    with pytest.raises(DataLost):
        list(read_ranges((wanted,), options.reading, ("body",)))
    lenient = replace(options.reading, fail_on_data_loss=False)
    assert sum(batch.num_rows for batch in read_ranges((wanted,), lenient, ("body",))) == 5


def test_topics_are_the_applications(broker: SyncBroker) -> None:
    broker.create_topic("market%orders", 1)
    with Producer(namesrv_addr=broker.namesrv_addr) as producer:
        producer.send(Message("market%orders", "one"))
    options = SourceOptions.from_options(
        {"nameServer": broker.namesrv_addr, "topic": "orders", "namespace": "market"},
        streaming=False,
    )
    client = BlockingClient(options.connection)
    (wanted,) = BatchPlanner(client, options).plan()
    (batch,) = read_ranges((wanted,), options.reading, ("topic", "body"))
    assert batch.to_pylist() == [{"topic": "orders", "body": b"one"}]
    client.close()
    close_all()
