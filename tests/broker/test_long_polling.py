"""Held pulls: which messages wake them, and what looking costs."""

from __future__ import annotations

from typing import Any, cast

import pytest

from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.pulling import long_polling
from skylarkmq.broker.pulling.long_polling import (
    MATCH_UNITS_MAX,
    SWEEP_COST_MAX,
    WAKE_COST,
    HeldPull,
    PullRequestHoldService,
)
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.store.arrivals import ArrivalListener
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.read.filtering import RecordFilter
from skylarkmq.store.results import ConsumeQueueUnit, GetMessageResult, GetMessageStatus
from tests.support.manual_clock import ManualClock
from tests.support.python_work import counted_lines

WANTED = 7


class OneQueue:
    """The store's side: one queue of tags codes, in files of `per_file` units."""

    def __init__(self, per_file: int = 10_000) -> None:
        self.codes: list[int] = []
        self.looked = 0
        self.fails = False
        self._per_file = per_file
        self._listener: ArrivalListener = lambda *_: None

    def add_arrival_listener(self, listener: ArrivalListener) -> None:
        self._listener = listener

    def max_offset(self, topic: str, queue_id: int) -> int:
        return len(self.codes)

    def queue_units(
        self, topic: str, queue_id: int, from_offset: int, max_count: int
    ) -> list[ConsumeQueueUnit]:
        if self.fails:
            raise OSError("the disk failed")
        file_end = from_offset - from_offset % self._per_file + self._per_file
        codes = self.codes[from_offset : min(from_offset + max_count, file_end)]
        self.looked += len(codes)
        return [ConsumeQueueUnit(0, 100, code) for code in codes]

    def arrive(self, *codes: int) -> None:
        self.codes += codes
        self._listener("T", 0, len(self.codes))


class Peer:
    """As much of a connection as a held pull needs."""

    closed = False

    def __init__(self, address: str = "192.0.2.1") -> None:
        self.host_bytes = HostAddress(address, 4711).pack()

    def add_close_listener(self, listener: object) -> None: ...


class Rig:
    """One held pull of the tag WANTED."""

    def __init__(self, store: OneQueue) -> None:
        self.woken = 0
        self.clock = ManualClock()
        self.service = PullRequestHoldService(
            cast(MessageStore, store), self.clock, long_polling=True
        )
        peer: Any = Peer()
        deadline_s = self.clock.monotonic() + 15
        self.service.hold(
            HeldPull(cast(Connection, peer), "T", 0, 0, WANTED.__eq__, deadline_s, self._wake)
        )

    def _wake(self, seen: int) -> None:
        self.woken += 1
        self.seen = seen


def test_each_message_is_looked_at_once() -> None:
    store = OneQueue()
    rig = Rig(store)
    for _ in range(MATCH_UNITS_MAX + 5):
        store.arrive(1)
    assert (rig.woken, store.looked) == (0, MATCH_UNITS_MAX + 5)
    rig.service.sweep()  # which carries the consumer along
    assert (rig.woken, rig.seen, rig.service.count) == (1, MATCH_UNITS_MAX + 5, 0)


def test_many_messages_at_once_wake_without_a_look() -> None:
    store = OneQueue()
    rig = Rig(store)
    store.arrive(1, 1)
    store.arrive(*[1] * MATCH_UNITS_MAX)
    assert (rig.woken, rig.seen, store.looked) == (1, 2, 2)


def test_a_wanted_message_behind_the_end_of_a_queue_file_wakes() -> None:
    store = OneQueue(per_file=10)
    rig = Rig(store)
    store.arrive(*[1] * 9)
    assert rig.woken == 0
    store.arrive(1, 1, WANTED)
    assert rig.woken == 1


def test_units_that_can_not_be_read_wake_and_do_not_hurt_the_sender() -> None:
    store = OneQueue()
    rig = Rig(store)
    store.fails = True
    store.arrive(1)
    assert rig.woken == 1


# Many pulls, many peers


class LeavingPeer(Peer):
    """A peer that can go."""

    def __init__(self, address: str = "192.0.2.1") -> None:
        super().__init__(address)
        self.listeners: list[Any] = []

    def add_close_listener(self, listener: object) -> None:
        self.listeners.append(listener)

    def leave(self) -> None:
        for listener in self.listeners:
            listener(self)


