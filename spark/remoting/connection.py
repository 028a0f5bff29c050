"""One blocking connection to one peer: several requests under way, told apart by their opaque.

    begin     signs, encodes and writes a request; reads meanwhile when the peer does not take it
    wait      reads until the answer to one request is there; the answers to others are kept

Every wait has a deadline on the clock that was handed in. After the first failure the connection is
closed and every request under way fails with it; what the peer answered before is read and kept,
for a send whose answer is lost goes out again. A request that times out while nothing whatever
came in closes the connection as well: the peer is gone, and the next request finds out by a new
one. Requests of the peer are passed over: brokers push to members of groups, and this is none.

One thread at a time. The socket never blocks by itself: poll does, up to the deadline.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import ssl
from collections.abc import Iterable
from typing import Final

from skylarkmq.client.config import CONNECT_TIMEOUT_S
from skylarkmq.client.errors import (
    ConnectionFailed,
    ProtocolError,
    RequestTimeout,
    RocketMQError,
    TlsError,
)
from skylarkmq.client.wire.acl_hook import Signer
from skylarkmq.client.wire.stream import split_address
from skylarkmq.client.wire.tls import ClientTls, TlsFailure, explain, explain_loss
from skylarkmq.protocol.command import decode_command, encode_command
from skylarkmq.protocol.errors import BadFrameError
from skylarkmq.protocol.raw_frame import RawFrame
from skylarkmq.protocol.remoting_command import RESPONSE_FLAG, RemotingCommand
from skylarkmq.spark.clock import BlockingClock
from skylarkmq.spark.remoting.frame_reader import FrameReader

OPAQUE_MASK: Final = 0x7FFFFFFF
MUTE_HINT: Final = (
    "It never answered: is it a broker or name server of RocketMQ's protocol, does it want TLS?"
)
TLS_OPTIONS_HINT: Final = (
    "Here these are the options tls.caFile, tls.serverName, addressMap, and tls.certFile with "
    "tls.keyFile"
)
POLL_MAX_S: Final = 3600.0
_IN: Final = select.POLLIN | select.POLLHUP | select.POLLERR
_BLOCKED: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError, InterruptedError)


class Connection:
    """An open connection."""

    def __init__(
        self,
        address: str,
        stream: socket.socket,
        clock: BlockingClock,
        signer: Signer | None = None,
    ) -> None:
        """Take a connected socket; it is this object's from now on."""
        stream.setblocking(False)
        self.address = address
        self.used_s = clock.monotonic()
        """When a request last began or ended."""
        self.closed_why = ""
        """Set once it is closed."""
        self._socket = stream
        self._clock = clock
        self._signer = signer
        self._poll = select.poll()
        self._poll.register(stream, _IN)
        self._reader = FrameReader()
        self._opaque = 0
        # Invariant: an opaque is in _begun from its begin to the end of its wait, or of the
        # connection; its answer is in _answers from when it came.
        self._held: list[bytes] = []
        self._begun: dict[int, int] = {}
        self._answers: dict[int, RemotingCommand] = {}
        self._frame_count = 0
        self._receive_count = 0

    @property
    def is_idle(self) -> bool:
        """Nothing is under way."""
        return not self._begun

    def begin(self, command: RemotingCommand, deadline_s: float, *, hold: bool = False) -> int:
        """Send a request; return the opaque to wait for.

        With `hold` it leaves with the next one that is not held, or with `send_held`, in one write.

        Raises:
            ConnectionFailed, RequestTimeout: it was not sent, or not as a whole.
        """
        if self.closed_why:
            raise ConnectionFailed(self.address, self.closed_why)
        opaque = command.opaque = self._opaque = (self._opaque + 1) & OPAQUE_MASK
        if self._signer is not None:
            self._signer.sign(command)
        self._held.append(encode_command(command))
        self._begun[opaque] = self._receive_count
        if not hold:
            self.send_held(deadline_s)
        return opaque

    def send_held(self, deadline_s: float) -> None:
        """Send what is held back; raises as `begin`, for all of it."""
        if self._held:
            frames = b"".join(self._held) if len(self._held) > 1 else self._held[0]
            self._held.clear()
            self._write(frames, deadline_s)

    def wait(self, opaque: int, deadline_s: float) -> RemotingCommand:
        """Return the answer to a request, whatever its code; good for one call.

        Raises:
            ConnectionFailed, RequestTimeout, ProtocolError: there is none.
        """
        answers, clock = self._answers, self._clock
        try:
            self.send_held(deadline_s)
            while (answer := answers.pop(opaque, None)) is None:
                if opaque not in self._begun:
                    raise ConnectionFailed(
                        self.address, self.closed_why or "no such request", reached=True
                    )
                if not self._receive() and not self._ready(_IN, deadline_s):
                    self._give_up(opaque)
        finally:
            self._begun.pop(opaque, None)
        self.used_s = clock.monotonic()
        return answer

    def has_answer(self, opaque: int) -> bool:
        """Return whether the answer has been read already; no I/O."""
        return opaque in self._answers

    def forget(self, opaque: int) -> None:
        """Wait no more for that answer."""
        self._begun.pop(opaque, None)
        self._answers.pop(opaque, None)

    def is_alive(self) -> bool:
        """Return whether the peer has not closed it; what has come in is taken. Never waits."""
        if self.closed_why:
            return False
        try:
            while self._receive():
                pass
        except RocketMQError:
            return False
        return True

    def close(self, why: str = "closed") -> None:
        """Close it; requests under way fail, but for those whose answers have been read."""
        if self.closed_why:
            return
        self.closed_why = why
        self._begun.clear()
        self._held.clear()
        with contextlib.suppress(OSError):
            self._socket.close()

    # Inside

    def _write(self, frame: bytes, deadline_s: float) -> None:
        """Send all of it. While the peer takes nothing, its answers are read: it may be waiting
        for that."""
        left = memoryview(frame)
        while left:
            try:
                left = left[self._socket.send(left) :]
                continue
            except _BLOCKED:
                pass
            except OSError as error:
                self._receive_rest()
                raise self._fail(error) from error
            if not self._receive() and not self._ready(_IN | select.POLLOUT, deadline_s):
                why = "it reads too slowly: a request could not be sent as a whole"
                self.close(why)
                raise RequestTimeout(f"{self.address}: {why}")

    def _receive(self) -> bool:
        """Take what has come in; False when nothing has.

        Raises:
            ConnectionFailed: the peer is gone.
            ProtocolError: it sent what is no frame.
        """
        try:
            size = self._socket.recv_into(self._reader.buffer())
        except _BLOCKED:
            return False
        except OSError as error:
            raise self._fail(error) from error
        if size == 0:
            raise self._fail(None)
        self._receive_count += 1
        try:
            self._take(self._reader.filled(size))
        except BadFrameError as error:
            self._take(error.frames)
            why = f"sent what is no frame of the protocol ({error.remark})"
            self.close(f"the peer {why}")
            raise ProtocolError(f"{self.address} {why}", hint=self._mute_hint) from error
        return True

    def _take(self, frames: Iterable[RawFrame]) -> None:
        for frame in frames:
            answer = decode_command(frame)
            self._frame_count += 1
            if answer.flag & RESPONSE_FLAG and answer.opaque in self._begun:
                self._answers[answer.opaque] = answer

    def _receive_rest(self) -> None:
        """Take what came in before the peer went away."""
        with contextlib.suppress(RocketMQError):
            while self._receive():
                pass

    def _ready(self, events: int, deadline_s: float) -> bool:
        """Wait until the socket can do one of the events; False when the deadline comes first."""
        left_s = min(deadline_s - self._clock.monotonic(), POLL_MAX_S)
        if left_s <= 0:
            return False
        self._poll.modify(self._socket, events)
        self._poll.poll(math.ceil(left_s * 1000))
        return True

    def _give_up(self, opaque: int) -> None:
        """Raise RequestTimeout; a peer that was silent all the while is left."""
        silent = self._begun[opaque] == self._receive_count
        if silent:
            self.close("the peer did not answer in time, nor anything else")
        raise RequestTimeout(
            f"{self.address} did not answer in time", hint=self._mute_hint if silent else ""
        )

    @property
    def _mute_hint(self) -> str:
        return "" if self._frame_count else MUTE_HINT

    def _fail(self, error: OSError | None) -> ConnectionFailed:
        told = explain_loss(error)
        why = f"connection lost: {told}" if told else "the peer closed the connection"
        self.close(why)
        hint = self._mute_hint
        if isinstance(told, TlsFailure):
            hint = f"{told.hint}. {TLS_OPTIONS_HINT}"
        return ConnectionFailed(self.address, why, reached=True, hint=hint)


