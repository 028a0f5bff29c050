"""Calls over loopback, with grpcio as the client, and raw bytes where it is too well-behaved."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.grpc.calls import SERVICE
from skylarkmq.broker.grpc.connection import (
    DEADLINE_GRACE_S,
    MESSAGES_MAX,
    GrpcConnection,
    GrpcStream,
    Method,
)
from skylarkmq.broker.net.server import PeerServer
from skylarkmq.broker.net.tls import TlsGate
from skylarkmq.protocol.http2.grpc import PREFIX, GrpcError, GrpcStatus, read_timeout
from tests.broker.net.tls_rig import FixedContexts
from tests.support.certificates import Authority
from tests.support.patience import LIMIT_S, until

SIZE_MAX = 3 << 20
HEAD = ((":scheme", "http"), (":authority", "localhost"))
CONTENT_TYPE = ("content-type", "application/grpc")


class Echo:
    """Answers what it gets; what it is told to do otherwise stands in the metadata."""

    def __init__(self, *, takes_many: bool = False) -> None:
        self.takes_many = self.needs_task = takes_many
        self.size_max = SIZE_MAX
        self.under_way: set[GrpcStream] = set()
        self.cancelled = 0

    async def serve(self, stream: GrpcStream) -> None:
        self.under_way.add(stream)
        try:
            await self._serve(stream)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.under_way.discard(stream)

    async def _serve(self, stream: GrpcStream) -> None:
        what = stream.metadata.get("what")
        if what == "hang":
            await asyncio.get_running_loop().create_future()
        if what == "fail":
            raise ValueError("broken")
        if what == "refuse":
            raise GrpcError(GrpcStatus.INVALID_ARGUMENT, "100 % wrong\nreally")
        if self.takes_many:
            while (message := await stream.read()) is not None:
                await stream.write(message * int(stream.metadata.get("times", "1")))
        else:
            message = await stream.read()
            stream.answer(f"{stream.too_large}".encode() if message is None else message)


class Rig:
    """A server with two methods, and where it listens."""

    def __init__(self) -> None:
        self.one, self.many = Echo(), Echo(takes_many=True)
        self.stats = BrokerStats()
        methods: dict[str, Method] = {"/test/One": self.one, "/test/Many": self.many}
        self.server = PeerServer(
            SystemClock(asyncio.get_running_loop()),
            self.stats,
            lambda: GrpcConnection(methods, self.server),
        )
        self.port = 0

    async def listen(self, tls: TlsGate | None = None) -> None:
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        self.port = int(bound.getsockname()[1])
        await self.server.serve(bound, tls=tls)

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def connection(self) -> GrpcConnection:
        (connection,) = self.server.connections
        assert isinstance(connection, GrpcConnection)
        return connection


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    await made.listen()
    async with asyncio.timeout(LIMIT_S):
        yield made
    await made.server.stop()


@pytest.fixture
async def channel(rig: Rig) -> AsyncIterator[grpc.aio.Channel]:
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(rig.target, options=options) as opened:
        yield opened


def request(
    head: list[tuple[str, str]],
    body: bytes = b"",
    client: h2.connection.H2Connection | None = None,
) -> bytes:
    """Return the bytes of a connection's first request."""
    client = client or h2.connection.H2Connection()
    client.initiate_connection()
    client.send_headers(1, head, end_stream=not body)
    if body:
        client.send_data(1, body, end_stream=True)
    return client.data_to_send()


async def answer_to(
    rig: Rig, head: list[tuple[str, str]], body: bytes = b""
) -> tuple[bytes, dict[str, str]]:
    """Return the body and the fields of the answer to a request of HTTP/2."""
    client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    writer.write(request(head, body, client))
    answer, fields, ended = b"", dict[str, str](), False
    while not ended:
        data = await reader.read(1 << 16)
        assert data, "the server has closed the connection"
        for event in client.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                answer += event.data or b""
            elif isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                fields.update(event.headers)  # pyright: ignore
            ended |= isinstance(event, h2.events.StreamEnded)
    writer.close()
    return answer, fields


async def status_of(call: grpc.aio.Call) -> tuple[grpc.StatusCode, str | None]:
    return await call.code(), await call.details()


