"""gRPC over one HTTP/2 connection: a call is a stream.

    request     5 bytes of head and a protobuf for each message: unary calls have one
    answer      HTTP head, messages, trailers with grpc-status

A call of a method that takes one message begins when that message and the end of the client's half
have come; one that takes many begins with its head. Mostly its work begins in the read that brings
it, and is answered at the end of that turn; a task is made for what waits for anything else than an
`Outcome`. It is cancelled when the client resets the stream, or has gone. Deadlines are told to the
handler: a client whose deadline has passed resets its stream itself.

What the client leaves unread is bounded as for every peer (`net/peer_connection.py`); what waits
for the windows of its streams counts among that of all peers, too. What it sends is bounded by
these windows, by the largest message of the method, and by MESSAGES_MAX messages of a call that
wait for its handler. Of a read with more than TURN_FRAMES the rest waits as bytes, unread, and the
client is not read meanwhile; one client of all goes on in each turn of the loop, unless it has
left.

grpcio's server in this process was measured beside it, an echo of 1 KiB with the metadata of a
client, CPU of the server: 147 us a call with 32 in flight and 235 with one; here 50 and 112, before
the fields had a decoder of our own. And it can listen neither for both plain text and TLS on a port
nor behind our gates.

Source: grpc/grpc doc/PROTOCOL-HTTP2.md, doc/statuscodes.md
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakValueDictionary

from skylarkmq.broker.base.waiting import Outcome, StartedCoroutine
from skylarkmq.broker.grpc.calls import NOT_BUILT
from skylarkmq.broker.net.connection import Gate
from skylarkmq.broker.net.peer_connection import PeerConnection
from skylarkmq.protocol.host_address import network_of
from skylarkmq.protocol.http2.connection import Data, Drained, Head, Reset
from skylarkmq.protocol.http2.frames import ErrorCode, header_block
from skylarkmq.protocol.http2.grpc import (
    CONTENT_TYPE,
    GrpcError,
    GrpcStatus,
    MessageReader,
    Metadata,
    error_text,
    framed,
    read_timeout,
)
from skylarkmq.protocol.http2.server import Http2Server

if TYPE_CHECKING:
    from skylarkmq.broker.net.server import PeerServer

log = logging.getLogger(__name__)

CALLS_MAX: Final = 65_536
"""Open calls of all clients; a few KB each."""
ADDRESS_CALLS_MAX: Final = CALLS_MAX // 2
"""Those of one address; of IPv6, one network of 64 bits."""
REQUEST_LIMIT_S: Final = 30.0
"""How long nothing may come of a request that has not come to its end."""
DEADLINE_GRACE_S: Final = 5.0
"""After its deadline a call ends here, too, where its client has not ended it."""
TURN_FRAMES: Final = 256
"""Frames of one client that are worked on in a turn of the loop: 128 calls, 50 us each."""
MESSAGES_MAX: Final = 16
"""Messages of one call that wait for its handler."""
CALM_INTERVAL_S: Final = 10.0
_HEAD: Final = header_block(((b":status", b"200"), (b"content-type", CONTENT_TYPE)))
_OK: Final = header_block(((b"grpc-status", b"0"),))
_NO_GRPC: Final = header_block(((b":status", b"415"), (b"content-type", b"text/plain")))
_NO_GRPC_TEXT: Final = b"This port is for RocketMQ 5 clients, which speak gRPC.\n"
_ENDED: Final = "the call was ended; try again"
NAME_MAX: Final = 128
"""Characters of a client's text that an error repeats."""


class Method(Protocol):
    """A method that the server knows.

    Attributes:
        takes_many: the client sends any number of messages.
        needs_task: its work asks for its task. Other work begins at once, and has a task from where
            it first waits for anything but an `Outcome`.
        size_max: bytes of the largest message that is taken.
    """

    takes_many: bool
    needs_task: bool
    size_max: int

    def serve(self, stream: GrpcStream) -> Coroutine[Any, Any, None]:
        """Serve one call: read from the stream and write to it. Its end ends the call."""
        ...


