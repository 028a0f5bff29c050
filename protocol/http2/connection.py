"""One HTTP/2 connection: what both of its ends do. `server.py` and `client.py` are the two.

    receive(bytes)  ->  events          Head, Data, Reset, Drained, in the order of the bytes
    send ..., end   ->  take_outgoing   what is to be written to the peer

Flow control: the connection's window opens again by itself, a stream's when its data was `taken`;
so a peer can have no more under way than the windows of its streams. What the peer's windows do not
let out waits here, stream by stream; `unsent_size` says how much that is. What a read opens is sent
once, behind its last frame, and no frame looks at all that waits: work is as much as the bytes are.

A fault of a stream costs the stream, a fault of the connection ends it: `failed` says why, the last
frame that is written is GOAWAY, and nothing is taken any more. A peer that makes work without an
end (resets and the bodies before them, pings that no data of ours called for, settings, empty
frames) is told to calm down. Data that was under way when we ended its stream is dropped.

Source: RFC 9113
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from skylarkmq.protocol.http2.frames import (
    ACK,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    FRAME_SIZE_LIMIT,
    FRAME_SIZE_MIN,
    HAS_PRIORITY,
    HEAD_SIZE,
    PADDED,
    SETTING,
    STREAM_ID_MASK,
    UINT32,
    WINDOW_MAX,
    ErrorCode,
    FrameType,
    Setting,
    frame,
    settings_frame,
)
from skylarkmq.protocol.http2.hpack import Field, HpackDecoder, HpackError, TooLargeError

RECEIVE_FRAME_SIZE: Final = 1 << 16
RECEIVE_WINDOW: Final = 1 << 20
"""Bytes of one stream that may be under way before they are taken."""
CONNECTION_WINDOW: Final = 1 << 24
HEADER_SIZE_MAX: Final = 16 << 10
"""Bytes of a head's fields, and of the block that carries them."""
FLOOD_MAX: Final = 10_000
"""Frames without any use between two calls of `calm`."""
_USELESS_SIZE: Final = 8 << 10
"""Bytes of a body without an end that count as one of them."""
_USELESS_STREAMS: Final = 32
"""So do so many streams whose windows the peer changes at once."""
_PRIORITY_SIZE: Final = 5
_PING_SIZE: Final = 8
_GOAWAY_SIZE: Final = 8
_NAMES_MAX: Final = 256
_OF_CONNECTION: Final = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)


class Head(NamedTuple):
    """A request or an answer begins; or an answer ends, with more fields.

    Attributes:
        fields: names in lower case, pseudo fields (`:path`, `:status`) first.
        is_end: nothing follows.
    """

    stream_id: int
    fields: Sequence[Field]
    is_end: bool


class Data(NamedTuple):
    """A part of a body; `taken` must be told of its bytes."""

    stream_id: int
    data: bytes
    is_end: bool


class Reset(NamedTuple):
    """A stream that was told of has ended before its time: its peer's word, or a fault of it."""

    stream_id: int
    code: int


class Drained(NamedTuple):
    """What `send` had to keep back on a stream has left."""

    stream_id: int


Event = Head | Data | Reset | Drained


class Http2Error(Exception):
    """A fault that ends the connection."""

    def __init__(self, code: ErrorCode, why: str) -> None:
        super().__init__(why)
        self.code = code


class StreamError(Exception):
    """A fault that ends a stream."""

    def __init__(self, stream_id: int, code: ErrorCode) -> None:
        super().__init__()
        self.stream_id = stream_id
        self.code = code


class Stream:
    """A stream that has not ended, as its connection keeps it."""

    __slots__ = (
        "is_received", "length_left", "pending", "receive_left", "receive_limit", "send_left",
        "stream_id", "taken_size", "trailers",
    )  # fmt: skip

    def __init__(self, stream_id: int, send_left: int) -> None:
        self.stream_id = stream_id
        self.send_left = send_left  # may be below 0 after a change of the peer's settings
        self.receive_left = self.receive_limit = RECEIVE_WINDOW  # the second: of all its life
        self.taken_size = 0  # of what came, and the window was not opened for yet
        self.is_received = False  # the peer has sent all of it
        self.length_left: int | None = None  # of the body, if the head tells it
        self.pending: deque[memoryview] = deque()
        self.trailers: bytes | None = None  # follow what is pending; empty: nothing but the end


