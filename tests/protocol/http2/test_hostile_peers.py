"""What ends a connection of HTTP/2 because it is too much, and what honest clients may do."""

from __future__ import annotations

from typing import SupportsIndex

import hpack
import pytest

from skylarkmq.protocol.http2.connection import FLOOD_MAX, RECEIVE_WINDOW
from skylarkmq.protocol.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_SIZE_MIN,
    PREFACE,
    UINT32,
    WINDOW_MAX,
    ErrorCode,
    FrameType,
    Setting,
    frame,
    header_block,
    settings_frame,
)
from skylarkmq.protocol.http2.server import Http2Server

HEAD = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/a.b/C"),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
)
OK = header_block(((b":status", b"200"), (b"content-type", b"application/grpc")))
PING = frame(FrameType.PING, 0, 0, bytes(8))
TABLE_SIZE = b"\x3f\xe1\x1f"
"""Sets the table to its 4,096 bytes, which changes nothing."""
TABLE_SIZES_MAX = 2
"""Changes of the table's size that a block may begin with; RFC 7541 4.2."""


class Raw:
    """A server's end, and a client that writes frames."""

    def __init__(self, *settings: tuple[Setting, int]) -> None:
        self.server = Http2Server()
        self.server.receive(PREFACE + settings_frame(settings))
        self._encoder = hpack.Encoder()
        self._last_id = -1

    def head(self, before: bytes = b"", flags: int = END_HEADERS) -> int:
        """Begin a call; return its id."""
        self._last_id += 2
        block = before + self._encoder.encode(HEAD)
        self.server.receive(frame(FrameType.HEADERS, flags, self._last_id, block))
        return self._last_id

    def data(self, stream_id: int, size: int) -> None:
        """Send a part of a body, which finds its place at once."""
        self.server.receive(frame(FrameType.DATA, 0, stream_id, bytes(size)))
        self.server.taken(stream_id, size)
        self.server.take_outgoing()


# Too much


def test_a_block_changes_the_size_of_its_table_twice_at_most() -> None:
    raw = Raw()
    raw.head(TABLE_SIZE * TABLE_SIZES_MAX)
    assert not raw.server.failed
    raw.head(TABLE_SIZE * (TABLE_SIZES_MAX + 1))
    assert raw.server.failed.startswith(ErrorCode.COMPRESSION_ERROR.name)