class GrpcStream(MessageReader):
    """One call. Loop thread.

    Its size is one idea: the work for a call begins, waits and ends by what has come of the request
    and what the client has room for.

    Attributes:
        peer: the connection that it came by.
        deadline_s: when the client stops waiting, on the monotonic clock; None: never.
        heard_s: when something of the request came last.
        waited_s: how long its end had waited for the loop; 0 while the loop is not late.
        is_served: it has all that its method begins with.
        call: who makes it, of one that may wait for messages; None while that is not known.
    """

    __slots__ = (
        "_has_begun", "_is_dropped", "_is_over", "_method", "_outcome", "_reader",
        "_task", "_work", "_writer", "call", "deadline_s", "heard_s", "is_received", "is_served",
        "metadata", "peer", "stream_id", "waited_s",
    )  # fmt: skip

    messages_max = MESSAGES_MAX

    def __init__(
        self,
        connection: GrpcConnection,
        stream_id: int,
        method: Method,
        metadata: Metadata,
        deadline_s: float | None,
    ) -> None:
        super().__init__(method.size_max)
        self.peer = connection
        self.stream_id = stream_id
        self._method = method
        self.metadata = metadata
        self.deadline_s = deadline_s
        self.heard_s = connection.last_active_s
        self.waited_s = 0.0
        self.is_received = False
        self.is_served = False
        self.call: object = None
        self._work: Coroutine[Any, Any, None]
        self._outcome: Outcome[Any] | None = None  # what the work waits for, without a task
        self._task: asyncio.Task[None] | None = None
        self._is_dropped = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._has_begun = False
        self._is_over = False

    async def read(self) -> bytes | None:
        """Return the client's next message; None when it sends no more, or `too_large` is set."""
        while not self._messages:
            if self.is_received or self.too_large:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._messages.popleft()

    def received(self) -> bytes:
        """Return the only message of a call that has come to its end; empty without one."""
        return self._messages.popleft() if self._messages else b""

    async def write(self, message: bytes) -> None:
        """Send a message; return when the client has room for more."""
        connection = self.peer
        if not self._has_begun:
            self._has_begun = True
            connection.http2.send_head(self.stream_id, _HEAD)
        has_room = connection.http2.send(self.stream_id, framed(message))
        if not has_room:
            connection.note_pending()
        connection.write_soon()
        if not has_room or connection.writing_paused:
            self._writer = asyncio.get_running_loop().create_future()
            connection.note_waiting(self)
            try:
                await self._writer
            finally:
                self._writer = None

    def answer(self, message: bytes) -> None:
        """Send the only message of a call, and end it."""
        self._is_over = True
        self.peer.http2.answer(self.stream_id, _HEAD, framed(message), _OK)
        self.peer.write_soon()

    def finish(self, status: GrpcStatus = GrpcStatus.OK, why: str = "") -> None:
        """End the call; the second time does nothing."""
        if self._is_over:
            return
        self._is_over = True
        http2 = self.peer.http2
        if not self._has_begun:
            http2.send_head(self.stream_id, _HEAD)
        trailers = _OK
        if status is not GrpcStatus.OK:
            fields = (b"grpc-status", str(int(status)).encode()), (b"grpc-message", error_text(why))
            trailers = header_block(fields)
        http2.end(self.stream_id, trailers)
        self.peer.write_soon()

    # For its connection

    def start(self) -> None:
        """Have the call served, once there is what its method begins with."""
        if self.is_served or not (self.is_received or self._method.takes_many):
            return
        self.is_served = True
        self.waited_s = self.peer.waited_s
        work = self._work = self.peer.serve(self, self._method)
        if self._method.needs_task:
            self._task = asyncio.get_running_loop().create_task(work)
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Do the next step of the work: a task is made when it waits for more than an outcome."""
        self._outcome = None
        try:
            waits_for = self._work.send(None)
        except (StopIteration, asyncio.CancelledError):
            return
        if isinstance(waits_for, Outcome):
            self._outcome = waits_for
            waits_for.go_on = self._go_on
            self.peer.note_answer_soon()
        else:
            rest = StartedCoroutine(self._work, waits_for)
            self._task = asyncio.get_running_loop().create_task(rest)
        if self._is_dropped:
            self.drop()

    def drop(self) -> None:
        """End the work: its answer has gone, or goes nowhere. It hears of it in a later turn."""
        self._is_dropped = True
        if self._task is not None:
            self._task.cancel()
        elif self._outcome is not None and self._outcome.cancel():
            asyncio.get_running_loop().call_soon(self._go_on)

    @property
    def has_ended(self) -> bool:
        """Whether the work has, also when it was ended before its first step."""
        return self._task is not None and self._task.done()

    def drained(self) -> None:
        """The client has room again."""
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def feed(self, data: bytes, *, is_end: bool) -> None:
        """Take a part of what the client sends.

        Raises:
            GrpcError: it is no gRPC.
        """
        if data:
            self.take(data)
        if is_end:
            if self.is_within:
                raise GrpcError(GrpcStatus.INTERNAL, "the request ends in the middle of a message")
            self.is_received = True
        has_news = self._messages or self.is_received or self.too_large
        if has_news and self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class _AddressCalls:
    """Counts the calls of one address."""

    __slots__ = ("__weakref__", "count")

    def __init__(self) -> None:
        self.count = 0


class OpenCalls:
    """Counts the calls of all clients, and has those go on in turns that sent many. Loop thread."""

    def __init__(self, limit: int = CALLS_MAX, address_limit: int = ADDRESS_CALLS_MAX) -> None:
        self.limit = limit
        self.address_limit = address_limit
        self.count = 0
        # As long as the address has connections, which keep what counts for it.
        self._by_network: WeakValueDictionary[bytes, _AddressCalls] = WeakValueDictionary()
        self._waiting: dict[GrpcConnection, None] = {}

    def of_network(self, network: bytes) -> _AddressCalls:
        """Return what counts the calls of an address."""
        found = self._by_network.get(network)
        if found is None:
            found = self._by_network[network] = _AddressCalls()
        return found

    def wait_for_turn(self, connection: GrpcConnection) -> None:
        """Have a client go on after those that wait already."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        self._waiting[connection] = None

    def _next(self) -> None:
        connection = next(iter(self._waiting))
        del self._waiting[connection]
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        connection.go_on()


