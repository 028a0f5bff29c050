"""What connections have that peers open, whatever they speak: their end, and a peer that is slow.

Flow control of one peer:

    unsent > 64 KiB (the transport's mark)   the peer is behind: what it leaves unread counts among
                                             that of all peers (`buffers.py`)
    unsent > 1 MiB                           we stop reading it until it has caught up
    unsent > 16 MiB                          the connection is dropped
    a request unfinished for 30 s, answers   the connection is dropped (`server.py`)
      left unread for 60 s

Reading stops for one connection alone; the loop never waits for a peer.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self, cast

from skylarkmq.broker.net.buffers import BEHIND_SIZE
from skylarkmq.protocol.host_address import HostAddress

if TYPE_CHECKING:
    from skylarkmq.broker.net.server import PeerServer

log = logging.getLogger(__name__)

PAUSE_SIZE: Final = 1 << 20
OUTBOUND_MAX: Final = 16 << 20
PROGRESS_SIZE: Final = 64 << 10
"""Bytes that a peer with unread answers must take within `server.SLOW_READER_LIMIT_S`."""
# Of tcp(7)'s struct tcp_info: tcpi_last_data_recv, ms, after 8 bytes and 11 words.
_LAST_DATA: Final = struct.Struct("=I")
_LAST_DATA_POSITION: Final = 52
_LEFT: Final = frozenset((7, 8))
"""Of its first byte, tcpi_state: TCP_CLOSE, TCP_CLOSE_WAIT."""
_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)


class DeferredWrites:
    """Connections that write at the end of this turn of the loop. Loop thread.

    They share one call of the loop. With one for each, 64 answers that a sync or a slave's report
    releases cost 30 us more.
    """

    def __init__(self) -> None:
        # Kept: whoever asks for the running loop asks the system for a process id each time.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connections: list[PeerConnection] = []

    def add(self, connection: PeerConnection) -> None:
        """Have a connection write what it has queued by then."""
        if not self._connections:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._write)
        self._connections.append(connection)

    def _write(self) -> None:
        connections, self._connections = self._connections, []
        for connection in connections:
            try:
                connection.write_out()
            except Exception:
                log.exception("answers cannot be written to %s", connection.remote_address)
                connection.abort("error")


class CloseListeners:
    """Who is told once that a peer has gone; what stands for a peer derives from it."""

    def __init__(self) -> None:
        self._close_listeners: list[Callable[[Any], None]] = []

    def add_close_listener(self, listener: Callable[[Self], None]) -> None:
        """Call `listener(peer)` once when the peer is gone."""
        self._close_listeners.append(listener)

    def remove_close_listener(self, listener: Callable[[Self], None]) -> None:
        if listener in self._close_listeners:
            self._close_listeners.remove(listener)

    def _tell_listeners(self) -> None:
        listeners, self._close_listeners = self._close_listeners, []
        for listener in listeners:
            listener(self)


class PeerConnection(CloseListeners, asyncio.Protocol):
    """A connected peer of a `PeerServer`. Loop thread.

    Its size is one idea: what a peer leaves unread or unfinished decides whether it is read, and
    when it is dropped.

    Attributes:
        writing_paused: the peer has enough unread: it is not read, and gets no more.
        reading_paused: it is not read.
        remote_address: its `host:port`; host_bytes: the same, packed.
        admitted: of access control: rules, and whether they let this peer do everything.
        closed: it gets nothing any more.
        close_reason: why it ends; empty while it does not.
        last_active_s: when it sent something last. All times are the monotonic clock's.
        paused_since_s: since when it has not read enough, 0 when it has.
        unfinished_since_s: since when it owes us the end of a request, 0 when it does not.
    """

    def __init__(self, server: PeerServer) -> None:
        super().__init__()
        self._server = server
        self._transport: asyncio.Transport
        self._in_read = False  # what is queued leaves at the end of the read
        self._scheduled = False  # it leaves at the end of the turn
        self._reading_ended = False
        self._behind = False  # the transport holds more than BEHIND_SIZE
        self._unread_size = 0  # what it would hold if the peer had not read since `paused_since_s`
        self._lingers = False  # it gets nothing any more, and may not have taken the last yet
        self._held_size = 0  # bytes that came and were not handled, as the server knows it
        self.writing_paused = False
        self.reading_paused = False
        self.remote_address = ""
        self.host_bytes = b""
        self.admitted: tuple[object, bool] = (None, False)
        self.closed = True  # until the transport is there
        self.close_reason = ""
        self.last_active_s = 0.0
        self.paused_since_s = 0.0
        self.unfinished_since_s = 0.0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if not peer:  # it left before it was accepted
            transport.abort()
            return
        self.host_bytes = HostAddress(peer[0].partition("%")[0], peer[1]).pack()
        self.remote_address = f"{peer[0]}:{peer[1]}"
        self.last_active_s = self._server.clock.monotonic()
        transport.set_write_buffer_limits(high=BEHIND_SIZE, low=BEHIND_SIZE)
        self.closed = False
        if not self._server.opened(self):
            self.close("limit")

    def use_transport(self, transport: asyncio.Transport) -> None:
        """Read and write by this transport from now on; nothing was written yet."""
        self._transport = transport

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """Note that the peer is behind; `_note_unsent` decides whether it is still read."""
        self._behind = True
        self.paused_since_s = self._server.clock.monotonic()
        self._unread_size = 0

    def resume_writing(self) -> None:
        self._behind = self.writing_paused = False
        self.paused_since_s = 0.0
        self._server.outbound.caught_up(self)
        self._update_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._lingers = False
        if not self.close_reason:
            self.close_reason = "peer" if exc is None else "error"
        self._forget_all()
        self._held_size = 0
        self._server.inbound.note(self, 0)
        self._server.outbound.caught_up(self)
        self._tell_listeners()
        self._server.closed(self)

    def _forget_all(self) -> None:
        """End what is under way for the peer: it has gone."""
        raise NotImplementedError

    # Writing

    def write_soon(self) -> None:
        """Write what is queued at the end of the read or of the turn."""
        if not self._in_read and not self._scheduled and not self.closed:
            self._scheduled = True
            self._server.deferred_writes.add(self)

    def write_out(self) -> None:
        """Write what is queued."""
        raise NotImplementedError

    def _note_unsent(self, written: int) -> None:
        """Note that a peer that is behind has `written` bytes more to take."""
        size = self._transport.get_write_buffer_size()
        outbound = self._server.outbound
        outbound.note(self, self.unsent_size)
        self._unread_size = self._unread_size + written if self._unread_size else size
        if size > OUTBOUND_MAX:
            self._drop_slow()
        elif (size > PAUSE_SIZE or outbound.is_full) and not self.writing_paused:
            self.writing_paused = True
            self._update_reading()

    def _drop_slow(self) -> None:
        log.warning("dropping %s: it reads too slowly", self.remote_address)
        self.abort("slow_reader")

    @property
    def unsent_size(self) -> int:
        """Bytes that the peer has not taken yet."""
        return 0 if self.closed else self._transport.get_write_buffer_size()

    def note_progress(self) -> None:
        """Start `paused_since_s` anew when a peer that is behind has read enough."""
        unsent = 0 if self.closed else self._transport.get_write_buffer_size()
        if self._unread_size - unsent >= PROGRESS_SIZE:
            self.paused_since_s = self._server.clock.monotonic()
            self._unread_size = unsent

    # Reading

    def silence_s(self) -> float:
        """Return for how long nothing has arrived, s: what is read now waited at least so long."""
        raw = self._transport.get_extra_info("socket")
        return 0.0 if raw is None else socket_silence_s(raw)

    def has_left(self) -> bool:
        """Return whether the peer has ended the connection, though not all it sent was read."""
        raw = self._transport.get_extra_info("socket")
        info = b"" if raw is None else _tcp_info(raw, 1)
        return bool(info) and info[0] in _LEFT

    def stop_reading(self) -> None:
        """Take no more requests; answers still go out."""
        raise NotImplementedError

    def _has_enough(self) -> bool:
        """Return whether the peer is not to be read now."""
        return self.writing_paused

    def _owes(self) -> bool:
        """Return whether a request of the peer has not come to its end."""
        return bool(self._held_size)

    def _update_reading(self) -> None:
        pause = self._has_enough()
        if pause != self.reading_paused and not self.closed:
            self.reading_paused = pause
            # A peer that we do not read cannot finish its request.
            owes = not pause and self._owes()
            self.unfinished_since_s = self._server.clock.monotonic() if owes else 0.0
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # Ending

    def close(self, reason: str) -> None:
        """Send what is queued, then end the connection."""
        raise NotImplementedError

    def end(self, reason: str) -> None:
        """End the connection as `close` does, and all that is under way for the peer now."""
        if self.closed:
            return
        self.close(reason)
        self.closed = self._lingers = True  # at once: nothing is added to what it still takes
        self._forget_all()
        self._tell_listeners()

    def abort(self, reason: str) -> None:
        """End the connection now; what is queued is lost."""
        if not self.close_reason:
            self.close_reason = reason
        if not self.closed or self._lingers:
            self.closed = True  # at once: a later answer must not add to what is dropped
            self._lingers = False
            self._transport.abort()


def socket_silence_s(connected: Any) -> float:
    """Return for how long no data has arrived on a TCP socket, s.

    It is 0.0 where the system does not tell. A socket of a transport is one as well.
    """
    size = _LAST_DATA_POSITION + _LAST_DATA.size
    info = _tcp_info(connected, size)
    return _LAST_DATA.unpack_from(info, _LAST_DATA_POSITION)[0] / 1000 if len(info) >= size else 0.0


def _tcp_info(connected: Any, size: int) -> bytes:
    """Return so much of what the system knows of a socket; empty where it does not tell."""
    if _TCP_INFO is None:
        return b""
    try:
        info: bytes = connected.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, size)
    except OSError:
        return b""
    return info