def test_bodies_of_calls_that_are_taken_back_end_the_connection() -> None:
    raw, size = Raw(), 32 << 10
    for _ in range((128 << 20) // size):
        stream_id = raw.head()
        raw.data(stream_id, size)
        end = frame(FrameType.RST_STREAM, 0, stream_id, UINT32.pack(ErrorCode.CANCEL))
        raw.server.receive(end)
    assert raw.server.failed.startswith(ErrorCode.ENHANCE_YOUR_CALM.name)


def test_changes_of_many_windows_count_with_their_number() -> None:
    """Each walks over all streams, so 300 of them make it eleven frames without use."""
    raw = Raw()
    for _ in range(10 * 32):
        raw.head()
    for number in range(FLOOD_MAX // 11):
        raw.server.receive(settings_frame(((Setting.INITIAL_WINDOW_SIZE, number % 2),)))
    assert not raw.server.failed
    raw.server.receive(settings_frame(((Setting.INITIAL_WINDOW_SIZE, 2),)) * 10)
    assert raw.server.failed.startswith(ErrorCode.ENHANCE_YOUR_CALM.name)


class Counted(bytes):
    """Bytes that count what is copied of them."""

    copied = 0

    def __getitem__(self, key: SupportsIndex | slice) -> int | Counted:  # type: ignore[override]
        if isinstance(key, slice):
            part = Counted(super().__getitem__(key))
            Counted.copied += len(part)
            return part
        return super().__getitem__(key)


@pytest.mark.parametrize("windows", [1, 16])
def test_a_long_answer_is_copied_once(windows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "copied", 0)
    size = 1 << 20
    raw = Raw((Setting.INITIAL_WINDOW_SIZE, size // windows))
    stream_id = raw.head(flags=END_HEADERS | END_STREAM)
    raw.server.receive(frame(FrameType.WINDOW_UPDATE, 0, 0, UINT32.pack(2 * size)))
    raw.server.send_head(stream_id, OK)
    raw.server.send(stream_id, Counted(size))
    for _ in range(windows - 1):
        opens = UINT32.pack(size // windows)
        raw.server.receive(frame(FrameType.WINDOW_UPDATE, 0, stream_id, opens))
    assert not raw.server.unsent_size
    assert Counted.copied <= 2 * size


# Honest clients


@pytest.mark.parametrize("cuts", [False, True])
def test_windows_are_the_same_however_frames_come_together(cuts: bool) -> None:
    """Settings, a call and windows that only just fit, in one read or in one for each frame."""
    raw = Raw()
    first = raw.head(flags=END_HEADERS | END_STREAM)
    block = hpack.Encoder().encode(HEAD)
    frames = [
        settings_frame(((Setting.INITIAL_WINDOW_SIZE, 0),)),
        frame(FrameType.WINDOW_UPDATE, 0, first, UINT32.pack(WINDOW_MAX)),
        frame(FrameType.HEADERS, END_HEADERS | END_STREAM, first + 2, block),
        frame(FrameType.WINDOW_UPDATE, 0, first + 2, UINT32.pack(3)),
    ]
    raw.server.take_outgoing()
    for data in frames if cuts else [b"".join(frames)]:
        raw.server.receive(data)
    assert raw.server.take_outgoing() == frame(FrameType.SETTINGS, ACK, 0)
    for stream_id, taken in ((first, True), (first + 2, False)):
        raw.server.send_head(stream_id, OK)
        assert raw.server.send(stream_id, b"abcd") is taken
    assert raw.server.unsent_size == 1
    raw.server.receive(settings_frame(((Setting.INITIAL_WINDOW_SIZE, 0),) * 2))
    assert raw.server.unsent_size == 1
    raw.server.receive(settings_frame(((Setting.INITIAL_WINDOW_SIZE, 1),)))
    assert not raw.server.unsent_size


def test_a_turn_of_frames_and_what_is_left_for_the_next() -> None:
    server = Http2Server(turn_max=2)
    server.receive(PREFACE + settings_frame(()) + PING * 2)
    assert server.is_behind
    assert server.buffered_size == len(PING)
    server.take_outgoing()
    assert server.receive(PING[:5]) == []
    assert not server.is_behind
    assert server.take_outgoing() == frame(FrameType.PING, ACK, 0, bytes(8))
    server.receive(PING[5:])
    assert (server.is_behind, server.buffered_size) == (False, 0)


def test_a_client_may_measure_its_bandwidth_while_answers_come() -> None:
    """grpc-go pings once for each piece of data, and does so as long as data comes."""
    raw = Raw()
    stream_id = raw.head(flags=END_HEADERS | END_STREAM)
    raw.server.send_head(stream_id, OK)
    for _ in range(FLOOD_MAX + 1):
        raw.server.send(stream_id, b"x")
        assert raw.server.take_outgoing()
        raw.server.receive(PING)
    assert not raw.server.failed


def test_data_that_was_under_way_when_its_call_was_refused_is_no_flood() -> None:
    raw = Raw()
    frames = RECEIVE_WINDOW // FRAME_SIZE_MIN
    for _ in range(FLOOD_MAX // frames + 1):
        stream_id = raw.head()
        raw.server.end(stream_id, header_block(((b":status", b"200"), (b"grpc-status", b"8"))))
        for _ in range(frames):
            raw.data(stream_id, FRAME_SIZE_MIN)
    assert not raw.server.failed


def test_pings_without_any_data_are_a_flood() -> None:
    raw = Raw()
    for _ in range(FLOOD_MAX + 1):
        raw.server.receive(PING)
    assert raw.server.failed.startswith(ErrorCode.ENHANCE_YOUR_CALM.name)
