"""Finding the recovery point: a place in the log that is flushed, with what the queues hold there.

What the queues hold is counted when units are published, the log is flushed a little later. So the
counts are remembered with their place until the flush has passed it.

    note     each second, and before a checkpoint
    newest   for a checkpoint: the newest place noted that is on the disk
"""

from __future__ import annotations

from typing import NamedTuple

from skylarkmq.store.checkpoint import UNKNOWN


class Point(NamedTuple):
    """A place in the log, the end of a record, and the queues as they were there."""

    offset: int
    queue_count: int  # queues with at least one unit
    unit_count: int  # the sum of their ends


class PointTracker:
    """The places noted since the newest one that is flushed. Loop thread."""

    def __init__(self) -> None:
        self._noted: list[Point] = []

    def note(self, point: Point) -> None:
        """Remember what is published now."""
        while self._noted and self._noted[-1].offset >= point.offset:
            self._noted.pop()
        self._noted.append(point)

    def forget_totals(self) -> None:
        """The queues are not what was counted any more; the places stay."""
        self._noted = [Point(point.offset, UNKNOWN, UNKNOWN) for point in self._noted]

    def newest(self, flushed_offset: int) -> Point | None:
        """The newest place that is flushed; those before it are forgotten."""
        found = None
        for index, point in enumerate(self._noted):
            if point.offset > flushed_offset:
                break
            found = index
        if found is None:
            return None
        del self._noted[:found]
        return self._noted[0]
