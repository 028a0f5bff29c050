"""What gRPC says over HTTP/2: how a call ends, its time, and the messages of a body.

    position  size  field       type
    0         1     compressed  uint8       1: the message is; here it is always 0
    1         4     size        uint32 BE   bytes of the message
    5         size  message

Source: grpc/grpc doc/PROTOCOL-HTTP2.md, doc/statuscodes.md
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import ClassVar, Final
from urllib.parse import quote, unquote

from skylarkmq.protocol.http2.hpack import Field

PREFIX: Final = struct.Struct(">BI")
CONTENT_TYPE: Final = b"application/grpc"
TIMEOUT_DIGITS_MAX: Final = 8
_UNITS_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


class GrpcStatus(IntEnum):
    """How a call ends, as gRPC sees it."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


class GrpcError(Exception):
    """A call ends with another status than OK."""

    def __init__(self, status: GrpcStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


def framed(message: bytes) -> bytes:
    """Return a message as it stands in a body."""
    return PREFIX.pack(0, len(message)) + message


def read_timeout(text: str) -> float | None:
    """Return the seconds of a `grpc-timeout`; None for what is none."""
    digits, unit_s = text[:-1], _UNITS_S.get(text[-1:])
    if unit_s is None or not digits.isdecimal() or not digits.isascii():
        return None
    return int(digits) * unit_s if len(digits) <= TIMEOUT_DIGITS_MAX else None


def timeout_text(seconds: float) -> str:
    """Return a `grpc-timeout`, of the finest unit that can say it; at least a millisecond."""
    size = max(1, round(seconds * 1000))
    if size < 10**TIMEOUT_DIGITS_MAX:
        return f"{size}m"
    return f"{min(size // 1000, 10**TIMEOUT_DIGITS_MAX - 1)}S"


def error_text(why: str) -> bytes:
    """Return a `grpc-message`."""
    return quote(why, safe=" !#$&'()*+,/:;=?@[]").encode()


def read_error_text(text: bytes) -> str:
    """Return what a `grpc-message` says."""
    return unquote(text.decode("latin-1"), errors="replace")


class Metadata(Mapping[str, str]):
    """What the fields of a head say, read where it is asked for: a call asks for a few of them.

    Attributes:
        raw: by names in lower case; of several values of a name the last one.
    """

    __slots__ = ("raw",)

    def __init__(self, fields: Iterable[Field]) -> None:
        self.raw = dict(fields)

    def __getitem__(self, name: str) -> str:
        return self.raw[name.encode()].decode("utf-8", "replace")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.encode() in self.raw

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self.raw)

    def __len__(self) -> int:
        return len(self.raw)


class MessageReader:
    """Cuts the body of one half of a call into its messages.

    Attributes:
        messages_max: how many may wait to be read.
        too_large: the bytes of a message that was not taken, because it is larger than the limit;
            0 without one.
    """

    __slots__ = ("_messages", "_part", "_part_size", "_size_max", "_skip", "too_large")

    messages_max: ClassVar[int]

    def __init__(self, size_max: int) -> None:
        """Begin a body.

        Args:
            size_max: bytes of the largest message that is taken.
        """
        self.too_large = 0
        self._size_max = size_max
        self._messages: deque[bytes] = deque()
        self._part = bytearray()  # of a message that has not come to its end
        self._part_size = -1  # of the message, -1 while its head has not come
        self._skip = 0  # bytes of one that is too large

    @property
    def held_size(self) -> int:
        """Bytes of a message that has not come to its end."""
        return len(self._part)

    @property
    def is_within(self) -> bool:
        """Whether a message has begun and not ended."""
        return bool(self._part) or self._part_size >= 0 or bool(self._skip)

    def take(self, data: bytes) -> None:
        """Take a part of the body.

        Raises:
            GrpcError: it is no gRPC, or too many messages wait.
        """
        if not self._part and self._part_size < 0 and not self._skip and len(data) >= PREFIX.size:
            flag, size = PREFIX.unpack_from(data)
            if not flag and size == len(data) - PREFIX.size and size <= self._size_max:
                self._add(data[PREFIX.size :])  # mostly a message comes in one frame
                return
        part = self._part
        part += data
        while part:
            if self._skip:
                skipped = min(self._skip, len(part))
                del part[:skipped]
                self._skip -= skipped
            elif self._part_size < 0:
                if len(part) < PREFIX.size:
                    return
                self._begin_message()
            elif len(part) < self._part_size:
                return
            else:
                message = bytes(part[: self._part_size])
                del part[: self._part_size]
                self._part_size = -1
                self._add(message)
        if not self._part_size:  # an empty message has nothing behind its head
            self._part_size = -1
            self._add(b"")

    def _begin_message(self) -> None:
        flag, size = PREFIX.unpack_from(self._part)
        if flag:
            why = "compressed messages are not taken; send them as they are"
            raise GrpcError(GrpcStatus.UNIMPLEMENTED, why)
        del self._part[: PREFIX.size]
        if size > self._size_max:
            self.too_large = self._skip = size
        else:
            self._part_size = size

    def _add(self, message: bytes) -> None:
        if len(self._messages) >= self.messages_max:
            why = f"{self.messages_max} messages of the call wait to be read; send fewer at a time"
            raise GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, why)
        self._messages.append(message)
