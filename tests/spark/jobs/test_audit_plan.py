"""What an audit compares, without brokers and without Spark."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.spark.archive.delta_log import DataFile
from skylarkmq.spark.archive.spans import Spans
from skylarkmq.spark.archive.state import ArchiveError, ArchiveState, Change
from skylarkmq.spark.jobs.audit import plan_archive, within_reach
from skylarkmq.spark.jobs.common import JobError
from skylarkmq.spark.offsets import QueueKey, QueueOffsets

Q = QueueKey("T", "broker-a", 0)
NEW = QueueKey("T", "broker-a", 1)


class Cluster:
    """Queues with their bounds."""

    def __init__(self, bounds: dict[QueueKey, tuple[int, int]]) -> None:
        self.bounds = bounds

    def read_queues(self, topic: str, *, max_age_s: float = 0.0) -> list[QueueKey]:
        return [key for key in self.bounds if key.topic == topic]

    def min_offsets(self, queues: Iterable[QueueKey]) -> dict[QueueKey, int]:
        return {key: self.bounds[key][0] for key in queues}

    def max_offsets(self, queues: Iterable[QueueKey]) -> dict[QueueKey, int]:
        return {key: self.bounds[key][1] for key in queues}


def table(
    *runs: tuple[int, int], start: int = 0, gone: tuple[tuple[int, int], ...] = ()
) -> ArchiveState:
    state = ArchiveState()
    state.apply(Change(start=QueueOffsets({Q: start})))
    state.apply(Change(spans=Spans.of((Q, low, high) for low, high in runs)))
    state.apply(Change(gone=Spans.of((Q, low, high) for low, high in gone)))
    return state


def test_parts() -> None:
    state = table((2, 5), (7, 20), (30, 40))
    plan = plan_archive(state, [], Cluster({Q: (10, 50), NEW: (3, 6)}))
    assert plan.live == Spans.of([(Q, 10, 40)])
    assert plan.expired == Spans.of([(Q, 2, 5), (Q, 7, 10)])
    assert plan.holes == [(*Q, 0, 2), (*Q, 5, 7)]
    assert plan.ahead == 10 + 3
    assert plan.notes == []
    assert plan.stops == {Q: 40}


def test_a_queue_that_is_gone_and_one_that_ends_early() -> None:
    state = table((0, 10))
    gone = plan_archive(state, ["T"], Cluster({NEW: (0, 0)}))
    assert gone.expired == Spans.of([(Q, 0, 10)]) and gone.live.count() == 0
    assert "not there any more" in gone.notes[0]
    early = plan_archive(state, ["T"], Cluster({Q: (0, 4)}))
    assert early.live == Spans.of([(Q, 0, 4)])
    assert "made anew" in early.notes[0]


def test_what_has_gone_is_not_missed() -> None:
    """Expired from both, from the archive alone, and single ones that were erased."""
    state = table((0, 100), gone=((0, 20), (40, 41), (95, 100)))
    plan = plan_archive(state, [], Cluster({Q: (10, 120)}))
    assert plan.live == Spans.of([(Q, 20, 95)])  # 40 is passed over row by row
    assert (plan.expired, plan.holes, plan.ahead) == (Spans(), [], 20)
    assert plan.gone == state.gone
    late = plan_archive(state, [], Cluster({Q: (50, 120)}))
    assert late.live == Spans.of([(Q, 50, 95)])
    assert late.expired == Spans.of([(Q, 20, 40), (Q, 41, 50)])
    all_gone = plan_archive(table((0, 5), gone=((0, 5),)), [], Cluster({Q: (0, 5)}))
    assert all_gone.live.count() == all_gone.expired.count() == 0


def test_what_has_gone_and_could_be_there() -> None:
    gone = Spans.of([(Q, 0, 10), (Q, 12, 14), (NEW._replace(topic="U"), 0, 5)])
    files = [DataFile("a", "T", "2026-01-01", 1, 1, 0, 0, first, 99) for first in (20, 8)]
    assert within_reach(gone, files) == Spans.of([(Q, 8, 10), (Q, 12, 14)])
    unknown = DataFile("b", "T", "2026-01-01", 1, None, None, None, None, None)
    assert within_reach(gone, [*files, unknown]) == Spans.of([(Q, 0, 10), (Q, 12, 14)])


def test_refused() -> None:
    with pytest.raises(ArchiveError, match="is empty"):
        plan_archive(ArchiveState(), [], Cluster({}))
    with pytest.raises(JobError, match="does not have X; it has T"):
        plan_archive(table((0, 1)), ["T", "X"], Cluster({}))


@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=12).filter(lambda steps: len(steps) % 2 == 0),
    st.integers(0, 60),
    st.integers(0, 60),
    st.integers(0, 5),
    st.sets(st.integers(0, 70)),
)
def test_every_offset_is_in_one_part(
    steps: list[int], begin: int, more: int, start: int, chosen: set[int]
) -> None:
    """Between the start and the archive's end each is compared, promised, a hole, or has gone."""
    places = [sum(steps[:count]) + start for count in range(1, len(steps) + 1)]
    runs = list(zip(places[::2], places[1::2], strict=True))
    gone = {offset for low, high in runs for offset in range(low, high)} & chosen
    state = table(*runs, start=start, gone=tuple((offset, offset + 1) for offset in gone))
    plan = plan_archive(state, [], Cluster({Q: (begin, begin + more)}))
    parts = [Spans.of((QueueKey(*hole[:3]), *hole[3:]) for hole in plan.holes)]
    parts += [plan.live, plan.expired]
    stop = runs[-1][1]
    for offset in range(start, stop):
        found = [(Q, offset) in part for part in parts]
        behind_the_end = begin <= offset and offset >= begin + more
        if offset in gone:  # `live` may have it, and the comparison then passes it over
            assert not found[0] and not found[2] and (Q, offset) in plan.gone
            continue
        assert sum(found) == (0 if behind_the_end else 1), offset
        archived = any(low <= offset < high for low, high in runs)
        if offset < begin:
            assert found == [not archived, False, archived]
