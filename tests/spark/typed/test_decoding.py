"""What the decoder does whatever the format: packed and damaged bodies, rows that stay in place."""

import sys
from zlib import crc32

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.common.extras import how_to_install
from skylarkmq.protocol.compression import CompressionKind, compress, compression_flags
from skylarkmq.spark.typed.decoding import BodyDecoder
from skylarkmq.spark.typed.topic_schema import TopicSchema
from tests.spark.support.typed_values import decoded

JSON = BodyDecoder(TopicSchema("json", columns={"id": "tinyint", "when": "timestamp(s)"}))
GOOD = b'{"id": 1}'


def batch(*rows: tuple[bytes, int, int]) -> pa.RecordBatch:
    """Bodies as the source gives them, their system flags, and the checksums of what is stored."""
    bodies, flags, sums = zip(*rows, strict=True)
    return pa.record_batch(
        {
            "body": pa.array(bodies, pa.binary()),
            "sysFlag": pa.array(flags, pa.int32()),
            "bodyCRC": pa.array(sums, pa.int32()),
        }
    )


def crc(body: bytes) -> int:
    return crc32(body) & 0x7FFFFFFF


@pytest.mark.parametrize("kind", list(CompressionKind))
def test_a_body_that_the_source_unpacked(kind: CompressionKind) -> None:
    stored = compress(GOOD, kind)
    found = JSON.decode(batch((GOOD, compression_flags(kind), crc(stored)), (GOOD, 0, crc(GOOD))))
    assert found.quarantine.to_pylist() == [None, None]


def test_bodies_that_it_left_as_they_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    packed = compress(GOOD, CompressionKind.LZ4)
    cut = packed[:-3]
    flags = compression_flags(CompressionKind.ZSTD)
    found = JSON.decode(
        batch(
            (packed, flags, crc(packed)),
            (cut, compression_flags(CompressionKind.LZ4), crc(cut)),
            (b"plain", compression_flags(CompressionKind.ZLIB), crc(b"plain")),
            (GOOD, compression_flags(CompressionKind.ZLIB) | 0x400, crc(GOOD)),
            (GOOD, 0, crc(GOOD) ^ 1),
        )
    )
    assert found.value.null_count == 5
    missing, short, wrong, unknown, damaged = found.quarantine.to_pylist()
    cure = how_to_install("compression")
    assert missing == f"ZSTD bodies need a library that is not here: {cure}"
    assert "compressed body is cut" in short
    assert "zlib body is damaged" in wrong
    assert "no compression format has number 7" in unknown
    assert damaged == "the body's checksum is wrong"


@pytest.mark.parametrize("seconds", [-62135596801, 253402300800, 1_769_846_400_000])
def test_a_time_that_is_none(seconds: int) -> None:
    """The last is in milliseconds: a wrong unit shows itself."""
    found = decoded(JSON, b'{"when": %d}' % seconds, b'{"when": 253402300799}')
    assert found.quarantine.to_pylist() == [
        "JSON: a timestamp is not within the years 1 to 9999",
        None,
    ]


bodies = st.one_of(
    st.none(),
    st.binary(max_size=12),
    st.builds(
        lambda number, when: msgspec.json.encode({"id": number, "when": when}),
        st.integers(-200, 200) | st.text(max_size=3),
        st.integers(-(2**63), 2**63 - 1),
    ),
)


@given(st.lists(bodies, max_size=12))
def test_each_row_is_as_if_it_were_alone(found: list[bytes | None]) -> None:
    together = decoded(JSON, *found)
    assert len(together.value) == len(together.quarantine) == len(found)
    rows = list(zip(together.value.to_pylist(), together.quarantine.to_pylist(), strict=True))
    alone = [decoded(JSON, body) for body in found]
    assert rows == [(each.value.to_pylist()[0], each.quarantine.to_pylist()[0]) for each in alone]
    assert all((value is None) != (reason is None) for value, reason in rows)


def test_text() -> None:
    reader = BodyDecoder(TopicSchema("text"))
    found = decoded(reader, "naïve".encode(), b"\xff", b"", None)
    assert found.value.to_pylist() == [{"text": "naïve"}, None, {"text": ""}, None]
    assert found.quarantine.to_pylist()[1].startswith("text: 'utf-8' codec can't decode byte 0xff")
