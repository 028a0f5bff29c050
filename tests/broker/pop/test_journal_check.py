"""What the journal says is believed as far as the queues are what they were."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from skylarkmq.broker.pop.journal_check import NO_OFFSET, verified
from skylarkmq.store.pop.journal_records import UNKNOWN, Key, KeyState, PopState, Row
from tests.broker.pop.journal_rig import KEY

LOG_END = 100_000


class Queue:
    """One queue, whose messages lie where the test says."""

    def __init__(self, places: dict[int, int], committed: int = NO_OFFSET) -> None:
        self.places = places
        self.committed_offset = committed

    def bounds(self, key: Key) -> tuple[int, int]:
        return (min(self.places), max(self.places) + 1) if self.places else (0, 0)

    def physical_offset(self, key: Key, offset: int) -> int | None:
        return self.places.get(offset)

    def committed(self, key: Key) -> int:
        return self.committed_offset


def places(begin: int, end: int, start: int = 0) -> dict[int, int]:
    return {offset: start + offset * 100 for offset in range(begin, end)}


def state(next_offset: int, *offsets: int, physical: Callable[[int], int] = lambda n: n * 100,
          **changes: Any) -> KeyState:  # fmt: skip
    rows = {offset: Row(offset, physical(offset), 5, 1000, 1) for offset in offsets}
    return replace(KeyState(next_offset, physical(next_offset - 1), rows), **changes)


def check(
    found: KeyState, queue: Queue, *, log_end: int = LOG_END, clean: bool = False,
    store_clean: bool = False,
) -> KeyState | None:  # fmt: skip
    whole = PopState({KEY: found}, last_serial=9, is_clean=clean)
    result = verified(whole, queue, log_end, is_store_clean=store_clean)
    assert result.last_serial == 9
    return result.keys.get(KEY)


def test_what_lies_as_it_did_is_believed() -> None:
    found = state(10, 3, 7)
    assert check(found, Queue(places(0, 10))) == found
    assert check(found, Queue(places(0, 20), committed=3)) == found
    assert check(found, Queue(places(2, 20))) == found


def test_what_the_power_cut_took_of_the_log_is_dropped() -> None:
    """Its offsets belong to new messages."""
    found = check(state(10, 3, 7, 9), Queue(places(0, 8)), log_end=800)
    assert found == state(8, 3, 7)
    assert check(state(10, 9), Queue(places(0, 8)), log_end=800) == state(8)
    assert check(state(10, 9), Queue({}), log_end=0) is None


def test_after_a_clean_stop_of_the_store_nobody_knows_what_was_cut() -> None:
    """RocketMQ's broker has recovered it, and stored messages in the place of the lost ones."""
    queue = Queue(places(0, 9))
    assert check(state(10, 3), queue, log_end=900, store_clean=True) is None


def test_a_topic_that_was_made_anew_is_another_one() -> None:
    anew = places(0, 20, start=50_000)
    assert check(state(10, 3, 7), Queue(anew)) is None
    assert check(state(10), Queue(anew)) is None
    assert check(state(30, 3, 7), Queue(anew)) is None
    assert check(state(30), Queue(anew)) is None
    assert check(state(30), Queue({})) is None


def test_a_message_that_lies_elsewhere_is_not_in_flight() -> None:
    found = state(10, 3, 7)
    found.rows[7] = found.rows[7]._replace(physical_offset=701)
    assert check(found, Queue(places(0, 10))) == state(10, 3)


def left(found: KeyState, offset: int, copy_physical: int) -> KeyState:
    rows = found.rows | {offset: found.rows[offset]._replace(copy_physical=copy_physical)}
    return replace(found, rows=rows)


def test_a_message_whose_copy_is_in_the_log_is_done() -> None:
    queue = Queue(places(0, 10))
    assert check(left(state(10, 3, 7), 7, LOG_END - 100), queue) == state(10, 3)
    assert check(left(state(10, 3, 7), 3, 1100), queue) == state(10, 7)


def test_a_message_whose_copy_is_lost_is_in_flight_again() -> None:
    queue = Queue(places(0, 10))
    assert check(left(state(10, 3, 7), 7, LOG_END), queue) == state(10, 3, 7)
    assert check(left(state(10, 7), 7, LOG_END + 50), queue) == state(10, 7)


