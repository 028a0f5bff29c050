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

All calls on the loop thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from skylarkmq.client.clock import within
from skylarkmq.client.config import Codec
from skylarkmq.client.errors import (
    ConnectionFailed,
    ProtocolError,
    RequestTimeout,
    RocketMQError,
)
from skylarkmq.client.send_answer import (
    MSG_ID_MARK,
    StoredAnswer,
    as_command,
    decode_stored,
)
from skylarkmq.client.stream import Stream
from skylarkmq.protocol.clock import Clock, TimerHandle
from skylarkmq.protocol.command import decode_command, encode_command
from skylarkmq.protocol.errors import BadFrameError
from skylarkmq.protocol.frame import FrameDecoder, RawFrame, SerializeType
from skylarkmq.protocol.remoting_command import RESPONSE_FLAG, RemotingCommand

CODEC_FIELD: Final = "skylarkmq.codec"
CODEC_OFFER: Final = "msgpack.1"
OPAQUE_MASK: Final = 0x7FFFFFFF


class Waiter(Protocol):
    """Waits for the answer to one request; exactly one of these is called, once."""

    @property
    def deadline_s(self) -> float:
        """When to give up, on the clock's monotonic time; then it fails with RequestTimeout."""
        ...

    def answered(self, answer: RemotingCommand) -> None:
        """The answer is there, whatever its code."""
        ...

    def stored(self, answer: StoredAnswer) -> None:
        """The answer is there, and it has the fields of an answer to a send."""
        ...

    def failed(self, error: RocketMQError) -> None:
        """There will be no answer."""
        ...