class GrpcConnection(PeerConnection):
    """A connected client. Loop thread.

    Its size is one idea: its calls share the bytes of a read and of a write, and the windows, so
    none of them begins, waits or ends without the state of the connection.

    Attributes:
        http2: what is sent goes through it, then `write_soon`.
        waited_s: how long what was read last had waited for the loop; 0 while it is not late.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        server: PeerServer,
        open_calls: OpenCalls | None = None,
        gate: Gate | None = None,
    ) -> None:
        """Make what stands for a client.

        Args:
            methods: by their paths.
            open_calls: of all clients together; None: of this one alone.
            gate: says when it is to be known how long calls have waited; None: never.
        """
        super().__init__(server)
        self._gate = gate or Gate()
        self.waited_s = 0.0
        self._open_calls = open_calls or OpenCalls()
        self._address_calls = _AddressCalls()  # that of the address, once it is known
        self.http2 = Http2Server(turn_max=TURN_FRAMES)
        self._methods = methods
        self._streams: dict[int, GrpcStream] = {}
        self._waiting: set[GrpcStream] = set()  # to be able to write again
        self._growing: set[GrpcStream] = set()  # with a message that has not come to its end
        self._calm_at_s = 0.0
        self._answers_soon = False  # a call waits that may be answered at the end of this turn
        self._pending_size = 0  # of what waits for its windows, as it was counted

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._address_calls = self._open_calls.of_network(network_of(self.host_bytes))

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        now_s = self.last_active_s = self._server.clock.monotonic()
        self.waited_s = self.silence_s() if now_s > self._gate.watch_after_s else 0.0
        if now_s >= self._calm_at_s:
            self._calm_at_s = now_s + CALM_INTERVAL_S
            self.http2.calm()
        self._in_read = True
        try:
            events = self.http2.receive(data)
            for event in events:
                self._handle(event)
        finally:
            self._in_read = False
        if self.http2.unsent_size or self._pending_size:
            self.note_pending()
        if self._answers_soon:  # what ends its wait is planned already, so it is done by then
            self._answers_soon = False
            self.write_soon()
        else:
            self.write_out()
        if self.http2.failed:
            self._server.stats.protocol_errors["http2"] += 1
            log.info("closing %s: %s", self.remote_address, self.http2.failed)
            self.close("protocol_error")
            return
        self._note_unfinished(has_progress=bool(events))
        if self.http2.is_behind:
            self._open_calls.wait_for_turn(self)
            self._update_reading()
        elif self.reading_paused:
            self._update_reading()

    def go_on(self) -> None:
        """Work on frames that waited for a turn; a client that has left gets no more done."""
        if self.closed or self.close_reason or self.writing_paused:
            return
        if self.has_left():
            self.close("peer")
        else:
            self.data_received(b"")

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.http2.is_behind:
            self._open_calls.wait_for_turn(self)
        self.note_pending()
        waiting, self._waiting = self._waiting, set()
        for stream in waiting:
            stream.drained()

    def _forget_all(self) -> None:
        for stream in list(self._streams.values()):
            self._forget(stream)
            self._drop(stream)
        self._waiting.clear()
        self._growing.clear()

    # Calls

    def _handle(self, event: Head | Data | Reset | Drained) -> None:
        if isinstance(event, Head):
            self._begin(event)
            return
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        if isinstance(event, Data):
            if not event.is_end:
                self.http2.taken(event.stream_id, len(event.data))
            self._feed(stream, event.data, is_end=event.is_end)
        elif isinstance(event, Reset):
            self._forget(stream)
            self._drop(stream)
        else:
            stream.drained()

    def _begin(self, head: Head) -> None:
        metadata = Metadata(head.fields)
        fields = metadata.raw
        if fields[b":method"] != b"POST" or not fields.get(b"content-type", b"").startswith(
            CONTENT_TYPE
        ):
            self.http2.send_head(head.stream_id, _NO_GRPC)
            self.http2.send(head.stream_id, _NO_GRPC_TEXT)
            self.http2.end(head.stream_id, b"")
            return
        path = fields[b":path"].decode("latin-1")
        method = self._methods.get(path)
        if method is None:
            cure = NOT_BUILT.get(path, "")
            why = f"this server has no method {path[:NAME_MAX]!r}{cure and f': {cure}'}"
            self.http2.end(head.stream_id, refusal(GrpcStatus.UNIMPLEMENTED, why))
            return
        deadline_s = None
        if b"grpc-timeout" in fields:
            timeout = metadata["grpc-timeout"]
            timeout_s = read_timeout(timeout)
            if timeout_s is None:
                why = f"grpc-timeout {timeout[:NAME_MAX]!r} is no time"
                self.http2.end(head.stream_id, refusal(GrpcStatus.INTERNAL, why))
                return
            deadline_s = self.last_active_s + timeout_s
        calls, of_address = self._open_calls, self._address_calls
        if calls.count >= calls.limit or of_address.count >= calls.address_limit:
            why = f"{calls.count} calls are open, {of_address.count} of this address: close some"
            self.http2.end(head.stream_id, refusal(GrpcStatus.RESOURCE_EXHAUSTED, why))
            return
        calls.count += 1
        of_address.count += 1
        stream = GrpcStream(self, head.stream_id, method, metadata, deadline_s)
        self._streams[head.stream_id] = stream
        if head.is_end or method.takes_many:
            self._feed(stream, b"", is_end=head.is_end)

    def _feed(self, stream: GrpcStream, data: bytes, *, is_end: bool) -> None:
        try:
            stream.feed(data, is_end=is_end)
        except GrpcError as error:
            self._refuse(stream, error.status, str(error))
            return
        if data:
            stream.heard_s = self.last_active_s
        if stream.held_size:
            self._growing.add(stream)
        elif self._growing:
            self._growing.discard(stream)
        stream.start()

    def _refuse(self, stream: GrpcStream, status: GrpcStatus, why: str) -> None:
        stream.finish(status, why)
        self._forget(stream)
        self._drop(stream)

    def _forget(self, stream: GrpcStream) -> None:
        if self._streams.pop(stream.stream_id, None) is not None:
            self._open_calls.count -= 1
            self._address_calls.count -= 1

    def end_overdue(self, now_s: float) -> None:
        """End calls whose request does not come, and those that outlive their deadline."""
        for stream in list(self._streams.values()):
            if not stream.is_served and now_s - stream.heard_s > REQUEST_LIMIT_S:
                why = f"nothing of the request came for {REQUEST_LIMIT_S:g} s"
                self._refuse(stream, GrpcStatus.DEADLINE_EXCEEDED, why)
            elif stream.deadline_s is not None and now_s - stream.deadline_s > DEADLINE_GRACE_S:
                self._cut(stream, GrpcStatus.DEADLINE_EXCEEDED, "the deadline is over")

    def end_calls(self, is_over: Callable[[Any], bool]) -> None:
        """End those calls that may wait for messages and are over, by who makes them."""
        for stream in list(self._streams.values()):
            if stream.call is not None and is_over(stream.call):
                self._cut(stream, GrpcStatus.UNAVAILABLE, _ENDED)

    def _cut(self, stream: GrpcStream, status: GrpcStatus, why: str) -> None:
        """End a call, also where the client takes nothing."""
        self._refuse(stream, status, why)
        self.http2.reset(stream.stream_id, ErrorCode.CANCEL)  # where its end cannot leave
        self.note_pending()
        self.write_soon()

    def _drop(self, stream: GrpcStream) -> None:
        """End the work for a call whose answer has gone, or goes nowhere."""
        self._growing.discard(stream)
        self._waiting.discard(stream)
        stream.drop()

    async def serve(self, stream: GrpcStream, method: Method) -> None:
        """Serve one call to its end."""
        try:
            await method.serve(stream)
        except GrpcError as error:
            stream.finish(error.status, str(error))
        except asyncio.CancelledError:
            stream.finish(GrpcStatus.UNAVAILABLE, _ENDED)
            raise
        except Exception:
            log.exception("a call of %s failed", self.remote_address)
            stream.finish(GrpcStatus.INTERNAL, "the server has failed; its log tells more")
        else:
            stream.finish()
        finally:
            self._ended(stream)

    def _ended(self, stream: GrpcStream) -> None:
        stream_id = stream.stream_id
        if self._streams.get(stream_id) is stream:
            self._forget(stream)
        if self._reading_ended and self.close_reason and not self._streams:
            self._close_transport()

    # Writing

    def note_answer_soon(self) -> None:
        """A call waits for an outcome."""
        if self._in_read:
            self._answers_soon = True

    @property
    def unsent_size(self) -> int:
        """Bytes that the peer has not taken yet; those too that wait for its windows."""
        return 0 if self.closed else super().unsent_size + self.http2.unsent_size

    def note_pending(self) -> None:
        """Count what waits for the peer's windows among what all peers leave unread."""
        outbound, size = self._server.outbound, self.http2.unsent_size
        if size < self._pending_size and not self._behind:
            outbound.caught_up(self)  # it takes some: others are dropped before it
        self._pending_size = size
        if size and not self.closed:
            outbound.note(self, self.unsent_size)

    def note_waiting(self, stream: GrpcStream) -> None:
        """A call waits until its client has room again."""
        self._waiting.add(stream)

    def write_out(self) -> None:
        """Write what is to be sent."""
        self._scheduled = False
        data = self.http2.take_outgoing()
        if self.closed or not data:
            return
        self._transport.write(data)
        if self._behind:
            self._note_unsent(len(data))

    # Reading

    def _note_unfinished(self, *, has_progress: bool) -> None:
        held = self.http2.buffered_size
        if self._growing:
            held += sum(stream.held_size for stream in self._growing)
        if held or self._held_size:
            self._held_size = held
            self._server.inbound.note(self, held)
        if (not held and self.http2.is_greeted) or self.http2.is_behind:
            self.unfinished_since_s = 0.0
        elif has_progress or not self.unfinished_since_s:
            self.unfinished_since_s = self.last_active_s

    def _has_enough(self) -> bool:
        return self.writing_paused or self.http2.is_behind

    def stop_reading(self) -> None:
        """Take no new calls; those under way go on."""
        self._reading_ended = True
        self.http2.go_away()
        self.write_soon()

    # Ending

    def close(self, reason: str) -> None:
        """End the calls under way with UNAVAILABLE, send what is queued, end the connection."""
        if not self.close_reason:
            self.close_reason = reason
        if self.closed:
            return
        self.stop_reading()
        for stream in list(self._streams.values()):
            if not stream.is_served:
                self._forget(stream)
            self._drop(stream)
        if self._streams:
            asyncio.get_running_loop().call_soon(self._end_those_not_begun)
        else:
            self._close_transport()

    def _end_those_not_begun(self) -> None:
        """End calls whose tasks were cancelled before their first step, which `serve` never saw."""
        for stream in list(self._streams.values()):
            if stream.has_ended:
                stream.finish(GrpcStatus.UNAVAILABLE, _ENDED)
                self._ended(stream)

    def _close_transport(self) -> None:
        if not self.closed:
            self.write_out()
            self._transport.close()


def refusal(status: GrpcStatus, why: str) -> bytes:
    """Return the block of an answer that is nothing but its end."""
    return header_block(
        (
            (b":status", b"200"),
            (b"content-type", CONTENT_TYPE),
            (b"grpc-status", str(int(status)).encode()),
            (b"grpc-message", error_text(why)),
        )
    )
