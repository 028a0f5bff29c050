"""The client's end of HTTP/2 against another library's server, and what a peer may do wrong."""

import random

import h2.config
import h2.connection
import h2.events
import h2.settings
import hpack
import pytest

from skylarkmq.protocol.http2.client import FIRST_STREAMS_MAX, ID_MAX, Http2Client
from skylarkmq.protocol.http2.connection import (
    FLOOD_MAX,
    HEADER_SIZE_MAX,
    RECEIVE_WINDOW,
    Data,
    Drained,
    Head,
    Reset,
)
from skylarkmq.protocol.http2.frames import (
    ACK,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    SETTING,
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
from tests.protocol.http2 import rig
from tests.protocol.http2.rig import frames, resets

REQUEST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a.b/C"),
    (b":authority", b"localhost"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)
BLOCK = header_block(REQUEST)
OK = ((":status", "200"), ("content-type", "application/grpc"))
LAST = (("grpc-status", "0"),)


class Pair(rig.Pair):
    """Our client and a server of the library h2."""

    def __init__(self, seed: int = 0) -> None:
        self.client = Http2Client()
        super().__init__(self.client, seed)
        self.server = self.theirs

    def answer(self, stream_id: int, body: bytes) -> None:
        """Send a whole answer, as the windows allow."""
        self.server.send_headers(stream_id, OK)
        while body:
            room = self.server.local_flow_control_window(stream_id)
            size = min(len(body), room, self.server.max_outbound_frame_size)
            assert size, "the client took what came"
            self.server.send_data(stream_id, body[:size], pad_length=self.rng.choice((None, 0)))
            body = body[size:]
            self.carry()
        self.server.send_headers(stream_id, LAST, end_stream=True)

    def body(self, stream_id: int) -> bytes:
        """Return what has come of an answer."""
        parts = [e for e in self.seen if isinstance(e, Data) and e.stream_id == stream_id]
        return b"".join(part.data for part in parts)


def raw(*settings: tuple[Setting, int]) -> Http2Client:
    """An end whose server has greeted it."""
    client = Http2Client()
    assert client.receive(settings_frame(settings)) == []
    client.take_outgoing()
    return client


def head(stream_id: int, flags: int = 0, fields: tuple[tuple[str, str], ...] = OK) -> bytes:
    """An answer's head, or its trailers, in a frame."""
    block = header_block((name.encode(), value.encode()) for name, value in fields)
    return frame(FrameType.HEADERS, END_HEADERS | flags, stream_id, block)


@pytest.mark.parametrize("seed", range(20))
def test_calls_pass_whatever_the_cuts_and_windows(seed: int) -> None:
    pair = Pair(seed)
    rng = pair.rng
    window = rng.choice((1, 100, 65_535, 1 << 20))
    pair.server.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
    pair.carry()
    size_max = 3000 if window > 1 else 300  # each byte is a frame then
    bodies = [rng.randbytes(rng.randrange(size_max)) for _ in range(8)]
    asked: dict[int, bytes] = {}
    for body in bodies:
        if rng.random() < 0.5:
            asked[pair.client.ask(BLOCK, body)] = body
        else:
            stream_id = pair.client.open(BLOCK)
            asked[stream_id] = body
            middle = rng.randrange(len(body) + 1)
            pair.client.send(stream_id, body[:middle])
            pair.client.send(stream_id, body[middle:])
            pair.client.end(stream_id)
    assert list(asked) == [1, 3, 5, 7, 9, 11, 13, 15]
    pair.carry()
    for stream_id, body in asked.items():
        got = b"".join(
            event.data or b""
            for event in pair.told
            if isinstance(event, h2.events.DataReceived) and event.stream_id == stream_id
        )
        assert got == body
    ended = [event.stream_id for event in pair.told if isinstance(event, h2.events.StreamEnded)]
    assert sorted(ended) == list(asked)
    for stream_id, body in asked.items():
        pair.answer(stream_id, body * 3)
    pair.carry()
    for stream_id, body in asked.items():
        assert pair.body(stream_id) == body * 3
        first, last = (e for e in pair.seen if isinstance(e, Head) and e.stream_id == stream_id)
        assert dict(first.fields)[b":status"] == b"200"
        assert not first.is_end
        assert (list(last.fields), last.is_end) == ([(b"grpc-status", b"0")], True)
    assert pair.client.stream_count == pair.client.unsent_size == 0
    assert not any(isinstance(event, Reset) for event in pair.seen)
    assert not any(isinstance(event, h2.events.StreamReset) for event in pair.told)


@pytest.mark.parametrize("seed", range(10))
def test_both_of_our_ends_understand_each_other(seed: int) -> None:
    rng = random.Random(seed)
    client, server = Http2Client(), Http2Server()
    asked = {client.ask(BLOCK, body): body for body in (rng.randbytes(100_000) for _ in range(5))}
    answers = dict.fromkeys(asked, b"")
    requests = dict.fromkeys(asked, b"")
    while True:
        data, answer = client.take_outgoing(), server.take_outgoing()
        if not data and not answer:
            break
        for event in server.receive(data):
            if isinstance(event, Data):
                server.taken(event.stream_id, len(event.data))
                requests[event.stream_id] += event.data
                if event.is_end:
                    block, last = header_block([(b":status", b"200")]), header_block([(b"a", b"b")])
                    server.answer(event.stream_id, block, requests[event.stream_id], last)
        for event in client.receive(answer):
            if isinstance(event, Data):
                client.taken(event.stream_id, len(event.data))
                answers[event.stream_id] += event.data
    assert answers == asked
    assert client.stream_count == server.stream_count == 0


def test_a_large_answer_needs_that_its_data_is_taken() -> None:
    pair = Pair()
    stream_id = pair.client.ask(BLOCK, b"")
    pair.carry()
    pair.server.send_headers(stream_id, OK)
    sent = 0
    while room := min(
        pair.server.local_flow_control_window(stream_id), pair.server.max_outbound_frame_size
    ):
        pair.server.send_data(stream_id, bytes(room))
        sent += room
        pair.carry()
    assert sent == RECEIVE_WINDOW
    pair.client.taken(stream_id, sent)
    pair.carry()
    assert pair.server.local_flow_control_window(stream_id) == RECEIVE_WINDOW


def test_what_waits_for_a_window_is_told_when_it_has_left() -> None:
    client = raw((Setting.INITIAL_WINDOW_SIZE, 10))
    stream_id = client.open(BLOCK)
    assert not client.send(stream_id, bytes(25))
    assert client.unsent_size == 15
    opens = frame(FrameType.WINDOW_UPDATE, 0, 1, UINT32.pack(10))
    assert client.receive(opens) == []
    assert client.receive(opens) == [Drained(1)]
    assert client.send(stream_id, bytes(5))
    client.end(stream_id)
    last = frames(client.take_outgoing())[-1]
    assert last == (FrameType.DATA, END_STREAM, 1, b"")


def test_a_request_that_waits_ends_when_it_has_left() -> None:
    client = raw((Setting.INITIAL_WINDOW_SIZE, 10))
    client.ask(BLOCK, bytes(15))
    client.take_outgoing()
    assert client.receive(frame(FrameType.WINDOW_UPDATE, 0, 1, UINT32.pack(10))) == []
    sent = frames(client.take_outgoing())
    assert sent == [
        (FrameType.DATA, 0, 1, bytes(5)),
        (FrameType.DATA, END_STREAM, 1, b""),
    ]


def test_a_whole_request_is_two_frames() -> None:
    client = raw()
    client.ask(BLOCK, b"body")
    assert [(kind, flags) for kind, flags, _, _ in frames(client.take_outgoing())] == [
        (FrameType.HEADERS, END_HEADERS),
        (FrameType.DATA, END_STREAM),
    ]


def test_a_whole_request_counts_in_both_windows() -> None:
    client = raw((Setting.INITIAL_WINDOW_SIZE, WINDOW_MAX), (Setting.MAX_FRAME_SIZE, 1 << 16))
    client.ask(BLOCK, bytes(60_000))
    client.ask(BLOCK, bytes(10_000))
    assert client.unsent_size == 70_000 - DEFAULT_WINDOW
    assert client.receive(frame(FrameType.WINDOW_UPDATE, 0, 1, UINT32.pack(60_000))) == []
    assert not client.failed


def test_a_large_head_goes_in_parts() -> None:
    pair = Pair()
    value = b"x" * 40_000
    pair.client.open(header_block((*REQUEST, (b"large", value))), is_end=True)
    pair.carry()
    (request,) = (e for e in pair.told if isinstance(e, h2.events.RequestReceived))
    assert ("large", value.decode()) in [(str(name), str(text)) for name, text in request.headers]
    assert any(isinstance(event, h2.events.StreamEnded) for event in pair.told)


def test_an_early_answer_ends_the_stream_whatever_has_not_left() -> None:
    client = raw()
    stream_id = client.open(BLOCK)
    client.send(stream_id, bytes(70_000))
    client.take_outgoing()
    answer = head(stream_id, END_STREAM, (*OK, *LAST))
    (event,) = client.receive(answer)
    assert isinstance(event, Head)
    assert event.is_end
    assert resets(client.take_outgoing()) == [(stream_id, ErrorCode.CANCEL)]
    assert client.unsent_size == client.stream_count == 0
    assert client.reset_count == 1
    client.calm()
    assert client.reset_count == 0
    assert client.send(stream_id, b"more")
    assert client.take_outgoing() == b""


def test_data_after_the_head_of_an_answer_to_come_is_the_answers() -> None:
    client = raw()
    stream_id = client.ask(BLOCK, b"")
    assert client.receive(head(stream_id, fields=((":status", "100"),))) == []
    seen = client.receive(head(stream_id) + frame(FrameType.DATA, END_STREAM, stream_id, b"answer"))
    assert [type(event) for event in seen] == [Head, Data]
    assert client.stream_count == 0


def test_what_comes_for_a_stream_that_was_reset_is_dropped() -> None:
    client = raw()
    stream_id = client.ask(BLOCK, b"")
    client.receive(head(stream_id))
    client.take_outgoing()
    client.reset(stream_id, ErrorCode.CANCEL)
    assert resets(client.take_outgoing()) == [(stream_id, ErrorCode.CANCEL)]
    late = frame(FrameType.DATA, 0, stream_id, bytes(50)) * 3 + head(stream_id, END_STREAM, LAST)
    late += frame(FrameType.RST_STREAM, 0, stream_id, bytes(4))
    assert client.receive(late) == []
    assert client.take_outgoing() == b""
    assert not client.failed


def test_streams_above_the_last_that_a_server_takes_were_refused() -> None:
    client = raw()
    for _ in range(3):
        client.ask(BLOCK, b"")
    leave = frame(FrameType.GOAWAY, 0, 0, UINT32.pack(3) + UINT32.pack(0) + b"bye")
    assert client.receive(leave) == [Reset(5, ErrorCode.REFUSED_STREAM)]
    assert client.is_going
    assert client.stream_count == 2
    (event,) = client.receive(head(3, END_STREAM, (*OK, *LAST)))
    assert isinstance(event, Head)
    assert client.receive(frame(FrameType.GOAWAY, 0, 0, bytes(8))) == [
        Reset(1, ErrorCode.REFUSED_STREAM)
    ]


def test_no_stream_is_begun_when_the_numbers_are_used_up() -> None:
    client = Http2Client(first_id=ID_MAX - 4)
    client.receive(settings_frame(()))
    assert [client.ask(BLOCK, b""), client.is_going] == [ID_MAX - 4, False]
    assert [client.ask(BLOCK, b""), client.is_going] == [ID_MAX - 2, True]


def test_a_reset_is_told_with_its_code() -> None:
    client = raw()
    stream_id = client.ask(BLOCK, b"")
    reset = frame(FrameType.RST_STREAM, 0, stream_id, UINT32.pack(ErrorCode.REFUSED_STREAM))
    assert client.receive(reset) == [Reset(stream_id, ErrorCode.REFUSED_STREAM)]
    assert client.stream_count == 0


def test_it_knows_what_the_server_takes() -> None:
    client = Http2Client()
    assert (client.streams_max, client.head_size_max) == (FIRST_STREAMS_MAX, HEADER_SIZE_MAX)
    client.receive(
        settings_frame(((Setting.MAX_CONCURRENT_STREAMS, 7), (Setting.MAX_HEADER_LIST_SIZE, 900)))
    )
    assert (client.streams_max, client.head_size_max) == (7, 900)


def test_a_ping_is_answered_both_ways() -> None:
    pair = Pair()
    pair.client.ping()
    pair.server.ping(b"12345678")
    pair.carry()
    assert any(isinstance(event, h2.events.PingReceived) for event in pair.told)
    assert any(isinstance(event, h2.events.PingAckReceived) for event in pair.told)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(FrameType.DATA, 0, 0), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.DATA, 0, 3), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.DATA, 0, 2), ErrorCode.PROTOCOL_ERROR),
        (head(3), ErrorCode.PROTOCOL_ERROR),
        (head(2), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.HEADERS, END_HEADERS, 1, b"\xff"), ErrorCode.COMPRESSION_ERROR),
        (head(1, fields=(("a", "x" * HEADER_SIZE_MAX),)), ErrorCode.ENHANCE_YOUR_CALM),
        (frame(FrameType.PUSH_PROMISE, END_HEADERS, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.SETTINGS, 0, 0, SETTING.pack(2, 1)), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.SETTINGS, ACK, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(FrameType.RST_STREAM, 0, 7, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.WINDOW_UPDATE, 0, 3, UINT32.pack(1)), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (b"\xff\xff\xff" + bytes(6), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_a_fault_of_the_connection_ends_it(data: bytes, code: ErrorCode) -> None:
    client = raw()
    client.ask(BLOCK, b"")
    client.take_outgoing()
    assert client.receive(data) == [Reset(1, code)]
    assert client.failed.startswith(code.name)
    *_, said = frames(client.take_outgoing())
    assert (said[0], UINT32.unpack(said[3][:4])[0]) == (FrameType.GOAWAY, 0)
    assert UINT32.unpack(said[3][4:8])[0] == code
    assert client.receive(settings_frame(())) == []


def test_a_server_that_begins_with_something_else_fails() -> None:
    client = Http2Client()
    client.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    assert client.failed


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(FrameType.DATA, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
        (head(1, fields=LAST), ErrorCode.PROTOCOL_ERROR),
        (head(1, fields=((":status", "200"), (":path", "/"))), ErrorCode.PROTOCOL_ERROR),
        (head(1, fields=(*OK, ("Upper", "x"))), ErrorCode.PROTOCOL_ERROR),
        (head(1, fields=(*OK, ("connection", "close"))), ErrorCode.PROTOCOL_ERROR),
        (head(1, END_STREAM, ((":status", "103"),)), ErrorCode.PROTOCOL_ERROR),
        (head(1, END_STREAM, (*OK, ("content-length", "3"))), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.WINDOW_UPDATE, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_a_fault_of_a_stream_costs_the_stream(data: bytes, code: ErrorCode) -> None:
    client = raw()
    client.ask(BLOCK, b"")
    client.take_outgoing()
    assert client.receive(data) == [Reset(1, code)]
    assert resets(client.take_outgoing()) == [(1, code)]
    assert not client.failed
    assert client.ask(BLOCK, b"") == 3


@pytest.mark.parametrize(
    "last", [head(1, 0, LAST), head(1, END_STREAM, OK), frame(0, END_STREAM, 1, b"short")]
)
def test_an_answer_must_end_as_its_head_tells(last: bytes) -> None:
    client = raw()
    client.ask(BLOCK, b"")
    client.receive(head(1, fields=(*OK, ("content-length", "9"))))
    assert client.receive(last) == [Reset(1, ErrorCode.PROTOCOL_ERROR)]


@pytest.mark.parametrize(
    "useless",
    [
        frame(FrameType.PING, 0, 0, bytes(8)),
        settings_frame(()),
        frame(FrameType.DATA, 0, 1),
        frame(FrameType.GOAWAY, 0, 0, UINT32.pack(1) + bytes(4)),
        head(1, fields=((":status", "102"),)),
        frame(99, 0, 0),
    ],
)
def test_a_flood_of_useless_frames_ends_the_connection(useless: bytes) -> None:
    client = raw()
    client.ask(BLOCK, b"")
    for _ in range(FLOOD_MAX // 100):
        client.receive(useless * 50)
        client.calm()
    assert not client.failed
    client.receive(useless * (FLOOD_MAX + 1))
    assert client.failed.startswith("ENHANCE_YOUR_CALM")


@pytest.mark.parametrize("seed", range(30))
def test_bytes_of_chance_raise_nothing(seed: int) -> None:
    rng = random.Random(seed)
    encoder = hpack.Encoder()
    client = raw()
    for _ in range(300):
        if rng.random() < 0.2 and client.stream_count < 3:
            client.ask(BLOCK, b"x")
        kind, flags = rng.randrange(11), rng.choice((0, 1, 4, 5, 8, 0x20, 0xFF))
        fields = rng.choice((OK, LAST, ((":status", "103"),)))
        payload = rng.choice((b"", rng.randbytes(rng.randrange(40)), encoder.encode(fields)))
        client.receive(frame(kind, flags, rng.choice((0, 1, 2, 3, 5, 7)), payload))
        if client.failed:
            assert client.stream_count == client.unsent_size == 0
            client, encoder = raw(), hpack.Encoder()


@pytest.mark.parametrize("seed", range(10))
def test_a_stream_of_chance_raises_nothing(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        client = raw()
        client.ask(BLOCK, b"")
        data = bytearray(head(1) + frame(0, 0, 1, b"abc") + head(1, END_STREAM, LAST))
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        client.receive(bytes(data))
