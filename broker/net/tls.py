"""TLS between a socket's transport and its protocol; the first byte of a connection decides.

    disabled      nothing stands between; a ClientHello is a frame that cannot be read
    permissive    0x16 is a TLS handshake; anything else is plain text, and the layer steps aside:
                  such a connection pays for one look at its first byte
    enforcing     as permissive, but plain text ends the connection

No plain frame begins with 0x16: it would be longer than 352 MiB.

`TlsEnd` is TLS itself, without I/O: bytes in, bytes out, by `ssl.SSLObject`. `TlsTransport` is a
protocol to the socket's transport and a transport to the protocol behind it, on asyncio and uvloop
alike. What is written is encrypted at once, so what the peer has not taken yet, and with it all
flow control, is the socket transport's affair. `TlsGate` has what the connections of one listener
share:

    handshakes take turns      one step (half a millisecond) in each turn of the loop, so a flood of
                               them delays messages but does not hold them up
    HANDSHAKE_LIMIT_S          for the whole handshake
    HANDSHAKES_MAX             under way at a time, 50 KB each; a quarter of it from one address
    PENDING_MAX                bytes that a peer may send ahead of its handshake's turn

Renegotiation is off, TLS 1.2 the least. The end of TLS (close_notify) counts as the end of the
stream; a connection that ends without it as well: frames have their own lengths.

Source: apache/rocketmq@rocketmq-all-4.9.8 remoting/.../netty/NettyRemotingServer.java
(HandshakeHandler)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final, cast

from skylarkmq.broker.config.tls_settings import TlsMode
from skylarkmq.broker.net.tls_context import ServerContexts
from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.protocol.host_address import HostAddress

if TYPE_CHECKING:
    from skylarkmq.broker.net.peer_connection import PeerConnection

log = logging.getLogger(__name__)

HANDSHAKE_BYTE: Final = 0x16
HANDSHAKE_LIMIT_S: Final = 10.0
HANDSHAKES_MAX: Final = 1024
ADDRESS_SHARE: Final = 4
"""One address, or one network of 64 bits of IPv6, has a fourth of the handshakes under way."""
PENDING_MAX: Final = 64 << 10
RECORD_SIZE: Final = 16 << 10
"""The most plain text that a record of TLS holds."""
TOLD_INTERVAL_S: Final = 1.0
"""How often refused connections get a line in the log."""
# What became of connections; the first two of those that were let in.
RESULTS: Final = (
    "tls",
    "plain_text",
    "plain_text_refused",
    "handshake_failed",
    "no_certificate",
    "bad_certificate",
    "handshake_timeout",
    "handshake_limit",
    "unavailable",
    "bad_record",
)
_RESULTS_BY_REASON: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no_certificate",
    "CERTIFICATE_VERIFY_FAILED": "bad_certificate",
}


class TlsEnd:
    """The server's end of one TLS connection, without I/O.

    Attributes:
        is_open: the handshake is over.
        has_ended: the peer has said that it sends no more.
        failure: why the peer is not understood any more; nothing may be sent after it.
    """

    __slots__ = ("_incoming", "_outgoing", "failure", "has_ended", "is_open", "object")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.is_open = False
        self.has_ended = False
        self.failure: ssl.SSLError | None = None

    def receive(self, data: bytes) -> bytes:
        """Take what the peer has sent and return the plain text in it.

        What is to be sent in turn, an alert too, is in `take_outgoing`. An error is in `failure`,
        so that the text before it is not lost.
        """
        incoming = self._incoming
        incoming.write(data)
        parts: list[bytes] = []
        try:
            if not self.is_open:
                self.object.do_handshake()
                self.is_open = True
            while incoming.pending:  # asked, because reading in vain raises, which takes 3 us
                part = self.object.read(RECORD_SIZE)
                if not part:
                    self.has_ended = True
                    break
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.has_ended = True
        except ssl.SSLError as error:
            self.failure = error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def encrypt(self, data: bytes) -> bytes:
        """Return plain text as records for the peer; the handshake must be over.

        Raises:
            ssl.SSLError: the connection has failed.
        """
        written = self.object.write(data)
        while written < len(data):
            written += self.object.write(memoryview(data)[written:])
        return self._outgoing.read()

    def take_outgoing(self) -> bytes:
        """Return what the handshake, or an alert, has for the peer."""
        return self._outgoing.read()

    def end(self) -> bytes:
        """Return what tells the peer that nothing more comes."""
        if self.is_open and self.failure is None:
            with contextlib.suppress(ssl.SSLError):  # it waits for the peer to say the same
                self.object.unwrap()
        return self._outgoing.read()


class TlsTransport(asyncio.Transport, asyncio.Protocol):
    """Stands between a socket's transport and a protocol until the first byte decides. Loop thread.

    Its size is one idea: it has all methods of asyncio's transports, and all of its protocols.

    It looks like a transport from the first moment; without TLS it passes everything on.
    """

    __slots__ = (
        "_closing", "_early", "_end", "_gate", "_inner", "_is_plain", "_peer", "_pending",
        "_pending_size", "_raw", "_raw_paused", "_timer", "_turn_planned", "_wants_pause",
        "network",
    )  # fmt: skip

    def __init__(
        self, gate: TlsGate, inner: asyncio.Protocol, peer: PeerConnection | None = None
    ) -> None:
        super().__init__()
        self._gate = gate
        self._inner = inner
        self._peer = peer
        self._end: TlsEnd | None = None
        self._is_plain = False
        self._pending: list[bytes] | None = None  # of a handshake that waits for its turn
        self._pending_size = 0
        self._turn_planned = False
        self._early: list[bytes] = []  # written before it is known how
        self._timer: TimerHandle | None = None
        self._closing = False
        self._wants_pause = False  # the protocol behind
        self._raw_paused = False
        self.network = b""  # counted under; empty unless a handshake is under way

    # A protocol, to the socket's transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast("asyncio.Transport", transport)
        self._inner.connection_made(self)

    def data_received(self, data: bytes) -> None:
        end = self._end
        if end is not None and end.is_open:
            self._receive(end, data)
        elif self._pending is not None:
            self._wait_for_turn(data)
        elif data[0] == HANDSHAKE_BYTE:
            self._begin(data)
        else:
            self._step_aside(data)

    def eof_received(self) -> bool:
        if self._turn_planned:  # what came last may be a message
            self.take_turn()
        end = self._end
        if self._is_plain or end is None or not end.is_open or self._closing:
            return False
        return bool(self._inner.eof_received())

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._gate.left(self, was_open=self._end is not None and self._end.is_open)
        if self.network:
            self._gate.note("handshake_failed", self, "the peer has left")
            self._end_handshake()
        self._inner.connection_lost(exc)
        self._end = self._pending = self._peer = None

    # The first byte and the handshake

    def _step_aside(self, data: bytes) -> None:
        if self._gate.mode == "enforcing":
            why = "plain text, and tls.server.mode is enforcing"
            self._refuse("plain_text_refused", why)
            return
        self._gate.note("plain_text")
        self._is_plain = True
        self._raw.set_protocol(self._inner)
        if self._peer is not None:
            self._peer.use_transport(self._raw)
            self._peer = None
        if self._early:
            self._raw.write(b"".join(self._early))
        self._inner.data_received(data)

    def _begin(self, data: bytes) -> None:
        peer = self._raw.get_extra_info("peername")
        if not peer:  # it left before it was accepted
            self._raw.abort()
            return
        # Of IPv6 the half that is given; as connections are counted.
        network = HostAddress(peer[0].partition("%")[0], peer[1]).pack()[:-4][:8]
        if not self._gate.admit(network):
            self._refuse("handshake_limit", "too many handshakes are under way")
            return
        self.network = network
        clock = self._gate.clock
        self._timer = clock.call_at(clock.monotonic() + HANDSHAKE_LIMIT_S, self._is_late)
        self._pending = []
        self._wait_for_turn(data)

    def _wait_for_turn(self, data: bytes) -> None:
        assert self._pending is not None
        self._pending.append(data)
        self._pending_size += len(data)
        self._update_reading()
        if not self._turn_planned:
            self._turn_planned = True
            self._gate.plan_turn(self)

    def take_turn(self) -> None:
        """Go on with the handshake by what has come so far."""
        context = self._gate.contexts.current
        if not self._turn_planned or self._closing or self._pending is None:
            return
        if context is None:
            self._refuse("unavailable", self._gate.contexts.failure)
            return
        self._turn_planned = False
        if self._end is None:
            self._end = TlsEnd(context)
        data, self._pending = b"".join(self._pending), []
        self._pending_size = 0
        self._receive(self._end, data)
        if not self._closing:
            self._update_reading()

    def _receive(self, end: TlsEnd, data: bytes) -> None:
        text = end.receive(data)
        answer = end.take_outgoing()
        if answer:
            self._raw.write(answer)
        if self.network and end.is_open:
            self._pending = None
            self._end_handshake()
            self._gate.note("tls")
            self._gate.open_count += 1
            early, self._early = self._early, []
            if early:
                self.write(b"".join(early))
        if text:
            self._inner.data_received(text)
        if end.failure is not None:
            self._fail(end.failure)
        elif end.has_ended and not self._closing and not self._inner.eof_received():
            self.close()

    def _end_handshake(self) -> None:
        """Give back what a handshake has while it is under way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.network:
            self._gate.release(self.network)
            self.network = b""

    def _is_late(self) -> None:
        self._refuse("handshake_timeout", f"no handshake within {HANDSHAKE_LIMIT_S:g} s", late=True)

    def _fail(self, error: ssl.SSLError) -> None:
        reason = error.reason or str(error)
        if self.network:
            result = _RESULTS_BY_REASON.get(reason, "handshake_failed")
            if isinstance(error, ssl.SSLCertVerificationError):
                reason = error.verify_message
            self._refuse(result, f"its TLS handshake failed: {reason}")
        else:
            self._refuse("bad_record", f"a record of TLS cannot be read: {reason}")

    def _refuse(self, result: str, why: str, *, late: bool = False) -> None:
        """Count and tell why the connection ends, and end it once an alert has left."""
        if self._closing:
            return
        self._gate.note(result, self, why)
        self._end_handshake()
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.close("limit" if result == "handshake_limit" else "protocol_error")
        else:
            self.close()
        if late:  # it may not read either
            self._raw.abort()

    # A transport, to the protocol behind

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        end = self._end
        if self._is_plain:
            self._raw.write(data)
        elif end is not None and end.is_open:
            if end.failure is None:
                try:
                    self._raw.write(end.encrypt(cast("bytes", data)))
                except ssl.SSLError as error:
                    end.failure = error
                    self._fail(error)
        else:
            self._early.append(bytes(data))

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._end is not None:
            rest = self._end.end()
            if rest:
                self._raw.write(rest)
        self._raw.close()

    def abort(self) -> None:
        self._closing = True
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._closing or self._raw.is_closing()

    def pause_reading(self) -> None:
        self._wants_pause = True
        self._update_reading()

    def resume_reading(self) -> None:
        self._wants_pause = False
        self._update_reading()

    def is_reading(self) -> bool:
        return not self._raw_paused

    def _update_reading(self) -> None:
        pause = self._wants_pause or self._pending_size > PENDING_MAX
        if pause != self._raw_paused:
            self._raw_paused = pause
            if pause:
                self._raw.pause_reading()
            else:
                self._raw.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._raw.get_write_buffer_limits()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what the socket's transport knows; with TLS also `ssl_object`, `peercert`."""
        if self._end is not None and self._end.is_open:
            if name == "ssl_object":
                return self._end.object
            if name == "peercert":  # None: it gave none
                return self._end.object.getpeercert() or None
            if name == "cipher":
                return self._end.object.cipher()
        return self._raw.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._inner = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._inner

    def can_write_eof(self) -> bool:
        return False


