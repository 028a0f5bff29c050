"""What a batch reads."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.client.errors import ConnectionFailed, NotFound
from skylarkmq.client.wire.api_consumer import KeyAnswer
from skylarkmq.spark.errors import DataLost
from skylarkmq.spark.offsets import OffsetRange, QueueKey
from skylarkmq.spark.option_reading import OptionError
from skylarkmq.spark.options import SourceOptions
from skylarkmq.spark.reading.key_lookup import KEYS_MAX, NEAR_MAX, parts_around
from skylarkmq.spark.reading.planning import BatchPlanner
from tests.spark.support.fake_brokers import FakeBrokers

A0, A1, B0 = QueueKey("T", "a", 0), QueueKey("T", "a", 1), QueueKey("T", "b", 0)


def cluster() -> FakeBrokers:
    brokers = FakeBrokers([A0, A1, B0])
    for key, first, end in ((A0, 5, 20), (A1, 0, 7), (B0, 0, 0)):
        brokers.send(key, *range(end))
        brokers.queues[key].first = first
    brokers.times = {A0: [100 * n for n in range(20)], A1: [50] * 7}
    return brokers


def plan(brokers: FakeBrokers | None = None, **given: object) -> list[OffsetRange]:
    texts = {name: json.dumps(v) if isinstance(v, dict) else str(v) for name, v in given.items()}
    options = SourceOptions.from_options(
        {"nameServer": "n:1", "topic": "T", **texts}, streaming=False
    )
    return BatchPlanner(brokers or cluster(), options).plan()


def exact(a0: int, a1: int, b0: int) -> dict[str, object]:
    return {"T": {"a": {"0": a0, "1": a1}, "b": {"0": b0}}}


def test_all_there_is() -> None:
    assert plan() == [OffsetRange(*A0, 5, 20), OffsetRange(*A1, 0, 7)]
    assert len(plan(minPartitions=9)) == 9
    assert max(each.message_count for each in plan(maxRecordsPerPartition=4)) == 4


def test_between_exact_offsets() -> None:
    ranges = plan(startingOffsets=exact(6, 7, -2), endingOffsets=exact(9, -1, 0))
    assert ranges == [OffsetRange(*A0, 6, 9)]


def test_between_times() -> None:
    ranges = plan(
        startingTimestamp=1000, startingOffsetsByTimestampStrategy="latest", endingTimestamp=1200
    )
    assert ranges == [OffsetRange(*A0, 10, 12)]
    assert plan(startingTimestamp=1700, startingOffsetsByTimestampStrategy="latest",
                endingTimestamp=1200) == []  # fmt: skip


def test_a_start_behind_its_end() -> None:
    with pytest.raises(OptionError, match=r"queue 0 of topic T on broker a starts at 9 and ends"):
        plan(startingOffsets=exact(9, 0, 0), endingOffsets=exact(8, -1, -1))
    with pytest.raises(OptionError, match="ends at 20, and 21 is asked for"):
        plan(startingOffsets=exact(21, 0, 0))


def test_expired() -> None:
    with pytest.raises(DataLost) as error:
        plan(startingOffsets=exact(2, 0, 0))
    assert (error.value.wanted, error.value.available, error.value.lost) == (2, 5, 3)
    assert plan(startingOffsets=exact(2, 0, 0), failOnDataLoss=False)[0].start == 5
    assert plan(startingOffsets=exact(2, 7, 0), endingOffsets=exact(4, 7, 0),
                failOnDataLoss=False) == []  # fmt: skip


def test_an_end_too_far() -> None:
    with pytest.raises(OptionError, match="ends at 20, and 25 is asked for"):
        plan(endingOffsets=exact(25, -1, -1))
    assert plan(endingOffsets=exact(25, 0, -1), failOnDataLoss=False) == [OffsetRange(*A0, 5, 20)]


def keyed(brokers: FakeBrokers, *values: str) -> list[OffsetRange]:
    return plan(brokers, keys=",".join(values))


def test_keys_are_looked_up() -> None:
    brokers = cluster()
    brokers.keys = {("a", "k"): KeyAnswer([(0, 4), (0, 7), (1, 2), (9, 9), (0, 20)], True),
                    ("a", "z"): KeyAnswer([(0, 8)], True)}  # fmt: skip
    assert keyed(brokers, "k") == [OffsetRange(*A0, 7, 8), OffsetRange(*A1, 2, 3)]
    assert [text for text in brokers.asked if "key" in text] == ["key a k"], "once a broker"
    assert keyed(brokers, " z", "k") == [OffsetRange(*A0, 7, 9), OffsetRange(*A1, 2, 3)]
    assert keyed(brokers, "nowhere") == []


@given(st.sets(st.integers(0, 250)))
def test_offsets_near_each_other_go_together(offsets: set[int]) -> None:
    parts = parts_around(offsets)
    covered = [at for low, high in parts for at in range(low, high)]
    assert covered == sorted(set(covered)), "in order, and none twice"
    assert offsets <= set(covered)
    assert offsets >= {low for low, _ in parts} | {high - 1 for _, high in parts}
    assert all(later - high >= NEAR_MAX for (_, high), (later, _) in pairwise(parts))


@pytest.mark.parametrize("value", ["\ufffd", "k\ufffd"])
def test_a_value_that_no_index_can_have_is_read_for(value: str) -> None:
    assert keyed(cluster(), value, "k") == plan()


def test_more_keys_than_are_worth_it_are_read_for() -> None:
    brokers = cluster()
    assert keyed(brokers, *map(str, range(KEYS_MAX + 1))) == plan()
    assert not [text for text in brokers.asked if "key" in text]


def test_an_index_that_may_lack_messages_is_not_believed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers = cluster()
    brokers.keys = {("a", "k"): KeyAnswer([(0, 7)], False), ("a", "z"): KeyAnswer([(0, 8)], True)}
    assert keyed(brokers, "k") == keyed(brokers, "z", "k") == plan()
    assert "topic T on broker a is read to find keys" in caplog.text


def test_a_broker_that_refuses_the_question_is_read() -> None:
    class Refusing(FakeBrokers):
        def places_of(self, queue: QueueKey, key: str) -> KeyAnswer:
            raise ConnectionFailed(queue.broker_name, "refused")

    brokers = cluster()
    brokers.__class__ = Refusing
    assert keyed(brokers, "k") == plan()


def test_what_does_not_exist() -> None:
    with pytest.raises(NotFound, match="topic T does not exist"):
        plan(FakeBrokers())


def test_from_a_group_that_stands_behind_the_end() -> None:
    """Its topic was made anew: not nothing to read, but a loss."""
    brokers = cluster()
    brokers.committed = {("g", A0): 25, ("g", A1): 9, ("g", B0): 0}
    given = {"startingOffsets": "group", "consumerGroup": "g"}
    with pytest.raises(DataLost, match=r"wanted from queue offset 25, available up to 20.*anew"):
        plan(brokers, **given)
    assert plan(brokers, **given, failOnDataLoss=False) == [OffsetRange(*A1, 0, 7)]
    brokers.committed = {("g", A0): 20, ("g", A1): 6, ("g", B0): 0}
    assert plan(brokers, **given) == [OffsetRange(*A1, 6, 7)]
