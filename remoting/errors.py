"""What can go wrong with a connection and with a request on it.

Root and first branches of the SDK's tree; `client/errors.py` shows the whole of it. `retryable`
says whether the same call may succeed later.
"""

from __future__ import annotations

from typing import Any

from skylarkmq.protocol.errors import rebuilt


class RocketMQError(Exception):
    """Root of the SDK's errors."""

    retryable: bool = False
    hint: str = ""

    def __init__(self, text: str, *, hint: str = "") -> None:
        super().__init__(f"{text}. {hint}" if hint else text)
        if hint:
            self.hint = hint

    @property
    def text(self) -> str:
        """What happened, without the hint: for an error that tells of this one."""
        return str(self).removesuffix(f". {self.hint}" if self.hint else "")

    def __reduce__(self) -> tuple[Any, ...]:
        """Let it pass between processes: Exception's own would call `__init__` with the text."""
        return rebuilt, (type(self), self.args), self.__dict__


class ConnectionFailed(RocketMQError):
    """No connection to `address`, or it closed under the call.

    `reached` says whether the request may have reached the peer: then its outcome is unknown. An
    empty `address` is one that `why` names.
    """

    retryable = True

    def __init__(self, address: str, why: str, *, reached: bool = False, hint: str = "") -> None:
        super().__init__(f"{address}: {why}" if address else why, hint=hint)
        self.address = address
        self.reached = reached


class TlsError(ConnectionFailed):
    """The TLS handshake failed: which check refused the peer, and what to do about it."""

    retryable = False


class RequestTimeout(RocketMQError, TimeoutError):
    """No answer within the time given; what was asked for may have happened all the same."""

    retryable = True


class ProtocolError(RocketMQError):
    """The peer sent what the protocol does not allow."""


class IllegalState(RocketMQError):
    """The object is not started, already stopped, or used against its own rules."""


def of_another_loop(error: RuntimeError) -> IllegalState:
    """Return the error of a call in an event loop that the object was not started in."""
    return IllegalState(
        f"{error}: what was started in one event loop works in no other",
        hint="Make and start it in the loop that uses it: each asyncio.run() has a loop of its "
        "own, and skylarkmq.client.sync needs none",
    )
