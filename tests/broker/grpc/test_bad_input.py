"""What peers may do to the port: it costs them their connection or their call, and nothing more."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.broker.grpc.calls import SERVICE
from skylarkmq.broker.grpc.connection import DEADLINE_GRACE_S, REQUEST_LIMIT_S, OpenCalls
from skylarkmq.broker.grpc.endpoint import EndpointLimits
from skylarkmq.broker.net.server import PeerLimits
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from tests.broker.grpc.rig import BODY_MAX, METADATA, Rig, open_client, open_rig
from tests.support.certificates import Authority
from tests.support.patience import LIMIT_S, until

pytestmark = pytest.mark.timing


@pytest.fixture(autouse=True)
def no_traceback(caplog: pytest.LogCaptureFixture) -> Any:
    yield
    assert not [record for record in caplog.records if record.exc_info]
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    context = Authority(tmp_path).server_context("localhost")
    async with open_rig(context=context) as found:
        yield found


async def answer_to(rig: Rig, data: bytes) -> bytes:
    """What comes back until the endpoint closes."""
    reader, writer = await asyncio.open_connection(*rig.address)
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(), LIMIT_S)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"GET /metrics HTTP/1.1\r\nHost: broker\r\n\r\n",
        b'\x00\x00\x00\x10{"code": 10}',
        b"\x16\x03\x01\x00\x05garbage garbage garbage",
        b"\x16\x03\x01\xff\xff" + bytes(70_000),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64,
        b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n",
        os.urandom(4096).replace(b"\x16", b"x").replace(b"P", b"x"),
    ],
    ids=["http1", "remoting", "tls", "long_tls", "frames", "proxy", "chance"],
)
async def test_what_is_no_http2_ends_its_connection(rig: Rig, data: bytes) -> None:
    await answer_to(rig, data)
    await until(lambda: not rig.endpoint.server.connections)
    async with open_client(rig) as client:
        assert (await client.call("Heartbeat")).status.code == Code.OK


def receive() -> schema_pb2.ReceiveMessageRequest:
    return schema_pb2.ReceiveMessageRequest()


async def test_open_calls_are_bounded_and_given_back() -> None:
    waiting = asyncio.Event()
    limits = EndpointLimits(BODY_MAX, calls=100)
    async with open_rig(limits=limits) as rig, open_client(rig) as client:
        rig.handlers.work = lambda _: waiting.wait()
        calls = [client.receive(receive()) for _ in range(200)]
        reads = [asyncio.ensure_future(call.read()) for call in calls]
        await until(lambda: sum(read.done() for read in reads) == 100)
        failed = [await call.code() for call, read in zip(calls, reads, strict=True) if read.done()]
        assert failed == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 100
        assert rig.endpoint.open_calls.count == len(rig.handlers.calls) == 100
        waiting.set()
        await asyncio.gather(*reads, return_exceptions=True)
        await until(lambda: rig.endpoint.open_calls.count == 0)
        assert (await client.call("Heartbeat")).status.code == Code.OK


async def test_calls_of_clients_that_leave_are_given_back(rig: Rig) -> None:
    rig.handlers.work = lambda _: asyncio.Event().wait()
    async with open_client(rig) as client:
        for _ in range(50):
            client.receive(receive())
        stream = client.telemetry()
        await until(lambda: rig.endpoint.open_calls.count == 51)
        del stream
    await until(lambda: rig.endpoint.open_calls.count == 0)
    await until(lambda: len(rig.handlers.ended) == 50)


async def test_a_call_that_is_opened_and_left_is_ended(rig: Rig) -> None:
    async with open_client(rig) as client:
        left = client.channel.stream_unary(f"/{SERVICE}/SendMessage")(metadata=METADATA)
        await until(lambda: rig.endpoint.open_calls.count == 1)
        (connection,) = rig.endpoint.server.connections
        connection.end_overdue(rig.clock.monotonic() + REQUEST_LIMIT_S - 1)
        assert rig.endpoint.open_calls.count == 1
        connection.end_overdue(rig.clock.monotonic() + REQUEST_LIMIT_S + 1)
        connection.write_out()
        assert await left.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert rig.endpoint.open_calls.count == 0


async def test_a_call_does_not_outlive_its_deadline(rig: Rig) -> None:
    rig.handlers.work = lambda _: asyncio.Event().wait()
    async with open_client(rig) as client:
        call = client.receive(receive(), timeout=3600)
        forever = client.receive(receive(), timeout=None)
        await until(lambda: len(rig.handlers.calls) == 2)
        (connection,) = rig.endpoint.server.connections
        connection.end_overdue(rig.clock.monotonic() + 3600 + DEADLINE_GRACE_S + 1)
        connection.write_out()
        assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: rig.handlers.ended == ["cancelled"])
        assert not forever.done()


async def test_a_call_that_is_refused_in_the_middle_is_given_back(rig: Rig) -> None:
    """A flag of compression; the client has more to send."""
    async with open_client(rig) as client:
        method = client.channel.stream_unary(f"/{SERVICE}/SendMessage")
        call = method(metadata=(*METADATA, ("grpc-encoding", "gzip")))
        compressed = grpc.Compression.Gzip
        other = client.channel.unary_unary(f"/{SERVICE}/SendMessage")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await other(b"x" * 1000, metadata=METADATA, compression=compressed)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        call.cancel()
        await until(lambda: rig.endpoint.open_calls.count == 0)


async def test_connections_of_one_address_are_bounded() -> None:
    limits = EndpointLimits(BODY_MAX, PeerLimits(connections=20, address_share=5))
    async with open_rig(limits=limits) as rig:
        opened = [await asyncio.open_connection(*rig.address) for _ in range(8)]
        await until(lambda: rig.stats.connections_opened == 8)
        await until(lambda: len(rig.endpoint.server.connections) == 5)
        for _, writer in opened:
            writer.close()
        await until(lambda: not rig.endpoint.server.connections)
        async with open_client(rig) as client:
            assert (await client.call("Heartbeat")).status.code == Code.OK


def test_one_connection_has_a_limit_too() -> None:
    assert OpenCalls().limit == EndpointLimits(0).calls


async def test_a_command_that_is_too_large_ends_its_stream(rig: Rig) -> None:
    async with open_client(rig) as client:
        stream = client.telemetry()
        command = schema_pb2.TelemetryCommand()
        command.settings.user_agent.hostname = "x" * (2 << 20)
        await stream.write(command)
        assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "the largest has" in await stream.details()
