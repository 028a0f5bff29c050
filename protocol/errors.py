"""The protocol's own errors: ours (a bug on this side) and theirs (bad input from the peer).

Only these leave a decoder of this package; whatever a library raises underneath is turned into
one of them at the outermost function. `LocalProtocolError` means that this side tried to send
what the wire cannot carry. `RemoteProtocolError` carries the answer that the peer should get.
"""

from collections.abc import Sequence
from typing import Final, Literal

from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.raw_frame import RawFrame

BadFrameKind = Literal["bad_length", "bad_header", "too_large", "tls"]

ECHO_SIZE_MAX: Final = 64


class ProtocolError(Exception):
    """Root of everything that `skylarkmq.protocol` raises on purpose."""


class LocalProtocolError(ProtocolError, ValueError):
    """This side asked for something that the protocol cannot express."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something wrong; `response_code` and `remark` are the answer to it."""

    def __init__(self, response_code: int, remark: str) -> None:
        super().__init__(remark)
        self.response_code = response_code
        self.remark = remark


class BadFrameError(RemoteProtocolError):
    """The byte stream of a connection can no longer be trusted: close it, answer nothing.

    `kind` is a metric label. `frames` are the sound frames which stood before the bad one in the
    same piece of input; they are still worth handling.
    """

    def __init__(self, kind: BadFrameKind, why: str, frames: Sequence[RawFrame] = ()) -> None:
        super().__init__(ResponseCode.SYSTEM_ERROR, f"{kind}: {why}")
        self.kind: BadFrameKind = kind
        self.frames: list[RawFrame] = list(frames)


def shown(text: str) -> str:
    """Return `text` as a remark or a log line may echo it: quoted, ASCII, cut to 64 characters."""
    if len(text) > ECHO_SIZE_MAX:
        return ascii(text[:ECHO_SIZE_MAX]) + "..."
    return ascii(text)
