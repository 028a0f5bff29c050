"""The decisions of a stream, one by one; see test_stream_model.py for all of them together."""

from __future__ import annotations

import json

import pytest

from skylarkmq.client.errors import ConnectionFailed, NotFound
from skylarkmq.spark.errors import DataLost
from skylarkmq.spark.offsets import OffsetRange, QueueOffsets
from skylarkmq.spark.reading.planning import NO_LIMIT, Limit
from tests.spark.support.fake_brokers import FakeQueue
from tests.spark.support.stream_place import A0, A1, A2, B0, Place


def test_initial() -> None:
    place = Place(A0, A1)
    place.brokers.send(A0, *"abc")
    place.brokers.queues[A0].first = 1
    assert place.begin() == {A0: 1, A1: 0}
    place = Place(A0, startingOffsets="latest")
    place.brokers.send(A0, *"abc")
    assert place.begin() == {A0: 3}


def test_initial_waits_for_brokers_but_not_for_ever() -> None:
    place = Place(A0)
    place.brokers.down.add("a")
    with pytest.raises(ConnectionFailed):
        place.begin()
    assert 8 <= sum(place.clock.slept_s) <= 10
    with pytest.raises(NotFound):
        Place().begin()


def test_a_batch() -> None:
    place = Place(A0, A1)
    start = place.begin()
    assert place.latest(start) == start
    place.brokers.send(A0, *"abc")
    end = place.latest(start)
    assert end == {A0: 3, A1: 0}
    assert place.plan(start, end) == [OffsetRange(*A0, 0, 3)]
    assert place.plan(end, end) == []
    assert place.latest(end) == end


def test_an_idle_query_asks_once() -> None:
    place = Place(A0, offsetCacheMs=100)
    start = place.begin()
    del place.brokers.asked[:]
    for _ in range(90):
        place.latest(start)
        place.planner.report()
    assert place.brokers.asked == ["max"]
    assert place.reported() == {A0: 0}


def test_a_report_has_the_figures_of_the_query() -> None:
    place = Place(A0, A1, B0, maxOffsetsPerTrigger=100, failOnDataLoss=False)
    assert place.planner.report() is None
    place.brokers.send(A0, *range(900))
    start = place.begin()
    end = place.latest(start)
    assert end[A0] == 100
    report = place.planner.report()
    assert report is not None
    assert (report["behind"], report["lost"], report["away"]) == ({"T": 800}, 0, [])
    place.brokers.queues[A0].first = 130
    place.brokers.down.add("b")
    place.clock.now_s += 1
    place.plan(end, place.latest(end))
    report = json.loads(json.dumps(place.planner.report()))
    assert (report["behind"], report["lost"], report["away"]) == ({"T": 670}, 30, ["b"])


def test_maximum_is_shared_out() -> None:
    place = Place(A0, A1, A2, maxOffsetsPerTrigger=100)
    place.brokers.send(A0, *range(900))
    place.brokers.send(A1, *range(90))
    place.brokers.send(A2, *range(10))
    start = place.begin()
    end = place.latest(start)
    assert end == {A0: 90, A1: 9, A2: 1}
    assert place.latest(end, NO_LIMIT) == {A0: 900, A1: 90, A2: 10}


def test_no_queue_starves() -> None:
    place = Place(A0, A1, A2, maxOffsetsPerTrigger=2)
    at: QueueOffsets = place.begin()
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


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("startingOffsets", "latest"),
        ("startingOffsets", '{"T":{"a":{"0":-1}}}'),
        ("startingTimestamp", "5000"),
    ],
)
def test_a_start_that_moves_is_written_down(option: str, value: str) -> None:
    """Spark asks for the start of the first batch more than once, also after a crash."""
    given = {"startingOffsets": "", option: value}
    if option == "startingTimestamp":
        given["startingOffsetsByTimestampStrategy"] = "latest"
    place = Place(A0, **given)
    place.brokers.send(A0, *"ab")
    assert place.planner.initial() == {}
    first = place.latest({})
    place.brokers.send(A0, *"cd")
    assert place.planner.initial() == {}
    assert first == {A0: 2} == place.latest({})
    assert place.plan({}, first) == []
    place.restart()
    place.brokers.send(A0, *"ef")
    assert place.planner.initial() == {}
    assert place.plan({}, first) == []
    second = place.latest(first)
    assert place.plan(first, second) == [OffsetRange(*A0, 2, 6)]
    assert place.write_back.put_ == [{A0: 2}]


def test_a_start_that_stays_is_told_once() -> None:
    place = Place(A0)
    place.brokers.send(A0, *"abc")
    assert place.planner.initial() == {A0: 0}
    place.brokers.queues[A0].first = 2
    assert place.planner.initial() == {A0: 0}  # the same batch still; what expired is lost
    with pytest.raises(DataLost):
        place.latest({A0: 0})


