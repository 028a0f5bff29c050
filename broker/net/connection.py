"""One peer: bytes in, frames to the router, answers out in one write for each loop turn.

One read of the socket is handled as a whole: all its frames before anything is written, and what
they answer leaves in one write; an answer that comes later (after a sync, from a held
pull) joins the others of its loop turn. Two writes for one answer would cost more than the answer.

A peer that reads slowly is treated as `peer_connection.py` tells; beside that:

    unsent > 1 MiB           requests that were read already wait as well
    parked > 1,024 requests  the next ones wait, and we stop reading, until some are answered

What waits unhandled, and what is unfinished, counts among that of all peers too.

What is asked of the peer waits in `remoting/pending_calls.py`, as on the other side. The rest is
not `remoting/connection.py`, which decodes each frame in full: of a read of 64 sends a frame costs
here 1.9 us of CPU until its handler has it, there 8.4 us.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Any, Final, Protocol

from skylarkmq.broker.net.peer_connection import OUTBOUND_MAX, PAUSE_SIZE, PeerConnection
from skylarkmq.protocol.command import RemotingCommand, encode_command
from skylarkmq.protocol.errors import LocalProtocolError, RemoteProtocolError
from skylarkmq.protocol.frame import BadFrameError, FrameDecoder, RawFrame
from skylarkmq.remoting.errors import ConnectionFailed, RequestTimeout
from skylarkmq.remoting.pending_calls import FutureWaiter, PendingCalls

if TYPE_CHECKING:
    from skylarkmq.broker.net.server import RemotingServer

log = logging.getLogger(__name__)

PARKED_MAX: Final = 1024
CALLS_MAX: Final = 1024
"""Requests of ours that one peer may leave unanswered."""


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


class Connection(PendingCalls, PeerConnection):
    """A connected peer. Loop thread.

    Its size is one idea: a read is handled as a whole, so the frames that wait, the answers that
    gather and what others note of the peer for its next frame lie at hand, without a lookup.
    """

    __slots__ = (
        "_decoder", "_gate", "_go_on_planned", "_handler", "_out", "_out_size", "_waiting",
        "_waiting_size", "access_keys", "account", "codec_settled", "lanes", "parked", "signs",
    )  # fmt: skip

    def __init__(self, handler: FrameHandler, server: RemotingServer) -> None:
        PendingCalls.__init__(self, server.clock)
        PeerConnection.__init__(self, server)
        self._handler = handler
        self._gate = server.gate
        self._decoder = FrameDecoder()
        self._out: list[bytes] = []
        self._out_size = 0  # bytes in it
        self._waiting: list[RawFrame] = []  # read, and not looked at until there is room
        self._waiting_size = 0  # bytes in it
        self._go_on_planned = False
        self.codec_settled = False  # the first two-way request has passed; see the router
        self.signs = False  # its first two-way request named an account
        self.lanes: dict[bytes, Any] = {}  # of its plain pulls
        self.account: object = None  # whose heartbeat came last; None: it may be told everything
        self.access_keys: frozenset[str] = frozenset()  # of all accounts that used it
        self.parked = 0  # requests that were read and not answered yet

    # asyncio.Protocol

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

    def end_bad(self, error: BadFrameError) -> None:
        """End the connection: a frame of an earlier read cannot be read to its end."""
        self._end_bad(self._fault(error))

    def _end_bad(self, why: str) -> None:
        log.warning("closing %s: %s", self.remote_address, why)
        self.close("protocol_error")

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
            self._end_bad(why_close)
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
        if not (self._go_on_planned or self.writing_paused or self.parked > PARKED_MAX):
            self._go_on_planned = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """Look at the frames that waited."""
        self._go_on_planned = False
        if not self.closed and not self.writing_paused and self._waiting:
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

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._waiting:
            self._plan_to_go_on()

    def _forget_all(self) -> None:
        self._out.clear()
        self._waiting.clear()
        self._decoder.clear()
        self.fail_calls(ConnectionFailed(self.remote_address, "the peer has left", reached=True))

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
                self.write_soon()

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

    def stop_reading(self) -> None:
        """Take no more requests; answers still go out."""
        self._reading_ended = True
        self._update_reading()

    def _has_enough(self) -> bool:
        return (
            self._reading_ended
            or self.writing_paused
            or self.parked > PARKED_MAX
            or bool(self._waiting)
        )

    def _owes(self) -> bool:
        return bool(self._decoder.buffered_size)

    # Ending

    def close(self, reason: str) -> None:
        if not self.close_reason:
            self.close_reason = reason
        if not self.closed:
            if self._out:
                self.write_out()
            self._transport.close()

    def abort(self, reason: str) -> None:
        super().abort(reason)
        self._out.clear()
        self._decoder.clear()
