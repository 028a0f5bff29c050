"""One connection to one peer: opaque -> waiting call, frames in, one write a loop turn out.

    request   take an opaque, put frame and waiter in; all frames of a loop turn leave in one write
    answer    (flag bit 0 set) finds its waiter by opaque; one that comes too late finds none
    push      (flag bit 0 clear) goes to the push handler; its opaque is the peer's own counter

Every waiter ends exactly once: answered, timed out, or failed when the connection closes. One timer
per connection stands at the earliest deadline, so a deadline costs nothing until it passes.

Header codec. JSON unless told otherwise. With `auto` the first two-way JSON request carries the ext
field skylarkmq.codec=msgpack.1; only when the answer to it echoes that field do later requests on
this connection use msgpack. A Java peer never echoes, so it never sees one. `msgpack` does the same
but takes a missing echo for an error.

Back-pressure. While the peer reads too slowly `call` and `writable` wait; what cannot wait fails
once UNSENT_MAX bytes are queued.

A half-open connection looks like a peer that does not answer. When requests time out, again
SILENCE_MAX_S later, and no frame came in between, the connection is given up: the next request
makes a new one.

All calls on the loop thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from skylarkmq.common.clock import Clock
from skylarkmq.protocol.codes import MQVersion
from skylarkmq.protocol.command import decode_command, encode_command
from skylarkmq.protocol.frame import BadFrameError, FrameDecoder, RawFrame, SerializeType
from skylarkmq.protocol.remoting_command import RESPONSE_FLAG, RemotingCommand
from skylarkmq.remoting.errors import (
    ConnectionFailed,
    ProtocolError,
    RequestTimeout,
    RocketMQError,
    of_another_loop,
)
from skylarkmq.remoting.pending_calls import FutureWaiter, PendingCalls, Waiter
from skylarkmq.remoting.send_answer import read_stored
from skylarkmq.remoting.stream import Stream
from skylarkmq.remoting.tls import TlsFailure
from skylarkmq.remoting.waiting import within

Codec = Literal["auto", "json", "rocketmq", "msgpack"]

UNSENT_MAX: Final = 64 * 1024 * 1024
"""Bytes that may wait for a peer that reads too slowly; what comes on top of them fails."""
MUTE_HINT: Final = "It never answered: is it a broker, does it want TLS or a client certificate?"
SILENCE_MAX_S: Final = 3.0
"""A peer that lets requests time out and says nothing else for so long is given up."""
CODEC_FIELD: Final = "skylarkmq.codec"
CODEC_OFFER: Final = "msgpack.1"


@dataclass(frozen=True, slots=True)
class Peer:
    """What a connection's other end is: its release, and if it is a broker of ours.

    Both are known once it has answered the first two-way request under `codec="auto"`; else, and
    earlier, an empty heartbeat asks. Kept per connection, because another broker may have
    the address when it is connected again.
    """

    version: int
    """Release ordinal, see protocol/codes.py; ours says that of RocketMQ 4.9.8."""
    ours: bool
    """It echoed the codec offer."""

    @property
    def has_timers(self) -> bool:
        """It delivers at any time; RocketMQ does since 5.0, before it knows levels only."""
        return self.ours or self.version >= MQVersion.V5_0_0

    @property
    def has_big_pulls(self) -> bool:
        """It gives more than 256 KiB at once to those who ask for it; RocketMQ does since 5.0."""
        return self.ours or self.version >= MQVersion.V5_0_0

    @property
    def release(self) -> str:
        """The release in words, for messages to people."""
        if self.ours:
            return "SkylarkMQ"
        known = [version for version in MQVersion if version <= self.version]
        name = max(known).name.removeprefix("V").replace("_", ".") if known else "unknown"
        return f"RocketMQ {name}{'' if self.version in known else ' or later'}"


def peer_of(answer: RemotingCommand) -> Peer:
    """Return what an answer to a request with the codec offer says about its sender."""
    return Peer(answer.version, answer.ext_fields.get(CODEC_FIELD) == CODEC_OFFER)


class Connection(PendingCalls, asyncio.Protocol):
    """An open connection; made, then given its stream by `attach`."""

    def __init__(
        self,
        address: str,
        clock: Clock,
        codec: Codec,
        on_push: Callable[[Connection, RemotingCommand], None],
        on_closed: Callable[[Connection], None],
        sign: Callable[[RemotingCommand], None] | None = None,
    ) -> None:
        super().__init__(clock)
        self.address = address
        self.closed = False
        self.answers_count = 0
        """Frames received so far."""
        self.serialize_type: int = (
            SerializeType.ROCKETMQ if codec == "rocketmq" else SerializeType.JSON
        )
        self.offers_codec = codec in ("auto", "msgpack")
        """The next two-way request carries the offer."""
        self.by_start = self.offers_codec or sign is not None
        """While true, requests must go by `start`, which adds the offer and the signature."""
        self.peer: Peer | None = None
        """What is at the other end, once it is known."""
        self.late_count = 0
        self.opened_s = clock.monotonic()
        self._must_echo = codec == "msgpack"
        self._sign = sign
        self._offer_opaque: int | None = None
        self._on_push = on_push
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._stream: Stream | None = None
        self._decoder = FrameDecoder()
        self._out: list[bytes] = []
        self._writable: asyncio.Future[None] | None = None
        self._unsent_size = 0
        # The first time-out since anything was heard, and how much had been heard by then.
        self._silent_since_s = 0.0
        self._silent_count = -1
        self._ended: asyncio.Future[None] = self._loop.create_future()
        # Invariant: closed_why is set exactly when closed is.
        self.closed_why = ""

    # Requests

    def attach(self, stream: Stream) -> None:
        """Take the open stream.

        Raises:
            ConnectionFailed: it is gone again already.
        """
        self._stream = stream
        if self.closed:
            raise ConnectionFailed(self.address, self.closed_why)

    @property
    def local_ip(self) -> str:
        """This side's address."""
        return self._open_stream.local_ip

    def submit(self, opaque: int, head: bytes, body: bytes, waiter: Waiter) -> None:
        """Send an encoded two-way request: `head` is its frame up to the body."""
        if self.closed:
            waiter.failed(ConnectionFailed(self.address, self.closed_why))
            return
        if self._writable is not None and self._unsent_size > UNSENT_MAX:
            waiter.failed(self._clogged())
            return
        # `expect` and `_queue`, written out: as calls they cost 0.15 us of 3.3 us a send.
        self._pending[opaque] = waiter
        deadline_s = waiter.deadline_s
        if self._timer is None or deadline_s < self._timer_s:
            self._arm(deadline_s)
        out = self._out
        if not out:
            self._flush_soon()
        out.append(head)
        if body:
            out.append(body)

    def _flush_soon(self) -> None:
        try:
            self._loop.call_soon(self.flush)
        except RuntimeError as error:
            raise of_another_loop(error) from error

    def start(self, command: RemotingCommand, waiter: Waiter, kind: int | None = None) -> int:
        """Send a two-way request in the codec in force, or in `kind`; return its opaque."""
        opaque = command.opaque = self.take_opaque()
        command.serialize_type = self.serialize_type if kind is None else kind
        if self.offers_codec:
            command.ext_fields[CODEC_FIELD] = CODEC_OFFER
        if self._sign is not None:
            self._sign(command)
        frame = encode_command(command)
        if self.offers_codec:
            self.offers_codec = False
            self.by_start = self._sign is not None
            self._offer_opaque = opaque
        self.submit(opaque, frame, b"", waiter)
        return opaque

    async def call(
        self, command: RemotingCommand, timeout_s: float, kind: int | None = None
    ) -> RemotingCommand:
        """Send a request, once the peer keeps up with reading; return its answer.

        Args:
            kind: the header codec, in place of the one in force.

        Raises:
            ConnectionFailed, RequestTimeout, ProtocolError: there is no answer.
        """
        waiter = FutureWaiter(self._clock.monotonic() + timeout_s)
        if self._writable is not None:
            try:
                await within(self._clock, timeout_s, self.writable())
            except TimeoutError as error:
                raise RequestTimeout(f"{self.address} reads too slowly, nothing sent") from error
        opaque = self.start(command, waiter, kind)
        try:
            return await waiter.future
        finally:
            self._pending.pop(opaque, None)

    def post(self, command: RemotingCommand) -> None:
        """Send a one-way request."""
        if self.closed:
            raise ConnectionFailed(self.address, self.closed_why)
        if self._writable is not None and self._unsent_size > UNSENT_MAX:
            raise self._clogged()
        command.opaque = self.take_opaque()
        command.serialize_type = self.serialize_type
        if self._sign is not None:
            self._sign(command)
        self._queue(encode_command(command))

    def reply(self, answer: RemotingCommand) -> None:
        """Send the answer to a push of the peer, `push.reply(...)`.

        Raises:
            ConnectionFailed: closed meanwhile.
        """
        if self.closed:
            raise ConnectionFailed(self.address, self.closed_why)
        if self._writable is not None and self._unsent_size > UNSENT_MAX:
            self.give_up("the peer asks and asks, and reads no answers")
            return
        self._queue(encode_command(answer))

    def _queue(self, data: bytes) -> None:
        if not self._out:
            self._flush_soon()
        self._out.append(data)

    def flush(self) -> None:
        """Write now what would leave at the end of the loop's turn."""
        out = self._out
        if out and not self.closed:
            self._out = []
            data = out[0] if len(out) == 1 else b"".join(out)
            if self._writable is not None:
                self._unsent_size += len(data)
            self._open_stream.write(data)

    @property
    def is_congested(self) -> bool:
        """The peer reads too slowly: `writable` would wait."""
        return self._writable is not None

    async def writable(self) -> None:
        """Wait while the peer reads too slowly."""
        while self._writable is not None and not self.closed:
            await asyncio.shield(self._writable)

    def close(self, why: str = "closed") -> None:
        """Send what is queued and close; requests under way fail with ConnectionFailed."""
        if self.closed:
            return
        self.flush()
        self._end(ConnectionFailed(self.address, why, reached=True))
        if self._stream is not None:
            try:
                self._stream.close()
            except RuntimeError as error:
                raise of_another_loop(error) from error

    def give_up(self, why: str) -> None:
        """Close at once, without waiting for what is queued; requests under way fail."""
        self._end(ConnectionFailed(self.address, why, reached=True))
        if self._stream is not None:
            self._stream.abort()

    async def wait_ended(self, timeout_s: float) -> None:
        """Wait after `close` until what was queued has left, `timeout_s` at most."""
        try:
            await within(self._clock, timeout_s, asyncio.shield(self._ended))
        except TimeoutError:
            self._open_stream.abort()

    # The receiver's side of the stream

    def data_received(self, data: bytes) -> None:
        """Cut frames and hand each on, in order."""
        bad: BadFrameError | None = None
        try:
            frames = self._decoder.feed(data)
        except BadFrameError as error:
            frames, bad = error.frames, error
        try:
            self._take(frames)
        except BadFrameError as error:
            bad = error
        if bad is not None:
            self._refuse(f"sent what is no frame of the protocol ({bad.remark})")

    def connection_lost(self, exc: Exception | None) -> None:
        """The stream has ended; every waiter ends with it."""
        if not self._ended.done():
            self._ended.set_result(None)
        why = f"connection lost: {exc}" if exc else "the peer closed the connection"
        mute_hint = "" if self.answers_count else MUTE_HINT
        hint = exc.hint if isinstance(exc, TlsFailure) else mute_hint
        self._end(ConnectionFailed(self.address, why, reached=True, hint=hint))

    def pause_writing(self) -> None:
        if self._writable is None:
            self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        self._unsent_size = 0
        paused, self._writable = self._writable, None
        if paused is not None and not paused.done():
            paused.set_result(None)

    # Inside

    def _take(self, frames: list[RawFrame]) -> None:
        if self._offer_opaque is not None:  # the answer to the offer is read with all its fields
            for frame in frames:
                if not self.closed:
                    self._take_other(frame)
            return
        pending = self._pending
        for place, answer in enumerate(read_stored(frames)):
            if self.closed:
                return
            if answer is None:
                self._take_other(frames[place])
                continue
            self.answers_count += 1
            waiter = pending.pop(answer[0], None)
            if waiter is None:
                self.late_count += 1
            else:
                waiter.stored(answer)

    def _take_other(self, frame: RawFrame) -> None:
        """Take a frame that is no plain answer to a send, or may be more than that."""
        self.answers_count += 1
        command = decode_command(frame)
        if not command.flag & RESPONSE_FLAG:
            self._on_push(self, command)
            return
        if command.opaque == self._offer_opaque:
            self._settle_codec(command)
        if not self.answered(command):
            self.late_count += 1

    def _settle_codec(self, answer: RemotingCommand) -> None:
        self._offer_opaque = None
        self.peer = peer_of(answer)
        answer.ext_fields.pop(CODEC_FIELD, None)
        if self.peer.ours:
            self.serialize_type = SerializeType.MSGPACK
        elif self._must_echo:
            self._refuse("does not speak msgpack headers, which codec='msgpack' asks for")

    def _refuse(self, why: str) -> None:
        """Close at once because of what the peer did."""
        self._end(ProtocolError(f"{self.address} {why}"))
        if self._stream is not None:
            self._stream.abort()

    def _clogged(self) -> ConnectionFailed:
        size = self._unsent_size // (1024 * 1024)
        return ConnectionFailed(self.address, f"reads too slowly, {size} MiB wait to be sent")

    def late_error(self) -> RequestTimeout:
        hint = "" if self.answers_count else MUTE_HINT
        return RequestTimeout(f"{self.address} did not answer in time", hint=hint)

    def _expire(self) -> bool:
        is_late = super()._expire()
        if is_late:
            self._note_silence(self._clock.monotonic())
        return is_late

    def _note_silence(self, now_s: float) -> None:
        if self._silent_count != self.answers_count:
            self._silent_count = self.answers_count
            self._silent_since_s = now_s
        elif now_s - self._silent_since_s >= SILENCE_MAX_S:
            self.give_up(f"no word from the peer for {now_s - self._silent_since_s:.0f} s")

    def _end(self, error: RocketMQError) -> None:
        if self.closed:
            return
        self.closed = True
        self.closed_why = str(error).removeprefix(f"{self.address}: ")
        self._out = []
        self.resume_writing()
        self._on_closed(self)
        self.fail_calls(error)

    @property
    def _open_stream(self) -> Stream:
        assert self._stream is not None, "attach comes before any request"
        return self._stream