@pytest.mark.parametrize("position", ["earliest", "latest"])
def test_a_query_that_begins_before_its_topics(position: str) -> None:
    """The first messages of a topic are read whatever the start, and the crash in between."""
    place = Place(topic="", subscribePattern="T", startingOffsets=position)
    assert place.planner.initial() == {}
    assert place.latest({}) == {}
    place.brokers.queues[A0] = FakeQueue(messages=["a", "b"])
    place.clock.now_s += 30
    first = place.latest({})
    assert first == {A0: 0}
    place.restart()
    assert place.plan({}, first) == []
    assert place.plan(first, place.latest(first)) == [OffsetRange(*A0, 0, 2)]


def test_a_run_to_a_target_ends_there() -> None:
    place = Place(A0, maxOffsetsPerTrigger=4, minOffsetsPerTrigger=4)
    place.brokers.send(A0, *range(9))
    start = place.begin()
    place.planner.freeze()
    place.brokers.send(A0, *range(100))
    place.brokers.queues[A1] = place.brokers.queues[A0]
    place.clock.now_s += 60
    ends = [start]
    while not ends[1:] or ends[-1] != ends[-2]:
        ends.append(place.latest(ends[-1]))
    assert [end[A0] for end in ends] == [0, 4, 8, 9, 9]  # the last one below the minimum
    assert place.reported() == {A0: 9}
    assert place.write_back.put_ == [{A0: 0}, {A0: 4}, {A0: 8}, {A0: 9}]
    assert place.write_back.closed == 1
    place.restart()
    place.planner.freeze()
    assert place.latest(ends[-1], NO_LIMIT)[A0] == 109


@pytest.mark.parametrize("lenient", [False, True])
def test_a_new_query_that_starts_behind_its_target_reads_nothing(lenient: bool) -> None:
    """Spark asks for the target first, and then for where the query starts."""
    place = Place(A0, A1, startingOffsets="latest", failOnDataLoss=not lenient)
    place.brokers.send(A0, *"ab")
    place.planner.freeze()
    place.brokers.send(A0, *"cd")
    start = place.begin()
    assert start == {A0: 4, A1: 0}
    assert place.latest(start) == start
    assert place.reported() == dict(start)
    place.restart()
    place.planner.freeze()
    assert place.latest(start) == start


def test_a_run_to_a_target_needs_all_brokers() -> None:
    place = Place(A0, B0)
    place.brokers.down.add("b")
    with pytest.raises(ConnectionFailed):
        place.planner.freeze()


def test_queues_come_and_start_at_their_first_message() -> None:
    place = Place(A0)
    start = place.begin()
    place.latest(start)
    place.brokers.queues[A1] = place.brokers.queues[A0].__class__()
    place.clock.now_s += 30
    assert place.latest(start) == start  # without messages it changes nothing
    place.brokers.send(A1, *"abcd")
    end = place.latest(start)
    assert end == {A0: 0, A1: 4}
    assert place.plan(start, end) == [OffsetRange(*A1, 0, 4)]
    assert place.latest(start, Limit(2)) == {A0: 0, A1: 2}


def test_queues_go_and_are_read_to_their_end() -> None:
    place = Place(A0, A1)
    start = place.begin()
    place.brokers.send(A1, *"ab")
    place.brokers.queues[A1].routed = False
    end = place.latest(start)
    assert end == {A0: 0, A1: 2}
    assert place.plan(start, end) == [OffsetRange(*A1, 0, 2)]
    assert place.latest(end) == end


def test_a_run_to_a_target_reads_queues_that_went(caplog: pytest.LogCaptureFixture) -> None:
    place = Place(A0, A1, B0, maxOffsetsPerTrigger=1)
    start = place.begin()
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
    start = place.begin()
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


def test_a_broker_that_was_never_there_stops_nobody_else() -> None:
    """After a restart nothing is known of it; Spark asks an idle query without a pause."""
    place = Place(A0, B0, offsetCacheMs=100)
    place.brokers.down.add("b")
    start = QueueOffsets({A0: 0, B0: 0})
    assert place.latest(start) == start
    place.brokers.send(A0, "x")
    for _ in range(12):
        place.clock.now_s += 0.011
        end = place.latest(start)
    assert end == {A0: 1, B0: 0}


def test_a_query_that_waits_for_a_minimum_asks_no_more_than_an_idle_one() -> None:
    place = Place(A0, A1, minOffsetsPerTrigger=10, offsetCacheMs=100)
    place.brokers.send(A0, "x")
    first = place.latest({A0: 0, A1: 0})
    place.brokers.send(A0, *"abc")
    place.clock.now_s += 1
    del place.brokers.asked[:]
    for _ in range(90):
        assert place.latest(first) == first
    assert place.brokers.asked == ["max"]


def test_a_planned_batch_of_a_broker_that_went_away_is_left_to_the_tasks() -> None:
    place = Place(A0)
    place.brokers.send(A0, *"abc")
    place.brokers.down.add("a")
    assert place.plan({A0: 1}, {A0: 3}) == [OffsetRange(*A0, 1, 3)]


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