@pytest.mark.parametrize("size", [0, 1, 100_000, SIZE_MAX])
async def test_a_call_is_answered(channel: grpc.aio.Channel, size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    assert await channel.unary_unary("/test/One")(body[:size], timeout=LIMIT_S) == body[:size]


async def test_many_calls_share_a_connection(rig: Rig, channel: grpc.aio.Channel) -> None:
    one = channel.unary_unary("/test/One")
    calls = [one(b"%d" % number) for number in range(500)]
    assert [await call for call in calls] == [b"%d" % number for number in range(500)]
    assert len(rig.server.connections) == 1
    assert rig.connection.http2.stream_count == 0


async def test_a_message_above_the_limit_reaches_the_method_as_its_size(
    channel: grpc.aio.Channel,
) -> None:
    one = channel.unary_unary("/test/One")
    assert await one(bytes(SIZE_MAX + 1)) == b"%d" % (SIZE_MAX + 1)
    assert await one(b"after") == b"after"


async def test_messages_go_both_ways_of_one_call(channel: grpc.aio.Channel) -> None:
    call = channel.stream_stream("/test/Many")(metadata=(("times", "3"),))
    for number in range(20):
        await call.write(b"%d" % number)
        assert await call.read() == b"%d" % number * 3
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await status_of(call) == (grpc.StatusCode.OK, "")


async def test_an_answer_waits_for_a_client_that_does_not_read(
    rig: Rig, channel: grpc.aio.Channel
) -> None:
    call = channel.stream_stream("/test/Many")(metadata=(("times", "20"),))
    await call.write(bytes(1 << 18))
    await until(lambda: rig.many.under_way)
    await until(lambda: rig.connection.http2.unsent_size or rig.connection.writing_paused)
    answer = await call.read()
    assert isinstance(answer, bytes)
    assert len(answer) == 20 << 18
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK


async def shut(rig: Rig, count: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Make calls whose answers of 1 MiB each wait for the client's windows."""
    client = h2.connection.H2Connection()
    client.local_settings.initial_window_size = 100
    client.initiate_connection()
    head = [(":method", "POST"), (":path", "/test/Many"), *HEAD, CONTENT_TYPE, ("times", "1024")]
    for stream_id in range(1, 2 * count, 2):
        client.send_headers(stream_id, head)
        client.send_data(stream_id, PREFIX.pack(0, 1024) + bytes(1024))
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    writer.write(client.data_to_send())
    return reader, writer


async def test_what_waits_for_windows_counts_among_what_peers_leave_unread(rig: Rig) -> None:
    outbound = rig.server.outbound
    reader, writer = await shut(rig, 3)
    await until(lambda: outbound.size > 2 << 20)
    connection = rig.connection
    assert outbound.size == connection.unsent_size == connection.http2.unsent_size
    client = h2.connection.H2Connection()
    client.initiate_connection()
    client.clear_outbound_data_buffer()
    client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 2 << 20})
    client.increment_flow_control_window(8 << 20)
    writer.write(client.data_to_send())
    await reader.readexactly(3 << 20)
    await until(lambda: not outbound.size)
    assert rig.connection is connection, "it is still there"
    writer.close()


async def test_a_peer_that_opens_no_window_is_dropped_when_there_is_too_much(rig: Rig) -> None:
    rig.server.outbound.limit = 8 << 20
    _, writer = await shut(rig, 9)
    await until(lambda: rig.many.cancelled == 9)
    assert not rig.server.connections
    assert rig.server.outbound.size == 0
    writer.close()


async def test_the_deadline_ends_an_answer_that_waits_for_the_window(rig: Rig) -> None:
    _, writer = await shut(rig, 2)
    await until(lambda: rig.server.outbound.size > 1 << 20)
    connection = rig.connection
    for stream in rig.many.under_way:
        stream.deadline_s = 0.0
    connection.end_overdue(DEADLINE_GRACE_S + 1)
    assert connection.http2.stream_count == 0
    assert rig.server.outbound.size == 0
    writer.close()


@pytest.mark.parametrize(
    ("path", "what", "status", "why"),
    [
        ("/test/One", "refuse", grpc.StatusCode.INVALID_ARGUMENT, "100 % wrong\nreally"),
        ("/test/None", "", grpc.StatusCode.UNIMPLEMENTED, "no method '/test/None'"),
        (f"/{SERVICE}/SyncLiteSubscription", "", grpc.StatusCode.UNIMPLEMENTED, "lite topics"),
        (f"/{SERVICE}/PullMessage", "", grpc.StatusCode.UNIMPLEMENTED, "by ReceiveMessage"),
        ("/test/One", "fail", grpc.StatusCode.INTERNAL, "log"),
    ],
)
async def test_a_call_that_cannot_be_served_says_why(
    channel: grpc.aio.Channel, path: str, what: str, status: grpc.StatusCode, why: str
) -> None:
    call = channel.unary_unary(path)(b"", metadata=(("what", what),))
    code, details = await status_of(call)
    assert (code, why in (details or "")) == (status, True)
    assert await channel.unary_unary("/test/One")(b"next") == b"next"


async def test_a_call_that_the_client_gives_up_is_cancelled(
    rig: Rig, channel: grpc.aio.Channel
) -> None:
    call = channel.unary_unary("/test/One")(b"", metadata=(("what", "hang"),))
    await until(lambda: rig.one.under_way)
    call.cancel()
    await until(lambda: rig.one.cancelled == 1)
    assert not rig.one.under_way
    assert await channel.unary_unary("/test/One")(b"next") == b"next"


