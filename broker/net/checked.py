"""Signed frames, read before anything handles them, and checked where there is access control.

A send or a pull that may pass is written anew, without key, signature and token: then it is as
plain as one without an account, and may take the fast paths of Python and the kernel. What they
see is made of the very fields that were checked. Any other frame has no header, so no fast path
takes it; the slow path goes on with the command that was decoded for the check.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.command import ENCODERS, RemotingCommand
from skylarkmq.protocol.errors import WireError
from skylarkmq.protocol.frame import RawFrame
from skylarkmq.protocol.headers.access import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE

_PLAIN_CODES: Final = frozenset(
    {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.PULL_MESSAGE}
)
_OF_ACCOUNTS: Final = frozenset({ACCESS_KEY, SIGNATURE, SECURITY_TOKEN})


class CheckedFrame(RawFrame):
    """A frame that was read in full, and checked where it had to be.

    Attributes:
        original: as it came.
        command: what it holds; None where its header cannot be read.
        error: why it is not handled; None when it may be.
    """

    original: RawFrame
    command: RemotingCommand | None
    error: Exception | None

    @classmethod
    def of(
        cls, original: RawFrame, command: RemotingCommand | None, error: Exception | None = None
    ) -> CheckedFrame:
        """Return the outcome of a check."""
        header = b""
        if error is None and command is not None and command.code in _PLAIN_CODES:
            header = _plain_header(command)
        checked = cls(original.serialize_type, header, original.body)
        checked.original, checked.command, checked.error = original, command, error
        return checked


def _plain_header(command: RemotingCommand) -> bytes:
    """Return the header of a command without what proves whose it is; empty when it has none."""
    plain = RemotingCommand(
        command.code,
        command.language,
        command.version,
        command.opaque,
        command.flag,
        None,
        {name: text for name, text in command.ext_fields.items() if name not in _OF_ACCOUNTS},
        b"",
        command.serialize_type,
    )
    try:
        return ENCODERS[command.serialize_type](plain)
    except WireError:
        return b""  # the slow path takes it


def unseen_size(frames: Iterable[RawFrame]) -> int:
    """Return the bytes of headers that fast paths were not shown."""
    return sum(
        len(frame.original.header) - len(frame.header)
        for frame in frames
        if isinstance(frame, CheckedFrame)
    )