class Http2Connection(ABC):
    """One end of a connection. One thread.

    Attributes:
        failed: why the connection has ended; empty while it has not.
        unsent_size: bytes of bodies that wait for the peer's windows.
        is_greeted: the peer's first frame, its settings, has come.
        is_behind: frames wait that `receive` had no turn for; `receive(b"")` goes on with them.
    """

    def __init__(
        self,
        ours: Iterable[tuple[Setting, int]],
        *,
        greeting: bytes = b"",
        awaited: bytes = b"",
        turn_max: int = sys.maxsize,
    ) -> None:
        """Begin, with our greeting and settings as the first things to be written.

        Args:
            ours: settings that are not those of both ends.
            awaited: the peer's greeting.
            turn_max: frames that one call of `receive` looks at.
        """
        self.failed = ""
        self.unsent_size = 0
        self.is_greeted = False
        self.is_behind = False
        self._decoder = HpackDecoder(HEADER_SIZE_MAX)
        self._awaited = awaited
        self._rest = bytearray()  # a frame of which more is to come
        self._turn = range(turn_max)
        self._streams: dict[int, Stream] = {}
        self._blocked: dict[int, Stream] = {}
        self._open: dict[int, Stream] = {}  # of these: not by their own windows; whose turn is next
        self._is_opened = False  # a window of the peer, by this read
        self._window_change = 0  # of the peer's streams, by this read
        self._last_id = 0  # of the streams that the peer has begun
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags, fields so far
        self._receive_left = CONNECTION_WINDOW
        self._late_left = 0  # bytes that may be under way to streams that we have ended
        self._send_left = self._send_limit = DEFAULT_WINDOW  # the second: of all its life
        self._sent_at_ping = 0
        self._peer_window = DEFAULT_WINDOW
        self._peer_frame_size = FRAME_SIZE_MIN
        self._flood = 0
        self._names: set[bytes] = set()  # of fields, which are known to be in order
        settings = (
            *ours,
            (Setting.INITIAL_WINDOW_SIZE, RECEIVE_WINDOW),
            (Setting.MAX_FRAME_SIZE, RECEIVE_FRAME_SIZE),
            (Setting.MAX_HEADER_LIST_SIZE, HEADER_SIZE_MAX),
        )
        opens = _window_update(0, CONNECTION_WINDOW - DEFAULT_WINDOW)
        self._out = [greeting, settings_frame(settings), opens]
        self._readers: dict[int, Callable[[int, int, bytes, list[Event]], None]] = {
            FrameType.DATA: self._data,
            FrameType.HEADERS: self._headers,
            FrameType.PRIORITY: self._priority,
            FrameType.RST_STREAM: self._rst_stream,
            FrameType.SETTINGS: self._settings,
            FrameType.PUSH_PROMISE: self._push_promise,
            FrameType.PING: self._ping,
            FrameType.GOAWAY: self._goaway,
            FrameType.WINDOW_UPDATE: self._window_update,
            FrameType.CONTINUATION: self._continuation,
        }

    @property
    def stream_count(self) -> int:
        """Streams that have not ended."""
        return len(self._streams)

    @property
    def buffered_size(self) -> int:
        """Bytes of a frame, or of a head, that has not come to its end."""
        return len(self._rest) + (len(self._block[2]) if self._block is not None else 0)

    def calm(self) -> None:
        """Forget what the peer did without any use: some time has passed."""
        self._flood = 0

    # What comes

    def receive(self, data: bytes) -> list[Event]:
        """Take bytes of the peer and return what they mean; nothing after a failure."""
        events: list[Event] = []
        if self.failed:
            return events
        if self._rest:
            self._rest += data
            source: bytes | bytearray = self._rest
        else:
            source = data
        try:
            end = self._read(source, events)
            if self._is_opened:
                self._use_windows(events)
        except (Http2Error, HpackError) as error:
            self._fail(error, events)
            return events
        if source is self._rest:
            del self._rest[:end]
        elif end < len(data):
            self._rest += data[end:]
        return events

    def _read(self, source: bytes | bytearray, events: list[Event]) -> int:
        """Read whole frames; return where the first one begins that is not whole."""
        size, position = len(source), 0
        if self._awaited:
            greeting = bytes(source[: len(self._awaited)])
            if not self._awaited.startswith(greeting):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "this is no HTTP/2")
            if size < len(self._awaited):
                return 0
            position, self._awaited = len(self._awaited), b""
        self.is_behind = False
        for _ in self._turn:
            if size - position < HEAD_SIZE:
                break
            high, low, kind, flags, stream_id = FRAME_HEAD.unpack_from(source, position)
            length = high << 8 | low
            if length > RECEIVE_FRAME_SIZE:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            end = position + HEAD_SIZE + length
            if end > size:
                break
            stream_id &= STREAM_ID_MASK
            payload = bytes(source[position + HEAD_SIZE : end])
            position = end
            if self._block is not None and kind != FrameType.CONTINUATION:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a head is cut by another frame")
            if not self.is_greeted:
                if kind != FrameType.SETTINGS or flags & ACK:
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the first frame is no SETTINGS")
                self.is_greeted = True
            reader = self._readers.get(kind)
            if reader is None:
                self._note_useless()
                continue
            try:
                reader(flags, stream_id, payload, events)
            except StreamError as error:
                self._note_broken_off(error.stream_id)
                self._reset(error.stream_id, error.code, events)
        else:
            self.is_behind = True
        return position

    def _fail(self, error: Http2Error | HpackError, events: list[Event]) -> None:
        if isinstance(error, TooLargeError):
            error = Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "a head is too large")
        elif isinstance(error, HpackError):
            error = Http2Error(ErrorCode.COMPRESSION_ERROR, "a head cannot be read")
        self.failed = f"{error.code.name}: {error}"
        last = UINT32.pack(self._last_id) + UINT32.pack(error.code)
        self._out.append(frame(FrameType.GOAWAY, 0, 0, last + str(error).encode()))
        events.extend(Reset(stream_id, error.code) for stream_id in self._streams)
        self._forget_all()

    def _forget_all(self) -> None:
        self._streams.clear()
        self._blocked.clear()
        self._open.clear()
        self._rest.clear()
        self._block = None
        self.unsent_size = 0
        self.is_behind = False

    def _note_broken_off(self, stream_id: int) -> None:
        """Count a stream that ends before its time, with what came of its body."""
        stream = self._streams.get(stream_id)
        has_body = stream is not None and not stream.is_received
        size = stream.receive_limit - stream.receive_left if stream and has_body else 0
        self._note_useless(1 + size // _USELESS_SIZE)

    def _note_useless(self, count: int = 1) -> None:
        self._flood += count
        if self._flood > FLOOD_MAX:
            why = "too many frames without any use"
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, why)

    @abstractmethod
    def _is_idle(self, stream_id: int) -> bool:
        """Return whether a stream has never begun."""

    @abstractmethod
    def _head(self, stream_id: int, flags: int, block: bytes, events: list[Event]) -> None:
        """Take a whole block of fields."""

    @abstractmethod
    def _finish(self, stream: Stream, trailers: bytes) -> None:
        """End our half of a stream; all of its body has left."""

    def _late(self, stream_id: int, payload: bytes) -> None:
        """Take data of a stream that has ended; it may have been under way when we ended it."""
        if stream_id in self._streams or self._late_left <= 0:
            raise StreamError(stream_id, ErrorCode.STREAM_CLOSED)
        self._late_left -= HEAD_SIZE + len(payload)

    def _data(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        size = len(payload)
        self._receive_left -= size
        if self._receive_left < 0:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "more than the connection's window")
        if self._receive_left < CONNECTION_WINDOW // 2:
            self._out.append(_window_update(0, CONNECTION_WINDOW - self._receive_left))
            self._receive_left = CONNECTION_WINDOW
        if flags & PADDED:
            payload = _without_padding(payload)
        stream = self._streams.get(stream_id)
        if stream is None or stream.is_received:
            if self._is_idle(stream_id):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "data of a stream that never began")
            self._late(stream_id, payload)
            return
        stream.receive_left -= size
        if stream.receive_left < 0:
            raise StreamError(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        is_end = bool(flags & END_STREAM)
        if stream.length_left is not None:
            stream.length_left -= len(payload)
            if stream.length_left < 0 or (is_end and stream.length_left):
                raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)
        if not payload and not is_end:
            self._note_useless()
        stream.taken_size += size - len(payload)
        stream.is_received = is_end
        events.append(Data(stream_id, payload, is_end))

    def _headers(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if not stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a head of no stream")
        if flags & PADDED:
            payload = _without_padding(payload)
        on_itself = False
        if flags & HAS_PRIORITY:
            if len(payload) < _PRIORITY_SIZE:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a head without its priority")
            on_itself = _depends_on(payload) == stream_id
            payload = payload[_PRIORITY_SIZE:]
        if len(payload) > HEADER_SIZE_MAX:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "a head is too large")
        if flags & END_HEADERS:
            self._head(stream_id, flags, payload, events)
        else:
            self._block = stream_id, flags, bytearray(payload)
        if on_itself:
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)

    def _continuation(
        self, flags: int, stream_id: int, payload: bytes, events: list[Event]
    ) -> None:
        if self._block is None or self._block[0] != stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "this continues nothing")
        _, first_flags, block = self._block
        block += payload
        if len(block) > HEADER_SIZE_MAX:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "a head without an end")
        if flags & END_HEADERS:
            self._block = None
            self._head(stream_id, first_flags, bytes(block), events)
        elif not payload:
            self._note_useless()

    def _check_trailers(self, stream: Stream, fields: Sequence[Field], *, is_end: bool) -> None:
        """Check the fields that end a body."""
        if stream.is_received:
            raise StreamError(stream.stream_id, ErrorCode.STREAM_CLOSED)
        if not is_end or stream.length_left or any(name.startswith(b":") for name, _ in fields):
            raise StreamError(stream.stream_id, ErrorCode.PROTOCOL_ERROR)
        for name, _ in fields:
            self._check_name(stream.stream_id, name)
        _check_values(stream.stream_id, fields)
        stream.is_received = True

    def _check(
        self,
        stream_id: int,
        fields: Sequence[Field],
        needed: frozenset[bytes],
        known: frozenset[bytes],
    ) -> int | None:
        """Check a head's fields, and return the length of the body if they tell it.

        Args:
            needed: pseudo fields that must be there.
            known: those that may.
        """
        pseudo: set[bytes] = set()
        length: int | None = None
        is_over = False  # the pseudo fields
        for name, value in fields:
            if name[:1] == b":":
                if is_over or name in pseudo or not value:
                    raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)
                pseudo.add(name)
                continue
            is_over = True
            if name not in self._names:
                self._check_name(stream_id, name)
            if name == b"te" and value != b"trailers":
                raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)
            if name == b"content-length":
                if not value.isdigit():
                    raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)
                length = int(value[:20])
        if not needed <= pseudo <= known:
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)
        _check_values(stream_id, fields)
        return length

    def _check_name(self, stream_id: int, name: bytes) -> None:
        if not name or name != name.lower() or name in _OF_CONNECTION:
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)
        if len(self._names) < _NAMES_MAX:
            self._names.add(name)

    def _priority(self, _: int, stream_id: int, payload: bytes, __: list[Event]) -> None:
        self._note_useless()
        if not stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a priority of no stream")
        if len(payload) != _PRIORITY_SIZE:
            raise StreamError(stream_id, ErrorCode.FRAME_SIZE_ERROR)
        if _depends_on(payload) == stream_id:
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)

    def _rst_stream(self, _: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        self._note_broken_off(stream_id)
        if len(payload) != UINT32.size:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM has four bytes")
        if self._is_idle(stream_id):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the end of a stream that never began")
        if stream_id in self._streams:
            self._forget(stream_id)
            events.append(Reset(stream_id, UINT32.unpack(payload)[0]))

    def _settings(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "settings of a stream")
        self._note_useless()
        if len(payload) % SETTING.size or (flags & ACK and payload):
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "settings of a wrong size")
        if flags & ACK:
            return
        for key, value in SETTING.iter_unpack(payload):
            if key == Setting.ENABLE_PUSH and value > 1:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is 0 or 1")
            if key == Setting.MAX_FRAME_SIZE:
                if not FRAME_SIZE_MIN <= value <= FRAME_SIZE_LIMIT:
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of range")
                self._peer_frame_size = min(value, RECEIVE_FRAME_SIZE)
            if key == Setting.INITIAL_WINDOW_SIZE:
                if value > WINDOW_MAX:
                    why = "INITIAL_WINDOW_SIZE is out of range"
                    raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, why)
                self._window_change = value - self._peer_window
                self._is_opened = True
        self._out.append(frame(FrameType.SETTINGS, ACK, 0))

    def _use_windows(self, events: list[Event]) -> None:
        """Send what this read let out."""
        self._is_opened = False
        change, self._window_change = self._window_change, 0
        if change:
            self._peer_window += change
            for stream in self._streams.values():
                stream.send_left += change
                if stream.send_left > WINDOW_MAX:
                    raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "a window is out of range")
            self._open.update(self._blocked)
            self._note_useless(len(self._streams) // _USELESS_STREAMS)
        self._flush(events)

    def _push_promise(self, _: int, __: int, ___: bytes, ____: list[Event]) -> None:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a promise that was not asked for")

    def _ping(self, flags: int, stream_id: int, payload: bytes, _: list[Event]) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a ping of a stream")
        if len(payload) != _PING_SIZE:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "PING has eight bytes")
        sent = self._send_limit - self._send_left
        if sent == self._sent_at_ping:
            self._note_useless()
        self._sent_at_ping = sent  # a client may measure its bandwidth by a ping for each piece
        if not flags & ACK:
            self._out.append(frame(FrameType.PING, ACK, 0, payload))

    def _goaway(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the peer's leave is not a stream's")
        if len(payload) < _GOAWAY_SIZE:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY has eight bytes or more")
        self._note_useless()

    def _window_update(self, _: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        if len(payload) != UINT32.size:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE has four bytes")
        increment = UINT32.unpack(payload)[0] & WINDOW_MAX
        if not stream_id:
            if not increment:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a window opened by nothing")
            self._send_left += increment
            self._send_limit += increment
            if self._send_left > WINDOW_MAX:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "the window is out of range")
            self._is_opened = True
            return
        if self._is_idle(stream_id):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a window of a stream that never began")
        if not increment:
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)
        stream = self._streams.get(stream_id)
        if stream is None:
            self._note_useless()
            return
        stream.send_left += increment
        if stream.send_left + self._window_change > WINDOW_MAX:
            raise StreamError(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        if stream_id in self._blocked:
            self._open[stream_id] = stream
            self._is_opened = True

    # What goes

    def take_outgoing(self) -> bytes:
        """Return what is to be written to the peer; empty when there is nothing."""
        out, self._out = self._out, []
        return out[0] if len(out) == 1 else b"".join(out)

    def taken(self, stream_id: int, size: int) -> None:
        """Let a stream's window open again by bytes of its data that have found their place."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.is_received:
            return
        stream.taken_size += size
        if stream.taken_size >= RECEIVE_WINDOW // 2:
            self._out.append(_window_update(stream_id, stream.taken_size))
            stream.receive_left += stream.taken_size
            stream.receive_limit += stream.taken_size
            stream.taken_size = 0

    def send(self, stream_id: int, data: bytes) -> bool:
        """Send a part of a body; False when some of it waits for the peer's windows.

        A stream that has ended takes nothing.
        """
        stream = self._streams.get(stream_id)
        if stream is None:
            return True
        if not stream.pending:
            room = min(stream.send_left, self._send_left)
            if len(data) <= room and len(data) <= self._peer_frame_size:
                stream.send_left -= len(data)
                self._send_left -= len(data)
                self._out.append(frame(FrameType.DATA, 0, stream_id, data))
                return True
        self._keep(stream, data)
        self._flush([])
        return not stream.pending

    def end(self, stream_id: int, trailers: bytes = b"") -> None:
        """End our half of a stream, after all of its body.

        Args:
            trailers: the block of its last fields; an empty one ends it without any.
        """
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if stream.pending:
            stream.trailers = trailers
        else:
            self._finish(stream, trailers)

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """End a stream before its time."""
        if stream_id in self._streams:
            self._reset(stream_id, code, [])

    def _keep(self, stream: Stream, data: bytes) -> None:
        stream.pending.append(memoryview(data))
        self.unsent_size += len(data)
        self._blocked[stream.stream_id] = self._open[stream.stream_id] = stream

    def _flush(self, events: list[Event]) -> None:
        """Send what the windows let out: one frame of each stream, and again."""
        waiting = self._open
        while waiting and self._send_left > 0:
            stream_id = next(iter(waiting))
            stream = waiting.pop(stream_id)
            if self._flush_one(stream, events) and stream.pending:
                waiting[stream_id] = stream

    def _flush_one(self, stream: Stream, events: list[Event]) -> bool:
        """Send a frame of a stream; False when its own window is closed."""
        data = stream.pending[0]
        room = min(stream.send_left, self._send_left, self._peer_frame_size)
        if room <= 0 and data:
            return False
        part, rest = data[:room], data[room:]
        if rest:
            stream.pending[0] = rest
        else:
            stream.pending.popleft()
        stream.send_left -= len(part)
        self._send_left -= len(part)
        self.unsent_size -= len(part)
        self._out.append(frame(FrameType.DATA, 0, stream.stream_id, part))
        if not stream.pending:
            del self._blocked[stream.stream_id]
            if stream.trailers is not None:
                self._finish(stream, stream.trailers)
            else:
                events.append(Drained(stream.stream_id))
        return True

    def _reset(self, stream_id: int, code: ErrorCode, events: list[Event]) -> None:
        self._out.append(rst_stream(stream_id, code))
        stream = self._streams.get(stream_id)
        if stream is None or not stream.is_received:
            self._late_left += RECEIVE_WINDOW
        if stream is not None:
            self._forget(stream_id)
            events.append(Reset(stream_id, code))

    def _forget(self, stream_id: int) -> None:
        stream = self._streams.pop(stream_id)
        if self._blocked.pop(stream_id, None) is not None:
            self._open.pop(stream_id, None)
            self.unsent_size -= sum(map(len, stream.pending))


def _check_values(stream_id: int, fields: Sequence[Field]) -> None:
    """Refuse values with an end of a line or of a text in them; RFC 9113 8.2.1."""
    values = b" ".join([value for _, value in fields])
    if b"\n" in values or b"\r" in values or b"\0" in values:
        raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)


def _window_update(stream_id: int, increment: int) -> bytes:
    return frame(FrameType.WINDOW_UPDATE, 0, stream_id, UINT32.pack(increment))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    """Return the frame that ends a stream before its time."""
    return frame(FrameType.RST_STREAM, 0, stream_id, UINT32.pack(code))


def _depends_on(payload: bytes) -> int:
    parent: int = UINT32.unpack_from(payload)[0] & STREAM_ID_MASK
    return parent


def _without_padding(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "more padding than there are bytes")
    return payload[1 : len(payload) - payload[0]]