class ManyRig:
    """Held pulls by name; `woken` tells which were woken, in order."""

    def __init__(self, *, long_polling: bool = True) -> None:
        self.store = OneQueue()
        self.clock = ManualClock()
        self.service = PullRequestHoldService(
            cast(MessageStore, self.store), self.clock, long_polling=long_polling
        )
        self.service.start()
        self.woken: list[str] = []

    def hold(
        self, name: str, peer: Any, *, queue_id: int = 0, offset: int = 0, wait_s: float = 15
    ) -> bool:
        deadline_s = self.clock.monotonic() + wait_s
        return self.service.hold(
            HeldPull(
                peer, "T", queue_id, offset, None, deadline_s, lambda _: self.woken.append(name)
            )
        )


def test_a_message_wakes_all_that_wait_for_it_and_no_others() -> None:
    rig, peer = ManyRig(), LeavingPeer()
    rig.hold("a", peer)
    rig.hold("ahead", peer, offset=5)
    rig.hold("b", LeavingPeer())
    rig.hold("other queue", peer, queue_id=1)
    rig.store.arrive(1)
    assert rig.woken == ["a", "b"]
    assert rig.service.count == 2
    assert len(peer.listeners) == 1, "however many pulls a peer has"


def test_an_expired_pull_is_answered_by_the_next_sweep() -> None:
    rig = ManyRig()
    rig.hold("short", LeavingPeer(), wait_s=4)
    rig.hold("long", LeavingPeer(), queue_id=1, wait_s=12)
    rig.clock.advance(4.9)
    assert rig.woken == []
    rig.clock.advance(0.1)
    assert rig.woken == ["short"]
    rig.clock.advance(10)
    assert rig.woken == ["short", "long"]


def test_very_many_expired_pulls_are_answered_in_several_turns() -> None:
    rig = ManyRig()
    count = 3 * SWEEP_COST_MAX // WAKE_COST
    for number in range(count):
        rig.hold(str(number), LeavingPeer(), queue_id=number, wait_s=0)
    rig.service.sweep()
    assert 0 < len(rig.woken) < count // 2
    rig.clock.advance(0.001)
    assert rig.woken == [str(number) for number in range(count)]
    assert rig.service.count == 0


def test_short_polling_looks_each_second_and_not_at_arrivals() -> None:
    rig = ManyRig(long_polling=False)
    rig.hold("a", LeavingPeer(), wait_s=1000)
    rig.store.arrive(1)
    assert rig.woken == []
    rig.clock.advance(1)
    assert rig.woken == ["a"]


def test_pulls_go_with_their_peer() -> None:
    rig, leaving, staying = ManyRig(), LeavingPeer(), LeavingPeer()
    for number in range(6):
        rig.hold(f"gone {number}", leaving, queue_id=number % 2)
        rig.hold(f"stays {number}", staying, queue_id=number % 2)
    leaving.leave()
    leaving.leave()
    assert rig.service.count == 6
    rig.store.arrive(1)
    assert rig.woken == ["stays 0", "stays 2", "stays 4"]
    staying.leave()
    assert rig.service.count == 0
    assert not rig.service._held


def test_a_peer_with_very_many_pulls_on_one_queue_goes_at_once() -> None:
    rig, peer = ManyRig(), LeavingPeer()
    for number in range(5000):
        rig.hold(str(number), peer)
    with counted_lines() as work:
        peer.leave()
    assert rig.service.count == 0
    assert work.lines < 5000 * 20, "some for each, not for each pair"


def test_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_polling, "HELD_MAX", 3)
    rig, peer = ManyRig(), LeavingPeer()
    assert [rig.hold(str(number), peer) for number in range(4)] == [True, True, True, False]
    rig.store.arrive(1)
    assert rig.woken == ["0", "1", "2"]
    assert rig.hold("again", peer, offset=5)


