"""A replay's ledger: what it keeps, who may hold it, and what it says of damage."""

import pickle
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

SELECTION = Selection("/data/archive", ("T", "U"), "again", 5, None, "tags = 'é'", True)
QUEUES = [MessageQueue("T", broker, number) for broker in ("a", "b") for number in range(2)]


def test_a_plan_comes_back(tmp_path: Path) -> None:
    plan = ReplayPlan(SELECTION, assign(QUEUES, [MessageQueue("again", "c", 3)]))
    with Ledger(tmp_path / "deep" / "er") as ledger:
        assert ledger.plan() is None
        ledger.begin(plan)
        found = ledger.plan()
    assert found == plan
    assert found is not None
    assert list(found.targets) == QUEUES  # the order is that of the numbers


def test_what_is_done_comes_back(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        assert ledger.done(3) == Done(0, 0, 0)
        ledger.record(3, Done(17, 12, 900))
        ledger.record(4, Done(1, 1, 1))
        again = pickle.loads(pickle.dumps(ledger))
        assert (again.done(3), again.done(4)) == (Done(17, 12, 900), Done(1, 1, 1))
        again.record(3, Done(18, 13, 901))
        assert ledger.done(3) == Done(18, 13, 901)
        assert not list(tmp_path.glob("*.new"))
        ledger.begin(ReplayPlan(SELECTION))
        ledger.forget()
        assert ledger.plan() is None
        assert ledger.done(3) == Done()


def test_one_run_at_a_time(tmp_path: Path) -> None:
    refused = pytest.raises(LedgerError, match="another run of this replay is at work")
    with Ledger(tmp_path), refused:
        Ledger(tmp_path).__enter__()
    with Ledger(tmp_path):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"v":2}', '{"v":1,"next":1}'])
def test_damage(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    (tmp_path / "queue-0.json").write_text(text)
    with Ledger(tmp_path) as ledger:
        with pytest.raises(LedgerError, match=r"plan\.json cannot be read.*--restart"):
            ledger.plan()
        with pytest.raises(LedgerError, match=r"queue-0\.json cannot be read"):
            ledger.done(0)
        ledger.forget()
        assert ledger.plan() is None


def test_no_place_for_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="cannot be opened"):
        Ledger(tmp_path / "file" / "ledger").__enter__()


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
