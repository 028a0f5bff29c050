"""What an audit compares, without brokers and without Spark."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.spark.archive.commits import ArchiveError, Commit, DataFile, TableState
from skylarkmq.spark.archive.spans import Spans
from skylarkmq.spark.jobs.audit import plan_archive
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


def table(*runs: tuple[int, int], start: int = 0) -> TableState:
    state = TableState()
    state.apply(Commit(1, "start", start=QueueOffsets({Q: start})))
    spans = Spans.of((Q, low, high) for low, high in runs)
    file = DataFile("topic=T/date=2026-01-01/x.parquet", spans.count(), 1, 0, 0)
    state.apply(Commit(2, "append", add=(file,), spans=spans))
    return state


def test_parts() -> None:
    state = table((2, 5), (7, 20), (30, 40))
    plan = plan_archive(state, [], Cluster({Q: (10, 50), NEW: (3, 6)}))
    assert plan.live == Spans.of([(Q, 10, 40)])
    assert plan.expired == Spans.of([(Q, 2, 5), (Q, 7, 10)])
    assert plan.holes == [(*Q, 0, 2), (*Q, 5, 7)]
    assert plan.ahead == 10 + 3
    assert (plan.rows, plan.notes) == (26, [])
    assert plan.stops == {Q: 40}


def test_a_queue_that_is_gone_and_one_that_ends_early() -> None:
    state = table((0, 10))
    gone = plan_archive(state, ["T"], Cluster({NEW: (0, 0)}))
    assert gone.expired == Spans.of([(Q, 0, 10)]) and gone.live.count() == 0
    assert "not there any more" in gone.notes[0]
    early = plan_archive(state, ["T"], Cluster({Q: (0, 4)}))
    assert early.live == Spans.of([(Q, 0, 4)])
    assert "made anew" in early.notes[0]


def test_refused() -> None:
    with pytest.raises(ArchiveError, match="is empty"):
        plan_archive(TableState(), [], Cluster({}))
    with pytest.raises(JobError, match="does not have X; it has T"):
        plan_archive(table((0, 1)), ["T", "X"], Cluster({}))


@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=12).filter(lambda steps: len(steps) % 2 == 0),
    st.integers(0, 60),
    st.integers(0, 60),
    st.integers(0, 5),
)
def test_every_offset_is_in_one_part(steps: list[int], begin: int, more: int, start: int) -> None:
    """Between the start and the archive's end each offset is compared, promised or a hole."""
    places = [sum(steps[:count]) + start for count in range(1, len(steps) + 1)]
    runs = list(zip(places[::2], places[1::2], strict=True))
    plan = plan_archive(table(*runs, start=start), [], Cluster({Q: (begin, begin + more)}))
    parts = [Spans.of((QueueKey(*hole[:3]), *hole[3:]) for hole in plan.holes)]
    parts += [plan.live, plan.expired]
    stop = runs[-1][1]
    for offset in range(start, stop):
        found = [(Q, offset) in part for part in parts]
        behind_the_end = begin <= offset and offset >= begin + more
        assert sum(found) == (0 if behind_the_end else 1), offset
        archived = any(low <= offset < high for low, high in runs)
        if offset < begin:
            assert found == [not archived, False, archived]