def test_past_the_bound_the_address_with_most_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds a pull for each of its queues waits for messages, and does not ask and ask."""
    monkeypatch.setattr(long_polling, "HELD_MAX", 10)
    rig, honest = ManyRig(), LeavingPeer("192.0.2.7")
    strangers = [LeavingPeer("198.51.100.1"), LeavingPeer("198.51.100.1"), LeavingPeer("::1")]
    for number in range(10):
        assert rig.hold(f"stranger {number}", strangers[number % 3], queue_id=number % 2)
    assert [rig.hold(f"honest {number}", honest) for number in range(4)] == [True] * 3 + [False]
    assert rig.woken == [f"stranger {number}" for number in (0, 1, 3)], "the oldest of 7"
    assert not rig.hold("more", strangers[0])
    assert rig.service.count == 10
    for peer in (honest, *strangers):
        peer.leave()
    assert (rig.service.count, rig.service._held) == (0, {})


def test_the_stop_answers_everything_and_ends_the_sweeps() -> None:
    rig = ManyRig()
    for number in range(4):
        rig.hold(str(number), LeavingPeer(), queue_id=number % 2)
    rig.service.stop()
    assert sorted(rig.woken) == ["0", "1", "2", "3"]
    assert (rig.service.count, rig.clock.pending_count) == (0, 0)


class Records(OneQueue):
    """The same for filters by properties: the code of a message is its property text."""

    def get_message(
        self, topic: str, queue_id: int, offset: int, count: int, *, matches: RecordFilter
    ) -> GetMessageResult:
        for place, code in enumerate(self.codes[offset:], offset):
            self.looked += 1
            if matches.matches(b"%d" % code):
                return GetMessageResult(GetMessageStatus.FOUND, place + 1, count=1)
        return GetMessageResult(GetMessageStatus.NO_MATCHED_MESSAGE, len(self.codes))


class FilterRig(Rig):
    """Held pulls by properties, `count` of them, each with its own filter or all with one."""

    def __init__(self, store: Records, count: int, *, alike: bool) -> None:
        super().__init__(store)
        peer: Any = Peer()
        for number in range(count):
            wanted = RecordFilter(
                (b"%d" % WANTED).__eq__, cost=100, key="one" if alike else f"filter {number}"
            )
            deadline_s = self.clock.monotonic() + 15
            self.service.hold(
                HeldPull(cast(Connection, peer), "T", 0, 0, wanted, deadline_s, self._wake)
            )


def test_filters_that_are_alike_look_once() -> None:
    store = Records()
    rig = FilterRig(store, 50, alike=True)
    store.arrive(1)
    assert (rig.woken, store.looked) == (0, 2), "the one by tag looks itself"
    store.arrive(2)
    assert (rig.woken, store.looked) == (0, 4), "at the new one alone"
    store.arrive(WANTED)
    assert (rig.woken, rig.service.count) == (51, 0)


def test_many_filters_are_looked_at_in_turns_of_their_own() -> None:
    store = Records()
    rig = FilterRig(store, 100, alike=False)
    store.arrive(1)
    first = store.looked
    assert 1 < first < 60
    rig.clock.advance(0)
    assert store.looked > first
    for _ in range(10):
        rig.clock.advance(0)
    assert (rig.woken, store.looked) == (0, 101)
    assert rig.clock.next_timer_s() is None or not rig.service._late
    store.arrive(WANTED)
    assert 1 < rig.woken < 60
    for _ in range(10):
        rig.clock.advance(0)
    assert (rig.woken, rig.service.count) == (101, 0)


def test_a_pull_of_a_peer_that_is_gone_is_not_kept() -> None:
    store = OneQueue()
    service = PullRequestHoldService(cast(MessageStore, store), ManualClock(), long_polling=True)
    peer: Any = LeavingPeer()
    peer.closed = True
    held = HeldPull(cast(Connection, peer), "T", 0, 0, None, 1e9, lambda seen: None)
    assert not service.hold(held)
    assert (service.count, peer.listeners) == (0, [])


def test_a_connection_holds_so_many_pulls_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_polling, "HELD_OF_CONNECTION_MAX", 3)
    service = PullRequestHoldService(
        cast(MessageStore, OneQueue()), ManualClock(), long_polling=True
    )

    def held(peer: Any) -> bool:
        return service.hold(HeldPull(peer, "T", 0, 0, None, 2000.0, lambda seen: None))

    one, other = cast(Any, Peer()), cast(Any, Peer())
    assert [held(one) for _ in range(5)] == [True] * 3 + [False] * 2
    assert held(other) and service.count == 4
