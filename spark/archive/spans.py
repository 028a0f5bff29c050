"""Which offsets of each queue are somewhere: per queue, runs [start, end) apart from each other.

As JSON {"T":{"broker-a":{"0":[[0,100],[120,130]]}}}. Pure; imports neither pyspark nor pyarrow.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from skylarkmq.client.errors import RocketMQError
from skylarkmq.spark.offsets import QueueKey, describe, queue_id_of

Run = tuple[int, int]
"""Offsets [start, end), not empty."""


class OverlapError(RocketMQError):
    """Offsets would be there twice."""


class Spans:
    """Runs of offsets by queue; neighbours are one run. One thread."""

    def __init__(self) -> None:
        # Invariant: of each queue, starts and ends rise together: s0 < e0 < s1 < e1 ...
        self._starts: dict[QueueKey, list[int]] = {}
        self._ends: dict[QueueKey, list[int]] = {}

    @classmethod
    def of(cls, runs: Iterable[tuple[QueueKey, int, int]]) -> Spans:
        """Return the spans of these runs.

        Raises:
            OverlapError: two of them share an offset.
        """
        spans = cls()
        for key, start, end in runs:
            spans.add(key, start, end)
        return spans

    @classmethod
    def from_json(cls, document: object) -> Spans:
        """Return the spans of a parsed JSON document.

        Raises:
            ValueError: not of the form above (OverlapError, OffsetFormatError among them).
        """
        try:
            return cls.of(_flattened(document))
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"no runs of offsets: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """Return the JSON document; equal spans give equal documents."""
        nested: dict[str, Any] = {}
        for key in sorted(self._starts):
            runs = [list(run) for run in self.runs(key)]
            nested.setdefault(key.topic, {}).setdefault(key.broker_name, {})[str(key.queue_id)] = (
                runs
            )
        return nested

    def add(self, key: QueueKey, start: int, end: int) -> None:
        """Add the offsets [start, end) of a queue; an empty run adds nothing.

        Raises:
            OverlapError: one of them is there already; nothing was added.
        """
        if start >= end:
            return
        key = QueueKey(*key)
        self._refuse(key, start, end)
        starts = self._starts.setdefault(key, [])
        ends = self._ends.setdefault(key, [])
        place = bisect_left(starts, start)
        joins_left = place > 0 and ends[place - 1] == start
        joins_right = place < len(starts) and starts[place] == end
        if joins_left and joins_right:
            ends[place - 1] = ends.pop(place)
            del starts[place]
        elif joins_left:
            ends[place - 1] = end
        elif joins_right:
            starts[place] = start
        else:
            starts.insert(place, start)
            ends.insert(place, end)

    def add_all(self, other: Spans) -> None:
        """Add another's offsets.

        Raises:
            OverlapError: one of them is there already; nothing was added.
        """
        self.refuse_overlap(other)
        for key, start, end in other.items():
            self.add(key, start, end)

    def merge(self, key: QueueKey, start: int, end: int) -> None:
        """Add the offsets [start, end) of a queue that are not there yet."""
        for low, high in gaps(self.runs_within(key, start, end), start, end):
            self.add(key, low, high)

    def merge_all(self, other: Spans) -> None:
        """Add another's offsets that are not there yet."""
        for key, start, end in other.items():
            self.merge(key, start, end)

    def without(self, other: Spans) -> Spans:
        """Return these offsets but for another's."""
        return Spans.of(
            (key, low, high)
            for key, start, end in self.items()
            for low, high in gaps(other.runs_within(key, start, end), start, end)
        )

    def refuse_overlap(self, other: Spans) -> None:
        """Raise OverlapError if another has offsets that are here too."""
        for key, start, end in other.items():
            self._refuse(key, start, end)

    def _refuse(self, key: QueueKey, start: int, end: int) -> None:
        there = self.runs_within(key, start, end)
        if there:
            low, high = max(start, there[0][0]), min(end, there[0][1])
            raise OverlapError(f"{describe(key)}: offsets [{low}, {high}) are there already")

    def runs_within(self, key: QueueKey, start: int, end: int) -> list[Run]:
        """Return the runs that share an offset with [start, end), whole and rising."""
        starts, ends = self._starts.get(key, []), self._ends.get(key, [])
        if start >= end:
            return []
        first, last = bisect_right(ends, start), bisect_left(starts, end)
        return list(zip(starts[first:last], ends[first:last], strict=True))

    def runs(self, key: QueueKey) -> list[Run]:
        """Return a queue's runs, rising; none for a queue that is not there."""
        return list(zip(self._starts.get(key, ()), self._ends.get(key, ()), strict=True))

    def end(self, key: QueueKey) -> int | None:
        """Return the offset after a queue's last one."""
        ends = self._ends.get(key)
        return ends[-1] if ends else None

    def of_queues(self, keys: Iterable[QueueKey]) -> Spans:
        """Return the spans of some queues."""
        return Spans.of((key, *run) for key in keys for run in self.runs(key))

    def queues(self) -> list[QueueKey]:
        """Return the queues that have offsets, sorted."""
        return sorted(self._starts)

    def items(self) -> Iterator[tuple[QueueKey, int, int]]:
        """Yield every run."""
        for key in sorted(self._starts):
            for start, end in self.runs(key):
                yield key, start, end

    def copy(self) -> Spans:
        """Return spans of their own with the same offsets."""
        other = Spans()
        other._starts = {key: list(starts) for key, starts in self._starts.items()}
        other._ends = {key: list(ends) for key, ends in self._ends.items()}
        return other

    def run_count(self) -> int:
        """Return how many runs there are."""
        return sum(map(len, self._starts.values()))

    def count(self) -> int:
        """Return how many offsets there are."""
        return sum(end - start for _, start, end in self.items())

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __contains__(self, place: tuple[QueueKey, int]) -> bool:
        key, offset = place
        return bool(self.runs_within(key, offset, offset + 1))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Spans):
            return NotImplemented
        return self._starts == other._starts and self._ends == other._ends

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Spans({self.to_json()})"


def gaps(runs: Iterable[Run], start: int, end: int) -> list[Run]:
    """Return what rising runs leave out of [start, end)."""
    left: list[Run] = []
    for low, high in runs:
        if low > start:
            left.append((start, min(low, end)))
        start = max(start, high)
        if start >= end:
            return left
    return [*left, (start, end)] if start < end else left


def _flattened(document: object) -> Iterator[tuple[QueueKey, int, int]]:
    for topic, brokers in cast("Mapping[str, Any]", document).items():
        for broker, queues in brokers.items():
            for queue, runs in queues.items():
                for start, end in runs:
                    if type(start) is not int or type(end) is not int or not 0 <= start < end:
                        raise ValueError(f"[{start!r:.20}, {end!r:.20}) are no offsets")
                    yield QueueKey(topic, broker, queue_id_of(queue)), start, end
