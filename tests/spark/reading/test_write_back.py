"""A group's offsets on the brokers follow the query, and are never lowered by a query that begins
again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.client import Message
from skylarkmq.client.errors import BrokerError, ConnectionFailed, RocketMQError
from skylarkmq.client.sync import Producer
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.reading.write_back import THREAD_NAME, GroupOffsets, OffsetWriteBack
from skylarkmq.spark.settings import ConnectionSettings
from skylarkmq.testing.threaded import SyncBroker

QUEUE = MessageQueue("T", "broker-a", 0)
OTHER = MessageQueue("T", "broker-b", 0)
Failed = dict[MessageQueue, RocketMQError]


class FakeOffsets:
    """Brokers that hold offsets, and may be away."""

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}
        self.commits: list[dict[MessageQueue, int]] = []
        self.away: RocketMQError | None = None
        self.knows_group = True
        self.wrote = threading.Event()

    def committed_offsets(
        self, group: str, queues: Iterable[MessageQueue], failed: Failed | None = None
    ) -> dict[MessageQueue, int | None]:
        if self.away is not None:
            assert failed is not None
            failed.update(dict.fromkeys(queues, self.away))
            return {}
        return {queue: self.offsets.get(queue) for queue in queues}

    def commit_offsets(
        self, group: str, offsets: dict[MessageQueue, int], failed: Failed | None = None
    ) -> None:
        if not self.knows_group:
            code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            assert failed is not None
            failed.update(dict.fromkeys(offsets, BrokerError(code, "no group", "a:1")))
            return
        self.commits.append(dict(offsets))
        self.offsets.update(offsets)
        self.wrote.set()

    def close(self) -> None: ...

    def pull(
        self, queue: MessageQueue, offset: int, max_count: int, max_bytes: int, *, group: str
    ) -> object:
        self.knows_group = True
        return None


def test_what_is_new_is_written_once() -> None:
    brokers = FakeOffsets()
    offsets = GroupOffsets(brokers, "g")
    for _ in range(3):
        offsets.write({QUEUE: 5, OTHER: 0})
    offsets.write({QUEUE: 6, OTHER: 0})
    assert brokers.commits == [{QUEUE: 5, OTHER: 0}, {QUEUE: 6}]


def test_a_query_that_begins_again_lowers_nothing() -> None:
    brokers = FakeOffsets()
    brokers.offsets[QUEUE] = 100
    offsets = GroupOffsets(brokers, "g")
    for at in (0, 50, 100, 101):
        offsets.write({QUEUE: at})
    assert brokers.commits == [{QUEUE: 101}]


@pytest.mark.parametrize("moved_to", [3, 500])
def test_a_group_that_somebody_moved_is_put_right(moved_to: int) -> None:
    brokers = FakeOffsets()
    offsets = GroupOffsets(brokers, "g")
    offsets.write({QUEUE: 10})
    brokers.offsets[QUEUE] = moved_to
    offsets.write({QUEUE: 11})
    assert brokers.offsets[QUEUE] == 11


@given(st.lists(st.integers(0, 20), max_size=20), st.none() | st.integers(0, 20))
def test_left_alone_an_offset_never_falls(wanted: list[int], first: int | None) -> None:
    brokers = FakeOffsets()
    if first is not None:
        brokers.offsets[QUEUE] = first
    offsets = GroupOffsets(brokers, "g")
    highest = first
    for at in wanted:
        offsets.write({QUEUE: at})
        highest = at if highest is None else max(highest, at)
        assert brokers.offsets[QUEUE] == highest


def test_a_group_that_the_broker_does_not_know_is_made_known() -> None:
    brokers = FakeOffsets()
    brokers.knows_group = False
    GroupOffsets(brokers, "g").write({QUEUE: 4})
    assert brokers.offsets == {QUEUE: 4}


def test_a_broker_that_is_away_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    brokers = FakeOffsets()
    brokers.away = ConnectionFailed("a:1", "refused")
    offsets = GroupOffsets(brokers, "g")
    with caplog.at_level(logging.WARNING):
        for at in range(5):
            offsets.write({QUEUE: at})
    assert len(caplog.records) == 1
    assert "group g not written back, the query goes on: a:1: refused" in caplog.text
    brokers.away = None
    offsets.write({QUEUE: 4})
    assert brokers.offsets == {QUEUE: 4}


def test_the_thread_writes_the_newest_and_ends() -> None:
    brokers = FakeOffsets()
    back = OffsetWriteBack(ConnectionSettings(("ns:1",)), "g", 3600.0, brokers)
    assert THREAD_NAME not in {thread.name for thread in threading.enumerate()}
    back.put({QUEUE: 1})
    assert brokers.wrote.wait(10)
    for at in range(2, 50):
        back.put({QUEUE: at})
    back.close()
    assert brokers.commits == [{QUEUE: 1}, {QUEUE: 49}]
    assert THREAD_NAME not in {thread.name for thread in threading.enumerate()}
    back.put({QUEUE: 60})
    back.close()
    assert brokers.offsets == {QUEUE: 60}
    OffsetWriteBack(ConnectionSettings(("ns:1",)), "g").close()


def test_a_real_broker_s_lag(broker: SyncBroker, topic: str) -> None:
    with Producer(namesrv_addr=broker.namesrv_addr) as producer:
        for number in range(20):
            producer.send(Message(topic, b"%d" % number))
    settings = ConnectionSettings((broker.namesrv_addr,))
    client = BlockingClient(settings)
    queues = client.read_queues(topic)
    back = OffsetWriteBack(settings, "write_back_readers")
    back.put({queue: 3 for queue in queues})
    back.close()
    assert client.committed_offsets("write_back_readers", queues) == dict.fromkeys(queues, 3)
    assert broker.lag("write_back_readers") == 20 - 4 * 3
    client.close()