def connect(
    address: str, clock: BlockingClock, tls: ClientTls, signer: Signer | None, deadline_s: float
) -> Connection:
    """Open a connection to `address` (host:port), by the deadline and in CONNECT_TIMEOUT_S.

    Raises:
        ConnectionFailed: nobody there, no such host, no route, no time; TlsError of it.
    """
    left_s = min(deadline_s - clock.monotonic(), CONNECT_TIMEOUT_S)
    if left_s <= 0:
        raise ConnectionFailed(address, "no time left to connect")
    try:
        host, port = split_address(address)
        stream = socket.create_connection((host, port), timeout=left_s)
    except TimeoutError as error:
        raise ConnectionFailed(address, f"no connection within {left_s:.3g} s") from error
    except (OSError, UnicodeError) as error:
        raise ConnectionFailed(address, str(error) or type(error).__name__) from error
    try:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if tls.context is not None:
            stream = _wrapped(stream, address, host, tls)
        return Connection(address, stream, clock, signer)
    except BaseException:
        stream.close()
        raise


def _wrapped(stream: socket.socket, address: str, host: str, tls: ClientTls) -> socket.socket:
    """Return the socket after the TLS handshake, which has as much time as the connection had."""
    assert tls.context is not None, "the caller looked"
    name = tls.expected_name(address, host)
    try:
        return tls.context.wrap_socket(stream, server_hostname=name)
    except TimeoutError as error:
        raise ConnectionFailed(address, "no TLS handshake in time", hint=MUTE_HINT) from error
    except (OSError, ValueError) as error:
        failure = explain(error, name)
        raise TlsError(address, str(failure), hint=f"{failure.hint}. {TLS_OPTIONS_HINT}") from error
