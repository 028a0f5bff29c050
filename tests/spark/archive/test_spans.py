"""Runs of offsets, against plain sets."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.spark.archive.spans import OverlapError, Spans, gaps
from skylarkmq.spark.offsets import QueueKey

Q = [QueueKey("T", "broker-a", 0), QueueKey("T", "broker-b", 0), QueueKey("U", "broker-a", 7)]
RUNS = st.lists(st.tuples(st.sampled_from(Q), st.integers(0, 40), st.integers(0, 8)), max_size=30)


@given(RUNS, st.integers(0, 45), st.integers(0, 10))
def test_against_sets(runs: list[tuple[QueueKey, int, int]], start: int, length: int) -> None:
    spans, there = Spans(), set[tuple[QueueKey, int]]()
    for key, low, size in runs:
        offsets = {(key, offset) for offset in range(low, low + size)}
        if offsets & there:
            before = spans.to_json()
            with pytest.raises(OverlapError, match="are there already"):
                spans.add(key, low, low + size)
            assert spans.to_json() == before
        else:
            spans.add(key, low, low + size)
            there |= offsets
    assert {(k, o) for k, low, high in spans.items() for o in range(low, high)} == there
    assert spans.count() == len(there)
    for key in Q:
        found = spans.runs(key)
        assert all(a[1] < b[0] for a, b in pairwise(found))  # neighbours join
        within = spans.runs_within(key, start, start + length)
        shared = [offset for offset in range(start, start + length) if (key, offset) in there]
        assert within == [run for run in found if any(run[0] <= o < run[1] for o in shared)]
        left = {o for low, high in gaps(found, start, start + length) for o in range(low, high)}
        assert left == set(range(start, start + length)) - set(shared)
    assert Spans.from_json(json.loads(json.dumps(spans.to_json()))) == spans


@given(RUNS, RUNS)
def test_with_and_without_others(
    runs: list[tuple[QueueKey, int, int]], others: list[tuple[QueueKey, int, int]]
) -> None:
    def merged(given: list[tuple[QueueKey, int, int]]) -> Spans:
        spans = Spans()
        for key, low, size in given:
            spans.merge(key, low, low + size)
        return spans

    def offsets(spans: Spans) -> set[tuple[QueueKey, int]]:
        return {(key, o) for key, low, high in spans.items() for o in range(low, high)}

    one, two = merged(runs), merged(others)
    assert offsets(one) == {(k, o) for k, low, size in runs for o in range(low, low + size)}
    assert offsets(one.without(two)) == offsets(one) - offsets(two)
    both = one.copy()
    both.merge_all(two)
    assert offsets(both) == offsets(one) | offsets(two)
    assert (one, bool(one)) == (merged(runs), bool(offsets(one)))  # the copy is one of its own
    assert one.run_count() == len(list(one.items()))
    assert one.of_queues(Q[:1]) == Spans.of(i for i in one.items() if i[0] == Q[0])


def test_all_or_nothing() -> None:
    spans = Spans.of([(Q[0], 0, 5)])
    with pytest.raises(OverlapError, match=r"offsets \[4, 5\) are there"):
        spans.add_all(Spans.of([(Q[0], 5, 6), (Q[0], 8, 9), (Q[1], 0, 1), (Q[0], 4, 5)]))
    assert spans == Spans.of([(Q[0], 0, 5)])


@pytest.mark.parametrize(
    "document",
    [[], {"T": []}, {"T": {"b": {"x": [[0, 1]]}}}, {"T": {"b": {"0": [[1, 1]]}}},
     {"T": {"b": {"0": [[-1, 1]]}}}, {"T": {"b": {"0": [[0, 1, 2]]}}},
     {"T": {"b": {"0": [["0", 1]]}}}, {"T": {"b": {"0": 3}}}, None],
)  # fmt: skip
def test_damaged(document: object) -> None:
    with pytest.raises(ValueError):
        Spans.from_json(document)
