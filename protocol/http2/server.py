"""The server's end of an HTTP/2 connection: it is asked, and answers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from skylarkmq.protocol.http2.connection import (
    RECEIVE_WINDOW,
    Data,
    Event,
    Head,
    Http2Connection,
    Http2Error,
    Stream,
    StreamError,
    rst_stream,
)
from skylarkmq.protocol.http2.frames import (
    END_HEADERS,
    END_STREAM,
    PREFACE,
    UINT32,
    ErrorCode,
    FrameType,
    Setting,
    frame,
)
from skylarkmq.protocol.http2.hpack import Field

STREAMS_MAX: Final = 4096
_NEEDED: Final = frozenset((b":method", b":scheme", b":path"))
_KNOWN: Final = _NEEDED | {b":authority"}


class Http2Server(Http2Connection):
    """The server's end of one connection. One thread."""

    def __init__(self, streams_max: int = STREAMS_MAX, turn_max: int = sys.maxsize) -> None:
        """Begin, with our settings as the first thing to be written.

        Args:
            turn_max: frames that one call of `receive` looks at.
        """
        ours = ((Setting.MAX_CONCURRENT_STREAMS, streams_max),)
        super().__init__(ours, awaited=PREFACE, turn_max=turn_max)
        self._streams_max = streams_max
        self._going_from: int | None = None  # streams above this one are not taken any more

    # What comes

    def _is_idle(self, stream_id: int) -> bool:
        return stream_id > self._last_id or not stream_id & 1

    def _head(self, stream_id: int, flags: int, block: bytes, events: list[Event]) -> None:
        fields = self._decoder.decode(block)
        is_end = bool(flags & END_STREAM)
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._trailers(stream, fields, is_end=is_end, events=events)
            return
        if not stream_id & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a client's streams have odd numbers")
        if stream_id <= self._last_id:
            raise Http2Error(ErrorCode.STREAM_CLOSED, "a head of a stream that has ended")
        self._last_id = stream_id
        is_going = self._going_from is not None and stream_id > self._going_from
        if is_going or len(self._streams) >= self._streams_max:
            raise StreamError(stream_id, ErrorCode.REFUSED_STREAM)
        length = self._check(stream_id, fields, _NEEDED, _KNOWN)
        if is_end and length:
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR)
        stream = self._streams[stream_id] = Stream(stream_id, self._peer_window)
        stream.length_left = length
        stream.is_received = is_end
        events.append(Head(stream_id, fields, is_end))

    def _trailers(
        self, stream: Stream, fields: Sequence[Field], *, is_end: bool, events: list[Event]
    ) -> None:
        self._check_trailers(stream, fields, is_end=is_end)
        events.append(Data(stream.stream_id, b"", True))

    # What goes

    def send_head(self, stream_id: int, block: bytes) -> None:
        """Begin an answer; a stream that has ended takes nothing."""
        if stream_id in self._streams:
            self._out.append(frame(FrameType.HEADERS, END_HEADERS, stream_id, block))

    def answer(self, stream_id: int, head: bytes, data: bytes, trailers: bytes) -> None:
        """Send a whole answer: its head, its body, its last fields."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        self._out.append(frame(FrameType.HEADERS, END_HEADERS, stream_id, head))
        size = len(data)
        if size <= self._send_left and size <= stream.send_left and size <= self._peer_frame_size:
            self._send_left -= size
            self._out.append(frame(FrameType.DATA, 0, stream_id, data))
            self._finish(stream, trailers)
        else:
            self.send(stream_id, data)
            self.end(stream_id, trailers)

    def go_away(self) -> None:
        """Tell the peer that no new stream is taken; those under way go on."""
        if self._going_from is None and not self.failed:
            self._going_from = self._last_id
            payload = UINT32.pack(self._last_id) + UINT32.pack(ErrorCode.NO_ERROR)
            self._out.append(frame(FrameType.GOAWAY, 0, 0, payload))

    def _finish(self, stream: Stream, trailers: bytes) -> None:
        stream_id = stream.stream_id
        if trailers:
            flags = END_HEADERS | END_STREAM
            self._out.append(frame(FrameType.HEADERS, flags, stream_id, trailers))
        else:
            self._out.append(frame(FrameType.DATA, END_STREAM, stream_id))
        if not stream.is_received:  # it need not send the rest
            self._out.append(rst_stream(stream_id, ErrorCode.NO_ERROR))
            self._late_left += RECEIVE_WINDOW
        self._forget(stream_id)
