"""A recovery point is a place that is flushed, with the counts of that very place."""

from __future__ import annotations

from skylarkmq.store.checkpoint import Point, PointTracker


def test_a_place_counts_once_the_flush_has_passed_it() -> None:
    points = PointTracker()
    assert points.newest(100) is None
    for offset in (100, 200, 300):
        points.note(Point(offset, 1, offset // 10))
    assert points.newest(99) is None
    assert points.newest(250) == Point(200, 1, 20)
    assert points.newest(250) == Point(200, 1, 20), "nothing newer came"
    assert points.newest(300) == Point(300, 1, 30)


def test_the_same_place_is_noted_once() -> None:
    points = PointTracker()
    points.note(Point(100, 1, 10))
    points.note(Point(100, 2, 11))
    assert points.newest(100) == Point(100, 2, 11)
