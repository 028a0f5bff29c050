"""The server's end of HTTP/2 against another library's client, and what a peer may do wrong."""

import random

import h2.config
import h2.connection
import h2.events
import h2.settings
import hpack
import pytest

from skylarkmq.protocol.http2.connection import (
    FLOOD_MAX,
    HEADER_SIZE_MAX,
    RECEIVE_WINDOW,
    Data,
    Drained,
    Event,
    Head,
    Reset,
)
from skylarkmq.protocol.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    PADDED,
    PREFACE,
    SETTING,
    UINT32,
    ErrorCode,
    FrameType,
    Setting,
    frame,
    header_block,
    settings_frame,
)
from skylarkmq.protocol.http2.server import Http2Server
from tests.protocol.http2 import rig
from tests.protocol.http2.rig import resets

HEAD = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/a.b/C"),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)
OK = header_block(((b":status", b"200"), (b"content-type", b"application/grpc")))
LAST = header_block(((b"grpc-status", b"0"),))


class Pair(rig.Pair):
    """A client of the library h2 and our server."""

    def __init__(self, seed: int = 0) -> None:
        self.server = Http2Server()
        super().__init__(self.server, seed)
        self.client = self.theirs


def raw() -> Http2Server:
    """An end whose client has greeted it and set nothing."""
    server = Http2Server()
    assert server.receive(PREFACE + settings_frame(())) == []
    server.take_outgoing()
    return server


def block(*fields: tuple[str, str]) -> bytes:
    return hpack.Encoder().encode(fields or HEAD)


def opened(server: Http2Server, stream_id: int = 1, flags: int = END_HEADERS) -> list[Event]:
    return server.receive(frame(FrameType.HEADERS, flags, stream_id, block()))


@pytest.mark.parametrize("seed", range(20))
def test_calls_pass_whatever_the_cuts_and_windows(seed: int) -> None:
    pair = Pair(seed)
    rng = pair.rng
    window = rng.choice((1, 100, 65_535, 1 << 20))
    pair.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
    pair.carry()
    size_max = 3000 if window > 1 else 300  # each byte is a frame then
    bodies = {number * 2 + 1: rng.randbytes(rng.randrange(size_max)) for number in range(8)}
    for stream_id, body in bodies.items():
        pair.client.send_headers(stream_id, HEAD)
        pair.client.send_data(stream_id, body, end_stream=True, pad_length=rng.choice((None, 9)))
    pair.carry()
    heads = [event for event in pair.seen if isinstance(event, Head)]
    assert [head.stream_id for head in heads] == list(bodies)
    assert dict(heads[0].fields)[b":path"] == b"/a.b/C"
    for stream_id, body in bodies.items():
        parts = [e for e in pair.seen if isinstance(e, Data) and e.stream_id == stream_id]
        assert b"".join(part.data for part in parts) == body
        assert [part.is_end for part in parts][-1]
    for stream_id, body in bodies.items():
        pair.server.answer(stream_id, OK, body * 3, LAST)
    pair.carry()
    for stream_id, body in bodies.items():
        got = b"".join(
            event.data or b""
            for event in pair.told
            if isinstance(event, h2.events.DataReceived) and event.stream_id == stream_id
        )
        assert got == body * 3
    assert sum(isinstance(event, h2.events.StreamEnded) for event in pair.told) == len(bodies)
    assert pair.server.stream_count == pair.server.unsent_size == 0


def test_a_large_request_needs_that_its_data_is_taken() -> None:
    pair = Pair()
    pair.carry()
    pair.client.send_headers(1, HEAD)
    left, sent = 3 * RECEIVE_WINDOW, 0
    while left:
        room = min(pair.client.local_flow_control_window(1), pair.client.max_outbound_frame_size)
        if not room:
            break
        pair.client.send_data(1, bytes(min(room, left)))
        sent += min(room, left)
        left -= min(room, left)
        pair.carry()
    assert sent == RECEIVE_WINDOW
    pair.server.taken(1, sent)
    pair.carry()
    assert pair.client.local_flow_control_window(1) == RECEIVE_WINDOW


def test_what_waits_for_a_window_is_told_when_it_has_left() -> None:
    server = raw()
    server.receive(settings_frame(((Setting.INITIAL_WINDOW_SIZE, 10),)))
    opened(server)
    server.send_head(1, OK)
    assert not server.send(1, bytes(25))
    assert server.unsent_size == 15
    opens = frame(FrameType.WINDOW_UPDATE, 0, 1, UINT32.pack(10))
    assert server.receive(opens) == []
    assert server.receive(opens) == [Drained(1)]
    assert server.send(1, bytes(5))


