"""Held pulls: which messages wake them, and what looking costs."""

from __future__ import annotations

from typing import Any, cast

from skylarkmq.broker.connection import Connection
from skylarkmq.broker.long_polling import MATCH_UNITS_MAX, HeldPull, PullRequestHoldService
from skylarkmq.store.message_store import ArrivalListener, MessageStore
from skylarkmq.store.results import ConsumeQueueUnit
from tests.support.manual_clock import ManualClock

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

    def _wake(self) -> None:
        self.woken += 1


def test_each_message_is_looked_at_once() -> None:
    store = OneQueue()
    rig = Rig(store)
    for _ in range(MATCH_UNITS_MAX - 1):
        store.arrive(1)
    assert (rig.woken, store.looked) == (0, MATCH_UNITS_MAX - 1)
    store.arrive(1)  # so many unwanted ones carry the consumer along
    assert rig.woken == 1
    assert rig.service.count == 0


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
