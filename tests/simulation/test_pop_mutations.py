"""The simulator of pop consumption notices what is broken: each broken broker must be caught."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from skylarkmq.broker import components
from skylarkmq.broker.pop import journal, moves, restoring, service
from skylarkmq.broker.pop.deliveries import PopQueue
from skylarkmq.store.pop.journal_records import (
    ACKNOWLEDGED,
    Changed,
    Done,
    Forgot,
    Key,
    Left,
    PopState,
    Record,
    Took,
)
from tests.simulation.test_pop_simulator import explore
from tests.support.crash_explorer import CrashFailure

SEEDS = 1000
Patch = pytest.MonkeyPatch
Journal = journal.PopJournal


def not_journalled(patch: Patch, kind: type) -> None:
    note = Journal.note

    def broken(self: Journal, record: Record) -> None:
        if not isinstance(record, kind):
            note(self, record)

    patch.setattr(Journal, "note", broken)


def done_is_not_journalled(patch: Patch) -> None:
    not_journalled(patch, Done)


def what_was_taken_is_not_journalled(patch: Patch) -> None:
    not_journalled(patch, Took)


def a_deleted_topic_is_not_journalled(patch: Patch) -> None:
    """Nor is it seen that its queues are others."""
    not_journalled(patch, Forgot)
    nothing_is_verified(patch)


def an_acknowledgement_out_of_order_is_not_journalled(patch: Patch) -> None:
    note = Journal.note

    def broken(self: Journal, record: Record) -> None:
        if not (isinstance(record, Changed) and record.visible_ms == ACKNOWLEDGED):
            note(self, record)

    patch.setattr(Journal, "note", broken)


def another_time_is_taken_for_the_end(patch: Patch) -> None:
    note = Journal.note

    def broken(self: Journal, record: Record) -> None:
        is_change = isinstance(record, Changed)
        note(self, Done(record.key, record.offset) if is_change else record)

    patch.setattr(Journal, "note", broken)


def answered_before_the_sync(patch: Patch) -> None:
    proper = components.JournalMode

    def broken(*, is_sync: bool, interval_s: float) -> journal.JournalMode:
        return proper(is_sync=False, interval_s=interval_s)

    patch.setattr(components, "JournalMode", broken)


def answered_before_it_is_written(patch: Patch) -> None:
    patch.setattr(Journal, "after", lambda self, done, *, is_synced=False: done(None))


def never_synced(patch: Patch) -> None:
    patch.setattr(Journal, "_tick", lambda self: None)


def nothing_is_verified(patch: Patch) -> None:
    patch.setattr(service, "verified", lambda state, *_, **__: state)


def the_end_of_the_log_is_not_looked_at(patch: Patch) -> None:
    """What was looked at counts as such, also of messages that are no longer there."""

    def broken(self: Any, key: Key, state: Any) -> int:
        return int(state.next_offset)

    patch.setattr("skylarkmq.broker.pop.journal_check._Check._trusted_end", broken)


def the_table_always_wins(patch: Patch) -> None:
    proper = service.verified

    def broken(state: PopState, queues: Any, log_end: int, *, is_store_clean: bool) -> PopState:
        state.is_clean = True
        return proper(state, queues, log_end, is_store_clean=True)

    patch.setattr(service, "verified", broken)


def older_files_go_before_the_new_one_is_there(patch: Patch) -> None:
    begin = Journal.begin

    def broken(self: Journal, state: PopState, live: Any) -> None:
        self._folder.remove(self._folder.numbers)
        begin(self, state, live)

    patch.setattr(Journal, "begin", broken)


def originals_end_with_their_copies_on_the_way(patch: Patch) -> None:
    add = moves.Moves.add

    def broken(self: moves.Moves, delivery: Any, told: Any = None) -> None:
        self._in_flight.journal.note(Done(delivery.queue.key, delivery.offset))
        add(self, delivery, told)

    patch.setattr(moves.Moves, "add", broken)


def where_a_copy_lies_is_not_looked_at(patch: Patch) -> None:
    note = Journal.note

    def broken(self: Journal, record: Record) -> None:
        is_left = isinstance(record, Left)
        note(self, Done(record.key, record.offset) if is_left else record)

    patch.setattr(Journal, "note", broken)


def a_copy_counts_no_attempt(patch: Patch) -> None:
    copy = moves.Moves._copy

    def broken(self: moves.Moves, *given: Any) -> Any:
        inner = copy(self, *given)
        inner.reconsume_times = 0
        return inner

    patch.setattr(moves.Moves, "_copy", broken)


def the_group_stands_behind_what_is_in_flight(patch: Patch) -> None:
    patch.setattr(PopQueue, "mark", property(lambda self: self.next_offset))


def what_was_in_flight_is_not_restored(patch: Patch) -> None:
    fill = restoring._fill

    def broken(queue: Any, found: Any, *rest: Any) -> None:
        found.rows.clear()
        fill(queue, found, *rest)

    patch.setattr(restoring, "_fill", broken)


MUTATIONS: list[Callable[[Patch], None]] = [
    done_is_not_journalled,
    what_was_taken_is_not_journalled,
    a_deleted_topic_is_not_journalled,
    an_acknowledgement_out_of_order_is_not_journalled,
    another_time_is_taken_for_the_end,
    answered_before_the_sync,
    answered_before_it_is_written,
    never_synced,
    nothing_is_verified,
    the_end_of_the_log_is_not_looked_at,
    the_table_always_wins,
    older_files_go_before_the_new_one_is_there,
    originals_end_with_their_copies_on_the_way,
    where_a_copy_lies_is_not_looked_at,
    a_copy_counts_no_attempt,
    the_group_stands_behind_what_is_in_flight,
    what_was_in_flight_is_not_restored,
]


@pytest.mark.fault
@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_broken_pop_consumption_is_caught(mutate: Callable[[Patch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        for seed in range(SEEDS):
            try:
                asyncio.run(explore(seed))
            except CrashFailure:
                return
    raise AssertionError(f"{mutate.__name__} went unnoticed for {SEEDS} seeds")
