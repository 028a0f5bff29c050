"""Frames come out as the protocol's own decoder cuts them, however the bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylarkmq.protocol.errors import BadFrameError
from skylarkmq.protocol.frame import FrameDecoder, RawFrame, encode_frame
from skylarkmq.spark.remoting.frame_reader import SMALL_SIZE, FrameReader

SIZES = [0, 1, 7, 100, SMALL_SIZE - 20, SMALL_SIZE, SMALL_SIZE + 1, 3 * SMALL_SIZE + 5]


def feed(data: bytes, piece_size: int) -> list[RawFrame]:
    """Let a reader take `data` in pieces of at most that size."""
    reader = FrameReader()
    frames: list[RawFrame] = []
    position = 0
    while position < len(data):
        into = reader.buffer()
        assert len(into) > 0
        size = min(piece_size, len(into), len(data) - position)
        into[:size] = data[position : position + size]
        frames += reader.filled(size)
        position += size
    return frames


@pytest.mark.parametrize("piece_size", [1, 3, 1000, SMALL_SIZE, 10**9])
def test_frames_of_all_sizes(piece_size: int) -> None:
    sizes = SIZES if piece_size > 3 else SIZES[:5]
    wanted = [
        RawFrame(index % 2, b"h" * (index * 9), b"b" * size) for index, size in enumerate(sizes)
    ]
    data = b"".join(encode_frame(*frame) for frame in wanted)
    assert feed(data, piece_size) == wanted


@settings(max_examples=200)
@given(
    parts=st.lists(
        st.tuples(st.binary(max_size=40), st.sampled_from([*SIZES, 12, 13, 4000])), max_size=6
    ),
    pieces=st.integers(1, 200_000),
)
def test_the_same_frames_as_the_protocol_s_decoder(
    parts: list[tuple[bytes, int]], pieces: int
) -> None:
    data = b"".join(encode_frame(0, header, bytes(size)) for header, size in parts)
    assert feed(data, max(pieces, len(data) // 500)) == FrameDecoder().feed(data)


@pytest.mark.parametrize(
    "data",
    [
        bytes(8),
        b"\xff" * 8,
        (3).to_bytes(4, "big") + bytes(4),
        (2**24).to_bytes(4, "big") + bytes(4),
        (100).to_bytes(4, "big") + (200).to_bytes(4, "big"),
        (2**20).to_bytes(4, "big") + (SMALL_SIZE).to_bytes(4, "big"),
    ],
)
def test_what_is_no_frame(data: bytes) -> None:
    good = encode_frame(0, b"header", b"body")
    with pytest.raises(BadFrameError) as caught:
        feed(good + data, 10**6)
    assert caught.value.frames == [RawFrame(0, b"header", b"body")]


def test_frames_own_their_bytes() -> None:
    reader = FrameReader()
    one, two = encode_frame(0, b"h1", b"b1"), encode_frame(0, b"h2", b"b2")
    reader.buffer()[: len(one)] = one
    (first,) = reader.filled(len(one))
    reader.buffer()[: len(two)] = two
    reader.filled(len(two))
    assert first == RawFrame(0, b"h1", b"b1")
