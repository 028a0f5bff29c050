"""One run at a time: who gets a place, how long it stays taken, and what a task sees of it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from skylarkmq.spark.ledgers import hold
from skylarkmq.spark.ledgers.hold import (
    LEASE_S,
    RUN,
    Hold,
    HoldLostError,
    InUseError,
    RunEndedError,
    require_run,
)
from skylarkmq.spark.ledgers.objects import objects_at
from skylarkmq.spark.storage import Location
from tests.spark.support.blocking_clock import TestClock
from tests.support.patience import until_sync


def test_it_is_taken_and_given_back(place: Location) -> None:
    objects = objects_at(place)
    for _ in range(2):
        with Hold(place, "work") as held:
            require_run(objects, held.run_id)
            held.check()
            held.end()
            with pytest.raises(RunEndedError):
                require_run(objects, held.run_id)
    with pytest.raises(RunEndedError):
        require_run(objects, held.run_id)


class Watched(TestClock):
    """A clock during whose sleeps something happens."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__()
        self._happens = happens

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._happens()


def test_of_two_that_start_at_once_one_wins(place: Location) -> None:
    start, end, winners = Barrier(2), Barrier(2), list[Hold]()

    def renew() -> None:
        """What the winner's thread does while the other one watches its mark."""
        until_sync(lambda: winners)
        winners[0].renew()

    def run(_: int) -> bool:
        start.wait()
        try:
            with Hold(place, "work", Watched(renew)) as held:
                winners.append(held)
                end.wait()
                return True
        except InUseError as error:
            assert "another run is at work at" in str(error)
            assert "work" in str(error)
            end.wait()
            return False

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(run, range(2))) == [False, True]


def test_a_run_that_is_alive_is_left_alone(s3_place: Location) -> None:
    with Hold(s3_place, "first") as first:
        clock = Watched(first.renew)
        with pytest.raises(InUseError, match="first"):
            Hold(s3_place, "second", clock).__enter__()
        assert sum(clock.slept) < LEASE_S
        first.check()


def test_a_dead_run_s_place_is_taken_over_and_it_sees_that(
    s3_place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hold, "_keep", lambda self: None)  # as if its process stood still
    first = Hold(s3_place, "first", TestClock()).__enter__()
    clock = Watched(lambda: None)
    with Hold(s3_place, "second", clock) as second:
        assert sum(clock.slept) >= LEASE_S
        first.renew()
        with pytest.raises(HoldLostError):
            first.check()
        with pytest.raises(RunEndedError):
            require_run(objects_at(s3_place), first.run_id)
        first.__exit__()
        require_run(objects_at(s3_place), second.run_id)


def test_a_run_that_ends_while_it_is_watched_makes_way(s3_place: Location) -> None:
    first = Hold(s3_place, "first").__enter__()
    with Hold(s3_place, "second", Watched(lambda: first.__exit__())) as second:
        second.check()


def test_it_is_lost_when_it_could_not_be_renewed(s3_place: Location) -> None:
    clock = TestClock()
    with Hold(s3_place, "work", clock) as held:
        clock.sleep(LEASE_S - 1)
        held.check()
        clock.sleep(2)
        with pytest.raises(HoldLostError):
            held.check()
        held.renew()
        held.check()


def test_a_renewal_whose_answer_was_lost_is_none_of_another_run(
    s3_place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hold, "_keep", lambda self: None)
    with Hold(s3_place, "work") as held:
        tag = held._tag
        held.renew()
        held._tag = tag
        held.renew()
        held.check()
        held.renew()
        assert held._tag != tag


def test_the_thread_renews(s3_place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "KEEP_S", 0.0)
    objects = objects_at(s3_place)
    with Hold(s3_place, "work") as held:
        first = objects.read(RUN)
        until_sync(lambda: objects.read(RUN) != first)
        held.check()


def test_damage_of_the_mark_is_another_run_s(place: Location) -> None:
    objects_at(place).write(RUN, b"[", None)
    with Hold(place, "work", TestClock()) as held:
        require_run(objects_at(place), held.run_id)
