"""Pulled records: the kernel takes a pull's body apart as the Python road does, or leaves it to it.

What the kernel leaves alone must be refused by the Python road, or be unusual: of an IPv6 host.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq import kernel
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.record import HOSTS_BITS, RecordParts, encode_record, split_records
from skylarkmq.spark.reading import ranges
from tests.support.amounts import examples

compiled: Any = kernel.compiled
pytestmark = pytest.mark.skipif(compiled is None, reason=kernel.why_pure)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
HOSTS = st.sampled_from([b"\x7f\0\0\1\0\0\x2a\x9f", b"\x0a\0\0\7\xff\xff\xff\xff"])
TEXTS = st.sampled_from([b"TopicTest", b"", "Thé".encode(), b"\xff\xfe", b"t" * 127, b"\xe2\x82"])
PROPERTIES = TEXTS | st.sampled_from([b"TAGS\x01A\x02UNIQ_KEY\x017F", b"p" * 32767, b"a\0b"])
IPV6 = bytes(range(20))


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """One record, most of them without IPv6 hosts."""
    sys_flag = draw(INT32) & ~HOSTS_BITS
    if draw(st.integers(0, 9)) == 0:
        sys_flag |= draw(st.sampled_from([0x10, 0x20, 0x30]))
    return encode_record(
        queue_id=draw(INT32),
        flag=draw(INT32),
        queue_offset=draw(INT64),
        physical_offset=draw(INT64),
        sys_flag=sys_flag,
        born_timestamp=draw(INT64),
        born_host=IPV6 if sys_flag & 0x10 else draw(HOSTS),
        store_timestamp=draw(INT64),
        store_host=IPV6 if sys_flag & 0x20 else draw(HOSTS),
        reconsume_times=draw(INT32),
        prepared_transaction_offset=draw(INT64),
        body=draw(st.binary(max_size=40)),
        topic=draw(TEXTS),
        properties=draw(PROPERTIES),
    )


def with_topic_size(size: int) -> bytes:
    """A record whose lengths add up, with a topic of 127 bytes or more."""
    longer = size - 127
    properties = b"p" * max(0, longer - 2) + b"\0\5" * (longer > 0) + b"abcde"
    body = bytearray(
        encode_record(
            queue_id=0, flag=0, queue_offset=0, physical_offset=0, sys_flag=0, born_timestamp=0,
            born_host=bytes(8), store_timestamp=0, store_host=bytes(8), reconsume_times=0,
            prepared_transaction_offset=0, body=b"", topic=b"t" * 127, properties=properties,
        )
    )  # fmt: skip
    body[88] = size
    return bytes(body)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Bodies of pull answers, some of them cut, or with a byte that is wrong."""
    body = bytearray(b"".join(draw(st.lists(records(), max_size=4))))
    if body and draw(st.integers(0, 2)) == 0:
        # Most often among the fixed fields, and where the lengths are.
        place = draw(st.integers(0, min(len(body), 160) - 1) | st.integers(0, len(body) - 1))
        body[place] ^= draw(st.integers(1, 255))
    if body and draw(st.integers(0, 4)) == 0:
        del body[draw(st.integers(0, len(body) - 1)) :]
    return bytes(body)


@examples(100, 500)
@given(bodies())
def test_where_records_end(body: bytes) -> None:
    assert compiled.hop(body) == kernel.twins[ranges.hop.__name__](body)


def in_python(body: bytes, check_crc: bool) -> list[RecordParts] | None:
    """What the Python road makes of a body; None when it refuses it."""
    try:
        return kernel.twins["take_apart"](body, check_crc)  # type: ignore[no-any-return]
    except RemoteProtocolError:
        return None


@examples(120, 1500)
@given(bodies(), st.booleans())
def test_the_records_of_a_pull(body: bytes, check_crc: bool) -> None:
    taken = compiled.take_apart(body, check_crc)
    expected = in_python(body, check_crc)
    if taken is not None or expected is None:
        assert taken == expected
        return
    assert any(parts[5] & HOSTS_BITS for parts in expected), "only that is unusual"
    assert split_records(body, check_crc=check_crc) == expected


@pytest.mark.parametrize(("size", "fits"), [(127, True), (129, False), (255, False)])
def test_a_topic_has_at_most_127_bytes(size: int, fits: bool) -> None:
    body = with_topic_size(size)
    assert (compiled.take_apart(body, True) is not None) is fits
    assert (in_python(body, True) is not None) is fits


def test_a_refused_body_is_worded_by_the_python_road() -> None:
    with pytest.raises(RemoteProtocolError, match="the record at byte 0 cannot be decoded"):
        split_records(b"\0" * 100)
