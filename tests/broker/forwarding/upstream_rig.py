"""Servers for calls of other endpoints: grpcio's, and one by the library h2 that a test scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import h2.config
import h2.connection
import h2.events
import h2.settings

from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.broker.forwarding.grpc_client import Answers
from skylarkmq.broker.forwarding.upstream import Upstreams
from skylarkmq.broker.net.tls_context import OutgoingTls
from skylarkmq.common.clock import Clock
from tests.support.patience import LIMIT_S

OK = ((":status", "200"), ("content-type", "application/grpc"))
LAST = (("grpc-status", "0"),)


class GrpcioServer(grpc.GenericRpcHandler):
    """Serves what the path names.

    Attributes:
        metadata, time_left_s: of the last call that is told of.
        peers: of all calls, each once.
        cancelled: calls that were.
    """

    def __init__(self) -> None:
        self.metadata: dict[str, str] = {}
        self.time_left_s: float | None = None
        self.peers: set[str] = set()
        self.cancelled: list[str] = []
        self.under_way = 0
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def service(self, handler_call_details: Any) -> Any:
        name = handler_call_details.method.rpartition("/")[2]
        if name == "Many":
            return grpc.stream_stream_rpc_method_handler(self.many)
        if name == "Nothing":
            return None
        return grpc.unary_unary_rpc_method_handler(getattr(self, name.lower()))

    def _note(self, context: Any) -> None:
        self.metadata = {key: str(value) for key, value in context.invocation_metadata()}
        self.time_left_s = context.time_remaining()
        self.peers.add(context.peer())

    async def one(self, request: bytes, context: Any) -> bytes:
        self._note(context)
        return request

    async def large(self, request: bytes, context: Any) -> bytes:
        return bytes(int(request))

    async def refuse(self, request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "100 % full\nreally")
        raise AssertionError

    async def hang(self, request: bytes, context: Any) -> bytes:
        self._note(context)
        self.under_way += 1
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled.append("hang")
            raise
        finally:
            self.under_way -= 1
        return b""

    async def many(self, requests: Any, context: Any) -> AsyncIterator[bytes]:
        self._note(context)
        # Of this call: by the time a request comes another call may have been told of.
        times = int(self.metadata.get("times", "1"))
        async for request in requests:
            for _ in range(times):
                yield request


@asynccontextmanager
async def grpcio(
    credentials: grpc.ServerCredentials | None = None, **options: Any
) -> AsyncGenerator[GrpcioServer]:
    """Serve by grpcio; `options` without their `grpc.`."""
    made = GrpcioServer()
    settings = {"max_receive_message_length": -1, "max_send_message_length": -1, **options}
    arguments = [(f"grpc.{name}", value) for name, value in settings.items()]
    server = grpc.aio.server(handlers=[made], options=arguments)
    if credentials is None:
        made.port = server.add_insecure_port("127.0.0.1:0")
    else:
        made.port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        yield made
    finally:
        await server.stop(0)


class Peer:
    """One connection to a scripted server.

    Attributes:
        http2: its end, of the library h2.
        asked: streams whose requests have ended.
        resets: streams that were reset.
        size: bytes of requests that have come.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.http2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self.asked: list[int] = []
        self.resets: list[int] = []
        self.size = 0
        self.reader = reader
        self.writer = writer
        self.ended = asyncio.Event()

    def answer(self, stream_id: int, *bodies: bytes, last: Any = LAST, first: Any = OK) -> None:
        """Send an answer; without `last` it goes on."""
        self.http2.send_headers(stream_id, first)
        for body in bodies:
            self.http2.send_data(stream_id, body)
        if last:
            self.http2.send_headers(stream_id, last, end_stream=True)
        self.send()

    def send(self) -> None:
        """Send what h2 has to say."""
        self.writer.write(self.http2.data_to_send())


Work = Callable[[Peer, int], object]


class Scripted:
    """A server by h2, where `work` is done with each request.

    Attributes:
        peers: connections that were made, in their order.
        says_nothing: connections are taken, and nothing else is done.
        opens_windows: for what has come, more may.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.peers: list[Peer] = []
        self.says_nothing = False
        self.opens_windows = True
        self.settings: dict[Any, int] = {}
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self.peers.append(peer)
        settings = h2.settings.Settings(client=False, initial_values=self.settings)
        peer.http2.local_settings = settings
        peer.http2.initiate_connection()
        try:
            if not self.says_nothing:
                peer.send()
            while data := await reader.read(65_536):
                if not self.says_nothing:
                    self._take(peer, data)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the other end, or the test, has ended it
        finally:
            peer.ended.set()
            writer.close()

    def _take(self, peer: Peer, data: bytes) -> None:
        for event in peer.http2.receive_data(data):
            if isinstance(event, h2.events.DataReceived) and event.flow_controlled_length:
                size = event.flow_controlled_length
                peer.size += size
                if self.opens_windows:
                    peer.http2.acknowledge_received_data(size, event.stream_id)
            if isinstance(event, h2.events.StreamReset):
                peer.resets.append(event.stream_id)
            if isinstance(event, h2.events.StreamEnded):
                peer.asked.append(event.stream_id)
                self.work(peer, event.stream_id)
        peer.send()


@asynccontextmanager
async def scripted(work: Work, port: int = 0) -> AsyncGenerator[Scripted]:
    """Serve by h2."""
    made = Scripted(work)
    server = await asyncio.start_server(made.serve, "127.0.0.1", port)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for peer in made.peers:
            peer.writer.transport.abort()


@asynccontextmanager
async def opened(
    clock: Clock | None = None, answers: Answers | None = None, tls: OutgoingTls | None = None
) -> AsyncGenerator[Upstreams]:
    """Open what calls other endpoints."""
    made = Upstreams(clock or SystemClock(asyncio.get_running_loop()), tls, answers)
    made.start()
    async with asyncio.timeout(LIMIT_S):
        yield made
    made.stop()
    assert made.answers.held == 0
