"""Where reads start and end: as options say it, and as offsets."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from skylarkmq.client.errors import NotFound
from skylarkmq.spark.offsets import QueueKey, QueueOffsets
from skylarkmq.spark.option_reading import OptionError, OptionReader
from skylarkmq.spark.reading.positions import (
    EARLIEST,
    LATEST,
    POSITION_OPTIONS,
    Position,
    instant_ms,
    listed,
    read_ending,
    read_starting,
    resolve,
)
from tests.spark.support.fake_brokers import FakeBrokers

A0, A1, B0 = QueueKey("T", "a", 0), QueueKey("T", "a", 1), QueueKey("T", "b", 0)
QUEUES = [A0, A1, B0]


def cluster() -> FakeBrokers:
    brokers = FakeBrokers(QUEUES)
    for key, first, end in ((A0, 5, 20), (A1, 0, 7), (B0, 0, 0)):
        brokers.send(key, *range(end))
        brokers.queues[key].first = first
    brokers.times = {A0: [100 * n for n in range(20)], A1: [50] * 7}
    return brokers


def options(**given: object) -> OptionReader:
    texts = {name: json.dumps(v) if isinstance(v, dict) else str(v) for name, v in given.items()}
    return OptionReader(texts, [each.name for each in POSITION_OPTIONS])


def starting(*, streaming: bool = True, **given: object) -> Position:
    return read_starting(options(**given), streaming=streaming)


def resolved(position: Position, group: str = "g") -> QueueOffsets:
    return resolve(position, QUEUES, cluster(), group)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(OptionError) as error:
        call()
    return str(error.value)


def test_defaults() -> None:
    assert starting(streaming=True) == LATEST
    assert starting(streaming=False) == EARLIEST
    assert read_ending(options()) == LATEST


def test_words() -> None:
    assert resolved(starting(startingOffsets="Earliest")) == {A0: 5, A1: 0, B0: 0}
    assert resolved(starting(startingOffsets="latest")) == {A0: 20, A1: 7, B0: 0}
    assert resolved(read_ending(options(endingOffsets="latest"))) == {A0: 20, A1: 7, B0: 0}


def test_exact_offsets_and_marks() -> None:
    exact = {"T": {"a": {"0": 17, "1": -1}, "b": {"0": -2}}}
    assert resolved(starting(startingOffsets=exact)) == {A0: 17, A1: 7, B0: 0}
    exact = {"T": {"a": {"0": 17, "1": 3}, "b": {"0": -1}}}
    assert resolved(read_ending(options(endingOffsets=exact))) == {A0: 17, A1: 3, B0: 0}


def test_exact_offsets_name_all_queues_and_no_others() -> None:
    few = starting(startingOffsets={"T": {"a": {"0": 17}}})
    assert "leaves out T/a/1, T/b/0" in refusal(lambda: resolved(few))
    more = starting(startingOffsets={"T": {"a": {"0": 17, "1": 0, "2": 0}, "b": {"0": 0}}})
    assert "does not have: T/a/2" in refusal(lambda: resolved(more))


def test_a_start_behind_the_end_of_its_queue() -> None:
    far = starting(startingOffsets={"T": {"a": {"0": 21, "1": 7}, "b": {"0": 0}}})
    text = refusal(lambda: resolved(far))
    assert "queue 0 of topic T on broker a ends at 20, and 21 is asked for" in text


def test_a_time() -> None:
    at = starting(startingTimestamp=950, startingOffsetsByTimestampStrategy="latest")
    assert resolved(at) == {A0: 10, A1: 7, B0: 0}
    text = refusal(lambda: resolved(starting(startingTimestamp=950)))
    assert "in T/a/1, T/b/0" in text and "Strategy=latest" in text
    assert resolved(read_ending(options(endingTimestamp=50))) == {A0: 1, A1: 0, B0: 0}


def test_group() -> None:
    brokers = cluster()
    group = starting(startingOffsets="group")
    with pytest.raises(NotFound, match="group g has committed no offset"):
        resolve(group, QUEUES, brokers, "g")
    brokers.committed = {("g", A1): 4, ("other", A0): 9}
    assert resolve(group, QUEUES, brokers, "g") == {A0: 5, A1: 4, B0: 0}


@pytest.mark.parametrize(
    "value",
    ["latst", "[]", "{", "{}", {"T": 1}, {"T": {"a": {"x": 1}}}, {"T": {"a": {"0": -3}}},
     {"T": {"a": {"0": "1"}}}, {"T": {"a": {"0": True}}}, {"T": {"a": {"0": 1.0}}}],
)  # fmt: skip
def test_wrong_offsets(value: object) -> None:
    assert "startingOffsets" in refusal(lambda: starting(startingOffsets=value))


def test_what_cannot_be_a_start_or_an_end() -> None:
    for value in ("latest", {"T": {"a": {"0": -1}}}):
        text = refusal(lambda: starting(streaming=False, startingOffsets=value))  # noqa: B023
        assert "would read nothing" in text
    assert "latest or JSON" in refusal(lambda: read_ending(options(endingOffsets="earliest")))
    assert "latest or JSON" in refusal(lambda: read_ending(options(endingOffsets="group")))
    marked = {"T": {"a": {"0": -2}}}
    assert "no place to end" in refusal(lambda: read_ending(options(endingOffsets=marked)))


def test_contradictions() -> None:
    both = {"startingOffsets": "earliest", "startingTimestamp": 5}
    assert "exclude each other" in refusal(lambda: starting(**both))
    lonely = {"startingOffsetsByTimestampStrategy": "latest"}
    assert "goes with startingTimestamp" in refusal(lambda: starting(**lonely))
    ends = options(endingOffsets="latest", endingTimestamp=5)
    assert "exclude each other" in refusal(lambda: read_ending(ends))


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0", 0), ("1700000000000", 1_700_000_000_000), ("1970-01-01T00:00:01Z", 1000),
     ("1970-01-01T02:00:01+02:00", 1000), ("1970-01-01T00:00:00.0001Z", 1),
     ("1970-01-01 00:00:00.001Z", 1)],
)  # fmt: skip
def test_instants(text: str, ms: int) -> None:
    assert instant_ms(text) == ms


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "1.5", "1970-01-01T00:00:01", "9" * 30])
def test_no_instants(text: str) -> None:
    with pytest.raises(ValueError):
        instant_ms(text)


def test_long_lists_are_cut() -> None:
    queues = [QueueKey("T", "a", number) for number in range(9)]
    assert listed(queues).endswith("T/a/4 and 4 more")
