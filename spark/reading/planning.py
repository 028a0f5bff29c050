"""How much of a backlog one batch takes, and how it is cut into tasks. Pure arithmetic."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping
from itertools import pairwise
from typing import TypeVar

from skylarkmq.spark.offsets import OffsetRange

K = TypeVar("K", bound=Hashable)


def shares(backlogs: Mapping[K, int], limit: int) -> dict[K, int]:
    """Share out `limit` by the size of each backlog; nobody gets more than he has.

    Each backlog above 0 gets at least 1, so that a short one beside a long one never starves: with
    more backlogs than `limit` the sum is their number. Else it is `limit`, or all there is. Equal
    backlogs give equal results in every call; the order of the keys decides who gets a remainder.
    """
    wanting = {key: size for key, size in backlogs.items() if size > 0}
    total = sum(wanting.values())
    if total <= limit:
        return {key: max(0, size) for key, size in backlogs.items()}
    given: dict[K, int] = {}
    rest, left = dict(wanting), limit
    while short := [key for key, size in rest.items() if left * size < total]:
        given.update(dict.fromkeys(short, 1))  # an exact share would be below 1
        left -= len(short)
        total -= sum(rest.pop(key) for key in short)
    given.update({key: left * size // total for key, size in rest.items()})
    spare = left - sum(given[key] for key in rest)
    by_remainder = sorted(rest, key=lambda key: left * rest[key] % total, reverse=True)
    for key in by_remainder[:spare]:
        given[key] += 1
    return {key: given.get(key, 0) for key in backlogs}


def split(
    ranges: Iterable[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[OffsetRange]:
    """Cut ranges so that there are `min_partitions` at least and none is above `max_records`.

    Together the pieces are the same messages in the same order, and no piece is empty. The pieces
    of one range differ by one message at most. There are fewer than `min_partitions` only when
    there are fewer messages.
    """
    full = [each for each in ranges if each.message_count > 0]
    pieces = _piece_counts(full, min_partitions or 0)
    if max_records is not None:
        pieces = {
            each: max(count, -(-each.message_count // max_records))
            for each, count in pieces.items()
        }
    return [part for each in full for part in _cut(each, pieces[each])]


def _piece_counts(ranges: list[OffsetRange], min_partitions: int) -> dict[OffsetRange, int]:
    """Return into how many pieces each range goes, so that the longest piece is short."""
    pieces = dict.fromkeys(ranges, 1)
    longest: list[tuple[float, OffsetRange]] = [
        (-each.message_count, each) for each in pieces if each.message_count > 1
    ]
    heapq.heapify(longest)
    for _ in range(min_partitions - len(pieces)):
        if not longest:
            break
        each = longest[0][1]
        count = pieces[each] = pieces[each] + 1
        if count < each.message_count:
            heapq.heapreplace(longest, (-each.message_count / count, each))
        else:
            heapq.heappop(longest)
    return pieces


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    edges = [whole.start + whole.message_count * index // count for index in range(count + 1)]
    return [whole._replace(start=start, end=end) for start, end in pairwise(edges)]
