"""Frames out of a blocking socket's bytes, large bodies read straight into their place.

`FrameDecoder` of the protocol takes what a read gave, and copies a large body as often as it has
pieces. Here the reader offers the memory to read into: a small buffer while headers are looked
for, then one of exactly the size that a large frame's rest has.

    small buffer      prefix, header and the start of a body; whole small frames
    body buffer       the rest of a body that is longer than what the small buffer still holds

Sans-IO: `buffer` says where to read to, `filled` what came. Worker's main thread.
Source: the frame's layout is that of protocol/frame.py
"""

from __future__ import annotations

from typing import Final

from skylarkmq.protocol.errors import BadFrameError
from skylarkmq.protocol.frame import (
    MAX_FRAME_SIZE,
    MAX_HEADER_SIZE,
    PREFIX,
    PREFIX_SIZE,
    bad_length,
)
from skylarkmq.protocol.raw_frame import RawFrame

SMALL_SIZE: Final = 64 * 1024
LENGTH_SIZE: Final = 4
MAX_LENGTH: Final = MAX_FRAME_SIZE - LENGTH_SIZE

_unpack_prefix = PREFIX.unpack_from


class FrameReader:
    """Cuts the bytes of one connection into frames; not usable after a BadFrameError."""

    __slots__ = ("_body", "_body_size", "_header", "_kind", "_small", "_small_size", "_view")

    def __init__(self) -> None:
        self._small = bytearray(SMALL_SIZE)
        self._view = memoryview(self._small)
        self._small_size = 0
        # Invariant: while _body is there, the small buffer is empty and _body_size < len(_body).
        self._body: bytearray | None = None
        self._body_size = 0
        self._kind = 0
        self._header = b""

    def buffer(self) -> memoryview:
        """Return where the next bytes of the peer belong; never empty, good for one read."""
        if self._body is not None:
            return memoryview(self._body)[self._body_size :]
        return self._view[self._small_size :]

    def filled(self, size: int) -> list[RawFrame]:
        """Return the frames that are complete now that `size` bytes of `buffer` are there.

        Raises:
            BadFrameError: the stream cannot be followed any more.
        """
        body = self._body
        if body is None:
            self._small_size += size
            return self._cut()
        self._body_size += size
        if self._body_size < len(body):
            return []
        self._body = None
        return [RawFrame(self._kind, self._header, bytes(body))]

    def _cut(self) -> list[RawFrame]:
        """Take the frames out of the small buffer; what is left moves to its front."""
        frames: list[RawFrame] = []
        small, end, position = self._small, self._small_size, 0
        while end - position >= PREFIX_SIZE:
            length, mark = _unpack_prefix(small, position)
            header_size = mark & MAX_HEADER_SIZE
            if length > MAX_LENGTH or header_size + LENGTH_SIZE > length:
                raise bad_length(length, header_size, MAX_LENGTH, frames)
            body_start = position + PREFIX_SIZE + header_size
            frame_end = position + LENGTH_SIZE + length
            if frame_end <= end:
                header = bytes(small[position + PREFIX_SIZE : body_start])
                frames.append(RawFrame(mark >> 24, header, bytes(small[body_start:frame_end])))
                position = frame_end
                continue
            if header_size > SMALL_SIZE - PREFIX_SIZE:
                raise BadFrameError("bad_header", f"{header_size} bytes", frames)
            if body_start <= end:  # the header is whole: the rest goes where it belongs
                self._begin_body(mark >> 24, position, body_start, frame_end)
                position = end
            break
        if position:
            rest = bytes(small[position:end])
            small[: len(rest)] = rest
            self._small_size = len(rest)
        return frames

    def _begin_body(self, kind: int, position: int, body_start: int, frame_end: int) -> None:
        self._kind = kind
        self._header = bytes(self._small[position + PREFIX_SIZE : body_start])
        self._body = bytearray(frame_end - body_start)
        self._body_size = self._small_size - body_start
        self._body[: self._body_size] = self._view[body_start : self._small_size]