class TlsGate:
    """What the connections of one listener share. Loop thread.

    Attributes:
        results: how many connections ended in each of RESULTS.
        open_count: connections with TLS now.
    """

    def __init__(
        self,
        mode: TlsMode,
        contexts: ServerContexts,
        clock: Clock,
        handshakes_max: int = HANDSHAKES_MAX,
    ) -> None:
        self.mode = mode
        self.contexts = contexts
        self.clock = clock
        self.results: dict[str, int] = dict.fromkeys(RESULTS, 0)
        self.open_count = 0
        self._handshakes_max = handshakes_max
        self._under_way: Counter[bytes] = Counter()  # by network
        self._under_way_count = 0
        self._turns: deque[TlsTransport] = deque()
        self._is_planned = False
        self._silent_until_s = 0.0
        self._untold = 0

    def before(
        self, inner: asyncio.Protocol, peer: PeerConnection | None = None
    ) -> asyncio.Protocol:
        """Return what a listener is to call instead of `inner`."""
        return inner if self.mode == "disabled" else TlsTransport(self, inner, peer)

    def admit(self, network: bytes) -> bool:
        """Take a handshake in, until `release`; False when there are too many."""
        share = max(1, self._handshakes_max // ADDRESS_SHARE)
        if self._under_way_count >= self._handshakes_max or self._under_way[network] >= share:
            return False
        self._under_way[network] += 1
        self._under_way_count += 1
        return True

    def release(self, network: bytes) -> None:
        """A handshake is over, well or not."""
        self._under_way_count -= 1
        self._under_way[network] -= 1
        if not self._under_way[network]:
            del self._under_way[network]

    def left(self, transport: TlsTransport, *, was_open: bool) -> None:
        """A connection has ended."""
        if was_open:
            self.open_count -= 1

    def plan_turn(self, transport: TlsTransport) -> None:
        """Have a handshake go on when it is its turn, and when there is a certificate."""
        self._turns.append(transport)
        self._plan()

    def _plan(self) -> None:
        if not self._is_planned and self._turns:
            self._is_planned = True
            if self.contexts.current is not None or self.contexts.failure:
                asyncio.get_running_loop().call_soon(self._next)
            else:
                self.contexts.want(self._next)

    def _next(self) -> None:
        self._is_planned = False
        if self._turns:
            self._turns.popleft().take_turn()
        self._plan()

    def note(self, result: str, transport: TlsTransport | None = None, why: str = "") -> None:
        """Count what became of a connection, and tell of one that was refused, now and then."""
        self.results[result] += 1
        if transport is None:
            return
        now_s = self.clock.monotonic()
        if now_s < self._silent_until_s:
            self._untold += 1
            return
        self._silent_until_s = now_s + TOLD_INTERVAL_S
        more = f" ({self._untold} more since the last such line)" if self._untold else ""
        self._untold = 0
        peer = transport.get_extra_info("peername")
        log.warning("closing %s: %s%s", peer and f"{peer[0]}:{peer[1]}", why, more)
