"""The client's end of an HTTP/2 connection: it asks, and is answered.

A stream ends with its answer: what of the request has not left by then goes nowhere, and the server
is told so. Frames of a stream that we have reset may still be under way; they are dropped.

Our number of streams is not bounded here: who opens them looks at `streams_max` and `is_going`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from skylarkmq.protocol.http2.connection import (
    HEADER_SIZE_MAX,
    Event,
    Head,
    Http2Connection,
    Http2Error,
    Reset,
    Stream,
    StreamError,
)
from skylarkmq.protocol.http2.frames import (
    END_HEADERS,
    END_STREAM,
    FRAME_SIZE_MIN,
    PREFACE,
    SETTING,
    STREAM_ID_MASK,
    UINT32,
    ErrorCode,
    FrameType,
    Setting,
    frame,
)
from skylarkmq.protocol.http2.hpack import Field

FIRST_STREAMS_MAX: Final = 100
"""Streams at a time while the peer has not said how many; no peer should allow fewer."""
ID_MAX: Final = STREAM_ID_MASK
_NEEDED: Final = frozenset((b":status",))
_PING: Final = frame(FrameType.PING, 0, 0, bytes(8))


class _Asked(Stream):
    __slots__ = ("has_head", "is_sent")

    def __init__(self, stream_id: int, send_left: int) -> None:
        super().__init__(stream_id, send_left)
        self.has_head = False  # of the answer
        self.is_sent = False  # the request, all of it


class Http2Client(Http2Connection):
    """The client's end of one connection. One thread.

    Attributes:
        streams_max: how many the server takes at a time.
        head_size_max: bytes of the fields of a request that it takes, each with ENTRY_SIZE.
        is_going: it takes no new stream.
        reset_count: streams that were reset from here since `calm`; each is work without any use
            to the server, which bounds that as this end does.
    """

    def __init__(self, first_id: int = 1) -> None:
        """Begin, with the greeting and our settings as the first things to be written.

        Args:
            first_id: of a stream; odd.
        """
        super().__init__(((Setting.ENABLE_PUSH, 0),), greeting=PREFACE)
        self.streams_max = FIRST_STREAMS_MAX
        self.head_size_max = HEADER_SIZE_MAX
        self.is_going = False
        self.reset_count = 0
        self._next_id = first_id

    def calm(self) -> None:
        """Forget what both ends did without any use: some time has passed."""
        super().calm()
        self.reset_count = 0

    # What comes

    def _is_idle(self, stream_id: int) -> bool:
        return stream_id >= self._next_id or not stream_id & 1

    def _settings(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        super()._settings(flags, stream_id, payload, events)
        for key, value in SETTING.iter_unpack(payload):
            if key == Setting.ENABLE_PUSH and value:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a server cannot be pushed to")
            if key == Setting.MAX_CONCURRENT_STREAMS:
                self.streams_max = value
            elif key == Setting.MAX_HEADER_LIST_SIZE:
                self.head_size_max = value

    def _head(self, stream_id: int, flags: int, block: bytes, events: list[Event]) -> None:
        fields = self._decoder.decode(block)
        stream = self._streams.get(stream_id)
        if stream is None:
            if self._is_idle(stream_id):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "an answer to nothing")
            self._note_useless()
            return
        assert isinstance(stream, _Asked)
        is_end = bool(flags & END_STREAM)
        if stream.has_head:
            self._check_trailers(stream, fields, is_end=is_end)
        elif not self._begin_answer(stream, fields, is_end=is_end):
            return
        events.append(Head(stream_id, fields, is_end))
        if is_end:
            self._answered(stream)

    def _begin_answer(self, stream: _Asked, fields: Sequence[Field], *, is_end: bool) -> bool:
        """Take the head of an answer; False: of one that the answer itself is to follow."""
        length = self._check(stream.stream_id, fields, _NEEDED, _NEEDED)
        if fields[0][1].startswith(b"1"):
            if is_end:
                raise StreamError(stream.stream_id, ErrorCode.PROTOCOL_ERROR)
            self._note_useless()
            return False
        if is_end and length:
            raise StreamError(stream.stream_id, ErrorCode.PROTOCOL_ERROR)
        stream.has_head = True
        stream.length_left = length
        return True

    def _data(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        stream = self._streams.get(stream_id)
        super()._data(flags, stream_id, payload, events)
        if stream is not None:
            assert isinstance(stream, _Asked)
            if not stream.has_head:
                events.pop()
                raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)
            if flags & END_STREAM:
                self._answered(stream)

    def _late(self, stream_id: int, payload: bytes) -> None:
        if not payload:
            self._note_useless()

    def _answered(self, stream: _Asked) -> None:
        if stream.is_sent:
            self._forget(stream.stream_id)
        else:
            self._reset(stream.stream_id, ErrorCode.CANCEL, [])

    def _goaway(self, flags: int, stream_id: int, payload: bytes, events: list[Event]) -> None:
        super()._goaway(flags, stream_id, payload, events)
        self.is_going = True
        last_id = UINT32.unpack_from(payload)[0] & STREAM_ID_MASK
        for refused in [known for known in self._streams if known > last_id]:
            self._forget(refused)
            events.append(Reset(refused, ErrorCode.REFUSED_STREAM))

    # What goes

    def open(self, block: bytes, *, is_end: bool = False) -> int:
        """Begin a request, and return its stream; not one more where `is_going`.

        Args:
            is_end: it has no body.
        """
        stream_id = self._next_id
        self._next_id += 2
        if self._next_id >= ID_MAX:
            self.is_going = True
        stream = self._streams[stream_id] = _Asked(stream_id, self._peer_window)
        stream.is_sent = is_end
        flags = END_STREAM if is_end else 0
        kind = FrameType.HEADERS
        while len(block) > FRAME_SIZE_MIN:
            self._out.append(frame(kind, flags, stream_id, block[:FRAME_SIZE_MIN]))
            block, flags, kind = block[FRAME_SIZE_MIN:], 0, FrameType.CONTINUATION
        self._out.append(frame(kind, flags | END_HEADERS, stream_id, block))
        return stream_id

    def ask(self, block: bytes, data: bytes) -> int:
        """Send a whole request, and return its stream."""
        stream_id = self.open(block)
        room = min(self._peer_window, self._send_left, self._peer_frame_size)
        if len(data) <= room:
            stream = self._streams[stream_id]
            assert isinstance(stream, _Asked)
            stream.is_sent = True
            stream.send_left -= len(data)
            self._send_left -= len(data)
            self._out.append(frame(FrameType.DATA, END_STREAM, stream_id, data))
        else:
            self.send(stream_id, data)
            self.end(stream_id)
        return stream_id

    def ping(self) -> None:
        """Ask the server for a sign of life."""
        self._out.append(_PING)

    def _reset(self, stream_id: int, code: ErrorCode, events: list[Event]) -> None:
        self.reset_count += 1
        super()._reset(stream_id, code, events)

    def _finish(self, stream: Stream, trailers: bytes) -> None:
        assert isinstance(stream, _Asked)
        if not stream.is_sent:
            stream.is_sent = True
            self._out.append(frame(FrameType.DATA, END_STREAM, stream.stream_id))
