"""The decisions of a stream, one by one; see test_stream_model.py for all of them together."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest

from skylarkmq.client.errors import ConnectionFailed, NotFound
from skylarkmq.client.spark.errors import DataLost
from skylarkmq.client.spark.offsets import OffsetRange, QueueKey, QueueOffsets
from skylarkmq.client.spark.options import SourceOptions
from skylarkmq.client.spark.reading.stream_planner import NO_LIMIT, Limit, StreamPlanner
from tests.spark.support.fake_brokers import FakeBrokers, FakeClock, FakeQueue

A0, A1, A2 = (QueueKey("T", "a", number) for number in range(3))
B0 = QueueKey("T", "b", 0)


class FakeWriteBack:
    def __init__(self) -> None:
        self.put_: list[dict[QueueKey, int]] = []
        self.closed = 0

    def put(self, offsets: Mapping[QueueKey, int]) -> None:
        self.put_.append(dict(offsets))

    def close(self, timeout_s: float = 3.0) -> None:
        self.closed += 1


class Place:
    """A cluster, and a query on it."""

    def __init__(self, *queues: QueueKey, **options: object) -> None:
        self.brokers = FakeBrokers(queues)
        self.clock = FakeClock()
        self.write_back = FakeWriteBack()
        self.given = {
            "nameServer": "n:1",
            "topic": "T",
            "startingOffsets": "earliest",
            "retryTimeoutMs": "10s",
            "offsetCacheMs": "0",
            **{name: str(value) for name, value in options.items()},
        }
        self.restart()

    def restart(self) -> None:
        options = SourceOptions.from_options(self.given, streaming=True)
        self.planner = StreamPlanner(self.brokers, options, self.clock, self.write_back)

    def latest(self, start: Mapping[QueueKey, int], limit: Limit | None = None) -> QueueOffsets:
        return self.planner.latest(
            QueueOffsets(start), self.planner.default_limit if limit is None else limit
        )

    def plan(self, start: Mapping[QueueKey, int], end: Mapping[QueueKey, int]) -> list[OffsetRange]:
        return self.planner.plan(QueueOffsets(start), QueueOffsets(end))


def test_initial() -> None:
    place = Place(A0, A1)
    place.brokers.send(A0, *"abc")
    place.brokers.queues[A0].first = 1
    assert place.planner.initial() == {A0: 1, A1: 0}
    place = Place(A0, startingOffsets="latest")
    place.brokers.send(A0, *"abc")
    assert place.planner.initial() == {A0: 3}


def test_initial_waits_for_brokers_but_not_for_ever() -> None:
    place = Place(A0)
    place.brokers.down.add("a")
    with pytest.raises(ConnectionFailed):
        place.planner.initial()
    assert 8 <= sum(place.clock.slept_s) <= 10
    with pytest.raises(NotFound):
        Place().planner.initial()


def test_a_batch() -> None:
    place = Place(A0, A1)
    start = place.planner.initial()
    assert place.latest(start) == start
    place.brokers.send(A0, *"abc")
    end = place.latest(start)
    assert end == {A0: 3, A1: 0}
    assert place.plan(start, end) == [OffsetRange(*A0, 0, 3)]
    assert place.plan(end, end) == []
    assert place.latest(end) == end


def test_an_idle_query_asks_once() -> None:
    place = Place(A0, offsetCacheMs=100)
    start = place.planner.initial()
    del place.brokers.asked[:]
    for _ in range(90):
        place.latest(start)
        place.planner.report()
    assert place.brokers.asked == ["max"]
    assert place.planner.report() == {A0: 0}


def test_maximum_is_shared_out() -> None:
    place = Place(A0, A1, A2, maxOffsetsPerTrigger=100)
    place.brokers.send(A0, *range(900))
    place.brokers.send(A1, *range(90))
    place.brokers.send(A2, *range(10))
    start = place.planner.initial()
    end = place.latest(start)
    assert end == {A0: 90, A1: 9, A2: 1}
    assert place.latest(end, NO_LIMIT) == {A0: 900, A1: 90, A2: 10}


def test_no_queue_starves() -> None:
    place = Place(A0, A1, A2, maxOffsetsPerTrigger=2)
    at: QueueOffsets = place.planner.initial()
    place.brokers.send(A1, "x")
    for _ in range(3):
        place.brokers.send(A0, *range(1000))
        at = place.latest(at)
    assert at[A1] == 1


def test_minimum_waits_for_as_many_or_as_long() -> None:
    place = Place(A0, minOffsetsPerTrigger=10, maxTriggerDelay="5m")
    place.brokers.send(A0, "x")
    first = place.latest({A0: 0})
    assert first == {A0: 1}  # a query that begins does not wait
    place.brokers.send(A0, *range(9))
    assert place.latest(first) == first
    place.brokers.send(A0, "x")
    second = place.latest(first)
    assert second == {A0: 11}
    place.brokers.send(A0, "x")
    place.clock.now_s += 299
    assert place.latest(second) == second
    place.clock.now_s += 1
    assert place.latest(second) == {A0: 12}
    assert place.latest({A0: 12}) == {A0: 12}


def test_minimum_and_maximum() -> None:
    place = Place(A0, minOffsetsPerTrigger=10, maxOffsetsPerTrigger=15)
    place.brokers.send(A0, *range(24))
    first = place.latest({A0: 0})
    assert first == {A0: 15}
    assert place.latest(first) == first
    place.brokers.send(A0, "x")
    assert place.latest(first) == {A0: 25}


def test_a_run_to_a_target_ends_there() -> None:
    place = Place(A0, maxOffsetsPerTrigger=4, minOffsetsPerTrigger=4)
    place.brokers.send(A0, *range(9))
    start = place.planner.initial()
    place.planner.freeze()
    place.brokers.send(A0, *range(100))
    place.brokers.queues[A1] = place.brokers.queues[A0]
    place.clock.now_s += 60
    ends = [start]
    while not ends[1:] or ends[-1] != ends[-2]:
        ends.append(place.latest(ends[-1]))
    assert [end[A0] for end in ends] == [0, 4, 8, 9, 9]  # the last one below the minimum
    assert place.planner.report() == {A0: 9}
    assert place.write_back.put_ == [{A0: 0}, {A0: 4}, {A0: 8}, {A0: 9}]
    assert place.write_back.closed == 1
    place.restart()
    place.planner.freeze()
    assert place.latest(ends[-1], NO_LIMIT)[A0] == 109


def test_a_run_to_a_target_needs_all_brokers() -> None:
    place = Place(A0, B0)
    place.brokers.down.add("b")
    with pytest.raises(ConnectionFailed):
        place.planner.freeze()


def test_queues_come_and_start_at_their_first_message() -> None:
    place = Place(A0)
    start = place.planner.initial()
    place.latest(start)
    place.brokers.queues[A1] = place.brokers.queues[A0].__class__()
    place.clock.now_s += 30
    assert place.latest(start) == start  # without messages it changes nothing
    place.brokers.send(A1, *"abcd")
    end = place.latest(start)
    assert end == {A0: 0, A1: 4}
    assert place.plan(start, end) == [OffsetRange(*A1, 0, 4)]
    assert place.latest(start, Limit(2)) == {A0: 0, A1: 2}


@pytest.mark.parametrize("subject", [{"topic": "T"}, {"topic": "", "subscribePattern": "[TU]"}])
def test_a_queue_that_comes_without_its_first_messages(subject: dict[str, str]) -> None:
    """Of a broker with an old disk, or one whose messages expired before anybody looked."""
    new = B0 if "subscribePattern" not in subject else QueueKey("U", "b", 0)
    place = Place(A0, **subject)
    start = place.planner.initial()
    place.brokers.queues[new] = FakeQueue(first=3, messages=[*range(7)])
    place.clock.now_s += 30
    with pytest.raises(DataLost) as error:
        place.latest(start)
    assert (error.value.available, error.value.lost) == (3, 3)
    for word in (f"topic {new.topic}", "broker b", "queue 0", "is new", "from 3", "failOnDataLoss"):
        assert word in str(error.value)
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)
    with pytest.raises(DataLost):  # they expired between the two questions
        place.plan(start, {**start, new: 7})
    place = Place(A0, failOnDataLoss=False, **subject)
    place.brokers.queues[new] = FakeQueue(first=3, messages=[*range(7)])
    end = place.latest(start)
    assert end == {A0: 0, new: 7}
    assert place.plan(start, end) == [OffsetRange(*new, 3, 7)]
    assert place.planner.lost_count == 3
    assert place.latest(start, Limit(2)) == {A0: 0, new: 5}


def test_a_queue_that_comes_when_all_it_had_is_gone() -> None:
    place = Place(A0)
    start = place.planner.initial()
    place.brokers.queues[A1] = FakeQueue(first=2, messages=["x", "y"])
    place.clock.now_s += 30
    with pytest.raises(DataLost, match=r"2 messages lost.*does not begin at 0"):
        place.latest(start)
    place.given["failOnDataLoss"] = "false"
    place.restart()
    end = place.latest(start)
    assert end == {A0: 0, A1: 2}
    assert place.plan(start, end) == []
    assert place.planner.lost_count == 2
    place.brokers.send(A1, "z")
    assert place.plan(end, place.latest(end)) == [OffsetRange(*A1, 2, 3)]


def test_queues_go_and_are_read_to_their_end() -> None:
    place = Place(A0, A1)
    start = place.planner.initial()
    place.brokers.send(A1, *"ab")
    place.brokers.queues[A1].routed = False
    end = place.latest(start)
    assert end == {A0: 0, A1: 2}
    assert place.plan(start, end) == [OffsetRange(*A1, 0, 2)]
    assert place.latest(end) == end


def test_a_run_to_a_target_reads_queues_that_went(caplog: pytest.LogCaptureFixture) -> None:
    place = Place(A0, A1, B0, maxOffsetsPerTrigger=1)
    start = place.planner.initial()
    place.brokers.send(A1, *"ab")
    place.brokers.send(B0, "x")
    for key in (A1, B0):
        place.brokers.queues[key].routed = False
    place.brokers.down.add("b")
    place.restart()
    place.planner.freeze()
    first = place.latest(start)
    assert first == {A0: 0, A1: 1, B0: 0}
    place.brokers.send(A1, "c")  # behind the target
    place.brokers.down.clear()
    second = place.latest(first)
    assert second == {A0: 0, A1: 2, B0: 0}
    assert place.latest(second) == second
    assert [text for text in caplog.messages if "no broker serves T/b/0 now" in text]
    assert not [text for text in caplog.messages if "T/a/1" in text]


def test_a_broker_that_is_away_stops_nobody_else() -> None:
    place = Place(A0, B0)
    start = place.planner.initial()
    place.brokers.send(A0, "x")
    place.brokers.send(B0, "x")
    place.brokers.down.add("b")
    end = place.latest(start)
    assert end == {A0: 1, B0: 0}
    assert place.plan(start, end) == [OffsetRange(*A0, 0, 1)]
    assert place.clock.slept_s == []
    place.brokers.down.clear()
    place.clock.now_s += 30
    assert place.latest(end) == {A0: 1, B0: 1}


def test_a_planned_batch_of_a_broker_that_went_away_is_left_to_the_tasks() -> None:
    place = Place(A0)
    place.brokers.send(A0, *"abc")
    place.brokers.down.add("a")
    assert place.plan({A0: 1}, {A0: 3}) == [OffsetRange(*A0, 1, 3)]


def test_expired_messages() -> None:
    for lenient in (False, True):
        place = Place(A0, failOnDataLoss=not lenient, maxOffsetsPerTrigger=5)
        place.brokers.send(A0, *range(100))
        place.brokers.queues[A0].first = 40
        start = {A0: 10}
        if lenient:
            end = place.latest(start)
            assert end == {A0: 45}
            assert place.plan(start, end) == [OffsetRange(*A0, 40, 45)]
            assert place.planner.lost_count == 30
            continue
        with pytest.raises(DataLost) as error:
            place.latest(start)
        assert (error.value.wanted, error.value.available, error.value.lost) == (10, 40, 30)
        for word in ("topic T", "broker a", "queue 0", "10", "40", "30 messages", "failOnDataLoss"):
            assert word in str(error.value)
        with pytest.raises(DataLost):  # a batch that is planned again after a restart
            place.plan(start, {A0: 45})


def test_all_of_a_batch_has_expired() -> None:
    place = Place(A0, failOnDataLoss=False)
    place.brokers.send(A0, *range(100))
    place.brokers.queues[A0].first = 100
    end = place.latest({A0: 10})
    assert end == {A0: 100}
    assert place.plan({A0: 10}, end) == []
    assert place.plan({A0: 10}, {A0: 50}) == []


def test_a_topic_that_was_made_anew() -> None:
    place = Place(A0)
    place.brokers.send(A0, *"ab")
    with pytest.raises(DataLost, match="made anew"):
        place.latest({A0: 100})
    with pytest.raises(DataLost, match="made anew"):
        place.plan({A0: 100}, {A0: 2})
    place = Place(A0, failOnDataLoss=False, maxOffsetsPerTrigger=1)
    place.brokers.send(A0, *"ab")
    first = place.latest({A0: 100})
    assert first == {A0: 1}
    assert place.plan({A0: 100}, first) == [OffsetRange(*A0, 0, 1)]
    second = place.latest(first)
    assert place.plan(first, second) == [OffsetRange(*A0, 1, 2)]


def test_a_queue_that_is_empty_now_is_noticed_before_it_grows() -> None:
    place = Place(A0, failOnDataLoss=False)
    end = place.latest({A0: 100})
    assert end == {A0: 0}
    place.brokers.send(A0, *range(200))
    assert place.latest(end) == {A0: 200}
    assert place.plan(end, {A0: 200}) == [OffsetRange(*A0, 0, 200)]


def test_an_old_queue_that_lost_its_last_messages_is_not_read_again() -> None:
    place = Place(A0, failOnDataLoss=False)
    place.brokers.send(A0, *range(90))
    place.brokers.queues[A0].first = 50
    end = place.latest({A0: 100})
    assert end == {A0: 90}
    assert place.plan({A0: 100}, end) == []
    assert place.planner.lost_count == 10


def test_what_is_done_is_written_back() -> None:
    place = Place(A0)
    place.brokers.send(A0, *range(10))
    end = place.latest({A0: 0})
    place.planner.commit(end)
    place.latest(end)
    place.latest(end)
    assert place.write_back.put_ == [{A0: 0}, {A0: 10}]
    place.planner.close()
    assert place.write_back.closed == 1


def test_ranges_are_cut() -> None:
    place = Place(A0, A1, maxRecordsPerPartition=3, minPartitions=5)
    place.brokers.send(A0, *range(7))
    place.brokers.send(A1, "x")
    ranges = place.plan({A0: 0, A1: 0}, {A0: 7, A1: 1})
    assert [each.message_count for each in ranges] == [1, 2, 2, 2, 1]