class Connection:
    """An open connection; made, then given its stream by `attach`."""

    def __init__(
        self,
        address: str,
        clock: Clock,
        codec: Codec,
        on_push: Callable[[Connection, RemotingCommand], None],
        on_closed: Callable[[Connection], None],
    ) -> None:
        self.address = address
        self.closed = False
        self.answers_count = 0
        """Frames received so far; a heartbeat that times out looks whether anything came at all."""
        self.serialize_type: int = (
            SerializeType.ROCKETMQ if codec == "rocketmq" else SerializeType.JSON
        )
        self.offers_codec = codec in ("auto", "msgpack")
        """While true, the next two-way request must go by `start`, which adds the offer."""
        self.late_count = 0
        self._must_echo = codec == "msgpack"
        self._offer_opaque: int | None = None
        self._clock = clock
        self._on_push = on_push
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._stream: Stream | None = None
        self._decoder = FrameDecoder()
        self._opaque = 0
        self._pending: dict[int, Waiter] = {}
        self._timer: TimerHandle | None = None
        self._timer_s = 0.0
        self._out: list[bytes] = []
        self._writable: asyncio.Future[None] | None = None
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

    @property
    def pending_count(self) -> int:
        """Requests under way."""
        return len(self._pending)

    def take_opaque(self) -> int:
        """Return an opaque that no request of this connection uses."""
        opaque = self._opaque = (self._opaque + 1) & OPAQUE_MASK
        return opaque

    def submit(self, opaque: int, head: bytes, body: bytes, waiter: Waiter) -> None:
        """Send an encoded two-way request: `head` is its frame up to the body."""
        if self.closed:
            waiter.failed(ConnectionFailed(self.address, self.closed_why))
            return
        self._pending[opaque] = waiter
        deadline_s = waiter.deadline_s
        if self._timer is None or deadline_s < self._timer_s:
            self._arm(deadline_s)
        out = self._out
        if not out:
            self._loop.call_soon(self._flush)
        out.append(head)
        if body:
            out.append(body)

    def start(self, command: RemotingCommand, waiter: Waiter) -> int:
        """Send a two-way request in the codec in force; return its opaque."""
        opaque = command.opaque = self.take_opaque()
        command.serialize_type = self.serialize_type
        if self.offers_codec:
            command.ext_fields[CODEC_FIELD] = CODEC_OFFER
        frame = encode_command(command)
        if self.offers_codec:
            self.offers_codec = False
            self._offer_opaque = opaque
        self.submit(opaque, frame, b"", waiter)
        return opaque

    async def call(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Send a request and return its answer, whatever its code.

        Raises:
            ConnectionFailed, RequestTimeout, ProtocolError: there is no answer.
        """
        waiter = _FutureWaiter(self._loop, self._clock.monotonic() + timeout_s)
        opaque = self.start(command, waiter)
        try:
            return await waiter.future
        finally:
            self._pending.pop(opaque, None)

    def post(self, command: RemotingCommand) -> None:
        """Send a one-way request; nobody answers it."""
        if self.closed:
            raise ConnectionFailed(self.address, self.closed_why)
        command.opaque = self.take_opaque()
        command.serialize_type = self.serialize_type
        frame = encode_command(command)
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frame)

    def reply(self, answer: RemotingCommand) -> None:
        """Send the answer to a push of the peer, `push.reply(...)`.

        Raises:
            ConnectionFailed: closed meanwhile.
        """
        if self.closed:
            raise ConnectionFailed(self.address, self.closed_why)
        frame = encode_command(answer)
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frame)

    def forget(self, opaque: int) -> None:
        """Stop waiting for that answer; its waiter hears nothing any more."""
        self._pending.pop(opaque, None)

    async def writable(self) -> None:
        """Wait while the peer reads too slowly."""
        while self._writable is not None and not self.closed:
            await asyncio.shield(self._writable)

    def close(self, why: str = "closed") -> None:
        """Send what is queued and close; requests under way fail with ConnectionFailed."""
        if self.closed:
            return
        self._flush()
        self._end(ConnectionFailed(self.address, why, reached=True))
        if self._stream is not None:
            self._stream.close()

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
            for frame in frames:
                if self.closed:
                    return
                self._take(frame)
        except BadFrameError as error:
            bad = error
        if bad is not None:
            self._refuse(f"sent what is no frame of the protocol ({bad.remark})")

    def connection_lost(self, error: Exception | None) -> None:
        """The stream has ended; every waiter ends with it."""
        if not self._ended.done():
            self._ended.set_result(None)
        why = f"connection lost: {error}" if error else "the peer closed the connection"
        self._end(ConnectionFailed(self.address, why, reached=True))

    def pause_writing(self) -> None:
        if self._writable is None:
            self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        paused, self._writable = self._writable, None
        if paused is not None and not paused.done():
            paused.set_result(None)

    # Inside

    def _take(self, frame: RawFrame) -> None:
        self.answers_count += 1
        if MSG_ID_MARK in frame.header and self._offer_opaque is None:
            answer = decode_stored(frame)
            waiter = None if answer is None else self._pending.pop(answer.opaque, None)
            if answer is not None and waiter is not None:
                waiter.stored(answer)
                return
        command = decode_command(frame)
        if not command.flag & RESPONSE_FLAG:
            self._on_push(self, command)
            return
        if command.opaque == self._offer_opaque:
            self._settle_codec(command)
        waiter = self._pending.pop(command.opaque, None)
        if waiter is None:
            self.late_count += 1
        else:
            waiter.answered(command)

    def _settle_codec(self, answer: RemotingCommand) -> None:
        self._offer_opaque = None
        if answer.ext_fields.pop(CODEC_FIELD, None) == CODEC_OFFER:
            self.serialize_type = SerializeType.MSGPACK
        elif self._must_echo:
            self._refuse("does not speak msgpack headers, which codec='msgpack' asks for")

    def _refuse(self, why: str) -> None:
        """Close at once because of what the peer did."""
        self._end(ProtocolError(f"{self.address} {why}"))
        if self._stream is not None:
            self._stream.abort()

    def _flush(self) -> None:
        out = self._out
        if out and not self.closed:
            self._out = []
            self._open_stream.write(out[0] if len(out) == 1 else b"".join(out))

    def _arm(self, deadline_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = deadline_s
        self._timer = self._clock.call_at(deadline_s, self._expire)

    def _expire(self) -> None:
        """End the waiters whose deadline has passed; set the timer to the next one."""
        self._timer = None
        now_s = self._clock.monotonic()
        due = [opaque for opaque, waiter in self._pending.items() if waiter.deadline_s <= now_s]
        for opaque in due:
            waiter = self._pending.pop(opaque, None)
            if waiter is not None:
                waiter.failed(RequestTimeout(f"{self.address} did not answer in time"))
        if self._pending and self._timer is None:
            self._arm(min(waiter.deadline_s for waiter in self._pending.values()))

    def _end(self, error: RocketMQError) -> None:
        if self.closed:
            return
        self.closed = True
        self.closed_why = str(error).removeprefix(f"{self.address}: ")
        self._out = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.resume_writing()
        pending, self._pending = self._pending, {}
        self._on_closed(self)
        for waiter in pending.values():
            waiter.failed(error)

    @property
    def _open_stream(self) -> Stream:
        assert self._stream is not None, "attach comes before any request"
        return self._stream


class _FutureWaiter:
    """A waiter for a coroutine."""

    __slots__ = ("deadline_s", "future")

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.future: asyncio.Future[RemotingCommand] = loop.create_future()

    def answered(self, answer: RemotingCommand) -> None:
        if not self.future.done():
            self.future.set_result(answer)

    def stored(self, answer: StoredAnswer) -> None:
        self.answered(as_command(answer))

    def failed(self, error: RocketMQError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
