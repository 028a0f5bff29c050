"""Feeding decoders in every way that a connection can: whole, byte by byte, with bytes behind."""

from collections.abc import Callable

import pytest

from skylarkmq.protocol.command import RemotingCommand, decode_command
from skylarkmq.protocol.frame import BadFrameError, FrameDecoder, RawFrame, encode_frame

NEXT_FRAME = encode_frame(0, b'{"code":1}', b"next")


def frames_of(data: bytes) -> list[RawFrame]:
    """Return the frames of `data`, after checking that no way of cutting it changes them."""
    whole = FrameDecoder().feed(data)

    byte_by_byte = FrameDecoder()
    frames: list[RawFrame] = []
    for position in range(len(data)):
        frames += byte_by_byte.feed(data[position : position + 1])
    assert frames == whole
    assert byte_by_byte.buffered_size == 0

    halves = FrameDecoder()
    middle = len(data) // 2
    assert halves.feed(data[:middle]) + halves.feed(data[middle:]) == whole

    behind = FrameDecoder()
    assert behind.feed(data + NEXT_FRAME) == [*whole, RawFrame(0, b'{"code":1}', b"next")]
    cut = FrameDecoder()
    assert cut.feed(data + NEXT_FRAME[:-1]) == whole
    assert cut.buffered_size == len(NEXT_FRAME) - 1
    assert cut.feed(NEXT_FRAME[-1:]) == [RawFrame(0, b'{"code":1}', b"next")]
    return whole


def decodes_to(data: bytes, expected: RemotingCommand) -> None:
    """Check that `data` is one frame holding `expected`, in whatever pieces it arrives."""
    (frame,) = frames_of(data)
    assert decode_command(frame) == expected


def only_frame(data: bytes) -> RawFrame:
    """Return the one frame in `data`."""
    (frame,) = FrameDecoder().feed(data)
    return frame


def refused_header(decode: Callable[[bytes], object], header: bytes) -> BadFrameError:
    """Check that `decode` refuses `header` as the protocol does, and with a short remark."""
    with pytest.raises(BadFrameError) as caught:
        decode(header)
    assert caught.value.kind == "bad_header"
    assert len(caught.value.remark) < 1024
    return caught.value


def every_cut_and_flipped_bit_is_read_or_refused(
    decode: Callable[[bytes], RemotingCommand], header: bytes
) -> None:
    """A header that ends early is refused; one with a wrong bit may mean something else."""
    for size in range(len(header)):
        refused_header(decode, header[:size])
    for position in range(len(header)):
        for bit in range(8):
            flipped = bytearray(header)
            flipped[position] ^= 1 << bit
            try:
                decode(bytes(flipped))
            except BadFrameError as error:
                assert error.kind == "bad_header"
