"""One peer: bytes in, frames to the router, answers out in one write for each loop turn.

The unit of work is one read of the socket. All its frames are handled before anything is written,
and what they answer leaves in one write; an answer that comes later (after a sync, from a held
pull) joins the others of its loop turn. Two writes for one answer would cost more than the answer.

Flow control, all bounds fixed here:

    unsent > 1 MiB (the transport's mark)    we stop reading this peer until it has read enough;
                                             requests that were read already wait as well
    unsent > 16 MiB                          the connection is dropped
    parked > 1,024 requests                  we stop reading until some are answered
    unfinished frames of all peers together  the peer that goes beyond is dropped
      > 256 MiB
    a frame unfinished for 30 s              the connection is dropped (`server.py`)

Reading stops for one connection alone; the loop never waits for a peer.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from skylarkmq.protocol.clock import Clock, TimerHandle
from skylarkmq.protocol.command import RemotingCommand, encode_command
from skylarkmq.protocol.errors import BadFrameError, LocalProtocolError
from skylarkmq.protocol.frame import FrameDecoder, RawFrame
from skylarkmq.protocol.host_address import HostAddress

if TYPE_CHECKING:
    from skylarkmq.broker.stats import BrokerStats

log = logging.getLogger(__name__)

PAUSE_SIZE = 1 << 20
OUTBOUND_MAX = 16 << 20
PARKED_MAX = 1024
UNFINISHED_MAX = 256 << 20
CALLS_MAX = 1024

CloseListener = Callable[["Connection"], None]


class FrameHandler(Protocol):
    """Takes the frames of one read, in order; answers through the connection."""

    def handle(self, connection: Connection, frames: list[RawFrame]) -> list[RawFrame]:
        """Handle frames and return those that must wait, because the connection is congested."""
        ...


class ConnectionOwner(Protocol):
    """The server that the connection belongs to."""

    stats: BrokerStats
    clock: Clock
    unfinished_size: int  # bytes of unfinished frames that its connections hold

    def opened(self, connection: Connection) -> bool:
        """Take the connection in; False when there is no room for it."""
        ...

    def closed(self, connection: Connection) -> None: ...


class ConnectionClosedError(ConnectionError):
    """The peer went away before it answered."""


class Connection(asyncio.Protocol):
    """A connected peer. Loop thread."""

    __slots__ = (
        "_calls",
        "_close_listeners",
        "_decoder",
        "_handler",
        "_in_read",
        "_out",
        "_out_size",
        "_owner",
        "_reading_ended",
        "_reading_paused",
        "_scheduled",
        "_transport",
        "_unfinished_size",
        "_waiting",
        "_writing_paused",
        "close_reason",
        "closed",
        "codec_settled",
        "host_bytes",
        "last_active_s",
        "parked",
        "paused_since_s",
        "remote_address",
        "unfinished_since_s",
    )

    _opaques = itertools.count(1)

    def __init__(self, handler: FrameHandler, owner: ConnectionOwner) -> None:
        self._handler = handler
        self._owner = owner
        self._decoder = FrameDecoder()
        self._out: list[bytes] = []
        self._out_size = 0  # bytes in it
        self._waiting: list[RawFrame] = []  # read, and not looked at until the peer reads more
        self._in_read = False
        self._scheduled = False
        self._reading_paused: bool = False
        self._reading_ended = False
        self._writing_paused = False
        self._calls: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._close_listeners: list[CloseListener] = []
        self.closed = True  # until the transport is there
        self.close_reason = ""
        self.codec_settled = False  # the first two-way request has passed; see the router
        self.parked = 0  # requests that were read and not answered yet
        self.last_active_s = 0.0
        self.paused_since_s = 0.0  # since when the peer has not read enough, 0 when it has
        self._unfinished_size = 0  # bytes of a frame whose end has not come
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
        self.last_active_s = self._owner.clock.monotonic()
        self._transport.set_write_buffer_limits(high=PAUSE_SIZE)
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.closed = False
        if not self._owner.opened(self):
            self.close("limit")

    def data_received(self, data: bytes) -> None:
        self.last_active_s = self._owner.clock.monotonic()
        why = ""
        try:
            frames = self._decoder.feed(data)
        except BadFrameError as error:
            frames, why = error.frames, self._fault(error)
        size = self._decoder.buffered_size
        if size or self._unfinished_size:
            self._note_unfinished(size, is_new=bool(frames))
        self._take(frames, why)

    def _note_unfinished(self, size: int, *, is_new: bool) -> None:
        self._owner.unfinished_size += size - self._unfinished_size
        self._unfinished_size = size
        if not size:
            self.unfinished_since_s = 0.0
        elif (is_new or not self.unfinished_since_s) and not self._reading_paused:
            self.unfinished_since_s = self.last_active_s
        if self._owner.unfinished_size > UNFINISHED_MAX and not self.closed:
            log.warning(
                "dropping %s: the peers' unfinished frames hold more than %d bytes",
                self.remote_address,
                UNFINISHED_MAX,
            )
            self.abort("limit")

    def _fault(self, error: BadFrameError) -> str:
        """Count a frame that can not be read, and return why.

        The error itself is not kept: its traceback leads back to whoever keeps it, and so what a
        hostile header was parsed into would stay until the collector comes.
        """
        self._owner.stats.protocol_errors[error.kind] += 1
        return error.remark

    def _take(self, frames: list[RawFrame], why_close: str = "") -> None:
        """Handle frames, write what they answered, and leave the rest for when there is room."""
        if self._waiting:
            self._waiting += frames
        elif frames:
            self._in_read = True
            try:
                self._waiting = self._handler.handle(self, frames)
            except BadFrameError as error:
                why_close = self._fault(error)
            finally:
                self._in_read = False
        if self._out:
            self._write_out()
        if why_close:
            log.warning("closing %s: %s", self.remote_address, why_close)
            self.close("protocol_error")
        elif self._waiting:
            self._update_reading()
            if not self._writing_paused:
                asyncio.get_running_loop().call_soon(self._go_on)
        elif self.parked > PARKED_MAX or self._reading_paused:
            self._update_reading()

    def _go_on(self) -> None:
        """Look at the frames that waited."""
        if not self.closed and not self._writing_paused and self._waiting:
            frames, self._waiting = self._waiting, []
            self._take(frames)

    @property
    def congested(self) -> bool:
        """Whether the answers so far are as many bytes as the peer should get at once."""
        return self._out_size > PAUSE_SIZE

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writing_paused = True
        self.paused_since_s = self._owner.clock.monotonic()
        self._update_reading()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self.paused_since_s = 0.0
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._go_on)
        self._update_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if not self.close_reason:
            self.close_reason = "peer" if exc is None else "error"
        self._out.clear()
        self._waiting.clear()
        self._owner.unfinished_size -= self._unfinished_size
        self._unfinished_size = 0
        for future in self._calls.values():
            if not future.done():
                future.set_exception(ConnectionClosedError(f"{self.remote_address} has left"))
        self._calls.clear()
        listeners, self._close_listeners = self._close_listeners, []
        for listener in listeners:
            listener(self)
        self._owner.closed(self)

    # Writing

    def send(self, data: bytes) -> None:
        """Queue bytes of whole frames; they leave with all others of this loop turn."""
        if self.closed:
            return
        self._out.append(data)
        self._out_size += len(data)
        if self._out_size > OUTBOUND_MAX and len(self._out) > 1:
            self._drop_slow()
        elif not self._in_read and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._write_out)

    def _write_out(self) -> None:
        self._scheduled = False
        out, self._out = self._out, []
        self._out_size = 0
        if self.closed or not out:
            return
        self._transport.write(out[0] if len(out) == 1 else b"".join(out))
        if self._writing_paused and self._transport.get_write_buffer_size() > OUTBOUND_MAX:
            self._drop_slow()

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
            data = encode_command(request.reply(1, f"the answer can not be written: {error}"))
        traffic = self._owner.stats.frames_out[response.serialize_type]
        traffic.count += 1
        traffic.bytes += len(data)
        self.send(data)

    def push(self, command: RemotingCommand) -> None:
        """Send a one-way request of ours, always with a JSON header."""
        command.opaque = next(self._opaques) & 0x7FFFFFFF
        self.send(encode_command(command))

    async def call(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Send a request of ours and wait for the peer's answer.

        Raises:
            TimeoutError: no answer within `timeout_s`.
            ConnectionClosedError: the peer is gone, or has too many requests of ours unanswered.
        """
        if self.closed or len(self._calls) >= CALLS_MAX:
            raise ConnectionClosedError(f"{self.remote_address} can not be asked")
        loop = asyncio.get_running_loop()
        command.opaque = next(self._opaques) & 0x7FFFFFFF
        future: asyncio.Future[RemotingCommand] = loop.create_future()
        self._calls[command.opaque] = future
        timer = self._deadline(future, timeout_s)
        try:
            self.send(encode_command(command))
            return await future
        finally:
            timer.cancel()
            self._calls.pop(command.opaque, None)

    def _deadline(self, future: asyncio.Future[RemotingCommand], timeout_s: float) -> TimerHandle:
        def expire() -> None:
            if not future.done():
                future.set_exception(TimeoutError(f"{self.remote_address} did not answer"))

        clock = self._owner.clock
        return clock.call_at(clock.monotonic() + timeout_s, expire)

    def answered(self, response: RemotingCommand) -> None:
        """Match the peer's answer with a call of ours; a late one is dropped."""
        future = self._calls.get(response.opaque)
        if future is not None and not future.done():
            future.set_result(response)

    # Reading

    def park(self, count: int) -> None:
        """Requests of this connection wait for something; negative when they were answered."""
        self.parked += count
        if self._reading_paused:
            self._update_reading()

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
        if pause != self._reading_paused and not self.closed:
            self._reading_paused = pause
            # A peer that we do not read can not finish its frame.
            owes = self._unfinished_size and not pause
            self.unfinished_since_s = self._owner.clock.monotonic() if owes else 0.0
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # Ending

    def add_close_listener(self, listener: CloseListener) -> None:
        """Call `listener(connection)` once when the peer is gone."""
        self._close_listeners.append(listener)

    def remove_close_listener(self, listener: CloseListener) -> None:
        if listener in self._close_listeners:
            self._close_listeners.remove(listener)

    def close(self, reason: str) -> None:
        """Send what is queued, then end the connection."""
        if not self.close_reason:
            self.close_reason = reason
        if not self.closed:
            if self._out:
                self._write_out()
            self._transport.close()

    def abort(self, reason: str) -> None:
        """End the connection now; what is queued is lost."""
        if not self.close_reason:
            self.close_reason = reason
        if not self.closed:
            self.closed = True  # at once: whoever answers next must not add to what is dropped
            self._out.clear()
            self._transport.abort()
