"""Messages that a stream finds gone: expired, of a topic made anew, of a queue that comes late."""

from __future__ import annotations

import pickle

import pytest

from skylarkmq.client.errors import AuthError, ConnectionFailed
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.spark.errors import DataLost
from skylarkmq.spark.offsets import OffsetRange, QueueKey, QueueOffsets
from skylarkmq.spark.reading.planning import Limit
from tests.spark.support.fake_brokers import FakeQueue
from tests.spark.support.stream_place import A0, A1, B0, Place


@pytest.mark.parametrize("subject", [{"topic": "T"}, {"topic": "", "subscribePattern": "[TU]"}])
def test_a_queue_that_comes_without_its_first_messages(subject: dict[str, str]) -> None:
    """Of a broker with an old disk, or one whose messages expired before anybody looked."""
    new = B0 if "subscribePattern" not in subject else QueueKey("U", "b", 0)
    place = Place(A0, **subject)
    start = place.begin()
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
    start = place.begin()
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


@pytest.mark.parametrize("lenient", [False, True])
def test_a_topic_made_anew_is_noticed_before_there_is_a_minimum(lenient: bool) -> None:
    """Else it would grow beyond where the query stands, and nobody could tell any more."""
    place = Place(A0, minOffsetsPerTrigger=10, failOnDataLoss=not lenient)
    place.brokers.send(A0, *range(20))
    start = place.latest({A0: 0})
    place.brokers.queues[A0] = FakeQueue(messages=["x"])
    if lenient:
        assert place.latest(start) == {A0: 1}
        assert place.plan(start, {A0: 1}) == [OffsetRange(*A0, 0, 1)]
        return
    with pytest.raises(DataLost, match="made anew"):
        place.latest(start)


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


def read_before(count: int = 400, **options: object) -> tuple[Place, QueueOffsets]:
    """A query that has read so many messages, and where its checkpoint says that it stands."""
    place = Place(A0, **options)
    place.brokers.send(A0, *range(count))
    start = place.latest(place.begin())
    assert start == {A0: count}
    return place, start


def anew(place: Place, count: int, first: int = 0) -> None:
    """The topic is deleted, and made and filled again."""
    place.brokers.queues[A0] = FakeQueue(first, [*range(count)], stored_ms=1_000_000)


@pytest.mark.parametrize("count", [400, 401, 1000])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_topic_made_anew_that_has_grown_past_the_checkpoint(count: int, restarts: bool) -> None:
    place, start = read_before()
    anew(place, count)
    if restarts:
        place.restart()
    elif count == 400:
        assert place.latest(start) == start, "nothing that would be read, so nothing is asked"
        return
    with pytest.raises(DataLost, match=r"(?s)400 messages lost.*from 0: .*made anew") as error:
        place.latest(start)
    assert (error.value.wanted, error.value.available) == (400, 0)
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


@pytest.mark.parametrize("maximum", [None, 400])
def test_with_fail_on_data_loss_off_it_is_read_from_its_start(maximum: int | None) -> None:
    options = {} if maximum is None else {"maxOffsetsPerTrigger": maximum}
    place, start = read_before(failOnDataLoss=False, **options)
    anew(place, 1000)
    place.restart()
    end = place.latest(start)
    assert end == {A0: maximum or 1000} and end != start
    for _ in range(2):
        assert place.plan(start, end) == [OffsetRange(*A0, 0, maximum or 1000)]
        place.restart()  # a batch is planned again after a crash
    if maximum:
        assert place.plan(end, place.latest(end)) == [OffsetRange(*A0, 400, 800)]


def test_a_log_that_became_shorter_goes_on_where_it_was_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for count in (380, 500):
        place, start = read_before(failOnDataLoss=False)
        queue = place.brokers.queues[A0]
        # Its last 50 messages are gone, and others were stored since.
        place.brokers.times[A0] = [*range(350), *range(9_000, 9_000 + count - 350)]
        queue.messages = [*range(count)]
        monkeypatch.setattr(queue, "stored_at", place.brokers.times[A0].__getitem__)
        end = place.latest(start)
        assert place.plan(start, end) == [OffsetRange(*A0, 350, count)]
        assert place.planner.lost_count == 50


def test_a_queue_of_older_messages_is_read_from_its_first() -> None:
    """Of another broker, or of a clock that was set back."""
    place, start = read_before(failOnDataLoss=False)
    anew(place, 500, first=20)
    place.brokers.queues[A0].stored_ms = -1_000_000
    assert place.plan(start, place.latest(start)) == [OffsetRange(*A0, 20, 500)]


def test_a_log_that_was_repaired_holds_the_same_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie at other places, and no query ends for it."""
    place, start = read_before()
    queue = place.brokers.queues[A0]
    place.brokers.send(A0, *range(5))
    there = queue.fingerprint(399)
    assert there is not None
    monkeypatch.setattr(queue, "fingerprint", lambda at: there._replace(physical_offset=3))
    assert place.plan(start, place.latest(start)) == [OffsetRange(*A0, 400, 405)]


def test_what_nobody_can_tell_is_no_loss() -> None:
    place, start = read_before()
    place.brokers.send(A0, *range(5))
    place.brokers.queues[A0].first = 400  # what was read has expired
    end = place.latest(start)
    assert place.plan(start, end) == [OffsetRange(*A0, 400, 405)]
    place.brokers.untold = AuthError(ResponseCode.NO_PERMISSION, "not you", "a:1")
    place.brokers.send(A0, *range(5))
    after = place.latest(end)
    assert place.plan(end, after) == [OffsetRange(*A0, 405, 410)]
    assert not after.before
    # Offsets of a release that noted no messages.
    place = Place(A0)
    anew(place, 500)
    end = place.latest(QueueOffsets({A0: 400}))
    assert place.plan({A0: 400}, end) == [OffsetRange(*A0, 400, 500)]
    assert end.before.keys() == {A0}


def test_a_queue_waits_while_nobody_tells() -> None:
    place = Place(A0, B0)
    for queue in (A0, B0):
        place.brokers.send(queue, *range(5))
    start = place.latest(place.begin())
    for queue in (A0, B0):
        place.brokers.send(queue, *range(5))
    place.latest(start)
    place.brokers.untold = ConnectionFailed("a", "refused")
    assert place.latest(start) == start
    looks = place.brokers.asked.count("looks")
    place.brokers.untold = None
    assert place.latest(start) == start, "it is left alone for a while"
    assert place.brokers.asked.count("looks") == looks
    place.clock.now_s += 1
    end = place.latest(start)
    assert end == {A0: 10, B0: 10} and end.before.keys() == {A0, B0}
    place.restart()
    place.planner.freeze()
    place.brokers.untold = ConnectionFailed("a", "refused")
    with pytest.raises(ConnectionFailed):  # a run to its end would claim too much
        place.latest(start)


def test_an_idle_query_looks_at_nothing() -> None:
    place, start = read_before(consumerGroup="readers")
    assert place.brokers.looked_as == {"readers"}
    looks = place.brokers.asked.count("looks")
    for _ in range(10):
        assert place.latest(start) == start
    assert place.brokers.asked.count("looks") == looks
