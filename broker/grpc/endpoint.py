"""The calls of the gRPC service: from a stream's bytes to a handler and back.

    metadata   who calls: x-mq-client-id (needed), x-mq-language, x-mq-client-version,
               x-mq-namespace; authorization and x-mq-date-time where there is access control
    request    protobuf; what cannot be read is BAD_REQUEST
    answer     of every call, refused ones too, in its own message; gRPC itself ends with OK

An error of gRPC's own would be trouble of the transport to a client, which would try again. Only
what is no such call gets one: a method that there is not (UNIMPLEMENTED), settings that cannot be
used and a stream of telemetry that fails (INVALID_ARGUMENT, INTERNAL, as at RocketMQ).

Source: apache/rocketmq@rocketmq-all-5.3.3 proxy/.../grpc/interceptor/HeaderInterceptor.java,
proxy/.../grpc/pipeline/ContextInitPipeline.java, proxy/.../grpc/v2/GrpcMessagingApplication.java
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Protocol, cast

from google.protobuf.message import DecodeError, Message

from skylarkmq.broker.access.forwarded import CLIENT, client_of, proving_key
from skylarkmq.broker.access.revoking import Revoked, access_key_of
from skylarkmq.broker.access.rpc_control import RpcAccess
from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.grpc.calls import (
    RECEIVE,
    TELEMETRY,
    Call,
    Rpc,
    RpcHandlers,
    RpcRefused,
    failure,
    rpc_table,
)
from skylarkmq.broker.grpc.connection import (
    CALLS_MAX,
    GrpcConnection,
    GrpcStream,
    OpenCalls,
)
from skylarkmq.broker.net.addresses import bind, port_of
from skylarkmq.broker.net.connection import Gate
from skylarkmq.broker.net.server import SCAN_INTERVAL_S, PeerLimits, PeerServer
from skylarkmq.broker.net.tls import TlsGate
from skylarkmq.common.clock import Clock
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.http2.grpc import GrpcError, GrpcStatus, Metadata
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code

log = logging.getLogger(__name__)

SEND: Final = "SendMessage"
BESIDE_BODY: Final = 1 << 20
"""Bytes of a request beside the body of its message; for all calls but SendMessage the limit."""
COMMAND_MAX: Final = 1 << 20
"""Bytes of what a client writes to its stream of telemetry: its settings, a dump of its threads."""
TEXT_MAX: Final = 256
"""Bytes of what a client says of itself."""
CALLERS_CACHED: Final = 1024
"""What so many clients have said of themselves is not read anew with each call."""
OTHER_LANGUAGE: Final = "OTHER"
LANGUAGES: Final = frozenset(schema_pb2.Language.keys()) | {"HTTP", "GO", "DOTNET"}  # Node: HTTP
STOP_LIMIT_S: Final = 2.0
_CLIENT: Final = CLIENT.encode()
# What a broker refuses of remoting, it refuses of these.
_C: Final = RequestCode
REMOTING_CODES: Final[dict[str, int]] = {
    SEND: _C.SEND_MESSAGE_V2,
    "RecallMessage": _C.RECALL_MESSAGE,
    "EndTransaction": _C.END_TRANSACTION,
    RECEIVE: _C.UPDATE_CONSUMER_OFFSET,
    "AckMessage": _C.UPDATE_CONSUMER_OFFSET,
    "ChangeInvisibleDuration": _C.UPDATE_CONSUMER_OFFSET,
    "ForwardMessageToDeadLetterQueue": _C.CONSUMER_SEND_MSG_BACK,
}

Refusal = Callable[[int], Exception | None]


def refuse_nothing(_: int) -> None:
    """Return no refusal, whatever is asked for."""
    return


def call_of(metadata: Metadata, peer: str, deadline_s: float | None) -> Call:
    """Return who makes a call, by its metadata.

    Raises:
        RpcRefused: it does not say so.
    """
    get = metadata.raw.get
    client_id, language, version, namespace = _caller(
        get(b"x-mq-client-id", b""),
        get(b"x-mq-language", b"")[:TEXT_MAX],
        get(b"x-mq-client-version", b"")[:TEXT_MAX],
        get(b"x-mq-namespace", b"")[:TEXT_MAX],
    )
    return Call(client_id, language, version, namespace, peer, None, deadline_s, metadata)


@lru_cache(CALLERS_CACHED)
def _caller(client_id: bytes, language: bytes, *others: bytes) -> list[str]:
    if not 0 < len(client_id) <= TEXT_MAX:
        why = f"x-mq-client-id is to be a text of 1 to {TEXT_MAX} bytes"
        raise RpcRefused(Code.CLIENT_ID_REQUIRED, why)
    client_id_text, language_text, version, namespace = (
        text.decode("utf-8", "replace") for text in (client_id, language, *others)
    )
    known = language_text.upper()
    return [client_id_text, known if known in LANGUAGES else OTHER_LANGUAGE, version, namespace]


class ServedCalls:
    """What all calls share: who may make them, what is refused, how many there are. Loop thread.

    Attributes:
        access: checks who calls; None: access control is off.
        refusal: tells by a request code of remoting what the broker refuses just now.
        gate: tells what has waited too long while there is too much to do.
        answered: calls by name and status code.
    """

    def __init__(self, access: RpcAccess | None, refusal: Refusal, gate: Gate) -> None:
        self.access = access
        self.refusal = refusal
        self.gate = gate
        self.answered: Counter[tuple[str, int]] = Counter()
        self._under_way = 0  # calls that end by themselves: all but telemetry
        self._idle = asyncio.Event()

    def begun(self) -> None:
        """A call has come that ends by itself."""
        self._under_way += 1

    def ended(self) -> None:
        """It is over, well or not."""
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()

    async def settled(self) -> None:
        """Return when the calls that end by themselves have ended, or STOP_LIMIT_S is over."""
        if self._under_way:
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), STOP_LIMIT_S)

    def count(self, name: str, code: int) -> None:
        """Count a call that is answered."""
        self.answered[name, code] += 1


class _Method:
    """One call of the service, as the transport serves it."""

    takes_many = False

    def __init__(self, rpc: Rpc, calls: ServedCalls, size_max: int) -> None:
        self.size_max = size_max
        self.needs_task = rpc.needs_task
        self._rpc = rpc
        self._calls = calls

    async def serve(self, stream: GrpcStream) -> None:
        """Serve one call."""
        raise NotImplementedError

    def _call(self, stream: GrpcStream) -> Call:
        """Return who makes a call.

        Raises:
            RpcRefused: it does not say so.
            AccessDenied: it may not.
        """
        metadata, access = stream.metadata, self._calls.access
        peer, is_known = stream.peer.remote_address, True
        if _CLIENT in metadata.raw:
            client = client_of(metadata) if access is None else access.client(metadata, peer)
            peer, is_known = client or peer, bool(client)
        call = call_of(metadata, peer, stream.deadline_s)
        if access is None:  # anybody could say any address
            call.source = stream.peer.remote_address
        else:
            name = self._rpc.name
            call.account = access.account(name, metadata, peer, may_be_white=is_known)
        return call

    def _read(self, call: Call, data: bytes, waited_s: float = 0.0) -> Any:
        """Return a message of the client, which it may send.

        Raises:
            RpcRefused: it cannot be read.
            RemoteProtocolError: the broker does not do such things just now.
            AccessDenied: its account lacks a right.
        """
        try:
            request = self._rpc.request.FromString(data)
        except DecodeError:
            raise RpcRefused(
                Code.BAD_REQUEST, f"the request is no {self._rpc.request.DESCRIPTOR.name}"
            ) from None
        code = REMOTING_CODES.get(self._rpc.name, 0)
        refusal = self._calls.refusal(code)
        if refusal is None and waited_s:
            refusal = self._calls.gate.late(code, waited_s)
        if refusal is not None:
            raise refusal
        if call.account is not None:
            access = self._calls.access
            assert access is not None
            access.check(call.account, self._rpc.name, call.peer, request)
        return request

    def _request(self, call: Call, stream: GrpcStream) -> Any:
        """Return the only message of the client.

        Raises:
            As `_read`.
        """
        if stream.too_large:
            code = Code.MESSAGE_BODY_TOO_LARGE if self._rpc.name == SEND else Code.PAYLOAD_TOO_LARGE
            why = f"the request has {stream.too_large} bytes: the largest has {self.size_max}"
            raise RpcRefused(code, why)
        return self._read(call, stream.received(), stream.waited_s)

    def _failed(self, error: Exception, call: Call | None, stream: GrpcStream) -> Message:
        """Return the answer to a call that failed."""
        caller = call or Call("", peer=stream.peer.remote_address)
        answer = failure(error, self._rpc.name, caller)
        log.debug("%s of %s: %d %s", self._rpc.name, caller.peer, answer.code, answer.message)
        return self._rpc.answer(answer)


class _Unary(_Method):
    """A call with one request and one answer."""

    async def serve(self, stream: GrpcStream) -> None:
        self._calls.begun()
        try:
            call = None
            answer: Any
            try:
                call = self._call(stream)
                answer = await self._rpc.handler(call, self._request(call, stream))
                data = answer.SerializeToString()
            except Exception as error:
                answer = self._failed(error, call, stream)
                data = answer.SerializeToString()
            stream.answer(data)
            self._calls.count(self._rpc.name, answer.status.code)
        finally:
            self._calls.ended()


class _Receive(_Method):
    """A call with one request and many messages of an answer."""

    async def serve(self, stream: GrpcStream) -> None:
        code = 0

        async def send(message: schema_pb2.ReceiveMessageResponse) -> None:
            nonlocal code
            if message.HasField("status"):
                code = message.status.code
            await stream.write(message.SerializeToString())

        call = None
        self._calls.begun()
        try:
            try:
                call = stream.call = self._call(stream)
                await self._rpc.handler(call, self._request(call, stream), send)
            except Exception as error:
                failed = self._failed(error, call, stream)
                assert isinstance(failed, schema_pb2.ReceiveMessageResponse)
                await send(failed)
            stream.finish()
            self._calls.count(self._rpc.name, code)
        finally:
            self._calls.ended()


class _Telemetry(_Method):
    """A call with commands in both directions."""

    takes_many = True

    async def serve(self, stream: GrpcStream) -> None:
        call = None
        code: int = Code.OK
        try:
            call = stream.call = self._call(stream)
            await self._rpc.handler(call, _Commands(self, call, stream))
        except RpcRefused as error:
            code = error.code
            if error.ends_stream:
                raise GrpcError(GrpcStatus.INVALID_ARGUMENT, error.message) from None
            await stream.write(self._failed(error, call, stream).SerializeToString())
        except Exception as error:
            failed = self._failed(error, call, stream)
            assert isinstance(failed, schema_pb2.TelemetryCommand)
            code = failed.status.code
            await stream.write(failed.SerializeToString())
            if code == Code.INTERNAL_SERVER_ERROR:
                raise GrpcError(GrpcStatus.INTERNAL, failed.status.message) from None
        finally:
            self._calls.count(self._rpc.name, code)

    def read(self, call: Call, data: bytes) -> schema_pb2.TelemetryCommand:
        """Return a command of the client.

        Raises:
            As `_read`.
        """
        command: schema_pb2.TelemetryCommand = self._read(call, data)
        return command


class _Commands:
    """The stream of one call of telemetry, as its handler sees it."""

    def __init__(self, method: _Telemetry, call: Call, stream: GrpcStream) -> None:
        self._method = method
        self._call = call
        self._stream = stream

    async def read(self) -> schema_pb2.TelemetryCommand | None:
        """Return the client's next command; None when it sends no more."""
        data = await self._stream.read()
        if self._stream.too_large:
            why = f"a command has {self._stream.too_large} bytes: the largest has {COMMAND_MAX}"
            raise RpcRefused(Code.PAYLOAD_TOO_LARGE, why, ends_stream=True)
        return None if data is None else self._method.read(self._call, data)

    async def write(self, command: schema_pb2.TelemetryCommand) -> None:
        """Send a command; returns when there is room for another."""
        await self._stream.write(command.SerializeToString())


