"""The bytes between master and slave: any cut gives the same, and strangers are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.broker.base.ha_protocol import (
    PART_SIZE_MAX,
    HaProtocolError,
    LogPart,
    PartDecoder,
    ReportDecoder,
    encode_head,
    encode_report,
)

OFFSETS = st.integers(0, (1 << 63) - 1)
CUTS = st.lists(st.integers(1, 50), max_size=100)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    parts, place = list[bytes](), 0
    for size in cuts:
        parts.append(data[place : place + size])
        place += size
    return [*parts, data[place:]]


def test_the_layout() -> None:
    assert encode_report(258) == bytes((0, 0, 0, 0, 0, 0, 1, 2))
    assert encode_head(258, 3) == bytes((0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3))


@given(st.lists(OFFSETS, max_size=20), CUTS)
def test_reports_come_out_of_any_cut(offsets: list[int], cuts: list[int]) -> None:
    decoder = ReportDecoder()
    found: list[int] = []
    for piece in pieces(b"".join(map(encode_report, offsets)), cuts):
        found += decoder.feed(piece)
    assert found == offsets


@given(st.lists(st.tuples(OFFSETS, st.binary(max_size=60)), max_size=20), CUTS)
def test_parts_come_out_of_any_cut(sent: list[tuple[int, bytes]], cuts: list[int]) -> None:
    decoder = PartDecoder()
    found: list[LogPart] = []
    whole = b"".join(encode_head(offset, len(data)) + data for offset, data in sent)
    for piece in pieces(whole, cuts):
        found += decoder.feed(piece)
    assert found == sent


def test_a_stranger_is_no_slave() -> None:
    with pytest.raises(HaProtocolError, match="no slave"):
        ReportDecoder().feed(b"\xff" * 8)


@pytest.mark.parametrize(
    "head",
    [encode_head(-1, 5), encode_head(0, -1), encode_head(0, PART_SIZE_MAX + 1), b"HTTP/1.1 400"],
)
def test_a_stranger_is_no_master(head: bytes) -> None:
    with pytest.raises(HaProtocolError, match="no master"):
        PartDecoder().feed(head)


def test_the_largest_part_that_an_apache_slave_takes() -> None:
    data = bytes(PART_SIZE_MAX)
    assert PartDecoder().feed(encode_head(7, len(data)) + data) == [(7, data)]
