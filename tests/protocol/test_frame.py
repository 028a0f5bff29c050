"""Framing: every cut of the stream, every lie in the two length words, bounded memory."""

import struct
import tracemalloc

import pytest

from skylarkmq.protocol.errors import LocalProtocolError
from skylarkmq.protocol.frame import (
    LARGE_SIZE,
    MAX_FRAME_SIZE,
    BadFrameError,
    FrameDecoder,
    RawFrame,
    SerializeType,
    encode_frame,
)
from tests.protocol.support import frames_of

GOOD = encode_frame(SerializeType.ROCKETMQ, b"head", b"body")
BIGGEST_BODY = MAX_FRAME_SIZE - 8


def broken(data: bytes, decoder: FrameDecoder | None = None) -> BadFrameError:
    with pytest.raises(BadFrameError) as caught:
        (decoder or FrameDecoder()).feed(data)
    return caught.value


@pytest.mark.parametrize(
    ("header", "body"),
    [(b"", b""), (b"h", b""), (b"", b"b"), (b"head", b"body"), (b"h" * 300, b"b" * 5000)],
)
def test_a_frame_is_the_same_in_whatever_pieces_it_arrives(header: bytes, body: bytes) -> None:
    data = encode_frame(SerializeType.MSGPACK, header, body)
    assert data[:4] == (4 + len(header) + len(body)).to_bytes(4)
    assert data[4] == 0x4D
    assert frames_of(data) == [RawFrame(0x4D, header, body)]


def test_frames_of_one_read_come_in_order() -> None:
    data = b"".join(encode_frame(number, b"%d" % number) for number in range(50))
    assert FrameDecoder().feed(data) == [RawFrame(n, b"%d" % n, b"") for n in range(50)]


def test_any_cut_of_several_frames_gives_the_same_frames() -> None:
    data = GOOD + encode_frame(0, b"", b"") + encode_frame(1, b"x" * 20, b"y" * 9)
    expected = FrameDecoder().feed(data)
    for cut in range(len(data) + 1):
        decoder = FrameDecoder()
        assert decoder.feed(data[:cut]) + decoder.feed(data[cut:]) == expected
        assert decoder.buffered_size == 0


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_a_frame_shorter_than_its_second_word_is_refused(length: int) -> None:
    assert broken(struct.pack(">I", length)).kind == "bad_length"
    assert broken(struct.pack(">II", length, 0)).kind == "bad_length"


@pytest.mark.parametrize("length", [-1, -(2**31), -4])
def test_a_negative_length_is_refused(length: int) -> None:
    assert broken(struct.pack(">i", length)).kind == "bad_length"


def test_the_limit_counts_the_length_word_too() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(struct.pack(">I", MAX_FRAME_SIZE - 4)) == []
    assert broken(struct.pack(">I", MAX_FRAME_SIZE - 3)).kind == "too_large"
    assert broken(struct.pack(">I", 2**31 - 1)).kind == "too_large"


def test_a_smaller_limit_can_be_set() -> None:
    decoder = FrameDecoder(max_frame_size=len(GOOD))
    assert decoder.feed(GOOD) == [RawFrame(1, b"head", b"body")]
    assert broken(encode_frame(1, b"head", b"body!"), decoder).kind == "too_large"


@pytest.mark.parametrize("header_size", [13, 14, 0xFFFFFF])
def test_a_header_longer_than_its_frame_is_refused(header_size: int) -> None:
    data = struct.pack(">II", 16, header_size) + bytes(12)
    assert broken(data).kind == "bad_length"
    # Already when its two words are there, and when they come in pieces.
    assert broken(data[:8]).kind == "bad_length"
    decoder = FrameDecoder()
    for position in range(7):
        assert decoder.feed(data[position : position + 1]) == []
    assert broken(data[7:8], decoder).kind == "bad_length"


def test_a_header_as_long_as_its_frame_is_a_frame_without_body() -> None:
    data = struct.pack(">II", 16, 12) + bytes(12)
    assert frames_of(data) == [RawFrame(0, bytes(12), b"")]


def test_a_bad_length_is_seen_with_its_fourth_byte() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(b"\xff\xff\xff") == []
    assert broken(b"\xff", decoder).kind == "bad_length"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
        b"SSH-2.0-x\r\n",
    ],
)
def test_other_protocols_are_refused_at_once(data: bytes) -> None:
    assert broken(data).kind == "too_large"
    assert broken(data[:4]).kind == "too_large"


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x15\x03\x03\x00\x02\x02\x28"],
    ids=["handshake", "alert"],
)
def test_tls_is_called_tls(data: bytes) -> None:
    for error in (broken(data), broken(data[:4])):
        assert (error.kind, error.remark) == (
            "tls",
            "tls: this is TLS, and this side of the connection is without",
        )


