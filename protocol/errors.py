"""The protocol's own errors: ours (a bug on this side) and theirs (bad input from the peer).

Only these leave a decoder of this package; whatever a library raises underneath is turned into
one of them at the outermost function. `LocalProtocolError` means that this side tried to send
what the wire cannot carry. `RemoteProtocolError` carries the answer that the peer should get.
"""

from typing import Any, Final, TypeVar

ECHO_SIZE_MAX: Final = 64
E = TypeVar("E", bound=Exception)


def rebuilt(kind: type[E], args: tuple[Any, ...]) -> E:
    """Return an error with those `args`, its `__init__` not called."""
    error = kind.__new__(kind)
    error.args = args
    return error


class WireError(Exception):
    """Root of everything that `skylarkmq.protocol` raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Let it pass between processes: Exception's own would call `__init__` with the text."""
        return rebuilt, (type(self), self.args), self.__dict__


class LocalProtocolError(WireError, ValueError):
    """This side asked for something that the protocol cannot express."""


class RemoteProtocolError(WireError):
    """The peer sent something wrong; `response_code` and `remark` are the answer to it."""

    def __init__(self, response_code: int, remark: str) -> None:
        super().__init__(remark)
        self.response_code = response_code
        self.remark = remark


def shown(text: str) -> str:
    """Return `text` as a remark or a log line may echo it: quoted, ASCII, cut to 64 characters."""
    if len(text) > ECHO_SIZE_MAX:
        return ascii(text[:ECHO_SIZE_MAX]) + "..."
    return ascii(text)
