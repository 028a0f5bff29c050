"""What is remembered of queues and their ends, and what brokers that are away change."""

from __future__ import annotations

import pytest

from skylarkmq.client.errors import (
    AuthError,
    ConnectionFailed,
    NoPermission,
    NotFound,
    RequestTimeout,
    RocketMQError,
    RouteNotFound,
    SystemBusy,
    TlsError,
    TopicNotExist,
)
from skylarkmq.spark.offsets import QueueKey
from skylarkmq.spark.options import Subject
from skylarkmq.spark.reading.queue_view import QueueView
from tests.spark.support.fake_brokers import FakeBrokers

A0, A1 = QueueKey("T", "a", 0), QueueKey("T", "a", 1)
B0 = QueueKey("T", "b", 0)
OTHER = QueueKey("U", "a", 0)
ALL_OF_T = Subject(topics=("T",))


class Place:
    def __init__(self, *queues: QueueKey, subject: Subject = ALL_OF_T) -> None:
        self.brokers = FakeBrokers(queues)
        self.clock = self.brokers.clock
        self.view = QueueView(self.brokers, subject, patience_s=10)

    def pass_s(self, seconds: float) -> None:
        self.clock.now_s += seconds


def test_ends_are_kept_for_a_while() -> None:
    place = Place(A0, B0)
    for _ in range(90):
        assert place.view.ends() == {A0: 0, B0: 0}
    assert place.brokers.asked == ["route", "max"]
    place.brokers.send(A0, "x")
    assert place.view.ends()[A0] == 0
    place.pass_s(0.1)
    assert place.view.ends()[A0] == 1
    assert place.brokers.asked.count("max") == 2


def test_ends_are_kept_longer_when_asking_takes_long() -> None:
    place = Place(A0)
    ask = place.brokers.max_offsets

    def slow(*args: object, **kwargs: object) -> dict[QueueKey, int]:
        place.clock.now_s += 1.0
        return ask(*args, **kwargs)  # type: ignore[arg-type]

    place.brokers.max_offsets = slow  # type: ignore[method-assign,assignment]
    for _ in range(9):
        place.view.ends()
        place.pass_s(1.0)
    assert place.brokers.asked.count("max") == 1
    place.pass_s(1.0)
    place.view.ends()
    assert place.brokers.asked.count("max") == 2


def test_a_broker_that_hung_is_heard_soon_after_it_is_back() -> None:
    """The time-outs of one that does not answer say nothing of how long asking takes."""
    place = Place(A0, B0)
    place.view.ends()
    ask = place.brokers.max_offsets

    def hanging(*args: object, **kwargs: object) -> dict[QueueKey, int]:
        place.clock.now_s += 12.0
        return ask(*args, **kwargs)  # type: ignore[arg-type]

    place.brokers.max_offsets = hanging  # type: ignore[method-assign,assignment]
    place.brokers.down.add("a")
    place.pass_s(1.0)
    place.view.ends()
    place.brokers.max_offsets = ask  # type: ignore[method-assign]
    place.brokers.down.clear()
    place.brokers.send(A0, "x")
    place.brokers.send(B0, "y")
    place.pass_s(0.1)
    assert place.view.ends() == {A0: 0, B0: 1}
    place.pass_s(1.0)
    assert place.view.ends() == {A0: 1, B0: 1}


def test_new_queues_come_with_the_refresh() -> None:
    place = Place(A0)
    assert set(place.view.ends()) == {A0}
    place.brokers.queues[A1] = place.brokers.queues[A0]
    place.pass_s(29)
    assert set(place.view.ends()) == {A0}
    place.pass_s(1)
    assert set(place.view.ends()) == {A0, A1}


def test_a_queue_that_went_is_still_asked_for() -> None:
    place = Place(A0, A1)
    place.brokers.queues[A1].routed = False
    place.brokers.send(A1, "x", "y")
    assert place.view.ends() == {A0: 0}
    assert place.view.ends([A1]) == {A0: 0, A1: 2}


def test_a_broker_that_is_away_keeps_its_ends_and_is_asked_ever_less() -> None:
    place = Place(A0, B0)
    place.brokers.send(B0, "x")
    place.view.ends()
    place.brokers.down.add("b")
    place.brokers.send(A0, "y")
    asked_for_b = 0
    ask = place.brokers.max_offsets

    def count(queues: object, *args: object, **kwargs: object) -> dict[QueueKey, int]:
        nonlocal asked_for_b
        asked_for_b += B0 in queues  # type: ignore[operator]
        return ask(queues, *args, **kwargs)  # type: ignore[arg-type]

    place.brokers.max_offsets = count  # type: ignore[method-assign,assignment]
    for _ in range(600):  # a minute
        place.pass_s(0.1)
        assert place.view.ends() == {A0: 1, B0: 1}
    assert 5 <= asked_for_b <= 7  # after 1, 2, 4, 8, 16 and 30 seconds
    place.brokers.down.clear()
    place.brokers.send(B0, "z")
    place.pass_s(30)
    assert place.view.ends()[B0] == 2
    place.brokers.send(B0, "z")
    place.pass_s(0.1)
    assert place.view.ends()[B0] == 3


