"""Shares of a limit, cuts of ranges, and the ranges of a task."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.spark.offsets import OffsetRange
from skylarkmq.spark.reading.planning import pack, shares, split

BACKLOGS = st.dictionaries(st.integers(0, 40), st.integers(-3, 10**6), max_size=12)
RANGES = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 10**9), st.integers(0, 5000)), max_size=8
).map(lambda rows: [OffsetRange("T", "b", q, at, at + count) for q, at, count in rows])


@given(BACKLOGS, st.integers(1, 10**6))
def test_shares(backlogs: dict[int, int], limit: int) -> None:
    given_shares = shares(backlogs, limit)
    wanting = {key: size for key, size in backlogs.items() if size > 0}
    assert list(given_shares) == list(backlogs)
    assert all(1 <= given_shares[key] <= size for key, size in wanting.items())
    assert all(given_shares[key] == 0 for key in backlogs.keys() - wanting.keys())
    assert sum(given_shares.values()) == min(sum(wanting.values()), max(limit, len(wanting)))
    assert shares(backlogs, limit) == given_shares


@given(
    st.dictionaries(st.integers(0, 40), st.integers(1, 10**6), min_size=1), st.integers(1, 10**6)
)
def test_shares_follow_the_backlogs(backlogs: dict[int, int], limit: int) -> None:
    given_shares = shares(backlogs, limit)
    for one in backlogs:
        for other in backlogs:
            if backlogs[one] > backlogs[other]:
                assert given_shares[one] >= given_shares[other] - 1


def test_shares_by_example() -> None:
    assert shares({"a": 900, "b": 90, "c": 10}, 100) == {"a": 90, "b": 9, "c": 1}
    assert shares({"a": 10**9, "b": 1}, 2) == {"a": 1, "b": 1}
    assert shares({"a": 5, "b": 5, "c": 5}, 2) == {"a": 1, "b": 1, "c": 1}
    assert shares({}, 5) == {}


@given(RANGES, st.none() | st.integers(1, 60), st.none() | st.integers(1, 700))
def test_split(
    ranges: list[OffsetRange], min_partitions: int | None, max_records: int | None
) -> None:
    pieces = split(ranges, min_partitions=min_partitions, max_records=max_records)
    total = sum(each.message_count for each in ranges)
    assert all(each.message_count > 0 for each in pieces)
    assert max_records is None or all(each.message_count <= max_records for each in pieces)
    assert len(pieces) >= min(min_partitions or 0, total)
    joined: list[OffsetRange] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last is not None and last[:3] == piece[:3] and last.end == piece.start:
            joined[-1] = last._replace(end=piece.end)
        else:
            joined.append(piece)
    whole: list[OffsetRange] = []
    for each in ranges:
        if each.message_count > 0:
            if whole and whole[-1][:3] == each[:3] and whole[-1].end == each.start:
                whole[-1] = whole[-1]._replace(end=each.end)
            else:
                whole.append(each)
    assert joined == whole


def test_split_by_example() -> None:
    long, short = OffsetRange("T", "b", 0, 0, 900), OffsetRange("T", "b", 1, 5, 105)
    assert split([long, short]) == [long, short]
    pieces = split([long, short], min_partitions=10)
    assert [(each.queue_id, each.message_count) for each in pieces] == [
        *[(0, 100)] * 9,
        (1, 100),
    ]
    assert [each.message_count for each in split([short], max_records=40)] == [33, 33, 34]


SHORT = st.lists(st.integers(1, 40), max_size=30).map(
    lambda counts: [OffsetRange("T", "b", q, q, q + count) for q, count in enumerate(counts)]
)


@given(SHORT, st.integers(1, 60), st.none() | st.integers(1, 12), st.none() | st.integers(1, 12))
def test_pack(ranges: list[OffsetRange], together: int, low: int | None, high: int | None) -> None:
    if low is not None and high is not None and low > high:
        low, high = high, low
    tasks = pack(ranges, together=together, min_partitions=low, max_partitions=high)
    assert sorted(each for task in tasks for each in task) == ranges
    assert all(task and list(task) == sorted(task) for task in tasks) and tasks == sorted(tasks)
    assert len(tasks) >= min(low or 0, len(ranges))
    assert high is None or len(tasks) <= high
    sizes = [sum(each.message_count for each in task) for task in tasks]
    if high is None:
        assert all(size <= together for size, task in zip(sizes, tasks, strict=True) if task[1:])
    if ranges and (len(tasks) == high or len(tasks) == low) and together == 1:
        longest = max(each.message_count for each in ranges)
        assert max(sizes) <= min(sizes) + longest, "they have about equally much"


def test_pack_by_example() -> None:
    ranges = [OffsetRange("T", "b", q, 0, count) for q, count in enumerate((3, 3, 500, 3, 3))]
    assert pack(ranges, together=10) == [(*ranges[:2],), (ranges[2],), (*ranges[3:],)]
    assert pack(ranges, together=1000) == [(*ranges,)]
    assert pack(ranges, together=1000, min_partitions=2) == [
        (ranges[0], ranges[1], ranges[3], ranges[4]),
        (ranges[2],),
    ]
    assert len(pack(ranges, together=10, max_partitions=1)) == 1
    assert pack([], together=10, min_partitions=2, max_partitions=3) == []
