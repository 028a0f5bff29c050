"""The release queue: the order of publishing and answering, lateness, failure."""

from __future__ import annotations

from pathlib import Path

from skylarkmq.store.queue.consume_queue import ConsumeQueue
from skylarkmq.store.release_queue import Point, ReleaseQueue
from skylarkmq.store.results import PutMessageStatus
from skylarkmq.store.stats import StoreStats
from skylarkmq.store.units import Units
from tests.support.manual_clock import ManualClock

OK, LATE = PutMessageStatus.PUT_OK, PutMessageStatus.FLUSH_DISK_TIMEOUT
LOST = PutMessageStatus.SERVICE_NOT_AVAILABLE
QUEUE = ConsumeQueue("T", 0, Path("/nowhere"))


def units_of(number: int) -> Units:
    """Units of one message, the number of its queue that it gets."""
    units = Units()
    units.add(QUEUE, number, 0, 100, 0, b"", 1000 + number)
    return units


def number_of(units: Units) -> int:
    return units.runs[QUEUE][0]


class Rig:
    """Commits by number; everything that happens is written down."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.stats = StoreStats()
        self.events: list[tuple[str, object]] = []
        self.queue = ReleaseQueue(self.clock, 5.0, self.stats, self.publish, self.arrived)
        self.breaks_at = 0  # the number whose units cannot be shown

    def publish(self, units: Units, end_offset: int) -> bool:
        assert end_offset == 100 * number_of(units)
        if number_of(units) == self.breaks_at:
            self.queue.fail()
            return False
        self.events.append(("shown", number_of(units)))
        return True

    def arrived(self, commits: list[Units]) -> None:
        assert [number_of(units) for units in commits] == [
            number for what, number in self.events if what == "shown"
        ][-len(commits) :], "after all of them are shown"

    def put(self, number: int, *, waits: bool = True) -> None:
        """A commit that ends at offset 100 * number."""

        def done(status: PutMessageStatus) -> None:
            self.events.append((status.name, number))

        self.queue.hold(100 * number, units_of(number))
        if waits:
            self.queue.wait(Point.STORED, 100 * number, done, messages=1)

    def synced(self, offset: int) -> None:
        self.queue.advance(10_000, offset)

    def taken(self) -> list[tuple[str, object]]:
        events, self.events = self.events, []
        return events


def test_a_sync_releases_what_lies_below_it_in_order() -> None:
    rig = Rig()
    for number in (1, 2, 3):
        rig.put(number)
    rig.synced(200)
    assert rig.taken() == [("shown", 1), ("shown", 2), ("PUT_OK", 1), ("PUT_OK", 2)]
    assert rig.queue.waiting == 1
    rig.synced(299)
    assert rig.taken() == []
    rig.synced(300)
    assert rig.taken() == [("shown", 3), ("PUT_OK", 3)]
    assert rig.stats.ack_wait.count == 3


def test_what_cannot_be_shown_is_refused_and_all_behind_it() -> None:
    rig = Rig()
    for number in (1, 2, 3):
        rig.put(number)
    rig.breaks_at = 2
    rig.synced(300)
    refused = [(LOST.name, 2), (LOST.name, 3)]
    assert rig.taken() == [("shown", 1), ("PUT_OK", 1), *refused], "in the order of the log"
    assert rig.queue.waiting == 0


def test_everything_is_shown_before_anybody_is_answered() -> None:
    """Who is answered may read at once, also what others sent in the same group."""
    rig = Rig()
    for number in range(1, 20):
        rig.put(number)
    rig.synced(10_000)
    names = [name for name, _ in rig.taken()]
    assert names == ["shown"] * 19 + ["PUT_OK"] * 19


def test_who_does_not_wait_is_shown_and_not_answered() -> None:
    rig = Rig()
    rig.put(1, waits=False)
    rig.put(2)
    rig.synced(200)
    assert rig.taken() == [("shown", 1), ("shown", 2), ("PUT_OK", 2)]


def test_a_late_sync_is_told_once_and_shows_the_message_all_the_same() -> None:
    rig = Rig()
    rig.put(1)
    rig.clock.advance(3)
    rig.put(2)
    rig.clock.advance(2.5)
    assert rig.taken() == [(LATE.name, 1)]
    rig.clock.advance(2.5)
    assert rig.taken() == [(LATE.name, 2)]
    rig.synced(200)
    assert rig.taken() == [("shown", 1), ("shown", 2)]
    assert rig.clock.pending_count == 0
    assert rig.stats.ack_wait.count == 0


def test_the_deadline_follows_the_oldest_that_still_waits() -> None:
    rig = Rig()
    rig.put(1)
    rig.clock.advance(4)
    rig.put(2)
    rig.synced(100)
    rig.taken()
    rig.clock.advance(4)
    assert rig.taken() == [], "the first one's deadline was passed, but it is answered"
    rig.clock.advance(1.5)
    assert rig.taken() == [(LATE.name, 2)]


def test_failure_refuses_all_that_wait_and_shows_nothing() -> None:
    rig = Rig()
    rig.put(1)
    rig.clock.advance(5.5)
    assert rig.taken() == [(LATE.name, 1)]
    rig.put(2)
    rig.put(3, waits=False)
    rig.put(4)
    rig.queue.fail()
    assert rig.taken() == [(LOST.name, 2), (LOST.name, 4)]
    rig.clock.advance(60)
    assert (rig.taken(), rig.queue.waiting, rig.clock.pending_count) == ([], 0, 0)


def test_a_commit_from_within_an_answer_waits_for_the_next_sync() -> None:
    rig = Rig()
    rig.queue.hold(100, units_of(1))
    rig.queue.wait(Point.STORED, 100, lambda status: rig.put(2))
    rig.synced(199)
    assert rig.taken() == [("shown", 1)]
    rig.synced(200)
    assert rig.taken() == [("shown", 2), (OK.name, 2)]


def test_each_is_told_at_the_point_that_it_waits_for() -> None:
    rig = Rig()
    told: list[tuple[str, PutMessageStatus]] = []
    rig.queue.gate(3.0)
    rig.queue.hold(100, units_of(1))
    for point in reversed(Point):
        rig.queue.wait(point, 100, lambda status, point=point: told.append((point.name, status)))
    rig.queue.advance(99, 0)
    assert told == []
    rig.queue.advance(100, 99)
    assert told == [("WRITTEN", OK)]
    rig.queue.advance(100, 100)
    assert told[1:] == [("STORED", OK)]
    assert (rig.taken(), rig.queue.is_awaited) == ([], True)
    rig.queue.confirm(100)
    assert told[2:] == [("CONFIRMED", OK)]
    assert (rig.taken(), rig.queue.is_awaited) == ([("shown", 1)], False)


def test_who_is_below_its_point_when_it_comes_is_told_at_once() -> None:
    rig = Rig()
    rig.queue.begin_at(100)
    told: list[PutMessageStatus] = []
    for point in (Point.WRITTEN, Point.STORED):
        rig.queue.wait(point, 100, told.append)
    rig.queue.advance(100, 100)
    assert told == [OK, OK]


def test_a_failure_refuses_whatever_point_they_wait_for() -> None:
    rig = Rig()
    told: list[tuple[str, PutMessageStatus]] = []
    rig.queue.gate(3.0)
    for end_offset in (100, 200):
        for point in Point:
            rig.queue.wait(
                point, end_offset, lambda status, point=point: told.append((point.name, status))
            )
    rig.queue.advance(100, 100)
    assert told == [("WRITTEN", OK), ("STORED", OK)]
    rig.queue.fail()
    names = ["CONFIRMED", "STORED", "CONFIRMED", "WRITTEN"]
    assert told[2:] == [(name, LOST) for name in names], "once each"
    assert not rig.queue.is_awaited
