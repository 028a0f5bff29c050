"""Compressed bodies: every format, every kind of damage, and a cap that holds."""

import sys
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from skylarkmq.common.extras import how_to_install
from skylarkmq.protocol import compression
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.compression import (
    CompressionKind,
    CompressionUnavailableError,
    compress,
    compression_flags,
    decompress,
    looks_compressed,
)
from skylarkmq.protocol.errors import LocalProtocolError, RemoteProtocolError

BODY = b"SkylarkMQ keeps its promises. " * 200
CAP = 1 << 20

pytest.importorskip("lz4.frame", reason="the extra `compression` is not installed")
zstandard: Any = pytest.importorskip("zstandard", reason="the extra `compression` is not installed")


def refused(body: bytes, sys_flag: int, max_size: int = CAP) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decompress(body, sys_flag, max_size)
    assert caught.value.response_code == ResponseCode.MESSAGE_ILLEGAL
    assert len(caught.value.remark) <= 1024


@pytest.mark.parametrize("kind", CompressionKind)
@pytest.mark.parametrize("body", [b"", b"x", BODY, bytes(range(256)) * 300])
def test_both_ways(kind: CompressionKind, body: bytes) -> None:
    opened = decompress(compress(body, kind), compression_flags(kind), CAP)
    assert opened == body
    assert type(opened) is bytes


def test_the_flags_of_each_kind() -> None:
    assert [compression_flags(kind) for kind in CompressionKind] == [0x101, 0x201, 0x301]


@pytest.mark.parametrize("sys_flag", [0, 0x300, 0x30, 0x2])
def test_without_the_compression_bit_the_body_stays(sys_flag: int) -> None:
    assert decompress(BODY, sys_flag, 1) is BODY


@pytest.mark.parametrize("sys_flag", [0x1, 0x301, 0x1 | 0x3C, 0x331])
def test_zlib_goes_by_two_numbers(sys_flag: int) -> None:
    assert decompress(zlib.compress(BODY), sys_flag, CAP) == BODY


@pytest.mark.parametrize("kind", CompressionKind)
def test_a_compressed_body_is_known_by_its_first_bytes(kind: CompressionKind) -> None:
    flags = compression_flags(kind)
    for body in (b"", b"x", BODY):
        for level in (1, 5, 9):
            packed = compress(body, kind, level)
            assert looks_compressed(packed, flags)
            assert looks_compressed(memoryview(packed), flags)
            assert not looks_compressed(packed[:1], flags)
            assert not looks_compressed(b"\x00" + packed, flags)
    for body in (b"", b"x", BODY, b'{"order": 7}', bytes(40)):
        assert not looks_compressed(body, flags)
        assert not looks_compressed(compress(BODY), 5 << 8 | 1)


@pytest.mark.parametrize("number", [4, 5, 6, 7])
def test_unknown_formats_are_refused(number: int) -> None:
    refused(zlib.compress(BODY), number << 8 | 1)


@pytest.mark.parametrize("kind", CompressionKind)
def test_a_cut_body_is_refused_at_every_byte(kind: CompressionKind) -> None:
    packed = compress(BODY, kind)
    for size in range(len(packed)):
        refused(packed[:size], compression_flags(kind))


@pytest.mark.parametrize("kind", CompressionKind)
def test_bytes_behind_a_body_are_refused(kind: CompressionKind) -> None:
    refused(compress(BODY, kind) + b"\x00", compression_flags(kind))


@pytest.mark.parametrize("kind", CompressionKind)
def test_no_flipped_bit_lets_another_error_out(kind: CompressionKind) -> None:
    packed = compress(BODY, kind)
    for position in range(len(packed)):
        for bit in range(8):
            flipped = bytearray(packed)
            flipped[position] ^= 1 << bit
            try:
                opened = decompress(bytes(flipped), compression_flags(kind), CAP)
            except RemoteProtocolError:
                continue
            assert len(opened) <= CAP


@pytest.mark.parametrize("kind", CompressionKind)
def test_the_other_formats_bytes_are_refused(kind: CompressionKind) -> None:
    for other in CompressionKind:
        if other is not kind:
            refused(compress(BODY, other), compression_flags(kind))


@pytest.mark.parametrize("kind", CompressionKind)
def test_the_cap_is_the_largest_size(kind: CompressionKind) -> None:
    packed = compress(BODY, kind)
    assert decompress(packed, compression_flags(kind), len(BODY)) == BODY
    refused(packed, compression_flags(kind), len(BODY) - 1)
    refused(packed, compression_flags(kind), 0)


def zstd_without_its_size(body: bytes) -> bytes:
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return bytes(stream.compress(body) + stream.flush())


def test_a_zstandard_stream_that_does_not_name_its_size() -> None:
    # Java's stream encoder writes these.
    packed = zstd_without_its_size(BODY)
    assert zstandard.frame_content_size(packed) == -1
    assert decompress(packed, 0x201, CAP) == BODY
    assert decompress(packed, 0x201, len(BODY)) == BODY
    refused(packed, 0x201, len(BODY) - 1)
    for size in range(len(packed)):
        refused(packed[:size], 0x201)


def packed_zeros(make: str, size: int) -> tuple[bytes, int]:
    if make == "ZSTD stream":
        return zstd_without_its_size(bytes(size)), 0x201
    kind = CompressionKind[make]
    return compress(bytes(size), kind), compression_flags(kind)


@pytest.mark.parametrize("make", ["ZLIB", "LZ4", "ZSTD", "ZSTD stream"])
def test_a_bomb_costs_no_more_than_the_cap(make: str) -> None:
    bomb_size = 64 << 20
    packed, sys_flag = packed_zeros(make, bomb_size)
    assert len(packed) < bomb_size // 200
    tracemalloc.start()
    try:
        refused(packed, sys_flag)
        peak_size = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_size < 4 * CAP


def test_a_frame_that_claims_a_huge_size_allocates_nothing() -> None:
    packed = zstandard.ZstdCompressor().compress(BODY)
    # Magic, then a descriptor with an 8-byte content size and no window byte.
    claimed = packed[:4] + b"\xe0" + (1 << 62).to_bytes(8, "little") + packed[7:]
    assert zstandard.frame_content_size(claimed) == 1 << 62
    refused(claimed, 0x201)


@pytest.mark.parametrize(
    ("kind", "module"), [(CompressionKind.LZ4, "lz4.frame"), (CompressionKind.ZSTD, "zstandard")]
)
def test_a_missing_library_names_the_extra(
    kind: CompressionKind, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    calls: list[Callable[[], bytes]] = [
        lambda: compress(BODY, kind),
        lambda: decompress(BODY, compression_flags(kind), CAP),
    ]
    for call in calls:
        with pytest.raises(CompressionUnavailableError, match="pip install") as caught:
            call()
        assert how_to_install("compression") in str(caught.value)
        assert caught.value.extra == "compression"
        assert caught.value.kind is kind
        assert isinstance(caught.value, LocalProtocolError)
    assert decompress(compression.compress(BODY), 0x301, CAP) == BODY