async def test_a_deadline_is_told(rig: Rig, channel: grpc.aio.Channel) -> None:
    call = channel.unary_unary("/test/One")(b"", metadata=(("what", "hang"),), timeout=3600)
    await until(lambda: rig.one.under_way)
    (stream,) = rig.one.under_way
    assert stream.deadline_s is not None
    left_s = stream.deadline_s - rig.server.clock.monotonic()
    assert 3500 < left_s < 3700
    call.cancel()


async def test_a_client_that_leaves_ends_its_calls(rig: Rig) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    head = [*HEAD, (":method", "POST"), (":path", "/test/One"), CONTENT_TYPE, ("what", "hang")]
    writer.write(request(head, PREFIX.pack(0, 1) + b"x"))
    await until(lambda: rig.one.under_way)
    left: list[GrpcConnection] = []
    connection = rig.connection
    connection.add_close_listener(left.append)
    writer.close()
    await until(lambda: rig.one.cancelled == 1)
    assert left == [connection]
    assert not rig.server.connections


async def test_a_stop_ends_calls_as_unavailable(rig: Rig, channel: grpc.aio.Channel) -> None:
    call = channel.unary_unary("/test/One")(b"", metadata=(("what", "hang"),))
    await until(lambda: rig.one.under_way)
    await rig.server.stop()
    assert (await status_of(call))[0] is grpc.StatusCode.UNAVAILABLE
    assert rig.stats.connections_closed["shutdown"] == 1


@pytest.mark.parametrize("path", ["/test/One", "/test/Many"])
async def test_a_call_that_has_just_come_does_not_keep_its_connection_open(
    path: str, rig: Rig
) -> None:
    head = [*HEAD, (":method", "POST"), (":path", path), CONTENT_TYPE, ("what", "hang")]
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    await until(lambda: rig.server.connections)
    rig.connection.data_received(request(head, PREFIX.pack(0, 1) + b"x"))
    rig.connection.close("test")  # before it has begun
    assert b"grpc-status\x02%d" % GrpcStatus.UNAVAILABLE in await reader.read()
    writer.close()


async def test_compressed_messages_are_refused(rig: Rig) -> None:
    gzip = grpc.Compression.Gzip
    async with grpc.aio.insecure_channel(rig.target, compression=gzip) as channel:
        code, details = await status_of(channel.unary_unary("/test/One")(bytes(10_000)))
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert "compressed" in (details or "")


async def test_plain_text_and_tls_share_a_port(tmp_path: Path) -> None:
    rig, authority = Rig(), Authority(tmp_path)
    context = authority.server_context("localhost", "127.0.0.1")
    context.set_alpn_protocols(["h2"])
    contexts: Any = FixedContexts(context)
    await rig.listen(TlsGate("permissive", contexts, rig.server.clock))
    roots = grpc.ssl_channel_credentials(authority.ca_file.read_bytes())
    async with (
        grpc.aio.insecure_channel(rig.target) as plain,
        grpc.aio.secure_channel(rig.target, roots) as secure,
    ):
        for channel in (plain, secure):
            one = channel.unary_unary("/test/One")
            assert await one(bytes(SIZE_MAX), timeout=LIMIT_S) == bytes(SIZE_MAX)
    await rig.server.stop()


async def test_messages_that_nobody_reads_are_bounded(rig: Rig) -> None:
    head = [*HEAD, (":method", "POST"), (":path", "/test/Many"), CONTENT_TYPE, ("what", "hang")]
    _, fields = await answer_to(rig, head, (PREFIX.pack(0, 1) + b"x") * (MESSAGES_MAX + 1))
    assert fields["grpc-status"] == str(int(GrpcStatus.RESOURCE_EXHAUSTED))
    await until(lambda: not rig.many.under_way)


async def test_other_bytes_than_http2_cost_their_connection(rig: Rig) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await reader.read()
    writer.close()
    await until(lambda: not rig.server.connections)
    assert rig.stats.protocol_errors["http2"] == 1


async def test_http2_that_is_no_grpc_is_told_so(rig: Rig) -> None:
    body, fields = await answer_to(rig, [*HEAD, (":method", "GET"), (":path", "/")])
    assert b"gRPC" in body
    assert fields[":status"] == "415"


@pytest.mark.parametrize(
    ("text", "timeout_s"),
    [
        ("3S", 3.0), ("100m", 0.1), ("2H", 7200.0), ("1M", 60.0), ("5u", 5e-6), ("7n", 7e-9),
        ("", None), ("S", None), ("-1S", None), ("1", None), ("123456789S", None), ("²S", None),
    ],
)  # fmt: skip
def test_a_timeout_is_read(text: str, timeout_s: float | None) -> None:
    assert read_timeout(text) == (None if timeout_s is None else pytest.approx(timeout_s))
