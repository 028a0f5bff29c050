"""Spark's filters as bounds: what they let through must never be less than the filters do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.spark.offsets import QueueKey
from skylarkmq.spark.reading.narrowing import EVERYTHING, NEAR_MAX, Narrowing, narrowing_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class EqualTo:
    attribute: tuple[str, ...]
    value: Any


class In(EqualTo):
    pass


class LessThan(EqualTo):
    pass


class LessThanOrEqual(EqualTo):
    pass


class GreaterThan(EqualTo):
    pass


class GreaterThanOrEqual(EqualTo):
    pass


class Not(EqualTo):
    pass


HOLDS = {
    EqualTo: lambda left, right: left == right,
    LessThan: lambda left, right: left < right,
    LessThanOrEqual: lambda left, right: left <= right,
    GreaterThan: lambda left, right: left > right,
    GreaterThanOrEqual: lambda left, right: left >= right,
}
ORDERS = st.sampled_from(list(HOLDS))


@given(st.lists(st.tuples(ORDERS, st.integers(-3, 12)), max_size=4), st.integers(0, 10))
def test_offsets(rows: list[tuple[type[EqualTo], int]], offset: int) -> None:
    found = narrowing_of(kind(("queueOffset",), value) for kind, value in rows)
    passes = all(HOLDS[kind](offset, value) for kind, value in rows)
    assert passes == (found.low_offset <= offset < found.end_offset)


@given(st.lists(st.tuples(ORDERS, st.integers(-3, 200)), max_size=2),
       st.lists(st.sets(st.integers(-3, 200) | st.none()), min_size=1, max_size=2),
       st.integers(0, 40), st.integers(150, 250))  # fmt: skip
def test_listed_offsets(
    rows: list[tuple[type[EqualTo], int]],
    lists: list[set[int | None]],
    start: int,
    end: int,
) -> None:
    filters = [In(("queueOffset",), tuple(values)) for values in lists]
    found = narrowing_of([*filters, *(kind(("queueOffset",), value) for kind, value in rows)])
    parts = found.parts(max(start, found.low_offset), min(end, found.end_offset))
    covered = [at for low, high in parts for at in range(low, high)]
    assert covered == sorted(set(covered)), "in order, and none twice"
    assert all(start <= at < end for at in covered)
    assert all(later - high >= NEAR_MAX for (_, high), (later, _) in pairwise(parts))
    for at in range(start, end):
        in_bounds = all(HOLDS[kind](at, value) for kind, value in rows)
        if in_bounds and all(at in values for values in lists):
            assert at in covered


@given(st.lists(st.tuples(ORDERS, st.integers(0, 12_000)), max_size=4), st.integers(0, 10))
def test_times(rows: list[tuple[type[EqualTo], int]], stored_ms: int) -> None:
    """Filters have microseconds, messages milliseconds."""
    instants = [(kind, EPOCH + timedelta(microseconds=value)) for kind, value in rows]
    found = narrowing_of(kind(("storeTimestamp",), when) for kind, when in instants)
    stored = EPOCH + timedelta(milliseconds=stored_ms)
    if all(HOLDS[kind](stored, when) for kind, when in instants):
        assert found.low_ms <= stored_ms and (found.end_ms is None or stored_ms < found.end_ms)


@given(st.sampled_from([LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual]),
       st.integers(0, 12_000), st.integers(0, 12))  # fmt: skip
def test_one_time_is_exact(kind: type[EqualTo], micros: int, stored_ms: int) -> None:
    found = narrowing_of([kind(("storeTimestamp",), EPOCH + timedelta(microseconds=micros))])
    inside = found.low_ms <= stored_ms and (found.end_ms is None or stored_ms < found.end_ms)
    assert inside == HOLDS[kind](stored_ms * 1000, micros)


def test_sets() -> None:
    found = narrowing_of([In(("tags",), ("A", "B", None)), EqualTo(("tags",), "B"),
                          In(("queueId",), (1, 2)), EqualTo(("topic",), "T"),
                          EqualTo(("brokerName",), "b"), EqualTo(("keys",), "k 1")])  # fmt: skip
    assert (found.tags, found.keys) == ({"B"}, {"k 1"})
    assert found.wants(QueueKey("T", "b", 1))
    assert not any(
        found.wants(QueueKey(*key)) for key in (("U", "b", 1), ("T", "a", 1), ("T", "b", 3))
    )
    assert narrowing_of([EqualTo(("tags",), "A"), EqualTo(("tags",), "B")]).tags == frozenset()


@pytest.mark.parametrize(
    "given_filter",
    [Not(("tags",), "A"), EqualTo(("body",), b""), LessThan(("tags",), "A"),
     EqualTo(("properties", "a"), "b"), LessThan(("queueOffset",), 1.5),
     LessThan(("queueOffset",), True), LessThan(("storeTimestamp",), datetime(2020, 1, 1)),
     In(("queueOffset",), (1, 2.5)), object()],
)  # fmt: skip
def test_what_is_not_understood_changes_nothing(given_filter: object) -> None:
    assert narrowing_of([given_filter]) == EVERYTHING == Narrowing()


def test_sparks_own_filters_have_these_names() -> None:
    datasource = pytest.importorskip("pyspark.sql.datasource")
    for kind in (EqualTo, In, LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual):
        own = getattr(datasource, kind.__name__)(("queueOffset",), 3)
        assert own.attribute == ("queueOffset",) and own.value == 3
