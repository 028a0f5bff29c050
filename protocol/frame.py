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
from collections.abc import Sequence
from enum import IntEnum
from mmap import ACCESS_COPY, mmap
from typing import Final, Literal, NamedTuple

from skylarkmq.kernel import twin
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import LocalProtocolError, RemoteProtocolError

MAX_FRAME_SIZE: Final = 16_777_216
LARGE_SIZE: Final = 262_144
"""Frames from this size on have pages of their own as soon as BEGUN_SIZE of them is there."""
BEGUN_SIZE: Final = 65_536
SPARES_MAX: Final = 2
"""Large buffers that are kept for the next large frames: their pages are there already."""
MAX_HEADER_SIZE: Final = 0xFFFFFF
LENGTH_SIZE: Final = 4
PREFIX: Final = struct.Struct(">II")
PREFIX_SIZE: Final = 8
assert PREFIX.size == PREFIX_SIZE == LENGTH_SIZE + 4

TLS_STARTS: Final = frozenset({0x1503, 0x1603})
"""First bytes of a TLS record: an alert or a handshake, version 3.x; as a length far too large."""

BadFrameKind = Literal["bad_length", "bad_header", "too_large", "tls"]

_unpack_prefix = PREFIX.unpack_from
_pack_prefix = PREFIX.pack
# RawFrame(...) does the same at twice the price.
_new_tuple = tuple.__new__  # pyright: ignore
_spares: list[mmap] = []


class SerializeType(IntEnum):
    """How the header of a frame is written; each frame says so for itself."""

    JSON = 0
    ROCKETMQ = 1
    MSGPACK = 0x4D


class RawFrame(NamedTuple):
    """A complete frame, its header not yet read.

    `serialize_type` is the type byte as received, which may name no codec we know.
    """

    serialize_type: int
    header: bytes
    body: bytes


class BadFrameError(RemoteProtocolError):
    """The byte stream of a connection can no longer be trusted: close it, answer nothing.

    `kind` is a metric label. `frames` are the sound frames which stood before the bad one in the
    same piece of input; they are still worth handling.
    """

    def __init__(self, kind: BadFrameKind, why: str, frames: Sequence[RawFrame] = ()) -> None:
        super().__init__(ResponseCode.SYSTEM_ERROR, f"{kind}: {why}")
        self.kind: BadFrameKind = kind
        self.frames: list[RawFrame] = list(frames)


@twin
def cut_frames(
    data: bytes, length_max: int, frame_type: type[RawFrame]
) -> tuple[list[RawFrame], int]:
    """Return the whole frames that `data` begins with, and where they end.

    What follows is unfinished, or its length or header size is wrong.
    """
    frames: list[RawFrame] = []
    position, end = 0, len(data)
    while end - position >= PREFIX_SIZE:
        length, mark = _unpack_prefix(data, position)
        header_size = mark & MAX_HEADER_SIZE
        frame_end = position + LENGTH_SIZE + length
        if length > length_max or header_size + 4 > length or frame_end > end:
            break
        body_start = position + PREFIX_SIZE + header_size
        header = data[position + PREFIX_SIZE : body_start]
        frames.append(_new_tuple(frame_type, (mark >> 24, header, data[body_start:frame_end])))
        position = frame_end
    return frames, position