def test_good_frames_before_a_bad_one_are_handed_over() -> None:
    error = broken(GOOD + GOOD + b"\xff\xff\xff\xff")
    assert error.frames == [RawFrame(1, b"head", b"body")] * 2

    decoder = FrameDecoder()
    assert decoder.feed(GOOD[:5]) == []
    error = broken(GOOD[5:] + GOOD + b"\x00\x00\x00\x03", decoder)
    assert error.frames == [RawFrame(1, b"head", b"body")] * 2


def test_a_broken_stream_stays_broken_and_keeps_nothing() -> None:
    decoder = FrameDecoder()
    broken(b"\x00\x00\x00\x00" + bytes(100), decoder)
    assert decoder.buffered_size == 0
    error = broken(GOOD, decoder)
    assert error.kind == "bad_length"
    assert error.frames == []
    assert decoder.buffered_size == 0


def test_memory_grows_with_what_arrived_not_with_the_promise() -> None:
    tracemalloc.start()
    try:
        decoder = FrameDecoder()
        decoder.feed(struct.pack(">II", MAX_FRAME_SIZE - 4, 10) + b"x" * 100)
        for _ in range(1000):
            decoder.feed(b"y")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoder.buffered_size == 1108
    assert peak < 65536


def test_a_big_frame_in_small_pieces_is_gathered_once() -> None:
    """A million pieces: quadratic copying would move a terabyte here and never end."""
    body = bytes(1_000_000)
    data = encode_frame(0, b"head", body)
    decoder = FrameDecoder()
    view = memoryview(data)
    for position in range(len(data) - 1):
        assert decoder.feed(bytes(view[position : position + 1])) == []
    assert decoder.feed(data[-1:]) == [RawFrame(0, b"head", body)]


def test_the_biggest_frame_passes_and_one_byte_more_does_not() -> None:
    data = encode_frame(0, b"", bytes(BIGGEST_BODY))
    assert len(data) == MAX_FRAME_SIZE
    (frame,) = FrameDecoder().feed(data)
    assert len(frame.body) == BIGGEST_BODY
    with pytest.raises(LocalProtocolError):
        encode_frame(0, b"", bytes(BIGGEST_BODY + 1))


def test_a_header_over_24_bits_cannot_be_written() -> None:
    with pytest.raises(LocalProtocolError):
        encode_frame(0, bytes(2**24))


@pytest.mark.parametrize("step", [1000, 65_536, 262_144, 10**7])
def test_large_frames_in_pieces_among_small_ones(step: int) -> None:
    """They lie in pages of their own, which the next large frame of any connection may get."""
    bodies = [bytes([n]) * size for n, size in enumerate((10, 300_000, 5, 2_000_000, 262_200, 7))]
    stream = b"".join(encode_frame(1, b"head%d" % n, body) for n, body in enumerate(bodies))
    decoders = FrameDecoder(), FrameDecoder()
    taken: tuple[list[RawFrame], list[RawFrame]] = [], []
    for start in range(0, len(stream), step):
        for decoder, frames in zip(decoders, taken, strict=True):
            frames += decoder.feed(stream[start : start + step])
    wanted = [RawFrame(1, b"head%d" % n, body) for n, body in enumerate(bodies)]
    assert taken[0] == wanted
    assert taken[1] == wanted
    assert [decoder.buffered_size for decoder in decoders] == [0, 0]


@pytest.mark.parametrize("size", [100, 1_000_000])
def test_a_decoder_forgets_its_unfinished_frame(size: int) -> None:
    decoder = FrameDecoder()
    decoder.feed(encode_frame(1, b"", bytes(size))[:-1])
    assert decoder.buffered_size == size + 7
    decoder.clear()
    assert decoder.buffered_size == 0


def test_a_spare_that_another_thread_took_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    class Taken(list[object]):
        def __bool__(self) -> bool:
            return True

    monkeypatch.setattr("skylarkmq.protocol.frame._spares", Taken())
    stream, decoder = encode_frame(1, b"", bytes(LARGE_SIZE)), FrameDecoder()
    assert decoder.feed(stream[:100]) + decoder.feed(stream[100:-1]) == []
    assert decoder.feed(stream[-1:]) == [RawFrame(1, b"", bytes(LARGE_SIZE))]
