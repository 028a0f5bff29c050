"""One peer: bytes in, frames to the router, answers out in one write for each loop turn.

The unit of work is one read of the socket. All its frames are handled before anything is written,
and what they answer leaves in one write; an answer that comes later (after a sync, from a held
pull) joins the others of its loop turn. Two writes for one answer would cost more than the answer.

Flow control of one peer:

    unsent > 64 KiB (the transport's mark)   the peer is behind: what it leaves unread counts among
                                             that of all peers (`buffers.py`)
    unsent > 1 MiB                           we stop reading it until it has caught up; requests
                                             that were read already wait as well
    unsent > 16 MiB                          the connection is dropped
    parked > 1,024 requests                  the next ones wait, and we stop reading, until some
                                             are answered
    a frame unfinished for 30 s, answers     the connection is dropped (`server.py`)
      left unread for 60 s

What waits unhandled, and what is unfinished, counts among that of all peers too.

Reading stops for one connection alone; the loop never waits for a peer.

What is asked of the peer waits in `remoting/pending_calls.py`, as on the other side. The rest is
not `remoting/connection.py`, which decodes each frame in full: of a read of 64 sends a frame costs
here 1.9 us of CPU until its handler has it, there 8.4 us.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from skylarkmq.broker.net.buffers import BEHIND_SIZE
from skylarkmq.protocol.command import RemotingCommand, encode_command
from skylarkmq.protocol.errors import LocalProtocolError, RemoteProtocolError
from skylarkmq.protocol.frame import BadFrameError, FrameDecoder, RawFrame
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.remoting.errors import ConnectionFailed, RequestTimeout
from skylarkmq.remoting.pending_calls import FutureWaiter, PendingCalls

if TYPE_CHECKING:
    from skylarkmq.broker.net.server import RemotingServer

log = logging.getLogger(__name__)

PAUSE_SIZE = 1 << 20
OUTBOUND_MAX = 16 << 20
PARKED_MAX = 1024
CALLS_MAX = 1024
"""Requests of ours that one peer may leave unanswered."""
PROGRESS_SIZE = 64 << 10
"""Bytes that a peer with unread answers must take within `server.DEAF_LIMIT_S`."""
# Of tcp(7)'s struct tcp_info: tcpi_last_data_recv, ms, after 8 bytes and 11 words.
_LAST_DATA: Final = struct.Struct("=I")
_LAST_DATA_POSITION: Final = 52
_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)


class FrameHandler(Protocol):
    """Takes the frames of one read, in order; answers through the connection."""

    def handle(self, connection: Connection, frames: list[RawFrame]) -> list[RawFrame]:
        """Handle frames and return those that must wait, because the connection is congested."""
        ...


class Gate:
    """What reads pass while the broker has too much to do; this one lets everything through.

    Attributes:
        watch_after_s: reads later than this, on the monotonic clock, go through `sift`.
    """

    watch_after_s: float = math.inf

    def sift(self, connection: Connection, frames: list[RawFrame]) -> list[RawFrame]:
        """Answer what is refused and return the rest."""
        return frames

    def late(self, code: int, waited_s: float) -> RemoteProtocolError | None:
        """Return the error for a request of another protocol that has waited too long."""
        return None


class LateWriter(Protocol):
    """A connection that gathers what it writes.

    Attributes:
        remote_address: the peer's `host:port`.
    """

    remote_address: str

    def write_out(self) -> None:
        """Write what is queued."""
        ...

    def abort(self, reason: str) -> None:
        """End the connection now; what is queued is lost."""
        ...


class LateWrites:
    """Connections that write at the end of this turn of the loop. Loop thread.

    They share one call of the loop. With one for each, 64 answers that a sync or a slave's report
    releases cost 30 us more.
    """

    def __init__(self) -> None:
        self._connections: list[LateWriter] = []

    def add(self, connection: LateWriter) -> None:
        """Have a connection write what it has queued by then."""
        if not self._connections:
            asyncio.get_running_loop().call_soon(self._write)
        self._connections.append(connection)

    def _write(self) -> None:
        connections, self._connections = self._connections, []
        for connection in connections:
            try:
                connection.write_out()
            except Exception:
                log.exception("answers cannot be written to %s", connection.remote_address)
                connection.abort("error")


class Connection(PendingCalls, asyncio.Protocol):
    """A connected peer. Loop thread."""

    __slots__ = (
        "_behind", "_close_listeners", "_decoder", "_gate", "_go_on_planned", "_handler",
        "_held_size", "_in_read", "_late_writes", "_out", "_out_size", "_reading_ended",
        "_scheduled", "_server", "_transport", "_unread_size", "_waiting", "_waiting_size",
        "_writing_paused", "account", "admitted", "close_reason", "closed", "codec_settled",
        "host_bytes", "last_active_s", "parked", "paused_since_s", "reading_paused",
        "remote_address", "signs", "unfinished_since_s",
    )  # fmt: skip

    def __init__(self, handler: FrameHandler, server: RemotingServer) -> None:
        super().__init__(server.clock)
        self._handler = handler
        self._server = server
        self._gate = server.gate
        self._late_writes = server.late_writes
        self._decoder = FrameDecoder()
        self._out: list[bytes] = []
        self._out_size = 0  # bytes in it
        self._waiting: list[RawFrame] = []  # read, and not looked at until there is room
        self._waiting_size = 0  # bytes in it
        self._go_on_planned = False
        self._in_read = False
        self._scheduled = False
        self._reading_ended = False
        self._behind = False  # the transport holds more than BEHIND_SIZE
        self._writing_paused = False
        self._unread_size = 0  # what it would hold if the peer had not read since `paused_since_s`
        self._close_listeners: list[Callable[[Connection], None]] = []
        self.closed = True  # until the transport is there
        self.close_reason = ""
        self.codec_settled = False  # the first two-way request has passed; see the router
        # Of access control: rules, and whether they let this peer do everything.
        self.admitted: tuple[object, bool] = (None, False)
        self.signs = False  # its first two-way request named an account
        self.account: object = None  # whose heartbeat came last; None: it may be told everything
        self.parked = 0  # requests that were read and not answered yet
        self.reading_paused: bool = False
        self.last_active_s = 0.0
        self.paused_since_s = 0.0  # since when the peer has not read enough, 0 when it has
        self._held_size = 0  # bytes that came and were not handled
        self.unfinished_since_s = 0.0  # since when the peer owes us that end, 0 when it does not
        self.remote_address = ""
        self.host_bytes = b""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if not peer:  # it left before it was accepted
            transport.abort()
            return
        address = HostAddress(peer[0].partition("%")[0], peer[1])
        self.host_bytes = address.pack()
        self.remote_address = f"{peer[0]}:{peer[1]}"
        self.last_active_s = self._clock.monotonic()
        self._transport.set_write_buffer_limits(high=BEHIND_SIZE, low=BEHIND_SIZE)
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.closed = False
        if not self._server.opened(self):
            self.close("limit")

    def use_transport(self, transport: asyncio.Transport) -> None:
        """Read and write by this transport from now on; nothing was written yet."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now_s = self.last_active_s = self._clock.monotonic()
        why = ""
        try:
            frames = self._decoder.feed(data)
        except BadFrameError as error:
            frames, why = error.frames, self._fault(error)
        if frames and now_s > self._gate.watch_after_s:
            self._in_read = True  # what it answers leaves with the rest
            frames = self._gate.sift(self, frames)
            self._in_read = False
        size = self._decoder.buffered_size
        if size or self.unfinished_since_s:
            self._note_unfinished(size, is_new=bool(frames))
        if size or self._held_size:
            self._note_held()
        self.handle(frames, why)

    def _note_unfinished(self, size: int, *, is_new: bool) -> None:
        if not size:
            self.unfinished_since_s = 0.0
        elif (is_new or not self.unfinished_since_s) and not self.reading_paused:
            self.unfinished_since_s = self.last_active_s

    def _note_held(self) -> None:
        self._held_size = 0 if self.closed else self._decoder.buffered_size + self._waiting_size
        self._server.inbound.note(self, self._held_size)

    def _fault(self, error: BadFrameError) -> str:
        """Count a frame that cannot be read, and return why.

        The error itself is not kept: with its traceback it would form a circle, and the values of a
        hostile header would stay until the collector runs.
        """
        self._server.stats.protocol_errors[error.kind] += 1
        return error.remark

    def handle(self, frames: list[RawFrame], why_close: str = "") -> None:
        """Handle frames, write what they answered, and leave the rest for when there is room."""
        if self._waiting:
            self._wait(self._waiting + frames)
        elif frames:
            self._in_read = True
            try:
                remaining = self._handler.handle(self, frames)
                if remaining:
                    self._wait(remaining)
            except BadFrameError as error:
                why_close = self._fault(error)
            finally:
                self._in_read = False
        if self._out:
            self.write_out()
        if why_close:
            log.warning("closing %s: %s", self.remote_address, why_close)
            self.close("protocol_error")
        elif self._waiting:
            self._update_reading()
            self._plan_to_go_on()
        elif self.parked > PARKED_MAX or self.reading_paused:
            self._update_reading()

    def _wait(self, frames: list[RawFrame]) -> None:
        self._waiting = frames
        self._waiting_size = sum([len(frame.header) + len(frame.body) + 8 for frame in frames])
        self._note_held()

    def _plan_to_go_on(self) -> None:
        if not (self._go_on_planned or self._writing_paused or self.parked > PARKED_MAX):
            self._go_on_planned = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """Look at the frames that waited."""
        self._go_on_planned = False
        if not self.closed and not self._writing_paused and self._waiting:
            frames, self._waiting = self._waiting, []
            self._waiting_size = 0
            self.handle(frames)
            if self._held_size and not self._waiting:
                self._note_held()

    @property
    def congested(self) -> bool:
        """The peer has enough: unsent answers, or requests without an answer."""
        return self._out_size > PAUSE_SIZE or self.parked > PARKED_MAX

    @property
    def room(self) -> int:
        """Bytes of answers until the peer has enough; it may get one answer beyond."""
        return PAUSE_SIZE - self._out_size

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """Note that the peer is behind; `_note_unsent` decides whether it is still read."""
        self._behind = True
        self.paused_since_s = self._clock.monotonic()
        self._unread_size = 0

    def resume_writing(self) -> None:
        self._behind = self._writing_paused = False
        self.paused_since_s = 0.0
        self._server.outbound.caught_up(self)
        if self._waiting:
            self._plan_to_go_on()
        self._update_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if not self.close_reason:
            self.close_reason = "peer" if exc is None else "error"
        self._out.clear()
        self._waiting.clear()
        self._decoder.clear()
        self._note_held()
        self._server.outbound.caught_up(self)
        self.fail_calls(ConnectionFailed(self.remote_address, "the peer has left", reached=True))
        listeners, self._close_listeners = self._close_listeners, []
        for listener in listeners:
            listener(self)
        self._server.closed(self)

    # Writing

    def send(self, data: bytes, *, at_once: bool = False) -> None:
        """Queue bytes of whole frames; they leave with all others of this loop turn.

        Args:
            at_once: this turn has nothing more for the peer, so they need not wait for its end.
        """
        if self.closed:
            return
        self._out.append(data)
        self._out_size += len(data)
        if self._out_size > OUTBOUND_MAX and len(self._out) > 1:
            self._drop_slow()
        elif not self._in_read:
            if at_once:
                self.write_out()
            elif not self._scheduled:
                self._scheduled = True
                self._late_writes.add(self)

    def write_out(self) -> None:
        """Write what is queued."""
        self._scheduled = False
        out, self._out = self._out, []
        self._out_size = 0
        if self.closed or not out:
            return
        data = out[0] if len(out) == 1 else b"".join(out)
        self._transport.write(data)
        if self._behind:
            self._note_unsent(len(data))

    def _note_unsent(self, written: int) -> None:
        size = self._transport.get_write_buffer_size()
        outbound = self._server.outbound
        outbound.note(self, size)
        self._unread_size = self._unread_size + written if self._unread_size else size
        if size > OUTBOUND_MAX:
            self._drop_slow()
        elif (size > PAUSE_SIZE or outbound.is_full) and not self._writing_paused:
            self._writing_paused = True
            self._update_reading()

    def _drop_slow(self) -> None:
        log.warning("dropping %s: it reads too slowly", self.remote_address)
        self.abort("slow_reader")

    @property
    def unsent_size(self) -> int:
        """Bytes that the peer has not taken yet."""
        return 0 if self.closed else self._transport.get_write_buffer_size()

    def reply(self, request: RemotingCommand, response: RemotingCommand) -> None:
        """Answer a request; a one-way request gets nothing."""
        if request.is_oneway or self.closed:
            return
        try:
            data = encode_command(response)
        except LocalProtocolError as error:
            data = encode_command(request.reply(1, f"the answer cannot be written: {error}"))
        traffic = self._server.stats.frames_out[response.serialize_type]
        traffic.count += 1
        traffic.bytes += len(data)
        self.send(data)

    def push(self, command: RemotingCommand) -> None:
        """Send a one-way request of ours, always with a JSON header."""
        command.opaque = self.take_opaque()
        self.send(encode_command(command))

    async def call(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Send a request of ours and wait for the peer's answer.

        Raises:
            RequestTimeout: no answer within `timeout_s`.
            ConnectionFailed: the peer is gone, or has too many requests of ours unanswered.
        """
        if self.closed:
            raise ConnectionFailed(self.remote_address, "the peer has left, it cannot be asked")
        if self.pending_count >= CALLS_MAX:
            why = f"the peer leaves {CALLS_MAX} requests unanswered"
            raise ConnectionFailed(self.remote_address, why)
        opaque = command.opaque = self.take_opaque()
        waiter = FutureWaiter(self._clock.monotonic() + timeout_s)
        self.expect(opaque, waiter)
        try:
            self.send(encode_command(command))
            return await waiter.future
        except RequestTimeout:
            why = f"{self.remote_address} did not answer in {timeout_s:g} s"
            raise RequestTimeout(why) from None
        finally:
            self.forget(opaque)

    # Reading

    def park(self, count: int) -> None:
        """Requests of this connection wait for something; negative when they were answered."""
        self.parked += count
        if self.reading_paused:
            if self._waiting:
                self._plan_to_go_on()
            self._update_reading()

    def silence_s(self) -> float:
        """Return for how long nothing has arrived, s: what is read now waited at least so long."""
        raw = self._transport.get_extra_info("socket")
        return 0.0 if raw is None else socket_silence_s(raw)

    def note_progress(self) -> None:
        """Start `paused_since_s` anew when a peer that is behind has read enough."""
        unsent = self.unsent_size
        if self._unread_size - unsent >= PROGRESS_SIZE:
            self.paused_since_s = self._clock.monotonic()
            self._unread_size = unsent

    def stop_reading(self) -> None:
        """Take no more requests; answers still go out."""
        self._reading_ended = True
        self._update_reading()

    def _update_reading(self) -> None:
        pause = (
            self._reading_ended
            or self._writing_paused
            or self.parked > PARKED_MAX
            or bool(self._waiting)
        )
        if pause != self.reading_paused and not self.closed:
            self.reading_paused = pause
            # A peer that we do not read cannot finish its frame.
            owes = self._decoder.buffered_size and not pause
            self.unfinished_since_s = self._clock.monotonic() if owes else 0.0
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # Ending

    def add_close_listener(self, listener: Callable[[Connection], None]) -> None:
        """Call `listener(connection)` once when the peer is gone."""
        self._close_listeners.append(listener)

    def remove_close_listener(self, listener: Callable[[Connection], None]) -> None:
        if listener in self._close_listeners:
            self._close_listeners.remove(listener)

    def close(self, reason: str) -> None:
        """Send what is queued, then end the connection."""
        if not self.close_reason:
            self.close_reason = reason
        if not self.closed:
            if self._out:
                self.write_out()
            self._transport.close()

    def abort(self, reason: str) -> None:
        """End the connection now; what is queued is lost."""
        if not self.close_reason:
            self.close_reason = reason
        if not self.closed:
            self.closed = True  # at once: a later answer must not add to what is dropped
            self._out.clear()
            self._decoder.clear()
            self._transport.abort()


def socket_silence_s(connected: Any) -> float:
    """Return for how long no data has arrived on a TCP socket, s.

    It is 0.0 where the system does not tell. A socket of a transport is one as well.
    """
    if _TCP_INFO is None:
        return 0.0
    size = _LAST_DATA_POSITION + _LAST_DATA.size
    try:
        info: bytes = connected.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, size)
    except OSError:
        return 0.0
    return _LAST_DATA.unpack_from(info, _LAST_DATA_POSITION)[0] / 1000 if len(info) >= size else 0.0