class FrameDecoder:
    """Cuts the bytes of one connection into frames.

    Bytes of an unfinished frame are gathered in one growing buffer and looked at again only when
    the frame is complete, so a frame that arrives in many pieces costs time linear in its size
    and memory linear in what arrived, not in what it promises. Large ones lie in pages of their
    own: many that grow side by side in malloc's heap leave holes of three times their size there,
    and the heap keeps them.
    """

    __slots__ = ("_broken", "_large", "_large_size", "_max_length", "_pending", "_wanted_size")

    def __init__(self, max_frame_size: int = MAX_FRAME_SIZE) -> None:
        self._max_length = max_frame_size - LENGTH_SIZE
        self._pending = bytearray()
        # Invariant: while _pending is not empty, it is shorter than _wanted_size.
        self._wanted_size = 0
        # Invariant: _pending is empty while the unfinished frame lies here.
        self._large: mmap | None = None
        self._large_size = 0  # bytes that have arrived there
        self._broken: BadFrameKind | None = None

    @property
    def buffered_size(self) -> int:
        """Bytes held back for an unfinished frame."""
        return self._large_size or len(self._pending)

    def clear(self) -> None:
        """Forget the unfinished frame and give its memory back; nothing is fed any more."""
        self._pending = bytearray()
        large, self._large, self._large_size = self._large, None, 0
        if large is not None:
            large.close()

    def feed(self, data: bytes) -> list[RawFrame]:
        """Return the frames that `data` completes, in order; keep the rest.

        Raises:
            BadFrameError: the stream cannot be followed any more. Its `frames` stood before the
                bad place. Every later call raises again.
        """
        if self._broken is not None:
            raise BadFrameError(self._broken, "the stream was given up before")
        frames: list[RawFrame] = []
        if self._large is not None:
            data = self._take_large(self._large, data, frames)
        elif self._pending:
            data = self._take_pending(data, frames)
        cut, position = cut_frames(data, self._max_length, RawFrame)
        frames += cut
        if position < len(data):
            self._keep(data, position, frames)
        return frames

    def _take_pending(self, data: bytes, frames: list[RawFrame]) -> bytes:
        """Add `data` to the unfinished frame; return the bytes that are to be cut next."""
        pending = self._pending
        pending += data
        wanted_size = self._wanted_size
        if len(pending) < wanted_size:
            if len(pending) >= BEGUN_SIZE and wanted_size >= LARGE_SIZE:
                self._begin_large(pending)
                self._pending = bytearray()
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

    def _begin_large(self, begun: bytearray | memoryview) -> None:
        # It takes no page before its use. One process has the spares, so all are of one size.
        fits = self._wanted_size <= MAX_FRAME_SIZE
        size = MAX_FRAME_SIZE if fits else self._wanted_size
        try:  # loops of other threads take spares, too: only the one who has it knows
            large = _spares.pop() if fits else None
        except IndexError:
            large = None
        large = large or mmap(-1, size, access=ACCESS_COPY)
        large[: len(begun)] = begun
        self._large, self._large_size = large, len(begun)

    def _take_large(self, large: mmap, data: bytes, frames: list[RawFrame]) -> bytes:
        """Do as `_take_pending` where the frame lies in pages of its own."""
        filled, wanted_size = self._large_size, self._wanted_size
        missing = wanted_size - filled
        if len(data) < missing:
            self._large_size = filled + len(data)
            large[filled : self._large_size] = data
            return b""
        large[filled:wanted_size] = memoryview(data)[:missing]
        _, mark = _unpack_prefix(large)
        body_start = PREFIX_SIZE + (mark & MAX_HEADER_SIZE)
        header = large[PREFIX_SIZE:body_start]
        frames.append(RawFrame(mark >> 24, header, large[body_start:wanted_size]))
        self._large, self._large_size = None, 0
        if len(_spares) < SPARES_MAX and len(large) == MAX_FRAME_SIZE:
            _spares.append(large)
        else:
            large.close()
        return data[missing:]

    def _keep(self, data: bytes, position: int, frames: list[RawFrame]) -> None:
        """Hold back the unfinished frame at `position`; its length word is judged at once."""
        kept_size = len(data) - position
        if kept_size < LENGTH_SIZE:
            self._wanted_size = LENGTH_SIZE
        else:
            length, header_size = int.from_bytes(data[position : position + LENGTH_SIZE]), 0
            self._wanted_size = PREFIX_SIZE
            if kept_size >= PREFIX_SIZE:
                header_size = _unpack_prefix(data, position)[1] & MAX_HEADER_SIZE
                self._wanted_size = LENGTH_SIZE + length
            if not LENGTH_SIZE + header_size <= length <= self._max_length:
                raise self._refuse(length, header_size, frames)
        begun = memoryview(data)[position:]
        if kept_size >= BEGUN_SIZE and self._wanted_size >= LARGE_SIZE:
            self._begin_large(begun)
        else:
            self._pending += begun

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