def test_where_a_copy_lay_says_nothing_when_another_broker_has_recovered_the_log() -> None:
    found = left(state(10, 3, 7), 7, 1100)
    assert check(found, Queue(places(0, 10)), store_clean=True) == state(10, 3, 7)
    assert check(found, Queue(places(0, 10)), clean=True, store_clean=True) == state(10, 3)


def test_what_has_expired_is_not_in_flight() -> None:
    assert check(state(10, 3, 7), Queue(places(5, 12))) == state(10, 7)
    gone = check(state(10, 3, 7), Queue(places(11, 12)))
    assert gone == KeyState(10, UNKNOWN, {})
    assert check(state(10, 3, 7), Queue(places(10, 12))) == KeyState(10, UNKNOWN, {})


def test_a_state_that_cannot_be_checked_is_not_believed() -> None:
    assert check(state(10, end_physical=UNKNOWN), Queue(places(0, 10))) is None


def test_without_a_clean_stop_the_greater_offset_counts() -> None:
    found = state(10, 3, 7)
    assert check(found, Queue(places(0, 20), committed=1)) == found
    assert check(found, Queue(places(0, 20), committed=5)) == state(10, 7)
    assert check(found, Queue(places(0, 20), committed=9)) == state(10)
    assert check(found, Queue(places(0, 20), committed=10)) is None
    assert check(found, Queue(places(0, 20), committed=15)) is None


@pytest.mark.parametrize("committed", [0, 2, 4, 10, 15])
def test_after_a_clean_stop_an_offset_that_differs_was_set_by_somebody(committed: int) -> None:
    queue = Queue(places(0, 20), committed)
    assert check(state(10, 3, 7), queue, clean=True, store_clean=True) is None


def test_after_a_clean_stop_an_offset_that_does_not_says_nothing() -> None:
    found = state(10, 3, 7)
    for committed in (3, NO_OFFSET):
        queue = Queue(places(0, 20), committed)
        assert check(found, queue, clean=True, store_clean=True) == found


def test_an_orderly_batch_keeps_its_attempt_while_one_is_in_flight() -> None:
    found = state(10, 3, attempt_id="a")
    assert check(found, Queue(places(0, 10))) == found
    later = check(found, Queue(places(0, 10), committed=4))
    assert later == state(10)


def test_what_is_dropped_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check(state(10, 3, 7), Queue(places(0, 10)))
        assert caplog.records == []
        check(state(10, 3, 7), Queue(places(0, 20, start=50_000)))
    (line,) = caplog.records
    assert "2 messages" in line.getMessage()


@pytest.mark.parametrize("seed", range(300))
def test_no_message_is_hidden_that_was_not_looked_at(seed: int) -> None:
    """Of any history: whatever a queue has below the believed state, and not in flight, was done.

    A log of two topics; one may be made anew; the power may take its end; new messages come.
    """
    rng = Random(seed)
    log = list[tuple[str, int]]()  # topic, offset
    offsets = {"T": 0, "U": 0}

    def append(count: int) -> None:
        for _ in range(count):
            topic = rng.choice("TU")
            log.append((topic, offsets[topic]))
            offsets[topic] += 1

    append(rng.randrange(40))
    made_at = 0
    journal = KeyState()
    done: set[int] = set()  # places in the log

    def look() -> None:
        mine = [(o, i) for i, (t, o) in enumerate(log) if t == "T" and i >= made_at]
        taken = [pair for pair in mine if pair[0] >= journal.next_offset]
        taken = taken[: rng.randrange(10)]
        for offset, place in taken:
            if rng.random() < 0.4:
                journal.rows[offset] = Row(offset, place, 1, 1, 1)
            else:
                done.add(place)
            journal.next_offset, journal.end_physical = offset + 1, place

    for _ in range(4):
        look()
        append(rng.randrange(8))
    is_told = rng.random() < 0.5
    if rng.random() < 0.4:  # the topic is made anew
        made_at = len(log)
        offsets["T"] = 0
        if is_told:
            journal = KeyState()
        append(rng.randrange(40))
        if is_told:
            look()
    if rng.random() < 0.5:  # the power is cut
        del log[rng.randrange(len(log) + 1) :]
    queue = Queue({o: i for i, (t, o) in enumerate(log) if t == "T" and i >= made_at})
    found = check(journal, queue, log_end=len(log))
    if found is not None:
        for offset, place in queue.places.items():
            if offset < found.next_offset and offset not in found.rows:
                assert place in done, (offset, place)
        for offset in found.rows:
            assert found.rows[offset] == journal.rows[offset]
            assert queue.places[offset] == found.rows[offset].physical_offset
