"""Clients of one gRPC port over transports of the test: what one sends, and what another waits for.

No socket and no time takes part. What a client's read costs is counted in lines of Python that run
before the answer to a ping of another client's, which came right behind it.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import hpack

from skylarkmq.broker.grpc.connection import GrpcConnection, GrpcStream, Method, OpenCalls
from skylarkmq.protocol.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    PREFACE,
    UINT32,
    FrameType,
    Setting,
    frame,
    settings_frame,
)
from skylarkmq.protocol.http2.grpc import framed
from tests.support.fake_transport import Owner, Transport
from tests.support.python_work import counted_lines

HEAD = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test/Echo"),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)
_PING = b"whoisit?"


class Echo:
    """A method that answers what it gets, at once; it counts its calls."""

    takes_many = False
    needs_task = False
    size_max = 1 << 20

    def __init__(self) -> None:
        self.count = 0

    async def serve(self, stream: GrpcStream) -> None:
        self.count += 1
        stream.answer(stream.received())


class Peer:
    """One client, which writes frames."""

    def __init__(
        self,
        owner: Owner,
        method: Method,
        *settings: tuple[Setting, int],
        open_calls: OpenCalls | None = None,
        address: str = "192.0.2.9",
    ) -> None:
        self.transport = Transport((address, 4711))
        self.connection = GrpcConnection({"/test/Echo": method}, cast(Any, owner), open_calls)
        self.transport.protocol = cast(Any, self.connection)
        self.connection.connection_made(cast(asyncio.BaseTransport, self.transport))
        self._encoder = hpack.Encoder()
        self._next_id = 1
        self.say(PREFACE + settings_frame(settings))

    def say(self, data: bytes) -> None:
        """Let the server read this in one turn."""
        self.connection.data_received(data)

    def head(self, *, flags: int = END_HEADERS) -> tuple[int, bytes]:
        """Return the id of a new call, and the frame of its head."""
        stream_id, self._next_id = self._next_id, self._next_id + 2
        return stream_id, frame(
            FrameType.HEADERS, flags, stream_id, self._encoder.encode(HEAD, huffman=False)
        )

    def call(self, body: bytes = b"") -> bytes:
        """Return the frames of a whole call."""
        stream_id, head = self.head()
        return head + frame(FrameType.DATA, END_STREAM, stream_id, framed(body))

    def is_answered(self) -> bool:
        """Ping, and return whether the answer was written in the same turn."""
        self.transport.writes.clear()
        self.say(frame(FrameType.PING, 0, 0, _PING))
        return frame(FrameType.PING, ACK, 0, _PING) in b"".join(self.transport.writes)


def opens(stream_id: int, size: int) -> bytes:
    """Return the frame that opens a window by `size` bytes; 0 is the connection's."""
    return frame(FrameType.WINDOW_UPDATE, 0, stream_id, UINT32.pack(size))


def lines_before_answer(hostile: Peer, data: bytes, other: Peer) -> int:
    """Let the server read `data`, then another client's ping; return the lines until its answer."""
    with counted_lines() as work:
        hostile.say(data)
        answered = other.is_answered()
    assert answered
    return work.lines