_KINDS: Final[dict[str, type[_Method]]] = {RECEIVE: _Receive, TELEMETRY: _Telemetry}


class Service(Protocol):
    """What works by the clock while the endpoint listens."""

    def start(self) -> object:
        """Begin, also after `stop`."""
        ...

    def stop(self) -> object:
        """End; the clients have left."""
        ...


@dataclass(frozen=True, slots=True)
class EndpointLimits:
    """What an endpoint takes.

    Attributes:
        body_max: bytes of the largest message's body.
        peers: how many clients, for how long a silent one stays, and what they may hold.
        calls: open ones of all clients.
    """

    body_max: int
    peers: PeerLimits = field(default_factory=PeerLimits)
    calls: int = CALLS_MAX


class GrpcEndpoint:
    """Listens for clients of RocketMQ 5, and has their calls handled. Loop thread.

    Attributes:
        address: where it listens, or will.
        calls: what they share.
        forwarded: calls that other brokers answered, by the broker's name and status code.
        open_calls: of all clients.
        services: start and stop with it.
        end_polls: has calls answered that wait at other brokers, before it stops.
        forwards: it listens also while its broker does not lead: other brokers are reached by it.
    """

    def __init__(
        self,
        handlers: Iterable[RpcHandlers],
        clock: Clock,
        stats: BrokerStats,
        *,
        limits: EndpointLimits,
        access: RpcAccess | None = None,
        refusal: Refusal = refuse_nothing,
        gate: Gate | None = None,
    ) -> None:
        """Put the handlers together; nothing listens yet.

        Args:
            clock: of peers.
            access, refusal, gate: as of `ServedCalls`.

        Raises:
            ValueError: two handle the same call.
        """
        self.calls = ServedCalls(access, refusal, gate or Gate())
        self.forwarded: Counter[tuple[str, int]] = Counter()
        self._methods: dict[str, _Method] = {}
        for name, rpc in rpc_table(handlers).items():
            size_max = limits.body_max + BESIDE_BODY if name == SEND else BESIDE_BODY
            kind = _KINDS.get(name, _Unary)
            self._methods[rpc.path] = kind(rpc, self.calls, size_max)
        self._clock = clock
        self.server: PeerServer = PeerServer(
            clock,
            stats,
            self._connect,
            limits=limits.peers,
        )
        self.open_calls = OpenCalls(limits.calls)
        self.services: list[Service] = []
        self.end_polls: Callable[[], None] = lambda: None
        self.forwards = False
        self._running: list[Service] = []
        self._timer = IntervalTimer(clock, SCAN_INTERVAL_S, self._scan)
        self._socket: socket.socket | None = None
        self.address = "", 0
        self._tls: TlsGate | None = None
        self._starting: asyncio.Task[None] | None = None

    def open(self, bound: socket.socket, tls: TlsGate | None) -> None:
        """Take a bound socket; connections are refused until `start`."""
        self._socket = bound
        self.address = bound.getsockname()[0], port_of(bound)
        self._tls = tls

    def start(self) -> None:
        """Listen from now on, also after `stop`.

        Where it listens already, the broker leads from now on: the connections end, so that what
        waits for an answer of the former master comes again.
        """
        if self._starting is not None:
            for connection in list(self.server.connections):
                connection.close("lead")
            return
        self._running = list(self.services)
        for service in self._running:
            service.start()
        self._starting = asyncio.get_running_loop().create_task(self._listen())

    async def _listen(self) -> None:
        self._timer.stop()
        self._timer.start()
        bound, self._socket = self._socket, None
        await self.server.serve(bound or bind(*self.address), tls=self._tls)

    async def started(self) -> None:
        """Return when it listens.

        Raises:
            OSError: another program listens there.
        """
        if self._starting is not None:
            await self._starting

    def stop_reading(self) -> None:
        """Take no connection and no call any more; those under way go on."""
        self._timer.stop()
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None
        self.server.stop_reading()

    async def stop(self) -> None:
        """End every connection, once the calls that end by themselves are answered."""
        self.stop_reading()
        self.end_polls()
        await self.calls.settled()
        await self.server.stop()
        self._stop_services()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def abort(self, reason: str) -> None:
        """Cut every connection now; nothing more is answered."""
        self.stop_reading()
        self.server.abort(reason)
        self._stop_services()

    def _stop_services(self) -> None:
        running, self._running = self._running, []
        for service in running:
            service.stop()

    def revoke(self, revoked: Revoked) -> None:
        """End what waits for messages of those who may less now; they come again, and are told."""

        def is_over(call: Call) -> bool:
            keys = {access_key_of(call.account)}
            if call.account is None:  # which a broker's word may have done
                keys.add(proving_key(call.metadata))
            return revoked.takes_from(keys, call.peer)

        for connection in list(self.server.connections):
            cast("GrpcConnection", connection).end_calls(is_over)

    def _connect(self) -> GrpcConnection:
        return GrpcConnection(self._methods, self.server, self.open_calls, self.calls.gate)

    def _scan(self) -> None:
        now_s = self._clock.monotonic()
        for connection in list(self.server.connections):
            cast("GrpcConnection", connection).end_overdue(now_s)
