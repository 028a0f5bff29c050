"""The client's end of gRPC over one HTTP/2 connection: calls on it, until one of the two ends it.

A connection is one when the other end's settings have come: a process that listens and does not
work is no other than one that is not there. As long as a call is open the other end is asked for a
sign of life when it has been silent, and given up when there is none; without a call the connection
closes after a while.

What can fail has one error. Where it says that a call was not `reached`, it surely did not arrive,
so it may be made elsewhere: there was no connection, or the other end refused the stream.

A call of 300 bytes costs this process 21 us of CPU with 32 in flight and 42 with one; by grpcio's
client, measured beside it, 43 and 183.

Bounded are the calls, the messages of an answer that wait to be read, their size, and by `Answers`
the bytes of all answers together. What the other end does not read is told by `unsent_size`.

Source: grpc/grpc doc/PROTOCOL-HTTP2.md; RFC 9113, 8.7
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.protocol.http2.client import Http2Client
from skylarkmq.protocol.http2.connection import FLOOD_MAX, Data, Event, Head, Reset
from skylarkmq.protocol.http2.frames import ErrorCode
from skylarkmq.protocol.http2.grpc import (
    PREFIX,
    GrpcError,
    GrpcStatus,
    MessageReader,
    framed,
    read_error_text,
)
from skylarkmq.remoting.stream import Network, Stream

SILENCE_S: Final = 15.0
"""A connection with calls that has been silent for so long is asked for a sign of life."""
SIGN_LIMIT_S: Final = 10.0
IDLE_S: Final = 60.0
"""A connection without calls stays for so long; brokers close one after 120 s by default."""
CALM_INTERVAL_S: Final = 10.0
CALLS_MAX: Final = 1_000
"""Of one connection."""
RESETS_MAX: Final = FLOOD_MAX // 4
"""Calls of a connection that are cancelled within CALM_INTERVAL_S; the other end takes it for an
attack from FLOOD_MAX on, and all clients share a connection."""
MESSAGES_MAX: Final = 4_096
"""Messages of an answer that wait to be read."""
MESSAGE_MAX: Final = 64 << 20
"""Bytes of a message; another broker may take larger ones than this."""
HELD_MAX: Final = 256 << 20
"""Bytes of all answers that wait to be read."""
_STATUS_OF: Final[dict[int, GrpcStatus]] = {
    ErrorCode.REFUSED_STREAM: GrpcStatus.UNAVAILABLE,
    ErrorCode.CANCEL: GrpcStatus.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: GrpcStatus.RESOURCE_EXHAUSTED,
}
_NAMES: Final = {int(code): code.name for code in ErrorCode}
_STATUSES: Final = {str(int(status)).encode(): status for status in GrpcStatus}


class UpstreamError(Exception):
    """A call of another endpoint that did not end well. In its text that endpoint is "it".

    Attributes:
        status: how gRPC sees it.
        reached: False: it surely did not arrive there.
    """

    def __init__(self, status: GrpcStatus, why: str, *, reached: bool) -> None:
        super().__init__(why)
        self.status = status
        self.reached = reached


@dataclass(slots=True)
class Answers:
    """What the answers to the calls of all connections may hold, and do.

    Attributes:
        message_max: bytes of the largest message.
        held_max: bytes that wait to be read.
        unread: calls with messages that wait; first the one that was not read for longest.
    """

    message_max: int = MESSAGE_MAX
    held_max: int = HELD_MAX
    held: int = 0
    unread: dict[UpstreamStream, None] = field(default_factory=dict["UpstreamStream", None])

    def make_room(self) -> None:
        """End calls that are not read while too much waits, and drop what they have."""
        while self.held > self.held_max and self.unread:
            why = f"it is not read, and more than {self.held_max} bytes of answers wait to be read"
            next(iter(self.unread)).drop(why)


class UpstreamStream(MessageReader):
    """One call. One task may read while others write. Loop thread.

    Attributes:
        deadline_s: when it ends on the clock, if not before; None: never.
        is_over: it has ended, well or not; messages that came before may wait to be read.
        stream_id: its number on its connection; 0 until it has one.
    """

    __slots__ = (
        "_answers", "_connection", "_credit", "_drained", "_error", "_has_head", "_held",
        "_is_unary", "_reader", "deadline_s", "is_over", "stream_id",
    )  # fmt: skip

    messages_max = MESSAGES_MAX

    def __init__(self, answers: Answers, deadline_s: float | None) -> None:
        super().__init__(answers.message_max)
        self.deadline_s = deadline_s
        self.stream_id = 0
        self._answers = answers
        self._connection: GrpcClient | None = None
        self._is_unary = False
        self._has_head = False
        self.is_over = False
        self._error: UpstreamError | None = None
        self._held = 0  # bytes of it that wait to be read
        self._credit = 0  # bytes that the window was not opened for yet
        self._reader: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None  # what those who write wait for

    def begin(self, connection: GrpcClient, block: bytes) -> None:
        """Begin the call.

        Args:
            block: the fields of its head.
        """
        self._connection = connection
        self.stream_id = connection.begin(self, block, None)

    async def ask(self, connection: GrpcClient, block: bytes, data: bytes) -> bytes:
        """Make a call with one message, and return the only one of its answer.

        A cancel ends it there, too.

        Raises:
            UpstreamError: the call has failed.
        """
        self._is_unary = True
        self._connection = connection
        self.stream_id = connection.begin(self, block, framed(data))
        try:
            while not self.is_over:
                self._reader = asyncio.get_running_loop().create_future()
                await self._reader
        finally:
            self.close()
        if self._error is not None:
            raise self._error
        if len(self._messages) != 1:
            why = f"{len(self._messages)} messages as the answer to a call that has one"
            raise UpstreamError(GrpcStatus.INTERNAL, why, reached=True)
        return self._messages[0]

    async def write(self, data: bytes) -> None:
        """Send a message; return when there is room for another.

        When the other side has ended the call well, nothing is sent.

        Raises:
            UpstreamError: the call has failed.
        """
        if self._error is not None:
            raise self._error
        connection = self._connection
        if connection is None or self.is_over:
            return
        has_room = connection.http2.send(self.stream_id, framed(data))
        connection.write_soon()
        if not has_room or connection.is_behind:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)  # of all who write
            if self._error is not None:
                raise self._error

    def end(self) -> None:
        """Send no more; the other side may."""
        if self._connection is not None and not self.is_over:
            self._connection.http2.end(self.stream_id)
            self._connection.write_soon()

    async def read(self) -> bytes | None:
        """Return the other side's next message; None when it has ended the call well.

        Raises:
            UpstreamError: the call has failed; told after the messages that came before.
        """
        while not self._messages:
            if self._error is not None:
                raise self._error
            if self.is_over:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        message = self._messages.popleft()
        self._let_go(PREFIX.size + len(message))
        unread = self._answers.unread
        unread.pop(self, None)
        if self._messages:
            unread[self] = None
        else:
            self._open_window()
        return message

    @property
    def has_ended(self) -> bool:
        """The other side has ended the call well; messages may wait to be read."""
        return self.is_over and self._error is None

    def close(self) -> None:
        """End the call where it is still open; the second time does nothing."""
        if not self.is_over and self._connection is not None:
            self._connection.reset(self.stream_id)
        self._leave()
        self.drained()
        self._answers.unread.pop(self, None)
        self._let_go(self._held)

    # For its connection

    def head(self, head: Head) -> None:
        """Take the head of the answer, or its trailers."""
        fields = dict(head.fields)
        if not self._has_head:
            self._has_head = True
            http_status = fields[b":status"]
            if http_status != b"200":
                why = f"its answer has HTTP status {http_status.decode('latin-1')!a}, not 200"
                self.give_up(GrpcStatus.UNKNOWN, why)
                return
        if head.is_end:
            self._ended(fields)

    def feed(self, data: Data) -> None:
        """Take a part of the answer."""
        size = len(data.data)
        self._credit += size
        self._held += size
        answers = self._answers
        answers.held += size
        try:
            self.take(data.data)
            if self._messages and not self._is_unary:
                answers.unread.setdefault(self)
            answers.make_room()
            if self._error is not None:
                return
            if answers.held > answers.held_max:
                why = f"more than {answers.held_max} bytes of answers wait to be read"
                raise GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, why)
            if self.too_large:
                why = f"a message of {self.too_large} bytes: the largest has {self._size_max}"
                raise GrpcError(GrpcStatus.RESOURCE_EXHAUSTED, why)
        except GrpcError as error:
            self.give_up(error.status, f"its answer is not taken: {error}")
            return
        if self._is_unary or not self._messages:
            self._open_window()
        if data.is_end:
            self._ended({})
        elif self._messages and not self._is_unary:
            self._wake_reader()

    def drained(self) -> None:
        """There is room again for what is written."""
        drained, self._drained = self._drained, None
        if drained is not None:
            drained.set_result(None)

    def fail(self, status: GrpcStatus, why: str, *, reached: bool = True) -> None:
        """Note that the call has ended before its time."""
        self._error = UpstreamError(status, why, reached=reached)
        self._finish()

    def give_up(self, status: GrpcStatus, why: str) -> None:
        """End the call before its time."""
        if self._connection is not None:
            self._connection.reset(self.stream_id)
        self.fail(status, why)

    def drop(self, why: str) -> None:
        """End the call, and forget what of it waits to be read."""
        self._messages.clear()
        self._part.clear()
        self._answers.unread.pop(self, None)
        self._let_go(self._held)
        self.give_up(GrpcStatus.RESOURCE_EXHAUSTED, f"its answer is not taken: {why}")

    def _ended(self, trailers: Mapping[bytes, bytes]) -> None:
        code = trailers.get(b"grpc-status", b"")
        status = _STATUSES.get(code, GrpcStatus.UNKNOWN)
        if status is not GrpcStatus.OK:
            said = read_error_text(trailers.get(b"grpc-message", b""))
            why = f"it answers with gRPC status {code.decode('latin-1')!a}"
            self._error = UpstreamError(status, f"{why}: {said!a}", reached=True)
        elif self.is_within:
            why = "its answer ends in the middle of a message"
            self._error = UpstreamError(GrpcStatus.INTERNAL, why, reached=True)
        self._finish()

    def _finish(self) -> None:
        self._leave()
        self._wake_reader()
        self.drained()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _leave(self) -> None:
        self.is_over = True
        if self._connection is not None:
            self._connection.forget(self.stream_id)
            self._connection = None

    def _open_window(self) -> None:
        credit, self._credit = self._credit, 0
        if self._connection is not None:
            self._connection.http2.taken(self.stream_id, credit)
            self._connection.write_soon()

    def _let_go(self, size: int) -> None:
        self._held -= size
        self._answers.held -= size


class GrpcClient(asyncio.Protocol):
    """A connection to another endpoint.

    Its size is one idea: whether it is kept, asked for a sign of life or closed depends on the
    calls that are open, and each of them ends with it.

    Attributes:
        http2: what is sent goes through it, then `write_soon`.
        is_behind: the other end does not read as fast as is written.
        closed_why: why it takes no call any more; empty while it does.
    """

    def __init__(self, address: str, clock: Clock, on_closed: Callable[[GrpcClient], None]) -> None:
        """Make a connection that is not open yet.

        Args:
            address: `host:port`.
            on_closed: told when it takes no call any more.
        """
        self.http2 = Http2Client()
        self.address = address
        self.is_behind = False
        self.closed_why = ""
        self._clock = clock
        self._on_closed = on_closed
        self._stream: Stream | None = None
        self._calls: dict[int, UpstreamStream] = {}
        self._greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_read = False
        self._scheduled = False
        self._calm_at_s = 0.0
        self._heard_s = self._clock.monotonic()
        self._asked_s = 0.0  # for a sign of life
        self._idle_since_s = self._heard_s
        self._timer: TimerHandle | None = None
        self._timer_s = 0.0

    async def open(self, network: Network) -> None:
        """Connect, and return when the other end has greeted.

        Raises:
            OSError: that does not come about.
        """
        self._stream = await network.connect(self.address, self)
        self.write_out()
        await self._greeted
        if self.closed_why:
            raise ConnectionError(self.closed_why)

    @property
    def has_room(self) -> bool:
        """Whether it takes one more call."""
        http2 = self.http2
        return (
            len(self._calls) < http2.streams_max
            and len(self._calls) < CALLS_MAX
            and not http2.is_going
            and not self.closed_why
            and http2.reset_count < RESETS_MAX
        )

    @property
    def unsent_size(self) -> int:
        """Bytes that the other end has not taken yet."""
        return self.http2.unsent_size + (0 if self._stream is None else self._stream.unsent_size)

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        if self.closed_why:
            return
        self._heard_s = self._clock.monotonic()
        self._in_read = True
        try:
            for event in self.http2.receive(data):
                self._handle(event)
        finally:
            self._in_read = False
        self.write_out()
        if self.http2.failed:
            self.close(f"it does not speak HTTP/2 as it should: {self.http2.failed}")
        elif self.http2.is_greeted and not self._greeted.done():
            self._greeted.set_result(None)
        self._close_if_left()

    def pause_writing(self) -> None:
        self.is_behind = True

    def resume_writing(self) -> None:
        self.is_behind = False
        for call in list(self._calls.values()):
            call.drained()

    def connection_lost(self, exc: Exception | None) -> None:
        why = "it was closed" if exc is None else str(exc) or type(exc).__name__
        self._end(f"the connection was lost: {why}")

    # Calls

    def begin(self, call: UpstreamStream, block: bytes, data: bytes | None) -> int:
        """Begin a call, and return the number of its stream.

        Args:
            data: all that is to be sent; None: it follows.
        """
        http2 = self.http2
        stream_id = http2.open(block) if data is None else http2.ask(block, data)
        if not self._calls:  # nothing had to be heard until now
            self._heard_s = self._clock.monotonic()
        self._calls[stream_id] = call
        self.write_soon()
        deadline_s = call.deadline_s
        if deadline_s is not None and (self._timer is None or deadline_s < self._timer_s):
            self._plan(deadline_s)
        return stream_id

    def forget(self, stream_id: int) -> None:
        """A call is over."""
        if self._calls.pop(stream_id, None) is not None and not self._calls:
            self._idle_since_s = self._clock.monotonic()
            if not self._in_read:
                self._close_if_left()

    def reset(self, stream_id: int) -> None:
        """End a call there, too."""
        self.http2.reset(stream_id, ErrorCode.CANCEL)
        self.write_soon()

    def _handle(self, event: Event) -> None:
        call = self._calls.get(event.stream_id)
        if call is None:
            return
        if isinstance(event, Data):
            call.feed(event)
        elif isinstance(event, Head):
            call.head(event)
        elif isinstance(event, Reset):
            self._fail(call, event.code)
        else:
            call.drained()

    def _fail(self, call: UpstreamStream, code: int) -> None:
        if self.http2.failed:
            why = f"it does not speak HTTP/2 as it should: {self.http2.failed}"
            call.fail(GrpcStatus.UNAVAILABLE, why)
            return
        reached = code != ErrorCode.REFUSED_STREAM
        status = _STATUS_OF.get(code, GrpcStatus.INTERNAL)
        call.fail(status, f"it has ended the call: {_NAMES.get(code, code)}", reached=reached)

    def _plan(self, when_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_s = self._clock.call_at(when_s, self._end_overdue), when_s

    def _end_overdue(self) -> None:
        """End calls whose deadline is over; of those with one, the next is waited for."""
        self._timer = None
        now_s, next_s = self._clock.monotonic(), float("inf")
        for call in list(self._calls.values()):
            if call.deadline_s is None:
                continue
            if call.deadline_s <= now_s:
                why = "it has not answered in the time of the call"
                call.give_up(GrpcStatus.DEADLINE_EXCEEDED, why)
            else:
                next_s = min(next_s, call.deadline_s)
        if next_s < float("inf"):
            self._plan(next_s)

    # Writing

    def write_soon(self) -> None:
        """Write what is to be sent, at the end of the read or of the turn."""
        if not self._in_read and not self._scheduled and not self.closed_why:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.write_out)

    def write_out(self) -> None:
        """Write what is to be sent."""
        self._scheduled = False
        if self._stream is None or self.closed_why:
            return
        data = self.http2.take_outgoing()
        if data:
            self._stream.write(data)

    # Ending

    def scan(self, now_s: float) -> None:
        """Ask the other end for a sign of life, or give it up; close where nothing is done."""
        if now_s >= self._calm_at_s:
            self._calm_at_s = now_s + CALM_INTERVAL_S
            self.http2.calm()
        if not self._calls:
            self._asked_s = 0.0
            if now_s - self._idle_since_s >= IDLE_S:
                self.close("nothing was to be done")
        elif now_s - self._heard_s < SILENCE_S:
            self._asked_s = 0.0
        elif not self._asked_s:
            self._asked_s = now_s
            self.http2.ping()
            self.write_soon()
        elif now_s - self._asked_s >= SIGN_LIMIT_S:
            self.abort("it gives no sign of life")

    def _close_if_left(self) -> None:
        if self.http2.is_going and not self._calls:
            self.close("the other end wants it")

    def close(self, why: str) -> None:
        """Send what is queued, then close; calls that are open fail."""
        if not self.closed_why:
            self.write_out()
            stream = self._stream
            self._end(why)
            if stream is not None:
                stream.close()

    def abort(self, why: str) -> None:
        """Close at once; calls that are open fail."""
        stream = self._stream
        self._end(why)
        if stream is not None:
            stream.abort()

    def _end(self, why: str) -> None:
        if self.closed_why:
            return
        self.closed_why = why
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            call.fail(GrpcStatus.UNAVAILABLE, why)
        if not self._greeted.done():
            self._greeted.set_result(None)
        self._on_closed(self)
