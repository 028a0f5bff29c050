"""HTTP/2's frames as bytes: nine bytes of head, then the payload.

    position  size  field      type
    0         3     length     uint24 BE   bytes of the payload
    3         1     type       uint8       `FrameType`
    4         1     flags      uint8       their meaning depends on the type
    5         4     stream id  uint31 BE   0: the connection; the first bit is reserved

Header blocks that are written stand alone: each field is one of the static table or a literal that
is not indexed, so there is nothing to remember, and a block can be made once.

Source: RFC 9113, section 4 and 6; RFC 7541, section 6 and appendix A
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD: Final = struct.Struct(">HBBBI")
"""Length in two parts, kind, flags, stream."""
HEAD_SIZE: Final = FRAME_HEAD.size
assert HEAD_SIZE == 9
UINT32: Final = struct.Struct(">I")
SETTING: Final = struct.Struct(">HI")
WINDOW_MAX: Final = (1 << 31) - 1
STREAM_ID_MASK: Final = (1 << 31) - 1
FRAME_SIZE_MIN: Final = 1 << 14
FRAME_SIZE_LIMIT: Final = (1 << 24) - 1
DEFAULT_WINDOW: Final = 65_535

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20


class FrameType(IntEnum):
    """What a frame is."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Setting(IntEnum):
    """What a peer may set for its connection."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


_STATUS_200: Final = b"\x88"  # the eighth field of the static table
_LITERAL: Final = b"\x00"
_LENGTH_MAX: Final = 127  # of a name or a value that takes one byte for its length
_MORE: Final = 0x80


def frame(kind: int, flags: int, stream_id: int, payload: bytes | memoryview = b"") -> bytes:
    """Return one frame."""
    size = len(payload)
    return FRAME_HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream_id) + payload


def settings_frame(values: Iterable[tuple[Setting, int]]) -> bytes:
    """Return what we set for a connection."""
    return frame(FrameType.SETTINGS, 0, 0, b"".join(SETTING.pack(*value) for value in values))


def header_block(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return fields as a block that needs no table."""
    return b"".join(_field(name, value) for name, value in fields)


def _field(name: bytes, value: bytes) -> bytes:
    if name == b":status" and value == b"200":
        return _STATUS_200
    return b"".join((_LITERAL, _length(len(name)), name, _length(len(value)), value))


def _length(size: int) -> bytes:
    if size < _LENGTH_MAX:
        return bytes((size,))
    size -= _LENGTH_MAX
    text = bytearray((_LENGTH_MAX,))
    while size >= _MORE:
        text.append(size % _MORE + _MORE)
        size //= _MORE
    text.append(size)
    return bytes(text)