def test_a_topic_that_went_away_stops_no_other_on_its_broker() -> None:
    place = Place(A0, OTHER, subject=Subject(topics=("T", "U")))
    place.view.ends()
    del place.brokers.queues[OTHER]
    place.brokers.send(A0, "x")
    place.pass_s(31)

    # The fake says "refused" for it, as of a broker; a route that is gone says so.
    def each(queues: object, failed: object, **_: object) -> dict[QueueKey, int]:
        assert isinstance(failed, dict)
        if OTHER in queues:  # type: ignore[operator]
            failed[OTHER] = RouteNotFound("U", "topic_missing", "")
        return {A0: place.brokers.queues[A0].end}

    place.brokers.max_offsets = each  # type: ignore[method-assign,assignment]
    assert place.view.ends() == {A0: 1, OTHER: 0}
    place.brokers.send(A0, "y")
    place.pass_s(0.2)
    assert place.view.ends() == {A0: 2, OTHER: 0}


def test_name_servers_that_are_away() -> None:
    place = Place(A0)
    place.brokers.name_server_down = True
    with pytest.raises(ConnectionFailed):
        place.view.queues()
    place.brokers.name_server_down = False
    place.view.queues()
    place.brokers.name_server_down = True
    place.brokers.send(A0, "x")
    place.pass_s(31)
    assert place.view.ends() == {A0: 1}


def test_what_does_not_exist_says_so() -> None:
    with pytest.raises(NotFound, match="topic T does not exist"):
        Place().view.queues()
    place = Place(A0)
    place.brokers.queues[A0].routed = False
    with pytest.raises(NotFound, match="no queue that can be read"):
        place.view.queues()
    place = Place(A0, subject=Subject(queues=(A0, B0)))
    with pytest.raises(NotFound, match=r"do not exist: T/b/0"):
        place.view.queues()


def test_assigned_queues_alone() -> None:
    place = Place(A0, A1, B0, subject=Subject(queues=(A1,)))
    assert place.view.queues() == [A1]
    assert place.view.ends() == {A1: 0}


def test_pattern() -> None:
    place = Place(A0, OTHER, QueueKey("%RETRY%g", "a", 0), subject=Subject(pattern="[TUV]|.*g"))
    assert place.view.queues() == [A0, OTHER]
    place.brokers.queues[QueueKey("V", "a", 0)] = place.brokers.queues[A0]
    place.brokers.queues[QueueKey("TU", "a", 0)] = place.brokers.queues[A0]
    place.pass_s(30)
    assert [key.topic for key in place.view.queues()] == ["T", "U", "V"]
    own = Place(QueueKey("%RETRY%g", "a", 0), subject=Subject(pattern="%RETRY%.*"))
    assert len(own.view.queues()) == 1


def test_patience() -> None:
    place = Place(A0)
    tries = 0

    def ask() -> str:
        nonlocal tries
        tries += 1
        if tries < 5:
            raise ConnectionFailed("a", "refused")
        return "yes"

    assert place.view.patiently(ask) == "yes"
    assert place.clock.slept_s == [0.1, 0.2, 0.4, 0.8]
    tries = -1000
    began_s = place.clock.now_s
    with pytest.raises(ConnectionFailed):
        place.view.patiently(ask)
    assert 8 <= place.clock.now_s - began_s <= 10


def test_a_refusal_is_final() -> None:
    place = Place(A0)
    place.brokers.refusal = AuthError(1, "no", "a:1")
    for ask in (place.view.ends, place.view.ends_now, lambda: place.view.beginnings([A0])):
        with pytest.raises(AuthError):
            ask()
    assert place.clock.slept_s == []


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        (ConnectionFailed("a", "refused"), True),
        (RequestTimeout("late"), True),
        (SystemBusy(2, "later", "a"), True),
        (TopicNotExist(17, "not here", "a"), True),
        (NoPermission(16, "no", "a"), False),
        (TlsError("a", "no such issuer"), False),
        (AuthError(1, "no", "a"), False),
    ],
)
def test_what_is_waited_for(error: RocketMQError, waits: bool) -> None:
    place = Place(A0)

    def ask() -> None:
        raise error

    with pytest.raises(type(error)):
        place.view.patiently(ask)
    assert bool(place.clock.slept_s) == waits
