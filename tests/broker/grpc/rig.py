"""An endpoint on a free port with handlers of the test, and clients of it by grpcio."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import grpc

from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.grpc.calls import OK, SERVICE, Call, RpcHandlers, RpcRefused, rpc, status
from skylarkmq.broker.grpc.endpoint import EndpointLimits, GrpcEndpoint
from skylarkmq.broker.net.addresses import bind
from skylarkmq.broker.net.tls import TlsGate
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from tests.support.patience import LIMIT_S

BODY_MAX = 4 << 20
METADATA = (
    ("x-mq-client-id", "host@1@0@abc"),
    ("x-mq-language", "PYTHON"),
    ("x-mq-client-version", "5.1.2"),
    ("x-mq-protocol", "GRPC_V2"),
    ("x-mq-namespace", ""),
)


class Handlers(RpcHandlers):
    """Tells what it got; what a test wants otherwise goes into `work`.

    Attributes:
        calls: all that came, in order.
        work: awaited by SendMessage and ReceiveMessage.
        ended: how receives ended: "done" or "cancelled".
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.work: Callable[[Any], Awaitable[Any]] | None = None
        self.ended: list[str] = []
        self.commands: list[Any] = []

    @rpc("Heartbeat", schema_pb2.HeartbeatRequest, schema_pb2.HeartbeatResponse)
    async def heartbeat(self, call: Call, request: Any) -> schema_pb2.HeartbeatResponse:
        self.calls.append(call)
        return schema_pb2.HeartbeatResponse(status=OK)

    @rpc("SendMessage", schema_pb2.SendMessageRequest, schema_pb2.SendMessageResponse)
    async def send_message(self, call: Call, request: Any) -> schema_pb2.SendMessageResponse:
        self.calls.append(call)
        if self.work is not None:
            await self.work(request)
        entries = [
            schema_pb2.SendResultEntry(status=OK, offset=len(message.body))
            for message in request.messages
        ]
        return schema_pb2.SendMessageResponse(status=OK, entries=entries)

    @rpc("ReceiveMessage", schema_pb2.ReceiveMessageRequest, schema_pb2.ReceiveMessageResponse)
    async def receive_message(self, call: Call, request: Any, send: Any) -> None:
        self.calls.append(call)
        try:
            if self.work is not None:
                await self.work(request)
            await send(schema_pb2.ReceiveMessageResponse(status=OK))
            for number in range(request.batch_size):
                message = schema_pb2.Message(body=b"%d" % number)
                await send(schema_pb2.ReceiveMessageResponse(message=message))
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        self.ended.append("done")

    @rpc("Telemetry", schema_pb2.TelemetryCommand, schema_pb2.TelemetryCommand)
    async def telemetry(self, call: Call, stream: Any) -> None:
        self.calls.append(call)
        while (command := await stream.read()) is not None:
            self.commands.append(command)
            if command.settings.publishing.max_body_size < 0:
                raise RpcRefused(Code.BAD_REQUEST, "no such size", ends_stream=True)
            command.status.CopyFrom(status(Code.OK))
            await stream.write(command)


class Client:
    """One channel to an endpoint."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Any = METADATA) -> None:
        self.channel = channel
        self.metadata = metadata

    async def call(self, name: str, request: Any = b"", **options: Any) -> Any:
        """Make a call with a message, or raw bytes; return the answer."""
        method = self.channel.unary_unary(
            f"/{SERVICE}/{name}", response_deserializer=response(name).FromString
        )
        data = request if isinstance(request, bytes) else request.SerializeToString()
        options = {"metadata": self.metadata, "timeout": LIMIT_S, **options}
        return await method(data, **options)

    def receive(self, request: Any, **options: Any) -> Any:
        """Begin a receive; iterate over what it returns."""
        method = self.channel.unary_stream(
            f"/{SERVICE}/ReceiveMessage",
            request_serializer=schema_pb2.ReceiveMessageRequest.SerializeToString,
            response_deserializer=schema_pb2.ReceiveMessageResponse.FromString,
        )
        return method(request, **{"metadata": self.metadata, "timeout": LIMIT_S, **options})

    def telemetry(self, **options: Any) -> Any:
        """Open the stream of commands."""
        method = self.channel.stream_stream(
            f"/{SERVICE}/Telemetry",
            request_serializer=schema_pb2.TelemetryCommand.SerializeToString,
            response_deserializer=schema_pb2.TelemetryCommand.FromString,
        )
        return method(**{"metadata": self.metadata, **options})


def response(name: str) -> Any:
    """Return the class of a call's answer."""
    return getattr(schema_pb2, f"{name}Response", schema_pb2.HeartbeatResponse)


class Rig(SimpleNamespace):
    """An endpoint, its handlers, and what opens channels to it."""

    endpoint: GrpcEndpoint
    handlers: Handlers
    stats: BrokerStats

    @property
    def address(self) -> tuple[str, int]:
        return self.endpoint.address

    def channel(
        self, credentials: grpc.ChannelCredentials | None = None, **options: Any
    ) -> grpc.aio.Channel:
        target = f"localhost:{self.address[1]}"
        found = [("grpc.use_local_subchannel_pool", 1), *options.items()]
        if credentials is None:
            return grpc.aio.insecure_channel(target, options=found)
        return grpc.aio.secure_channel(target, credentials, options=found)


class FixedContext:
    """The face of `ServerContexts` with one context."""

    failure = ""

    def __init__(self, context: ssl.SSLContext) -> None:
        context.set_alpn_protocols(["h2"])
        self.current = context


@asynccontextmanager
async def open_rig(
    *, mode: Any = "permissive", context: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[Rig]:
    """Serve with `Handlers`; `options` go to the endpoint."""
    clock = SystemClock(asyncio.get_running_loop())
    handlers, stats = Handlers(), BrokerStats()
    options = {"limits": EndpointLimits(BODY_MAX), **options}
    if isinstance(options.get("access"), type(lambda: None)):
        options["access"] = options["access"](stats, clock)
    endpoint = GrpcEndpoint([handlers], clock, stats, **options)
    gate = None
    if context is not None:
        gate = TlsGate(mode, cast(Any, FixedContext(context)), clock)
    endpoint.open(bind("127.0.0.1", 0), gate)
    endpoint.start()
    await endpoint.started()
    try:
        yield Rig(endpoint=endpoint, handlers=handlers, stats=stats, clock=clock)
    finally:
        await endpoint.stop()


@asynccontextmanager
async def open_client(
    rig: Rig, credentials: grpc.ChannelCredentials | None = None, **options: Any
) -> AsyncIterator[Client]:
    """Open a channel to the rig."""
    async with rig.channel(credentials, **options) as channel:
        yield Client(channel)
