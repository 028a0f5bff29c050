"""A replay's ledger: what it keeps, who may hold it, and what it says of damage."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.protocol.message import MessageQueue
from skylarkmq.spark.jobs.replay_ledger import (
    Done,
    Ledger,
    LedgerError,
    ReplayPlan,
    Selection,
    assign,
)
from skylarkmq.spark.ledgers.hold import InUseError, RunEndedError
from skylarkmq.spark.ledgers.objects import objects_at
from skylarkmq.spark.storage import Location

SELECTION = Selection("/data/archive", ("T", "U"), "again", 5, None, "tags = 'é'", True)
QUEUES = [MessageQueue("T", broker, number) for broker in ("a", "b") for number in range(2)]


def test_a_plan_comes_back(place: Location) -> None:
    plan = ReplayPlan(SELECTION, assign(QUEUES, [MessageQueue("again", "c", 3)]))
    with Ledger(place.child("deep/er")) as ledger:
        assert ledger.plan() is None
        ledger.begin(plan)
        found = ledger.plan()
        ledger.begin(plan)
    assert found == plan
    assert found is not None
    assert list(found.targets) == QUEUES  # the order is that of the numbers


def test_what_is_done_comes_back(place: Location) -> None:
    with Ledger(place) as ledger:
        assert (ledger.done(3), ledger.claim(3), ledger.claim(4)) == (Done(0, 0, 0),) * 3
        ledger.record(3, Done(17, 12, 900))
        ledger.record(4, Done(1, 1, 1))
        again = pickle.loads(pickle.dumps(ledger))
        again.require_run()
        assert (again.done(3), again.done(4)) == (Done(17, 12, 900), Done(1, 1, 1))
        assert again.claim(3) == Done(17, 12, 900)
        again.record(3, Done(18, 13, 901))
        assert ledger.done(3) == Done(18, 13, 901)
        ledger.begin(ReplayPlan(SELECTION))
        ledger.forget()
        assert ledger.plan() is None
        assert ledger.done(3) == Done()
        with pytest.raises(RunEndedError):
            again.record(3, Done(19, 14, 902))
        ledger.end_run()
        with pytest.raises(RunEndedError):
            again.require_run()


def test_who_claimed_a_queue_last_records_it(place: Location) -> None:
    """A task of a run that was taken for dead, or of an executor that was, writes no more."""
    with Ledger(place) as ledger:
        first, second = (pickle.loads(pickle.dumps(ledger)) for _ in range(2))
        first.claim(0)
        first.record(0, Done(5, 5, 50))
        assert second.claim(0) == Done(5, 5, 50)
        with pytest.raises(RunEndedError, match="another run or try"):
            first.record(0, Done(9, 9, 90))
        second.record(0, Done(6, 6, 60))
        assert ledger.done(0) == Done(6, 6, 60)


def test_of_tasks_that_claim_at_once_one_records(place: Location) -> None:
    def task(number: int) -> int:
        ledger = Ledger(place, "run")
        try:
            ledger.claim(0)
            ledger.record(0, Done(number, 1, 1))
        except RunEndedError:
            return 0
        return number

    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(task, range(1, 9)))
    assert Ledger(place).done(0).next_offset in numbers
    # One at a time may have been through before the next one claimed: the last one stays.
    last = Ledger(place, "run")
    assert last.claim(0).next_offset in [number for number in numbers if number]


def test_one_run_at_a_time(tmp_path: Path) -> None:
    place = Location.parse(str(tmp_path))
    refused = pytest.raises(
        InUseError, match=r"another run is at work at .*: process \d+ on .*replay"
    )
    with Ledger(place), refused:
        Ledger(place).__enter__()
    with Ledger(place):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"v":2}', '{"v":1,"next":1}'])
def test_damage(place: Location, text: str) -> None:
    for name in ("plan.json", "queue-0.json"):
        objects_at(place).write(name, text.encode(), None)
    with Ledger(place) as ledger:
        with pytest.raises(LedgerError, match=r"plan\.json cannot be read.*--restart"):
            ledger.plan()
        for read in (ledger.done, ledger.claim):
            with pytest.raises(LedgerError, match=r"queue-0\.json cannot be read"):
                read(0)
        ledger.forget()
        assert ledger.plan() is None


def test_no_place_for_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="cannot be opened"):
        Ledger(Location.parse(str(tmp_path / "file" / "ledger"))).__enter__()


def test_selections_have_names_of_their_own() -> None:
    others = [
        Selection("/data/archive", ("T",), "again"),
        Selection("/data/archive", ("T",), "again", 0),
        Selection("/data/archive", ("T",), "again", None, 0),
        Selection("/data/archive", ("T",), "other"),
        Selection("/data/archive", ("T", "U"), "again"),
        Selection("/data/archive", ("T",), "again", where="x"),
        SELECTION,
    ]
    assert len({other.name for other in others}) == len(others)
    assert SELECTION.name == Selection.from_json(SELECTION.to_json()).name


def test_the_queue_of_the_same_place_if_there_is_one() -> None:
    targets = [MessageQueue("again", "b", number) for number in range(2)]
    found = assign(QUEUES, targets)
    assert found[MessageQueue("T", "b", 0)] == targets[0]
    assert found[MessageQueue("T", "b", 1)] == targets[1]
    assert {found[MessageQueue("T", "a", 0)], found[MessageQueue("T", "a", 1)]} == set(targets)


@given(
    st.sets(st.builds(MessageQueue, st.just("T"), st.sampled_from("abc"), st.integers(0, 9)),
            min_size=1),
    st.sets(st.builds(MessageQueue, st.just("X"), st.sampled_from("abc"), st.integers(0, 9)),
            min_size=1),
)  # fmt: skip
def test_each_source_queue_has_one_target(
    sources: set[MessageQueue], targets: set[MessageQueue]
) -> None:
    found = assign(list(sources), sorted(targets))
    assert found.keys() == sources
    assert set(found.values()) <= targets
    assert found == assign(sorted(sources, reverse=True), sorted(targets))
