"""Length-prefixed framing: bytes of a connection in, whole frames out.

    position  size  field           type
    0         4     length          int32 BE   bytes after this field = 4 + header + body
    4         1     serialize_type  uint8      0 JSON, 1 ROCKETMQ, 0x4D msgpack (ours)
    5         3     header_size     uint24 BE  bytes
    8         h     header
    8 + h     rest  body            may be empty

There is no checksum and no preamble. A frame may be at most 16 MiB long, its length field
included; what promises more is refused as soon as its first four bytes are there.

Source: apache/rocketmq@rocketmq-all-4.9.8 remoting/.../netty/NettyDecoder.java,
remoting/.../protocol/RemotingCommand.java (decode, encodeHeader, markProtocolType)
"""

import struct
from enum import IntEnum
from typing import Final

from skylarkmq.protocol.errors import BadFrameError, BadFrameKind, LocalProtocolError
from skylarkmq.protocol.raw_frame import RawFrame

__all__ = [
    "MAX_FRAME_SIZE",
    "PREFIX_SIZE",
    "FrameDecoder",
    "RawFrame",
    "SerializeType",
    "bad_length",
    "encode_frame",
]

MAX_FRAME_SIZE: Final = 16_777_216
MAX_HEADER_SIZE: Final = 0xFFFFFF
LENGTH_SIZE: Final = 4
PREFIX: Final = struct.Struct(">II")
PREFIX_SIZE: Final = 8
assert PREFIX.size == PREFIX_SIZE == LENGTH_SIZE + 4

TLS_STARTS: Final = frozenset({0x1503, 0x1603})
"""First bytes of a TLS record: an alert or a handshake, version 3.x; as a length far too large."""

_unpack_prefix = PREFIX.unpack_from
_pack_prefix = PREFIX.pack
# RawFrame(...) does the same at twice the price.
_new_tuple = tuple.__new__  # pyright: ignore


class SerializeType(IntEnum):
    """How the header of a frame is written; each frame says so for itself."""

    JSON = 0
    ROCKETMQ = 1
    MSGPACK = 0x4D


class FrameDecoder:
    """Cuts the bytes of one connection into frames.

    Bytes of an unfinished frame are gathered in one growing buffer and looked at again only when
    the frame is complete, so a frame that arrives in many pieces costs time linear in its size
    and memory linear in what arrived, not in what it promises.
    """

    __slots__ = ("_broken", "_max_length", "_pending", "_wanted_size")

    def __init__(self, max_frame_size: int = MAX_FRAME_SIZE) -> None:
        self._max_length = max_frame_size - LENGTH_SIZE
        self._pending = bytearray()
        # Invariant: while _pending is not empty, it is shorter than _wanted_size.
        self._wanted_size = 0
        self._broken: BadFrameKind | None = None

    @property
    def buffered_size(self) -> int:
        """Bytes held back for an unfinished frame."""
        return len(self._pending)

    def feed(self, data: bytes) -> list[RawFrame]:
        """Return the frames that `data` completes, in order; keep the rest.

        Raises:
            BadFrameError: the stream cannot be followed any more. Its `frames` stood before the
                bad place. Every later call raises again.
        """
        if self._broken is not None:
            raise BadFrameError(self._broken, "the stream was given up before")
        frames: list[RawFrame] = []
        if self._pending:
            data = self._take_pending(data, frames)
        end = len(data)
        position = 0
        while end - position >= PREFIX_SIZE:
            length, mark = _unpack_prefix(data, position)
            header_size = mark & MAX_HEADER_SIZE
            if length > self._max_length or header_size + 4 > length:
                raise self._refuse(length, header_size, frames)
            frame_end = position + LENGTH_SIZE + length
            if frame_end > end:
                break
            body_start = position + PREFIX_SIZE + header_size
            header = data[position + PREFIX_SIZE : body_start]
            frames.append(_new_tuple(RawFrame, (mark >> 24, header, data[body_start:frame_end])))
            position = frame_end
        if position < end:
            self._keep(data, position, frames)
        return frames

    def _take_pending(self, data: bytes, frames: list[RawFrame]) -> bytes:
        """Add `data` to the unfinished frame; return the bytes that are to be cut next."""
        pending = self._pending
        pending += data
        wanted_size = self._wanted_size
        if len(pending) < wanted_size:
            return b""
        self._pending = bytearray()
        if wanted_size <= PREFIX_SIZE:
            return bytes(pending)
        _, mark = _unpack_prefix(pending)
        body_start = PREFIX_SIZE + (mark & MAX_HEADER_SIZE)
        with memoryview(pending) as view:
            header = bytes(view[PREFIX_SIZE:body_start])
            frames.append(RawFrame(mark >> 24, header, bytes(view[body_start:wanted_size])))
            return bytes(view[wanted_size:])

    def _keep(self, data: bytes, position: int, frames: list[RawFrame]) -> None:
        """Hold back the unfinished frame at `position`; its length word is judged at once."""
        kept_size = len(data) - position
        if kept_size < LENGTH_SIZE:
            self._wanted_size = LENGTH_SIZE
        else:
            length = int.from_bytes(data[position : position + LENGTH_SIZE])
            if not LENGTH_SIZE <= length <= self._max_length:
                raise self._refuse(length, 0, frames)
            self._wanted_size = PREFIX_SIZE if kept_size < PREFIX_SIZE else LENGTH_SIZE + length
        self._pending += memoryview(data)[position:]

    def _refuse(self, length: int, header_size: int, frames: list[RawFrame]) -> BadFrameError:
        error = bad_length(length, header_size, self._max_length, frames)
        self._broken = error.kind
        return error


def bad_length(
    length: int, header_size: int, max_length: int, frames: list[RawFrame]
) -> BadFrameError:
    """Return what is wrong with a frame of that length word and header size, not raised yet."""
    kind: BadFrameKind = "bad_length"
    why = f"length word {length:#x}, header size {header_size}"
    if length >> 16 in TLS_STARTS:
        kind, why = "tls", "this is TLS, and this side of the connection is without"
    elif max_length < length <= 0x7FFFFFFF:
        kind = "too_large"
    return BadFrameError(kind, why, frames)


def encode_frame(serialize_type: int, header: bytes, body: bytes = b"") -> bytes:
    """Return the whole frame.

    Raises:
        LocalProtocolError: the header exceeds 24 bits or the frame exceeds MAX_FRAME_SIZE.
    """
    header_size = len(header)
    length = 4 + header_size + len(body)
    if header_size > MAX_HEADER_SIZE or length + LENGTH_SIZE > MAX_FRAME_SIZE:
        raise LocalProtocolError(f"frame of {length + LENGTH_SIZE} bytes is over {MAX_FRAME_SIZE}")
    return _pack_prefix(length, serialize_type << 24 | header_size) + header + body
