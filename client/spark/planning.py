"""How much of a backlog one batch takes, and how it is cut into tasks. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import pairwise
from typing import TypeVar

from skylarkmq.client.spark.offsets import OffsetRange

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
    spare = max(0, limit - len(wanting))  # beside the one that each has for certain
    rest = total - len(wanting)
    exact = {key: spare * (size - 1) for key, size in wanting.items()}  # in units of 1 / rest
    given = {key: 1 + part // rest if rest else 1 for key, part in exact.items()}
    left = spare - sum(given.values()) + len(given)
    by_remainder = sorted(wanting, key=lambda key: exact[key] % rest if rest else 0, reverse=True)
    for key in by_remainder[:left]:
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
    pieces = dict.fromkeys(full, 1)
    if min_partitions is not None:
        pieces = shares({each: each.message_count for each in full}, min_partitions)
    if max_records is not None:
        pieces = {
            each: max(count, -(-each.message_count // max_records))
            for each, count in pieces.items()
        }
    return [part for each in full for part in _cut(each, pieces[each])]


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    edges = [whole.start + whole.message_count * index // count for index in range(count + 1)]
    return [whole._replace(start=start, end=end) for start, end in pairwise(edges)]
