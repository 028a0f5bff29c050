"""Queue offsets: their JSON, their order, and what is refused."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.protocol.fingerprint import Fingerprint
from skylarkmq.spark.offsets import (
    INT64_MAX,
    OffsetFormatError,
    OffsetRange,
    QueueKey,
    QueueOffsets,
)

NAMES = st.text("abzT%-_0", min_size=1, max_size=4)
KEYS = st.builds(QueueKey, NAMES, NAMES, st.integers(0, 2**31 - 1))
PRINT = Fingerprint(41088, 1767225600000, 7)
OFFSETS = st.dictionaries(KEYS, st.integers(0, INT64_MAX), max_size=12)


def test_layout() -> None:
    offsets = QueueOffsets({("T", "broker-a", 1): 4, ("T", "broker-a", 0): 17})
    assert offsets.text() == '{"o":{"T":{"broker-a":{"0":17,"1":4}}},"v":1}'
    assert offsets.to_json() == {"v": 1, "o": {"T": {"broker-a": {"0": 17, "1": 4}}}}


def test_layout_with_the_messages_before() -> None:
    queue = ("T", "broker-a", 0)
    offsets = QueueOffsets({queue: 17, ("T", "broker-a", 1): 4}).knowing({queue: PRINT})
    assert offsets.text() == (
        '{"f":{"T":{"broker-a":{"0":[41088,1767225600000,7]}}},'
        '"o":{"T":{"broker-a":{"0":17,"1":4}}},"v":2}'
    )
    assert list(offsets.to_json()) == ["v", "o", "f"]
    assert QueueOffsets.from_json(offsets.text()).before == {queue: PRINT}
    assert offsets == {queue: 17, ("T", "broker-a", 1): 4}
    assert offsets != QueueOffsets({queue: 17, ("T", "broker-a", 1): 4})


def test_messages_before_go_with_their_offsets() -> None:
    first, second, third = (QueueKey("T", "b", number) for number in range(3))
    prints = dict.fromkeys((first, second, third), PRINT)
    offsets = QueueOffsets({first: 1, second: 2, third: 0}, prints)
    assert offsets.before.keys() == {first, second}, "nothing stands before the first message"
    assert offsets.updated({first: 1}).before.keys() == {second}
    assert offsets.without([second]).before.keys() == {first}
    assert QueueOffsets(offsets).before == offsets.before


@given(OFFSETS, st.sets(KEYS))
def test_there_and_back(offsets: dict[QueueKey, int], known: set[QueueKey]) -> None:
    found = QueueOffsets(offsets).knowing(dict.fromkeys({*list(offsets)[:3], *known}, PRINT))
    assert QueueOffsets.from_json(found.text()) == found == offsets
    assert QueueOffsets.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert pickle.loads(pickle.dumps(found)) == found


@given(OFFSETS.flatmap(lambda offsets: st.tuples(st.just(offsets), st.permutations(list(offsets)))))
def test_equal_offsets_have_equal_bytes(
    drawn: tuple[dict[QueueKey, int], list[QueueKey]],
) -> None:
    offsets, order = drawn
    shuffled = QueueOffsets({key: offsets[key] for key in order})
    # Spark writes `json.dumps` of what it is given, without sorting, and compares the texts.
    assert json.dumps(shuffled.to_json()) == json.dumps(QueueOffsets(offsets).to_json())
    assert hash(shuffled) == hash(QueueOffsets(offsets))


@given(OFFSETS, OFFSETS)
def test_updated_and_without(first: dict[QueueKey, int], second: dict[QueueKey, int]) -> None:
    offsets = QueueOffsets(first)
    assert offsets.updated(second) == {**first, **second}
    assert offsets.without(second) == {k: v for k, v in first.items() if k not in second}
    assert offsets == first


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "1",
        "{}",
        '{"v":2,"o":{}}',
        '{"v":1,"o":{},"f":{}}',
        '{"v":3,"o":{},"f":{}}',
        '{"v":2,"o":{},"f":[]}',
        '{"v":2,"o":{},"f":{"T":{"b":{"0":[1,2]}}}}',
        '{"v":2,"o":{},"f":{"T":{"b":{"0":[1,2,true]}}}}',
        '{"v":2,"o":{},"f":{"T":{"b":{"0":[1,2,-1]}}}}',
        '{"v":2,"o":{},"f":{"T":{"b":{"0":[1,2,9223372036854775808]}}}}',
        '{"v":true,"o":{}}',
        '{"v":"1","o":{}}',
        '{"v":1}',
        '{"v":1,"o":{},"x":1}',
        '{"v":1,"o":[]}',
        '{"v":1,"o":{"T":1}}',
        '{"v":1,"o":{"T":{"b":1}}}',
        '{"v":1,"o":{"":{"b":{"0":1}}}}',
        '{"v":1,"o":{"T":{"b":{"0":-1}}}}',
        '{"v":1,"o":{"T":{"b":{"0":1.5}}}}',
        '{"v":1,"o":{"T":{"b":{"0":true}}}}',
        '{"v":1,"o":{"T":{"b":{"0":"1"}}}}',
        '{"v":1,"o":{"T":{"b":{"00":1}}}}',
        '{"v":1,"o":{"T":{"b":{"-1":1}}}}',
        '{"v":1,"o":{"T":{"b":{"x":1}}}}',
        '{"v":1,"o":{"T":{"b":{"\\u0661":1}}}}',
        '{"v":1,"o":{"T":{"b":{"2147483648":1}}}}',
        '{"v":1,"o":{"T":{"b":{"0":9223372036854775808}}}}',
        "[" * 100_000,
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(OffsetFormatError):
        QueueOffsets.from_json(text)


def test_a_newer_version_says_what_it_is() -> None:
    with pytest.raises(OffsetFormatError, match="version 3 cannot be read"):
        QueueOffsets.from_json('{"v":3,"o":{}}')


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
DOCUMENTS = st.recursive(
    LEAVES, lambda inner: st.dictionaries(st.sampled_from("vo0T"), inner, max_size=3)
)


@given(DOCUMENTS)
def test_any_document_is_read_or_refused(document: object) -> None:
    try:
        QueueOffsets.from_json(document)  # type: ignore[arg-type]
    except OffsetFormatError:
        return


def test_range() -> None:
    whole = OffsetRange("T", "broker-a", 3, 10, 15)
    assert (whole.message_count, whole.key) == (5, QueueKey("T", "broker-a", 3))
    assert str(whole) == "queue 3 of topic T on broker broker-a [10, 15)"
    assert pickle.loads(pickle.dumps(whole)) == whole
