"""Records that are handed out again are checked alike on both roads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq import kernel
from skylarkmq.protocol.record import encode_record, intact_count, is_intact
from tests.store.support import BORN, HOST
from tests.support.amounts import examples

compiled: Any = kernel.compiled
pytestmark = pytest.mark.skipif(compiled is None, reason=kernel.why_pure)

HOSTS = st.sampled_from([BORN, HOST, bytes(range(20))])
TOPIC = b"TopicTest"
OWNER = (3, b"\x09TopicTest")
START, FIRST = 2**40, 77


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Records that are neighbours in log and queue; often one byte of them is wrong."""
    data = bytearray()
    for number in range(draw(st.integers(0, 3))):
        born_host, store_host = draw(HOSTS), draw(HOSTS)
        hosts = (len(born_host) == 20) << 4 | (len(store_host) == 20) << 5
        data += encode_record(
            queue_id=3,
            flag=draw(st.integers(-9, 9)),
            queue_offset=FIRST + number,
            physical_offset=START + len(data),
            sys_flag=draw(st.sampled_from([0, 1, 0x40])) | hosts,
            born_timestamp=1,
            born_host=born_host,
            store_timestamp=2,
            store_host=store_host,
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=draw(st.binary(max_size=30) | st.binary(min_size=60, max_size=300)),
            topic=TOPIC,
            properties=draw(st.binary(max_size=20)),
        )
    if data and draw(st.booleans()):
        data[draw(st.integers(0, len(data) - 1))] ^= draw(st.integers(1, 255))
    return bytes(data)


@examples(100, 1000)
@given(
    logs(),
    st.sampled_from([0, 0, 0, 1, -1, 5]),
    st.sampled_from([0, 0, 0, 1, -1, -7]),
    st.sampled_from([OWNER, OWNER, None, (4, OWNER[1]), (3, b"\x03abc")]),
    st.sampled_from([FIRST, FIRST, FIRST + 1]),
)
def test_records(
    data: bytes, position: int, spare: int, owner: tuple[int, bytes] | None, queue_offset: int
) -> None:
    end, place = len(data) + spare, START + position
    size = int.from_bytes(data[:4], "big", signed=True) + spare
    for buffer in (data, memoryview(data)):
        one = (buffer, position, size, place, queue_offset, owner)
        assert is_intact(*one) is kernel.twins["is_intact"](*one)
        if owner is not None:
            all_of_them = (buffer, position, end, place, queue_offset, owner)
            assert intact_count(*all_of_them) == kernel.twins["intact_count"](*all_of_them)


@given(logs())
def test_sound_records_are_counted(data: bytes) -> None:
    """Against a kernel that finds nothing sound."""
    if kernel.twins["intact_count"](data, 0, len(data), START, FIRST, OWNER) >= 0:
        assert compiled.intact_count(data, 0, len(data), START, FIRST, OWNER) >= 0
