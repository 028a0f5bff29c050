"""RocketMQ's binary header: what the kernel reads of a send is what Python reads, or nothing."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylarkmq import kernel
from skylarkmq.protocol import header_rocketmq

assert header_rocketmq.letter_values, "the twins are known once they are imported"
compiled: Any = kernel.compiled
pytestmark = pytest.mark.skipif(compiled is None, reason=kernel.why_pure)

KEYS = st.sampled_from([b"a", b"b", b"n", b"o", b"A", b"aa", b"", b"\xc3"])
VALUES = st.one_of(st.just(b""), st.text(max_size=5).map(str.encode), st.binary(max_size=5))
ENTRIES = st.builds(
    lambda key, value: struct.pack(">h", len(key)) + key + struct.pack(">i", len(value)) + value,
    KEYS,
    VALUES,
)
BLOCKS = st.builds(
    lambda entries, rest: b"".join(entries) + rest,
    st.lists(ENTRIES, max_size=16),
    st.one_of(st.just(b""), st.just(bytes(6)), st.binary(max_size=8)),
)


@settings(max_examples=500)
@given(BLOCKS, st.binary(max_size=3), st.binary(max_size=3))
def test_values_of_a_block(block: bytes, before: bytes, behind: bytes) -> None:
    data, end = before + block + behind, len(before) + len(block)
    made = compiled.letter_values(data, len(before), end)
    if made is not None:
        assert made == kernel.twins["letter_values"](data, len(before), end)


def test_what_is_plain_is_read() -> None:
    """Against a kernel that is so careful that it reads nothing."""
    entries = [b"\0\1" + bytes([letter]) + b"\0\0\0\2\xc3\xa9" for letter in b"abcdefghijklmn"]
    block = b"".join(entries)
    assert compiled.letter_values(block, 0, len(block)) == ("é",) * 14


def test_nothing_is_read_outside_of_the_block() -> None:
    entry = b"\0\1a\0\0\0\1x"
    for size in range(1, len(entry)):
        assert compiled.letter_values(entry, 0, size) is None
    assert compiled.letter_values(entry, 0, len(entry) + 1) is None
    assert compiled.letter_values(entry, -1, len(entry)) is None
    assert compiled.letter_values(entry, 5, 4) is None
    assert compiled.letter_values(b"\0\1a\xff\xff\xff\xffx", 0, 8) is None
    many = entry * 1025
    assert compiled.letter_values(many, 0, len(many)) is None