def test_a_smaller_window_holds_streams_that_are_open() -> None:
    server = raw()
    opened(server)
    server.receive(settings_frame(((Setting.INITIAL_WINDOW_SIZE, 0),)))
    assert not server.send(1, b"x")
    server.end(1, LAST)
    assert server.stream_count == 1
    server.receive(settings_frame(((Setting.INITIAL_WINDOW_SIZE, 1),)))
    assert server.unsent_size == 0


def test_an_early_answer_tells_the_client_to_stop() -> None:
    server = raw()
    opened(server)
    server.answer(1, OK, b"no", LAST)
    assert resets(server.take_outgoing()) == [(1, ErrorCode.NO_ERROR)]
    assert server.receive(frame(FrameType.DATA, 0, 1, b"more")) == []
    assert not server.failed


def test_a_reset_is_told_and_what_waited_is_dropped() -> None:
    server = raw()
    opened(server)
    server.send(1, bytes(70_000))
    assert server.unsent_size == 70_000 - 65_535
    reset = frame(FrameType.RST_STREAM, 0, 1, UINT32.pack(ErrorCode.CANCEL))
    assert server.receive(reset) == [Reset(1, ErrorCode.CANCEL)]
    assert server.unsent_size == server.stream_count == 0


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(FrameType.DATA, 0, 0), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.DATA, 0, 3), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.DATA, PADDED, 1, b"\x05abc"), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.HEADERS, END_HEADERS, 0), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.HEADERS, END_HEADERS, 2, block()), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.HEADERS, END_HEADERS, 3, b"\xff"), ErrorCode.COMPRESSION_ERROR),
        (frame(FrameType.CONTINUATION, END_HEADERS, 1), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.PUSH_PROMISE, END_HEADERS, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(FrameType.PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.SETTINGS, ACK, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
        (settings_frame(((Setting.INITIAL_WINDOW_SIZE, 1 << 31),)), ErrorCode.FLOW_CONTROL_ERROR),
        (settings_frame(((Setting.MAX_FRAME_SIZE, 100),)), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.SETTINGS, 0, 0, SETTING.pack(2, 2)), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.WINDOW_UPDATE, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.WINDOW_UPDATE, 0, 0, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
        (
            frame(FrameType.WINDOW_UPDATE, 0, 0, UINT32.pack((1 << 31) - 1)),
            ErrorCode.FLOW_CONTROL_ERROR,
        ),
        (frame(FrameType.RST_STREAM, 0, 7, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (b"\xff\xff\xff" + bytes(6), ErrorCode.FRAME_SIZE_ERROR),
        (frame(FrameType.HEADERS, 0, 3, b"") + frame(6, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_a_fault_of_the_connection_ends_it(data: bytes, code: ErrorCode) -> None:
    server = raw()
    opened(server)
    server.take_outgoing()
    assert server.receive(data) == [Reset(1, code)]
    assert server.failed.startswith(code.name)
    said = server.take_outgoing()
    assert said[3] == FrameType.GOAWAY
    assert UINT32.unpack(said[13:17])[0] == code
    assert server.receive(PREFACE) == []


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(FrameType.HEADERS, END_HEADERS, 1, block()), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.WINDOW_UPDATE, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (
            frame(FrameType.WINDOW_UPDATE, 0, 1, UINT32.pack((1 << 31) - 1)),
            ErrorCode.FLOW_CONTROL_ERROR,
        ),
        (frame(FrameType.PRIORITY, 0, 1, UINT32.pack(1) + b"\0"), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.PRIORITY, 0, 1, b""), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_a_fault_of_a_stream_costs_the_stream(data: bytes, code: ErrorCode) -> None:
    server = raw()
    opened(server)
    server.take_outgoing()
    assert server.receive(data) == [Reset(1, code)]
    assert resets(server.take_outgoing()) == [(1, code)]
    assert not server.failed
    assert len(opened(server, 3)) == 1


@pytest.mark.parametrize(
    "fields",
    [
        HEAD[1:],
        (*HEAD, ("Upper", "x")),
        (*HEAD, ("connection", "close")),
        (*HEAD, (":path", "/")),
        (*HEAD[:4], ("te", "gzip")),
        (*HEAD, (":status", "200")),
        (*HEAD, ("content-length", "x")),
        *((*HEAD, ("x-mq-client-id", f"a{end}b")) for end in "\n\r\0"),
    ],
)
def test_a_head_that_is_no_request_costs_the_stream(fields: tuple[tuple[str, str], ...]) -> None:
    server = raw()
    data = frame(FrameType.HEADERS, END_HEADERS, 1, block(*fields))
    assert server.receive(data) == []
    assert resets(server.take_outgoing()) == [(1, ErrorCode.PROTOCOL_ERROR)]


def test_a_body_must_have_the_length_that_its_head_tells() -> None:
    server = raw()
    head = block(*HEAD, ("content-length", "3"))
    server.receive(frame(FrameType.HEADERS, END_HEADERS, 1, head))
    assert server.receive(frame(FrameType.DATA, END_STREAM, 1, b"ab")) == [Reset(1, 1)]
    server.receive(frame(FrameType.HEADERS, END_HEADERS, 3, head))
    assert server.receive(frame(FrameType.DATA, END_STREAM, 3, b"abc")) == [Data(3, b"abc", True)]


def test_more_streams_than_are_taken_are_refused() -> None:
    server = Http2Server(streams_max=2)
    server.receive(PREFACE + settings_frame(()))
    server.take_outgoing()
    assert [len(opened(server, stream_id)) for stream_id in (1, 3, 5)] == [1, 1, 0]
    assert resets(server.take_outgoing()) == [(5, ErrorCode.REFUSED_STREAM)]


def test_one_that_goes_away_takes_no_stream_and_ends_those_it_has() -> None:
    server = raw()
    opened(server, 1, END_HEADERS | END_STREAM)
    server.go_away()
    opened(server, 3, END_HEADERS | END_STREAM)
    server.answer(1, OK, b"done", LAST)
    assert resets(server.take_outgoing()) == [(3, ErrorCode.REFUSED_STREAM)]
    assert server.stream_count == 0


@pytest.mark.parametrize(
    "useless",
    [
        frame(FrameType.PING, 0, 0, bytes(8)),
        settings_frame(()),
        frame(FrameType.DATA, 0, 1),
        frame(FrameType.PRIORITY, 0, 1, bytes(5)),
        frame(99, 0, 0),
    ],
)
def test_a_flood_of_useless_frames_ends_the_connection(useless: bytes) -> None:
    server = raw()
    opened(server)
    for _ in range(FLOOD_MAX // 100):
        server.receive(useless * 50)
        server.calm()
    assert not server.failed
    server.receive(useless * (FLOOD_MAX + 1))
    assert server.failed.startswith("ENHANCE_YOUR_CALM")


def test_streams_that_are_reset_at_once_end_the_connection() -> None:
    server = raw()
    encoder = hpack.Encoder()
    for number in range(FLOOD_MAX + 1):
        stream_id = 2 * number + 1
        server.receive(
            frame(FrameType.HEADERS, END_HEADERS, stream_id, encoder.encode(HEAD))
            + frame(FrameType.RST_STREAM, 0, stream_id, bytes(4))
        )
    assert server.failed.startswith("ENHANCE_YOUR_CALM")


def test_a_head_without_an_end_is_bounded() -> None:
    server = raw()
    server.receive(frame(FrameType.HEADERS, 0, 1, b""))
    for _ in range(HEADER_SIZE_MAX // 1000 + 1):
        server.receive(frame(FrameType.CONTINUATION, 0, 1, bytes(1000)))
    assert server.failed.startswith("ENHANCE_YOUR_CALM")
    assert server.buffered_size == 0


def test_a_head_in_one_frame_is_bounded_too() -> None:
    for size, fails in ((HEADER_SIZE_MAX, False), (HEADER_SIZE_MAX + 1, True)):
        server = raw()
        server.receive(frame(FrameType.HEADERS, END_HEADERS, 1, b"\x20" * size))
        assert server.failed.startswith("ENHANCE_YOUR_CALM") is fails


def test_what_is_no_http2_fails_at_its_first_byte() -> None:
    server = Http2Server()
    server.receive(b"GET / HTTP/1.1\r\n")
    assert server.failed == "PROTOCOL_ERROR: this is no HTTP/2"


@pytest.mark.parametrize("seed", range(30))
def test_bytes_of_chance_raise_nothing(seed: int) -> None:
    rng = random.Random(seed)
    server = raw()
    opened(server)
    for _ in range(300):
        kind, flags = rng.randrange(11), rng.choice((0, 1, 4, 5, 8, 0x20, 0xFF))
        payload = rng.choice((b"", rng.randbytes(rng.randrange(40)), block()))
        server.receive(frame(kind, flags, rng.choice((0, 1, 2, 3, 5, 7)), payload))
        if server.failed:
            server = raw()
