"""The property text: as a map, and searched as bytes; both see the same."""

import pytest

from skylarkmq.protocol.properties import (
    RESERVED_NAMES,
    RESERVED_NAMES_5,
    decode_properties,
    encode_properties,
    find_property,
    join_properties,
    with_property,
    without_property,
)
from tests.protocol.message_vectors import RECORDS

CASES: list[tuple[str, dict[str, str]]] = [
    ("", {}),
    ("a\x01b", {"a": "b"}),
    ("a\x01b\x02", {"a": "b"}),
    ("a\x01b\x02\x02", {"a": "b"}),
    ("\x02a\x01b", {"a": "b"}),
    ("\x02\x02\x02", {}),
    ("a\x01b\x02c\x01d", {"a": "b", "c": "d"}),
    ("a\x01b\x02a\x01c", {"a": "c"}),
    ("a\x01b\x02a\x01", {"a": "b"}),
    ("a\x01", {}),
    ("\x01b", {}),
    ("\x01bcd", {}),
    ("\x01", {}),
    ("abc", {}),
    ("abc\x02d\x01e", {"d": "e"}),
    ("a\x01b\x01c", {"a": "b\x01c"}),
    ("a\x01\x01", {"a": "\x01"}),
    ("TAGS\x01订单\x02KEYS\x01😀 k", {"TAGS": "订单", "KEYS": "😀 k"}),
    ("XTAGS\x01x\x02TAGS\x01y", {"XTAGS": "x", "TAGS": "y"}),
    ("TAGS\x01y\x02XTAGS\x01x", {"XTAGS": "x", "TAGS": "y"}),
    ("A\x01TAGS\x01y", {"A": "TAGS\x01y"}),
    ("TAGSX\x01y", {"TAGSX": "y"}),
    ("TAGS", {}),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_reading_and_searching_agree(text: str, expected: dict[str, str]) -> None:
    assert decode_properties(text) == expected
    data = text.encode()
    for name in {"a", "c", "d", "A", "TAGS", "XTAGS", "TAGSX", "KEYS", "TAG", *expected}:
        found = find_property(data, name.encode() + b"\x01")
        assert (None if found is None else found.decode()) == expected.get(name), name


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_what_was_read_is_written_back(text: str, expected: dict[str, str]) -> None:
    assert decode_properties(encode_properties(expected)) == expected


@pytest.mark.parametrize("vector", RECORDS)
def test_rocketmqs_texts(vector: dict[str, list[list[str]]]) -> None:
    pairs = dict(vector["properties"])
    text = encode_properties(pairs)
    assert decode_properties(text) == pairs
    for name, value in pairs.items():
        assert find_property(text.encode(), name.encode() + b"\x01") == value.encode()


def test_writing_ends_without_a_separator_and_leaves_empty_pairs_out() -> None:
    assert encode_properties({"a": "1", "b": "", "": "x", "c": "2"}) == "a\x011\x02c\x012"
    assert encode_properties({}) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", b""),
        (b"WAIT\x01true", b""),
        (b"A\x01b\x02WAIT\x01true", b"A\x01b"),
        (b"WAIT\x01true\x02A\x01b", b"A\x01b"),
        (b"A\x01b\x02WAIT\x01true\x02C\x01d", b"A\x01b\x02C\x01d"),
        (b"A\x01b\x02WAIT\x01true\x02", b"A\x01b\x02"),
        (b"WAIT\x01true\x02WAIT\x01true", b""),
        (b"AWAIT\x01true", b"AWAIT\x01true"),
        (b"A\x01WAIT\x01b", b"A\x01WAIT\x01b"),
        (b"A\x01b\x02\xff\x01\xfe", b"A\x01b\x02\xff\x01\xfe"),
    ],
)
def test_taking_a_property_out(text: bytes, expected: bytes) -> None:
    assert without_property(text, b"WAIT") == expected
    assert find_property(expected, b"WAIT\x01") is None


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        (b"", b"v", b"N\x01v"),
        (b"A\x01b", b"v", b"A\x01b\x02N\x01v"),
        (b"A\x01b\x02", b"v", b"A\x01b\x02N\x01v"),
        (b"N\x01old\x02A\x01b", b"v", b"A\x01b\x02N\x01v"),
        (b"N\x01old", b"v", b"N\x01v"),
        (b"N\x01old\x02A\x01b", b"", b"A\x01b"),
    ],
)
def test_setting_a_property(text: bytes, value: bytes, expected: bytes) -> None:
    assert with_property(text, b"N", value) == expected


@pytest.mark.parametrize(
    ("inner", "batch_level", "expected"),
    [
        (b"", b"", b""),
        (b"a\x01b", b"", b"a\x01b"),
        (b"", b"c\x01d", b"c\x01d"),
        (b"a\x01b", b"c\x01d", b"a\x01b\x02c\x01d"),
        (b"a\x01b\x02", b"c\x01d", b"a\x01b\x02c\x01d"),
    ],
)
def test_the_batchs_properties_follow_the_messages(
    inner: bytes, batch_level: bytes, expected: bytes
) -> None:
    assert join_properties(inner, batch_level) == expected


def test_the_names_that_users_may_not_take() -> None:
    assert {"KEYS", "TAGS", "WAIT", "DELAY", "UNIQ_KEY", "TRAN_MSG", "REAL_QID"} <= RESERVED_NAMES
    assert not {"__SHARDINGKEY", "INNER_MULTI_DISPATCH", "n"} & RESERVED_NAMES
    assert {"TIMER_DELIVER_MS", "1ST_POP_TIME", "__BORNHOST", "KEYS"} <= RESERVED_NAMES_5
    assert not {"__SHARDINGKEY", "TRACE_CONTEXT", "n"} & RESERVED_NAMES_5
