"""Group commit: the order of publishing and answering, lateness, failure."""

from __future__ import annotations

from pathlib import Path

from skylarkmq.store.log.append import Unit
from skylarkmq.store.log.group_commit import GroupCommitService
from skylarkmq.store.queue.consume_queue import ConsumeQueue
from skylarkmq.store.results import PutMessageStatus
from skylarkmq.store.stats import StoreStats
from tests.support.manual_clock import ManualClock

OK, LATE = PutMessageStatus.PUT_OK, PutMessageStatus.FLUSH_DISK_TIMEOUT
LOST = PutMessageStatus.SERVICE_NOT_AVAILABLE
QUEUE = ConsumeQueue("T", 0, Path("/nowhere"))


class Rig:
    """Commits by number; everything that happens is written down."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.stats = StoreStats()
        self.events: list[tuple[str, object]] = []
        self.service = GroupCommitService(self.clock, 5.0, self.stats, self.publish, self.arrived)
        self.breaks_at = 0  # the number whose units cannot be shown

    def publish(self, units: list[Unit], end_offset: int) -> bool:
        assert end_offset == 100 * units[0][1]
        if units[0][1] == self.breaks_at:
            self.service.failed()
            return False
        self.events.append(("shown", units[0][1]))
        return True

    def arrived(self, commits: list[list[Unit]]) -> None:
        assert [units[0][1] for units in commits] == [
            number for what, number in self.events if what == "shown"
        ][-len(commits) :], "after all of them are shown"

    def park(self, number: int, *, waits: bool = True) -> None:
        """A commit that ends at offset 100 * number."""
        units: list[Unit] = [(QUEUE, number, 0, 100, 0, b"", 0)]

        def done(status: PutMessageStatus) -> None:
            self.events.append((status.name, number))

        self.service.park(100 * number, units, done if waits else None)

    def taken(self) -> list[tuple[str, object]]:
        events, self.events = self.events, []
        return events


def test_a_sync_releases_what_lies_below_it_in_order() -> None:
    rig = Rig()
    for number in (1, 2, 3):
        rig.park(number)
    rig.service.flushed(200)
    assert rig.taken() == [("shown", 1), ("shown", 2), ("PUT_OK", 1), ("PUT_OK", 2)]
    assert rig.service.waiting == 1
    rig.service.flushed(299)
    assert rig.taken() == []
    rig.service.flushed(300)
    assert rig.taken() == [("shown", 3), ("PUT_OK", 3)]
    assert rig.stats.ack_wait.count == 3


def test_what_cannot_be_shown_is_refused_and_all_behind_it() -> None:
    rig = Rig()
    for number in (1, 2, 3):
        rig.park(number)
    rig.breaks_at = 2
    rig.service.flushed(300)
    refused = [(LOST.name, 2), (LOST.name, 3)]
    assert rig.taken() == [("shown", 1), *refused, ("PUT_OK", 1)]
    assert rig.service.waiting == 0


def test_everything_is_shown_before_anybody_is_answered() -> None:
    """Who is answered may read at once, also what others sent in the same group."""
    rig = Rig()
    for number in range(1, 20):
        rig.park(number)
    rig.service.flushed(10_000)
    names = [name for name, _ in rig.taken()]
    assert names == ["shown"] * 19 + ["PUT_OK"] * 19


def test_who_does_not_wait_is_shown_and_not_answered() -> None:
    rig = Rig()
    rig.park(1, waits=False)
    rig.park(2)
    rig.service.flushed(200)
    assert rig.taken() == [("shown", 1), ("shown", 2), ("PUT_OK", 2)]


def test_a_late_sync_is_told_once_and_shows_the_message_all_the_same() -> None:
    rig = Rig()
    rig.park(1)
    rig.clock.advance(3)
    rig.park(2)
    rig.clock.advance(2.5)
    assert rig.taken() == [(LATE.name, 1)]
    rig.clock.advance(2.5)
    assert rig.taken() == [(LATE.name, 2)]
    rig.service.flushed(200)
    assert rig.taken() == [("shown", 1), ("shown", 2)]
    assert rig.clock.pending_count == 0
    assert rig.stats.ack_wait.count == 0


def test_the_deadline_follows_the_oldest_that_still_waits() -> None:
    rig = Rig()
    rig.park(1)
    rig.clock.advance(4)
    rig.park(2)
    rig.service.flushed(100)
    rig.taken()
    rig.clock.advance(4)
    assert rig.taken() == [], "the first one's deadline was passed, but it is answered"
    rig.clock.advance(1.5)
    assert rig.taken() == [(LATE.name, 2)]


def test_failure_refuses_all_that_wait_and_shows_nothing() -> None:
    rig = Rig()
    rig.park(1)
    rig.clock.advance(5.5)
    assert rig.taken() == [(LATE.name, 1)]
    rig.park(2)
    rig.park(3, waits=False)
    rig.park(4)
    rig.service.failed()
    assert rig.taken() == [(LOST.name, 2), (LOST.name, 4)]
    rig.clock.advance(60)
    assert (rig.taken(), rig.service.waiting, rig.clock.pending_count) == ([], 0, 0)


def test_a_commit_from_within_an_answer_waits_for_the_next_sync() -> None:
    rig = Rig()
    rig.service.park(100, [(QUEUE, 1, 0, 100, 0)], lambda status: rig.park(2))
    rig.service.flushed(200)
    assert rig.taken() == [("shown", 1)]
    rig.service.flushed(200)
    assert rig.taken() == [("shown", 2), (OK.name, 2)]
