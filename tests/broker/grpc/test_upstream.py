"""Calls of other endpoints: grpcio's server, our own, and peers that do it wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from skylarkmq.broker.clock import SystemClock
from skylarkmq.broker.grpc.upstream import Upstreams
from skylarkmq.broker.net.grpc_client import Answers
from tests.support.patience import LIMIT_S

METADATA = {"x-mq-client-id": "host@1", "x-text": "füñf", ":path": "/wrong", "te": "wrong"}


class Server(grpc.GenericRpcHandler):
    """Serves what the path names."""

    def __init__(self) -> None:
        self.metadata: dict[str, str] = {}
        self.time_left_s: float | None = None
        self.cancelled: list[str] = []
        self.under_way = 0
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def service(self, details: Any) -> Any:
        name = details.method.rpartition("/")[2]
        if name == "Many":
            return grpc.stream_stream_rpc_method_handler(self.many)
        if name == "Nothing":
            return None
        return grpc.unary_unary_rpc_method_handler(getattr(self, name.lower()))

    def _note(self, context: Any) -> None:
        self.metadata = {key: str(value) for key, value in context.invocation_metadata()}
        self.time_left_s = context.time_remaining()

    async def one(self, request: bytes, context: Any) -> bytes:
        self._note(context)
        return request

    async def large(self, request: bytes, context: Any) -> bytes:
        return bytes(int(request))

    async def refuse(self, request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "100 % full\nreally")
        raise AssertionError

    async def hang(self, request: bytes, context: Any) -> bytes:
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
        try:
            async for request in requests:
                for _ in range(int(self.metadata.get("times", "1"))):
                    yield request
        except asyncio.CancelledError:
            self.cancelled.append("many")
            raise


@asynccontextmanager
async def grpcio(**options: Any) -> AsyncIterator[Server]:
    """Serve by grpcio."""
    made = Server()
    settings = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.aio.server(handlers=[made], options=[*settings, *options.items()])
    made.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield made
    finally:
        await server.stop(0)


@asynccontextmanager
async def opened(answers: Answers | None = None) -> AsyncIterator[Upstreams]:
    made = Upstreams(SystemClock(asyncio.get_running_loop()), None, answers)
    made.start()
    async with asyncio.timeout(LIMIT_S):
        yield made
    made.stop()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with grpcio() as made:
        yield made


@pytest.fixture
async def upstreams() -> AsyncIterator[Upstreams]:
    async with opened() as made:
        yield made


async def test_a_call_is_answered(server: Server, upstreams: Upstreams) -> None:
    answer = await upstreams.unary(server.address, "/test/One", METADATA, b"hello", 20.0)
    assert answer == b"hello"
    assert server.metadata["x-mq-client-id"] == "host@1"
    assert server.time_left_s is not None
    assert 0 < server.time_left_s <= 20


@pytest.mark.parametrize("size", [0, 1, 16_384, 65_536, 1 << 20, 5 << 20])
async def test_large_messages_pass_both_ways(
    size: int, server: Server, upstreams: Upstreams
) -> None:
    assert await upstreams.unary(server.address, "/test/One", {}, bytes(size), None) == bytes(size)


async def test_many_calls_pass_at_a_time(server: Server, upstreams: Upstreams) -> None:
    bodies = [b"%d" % number * number for number in range(300)]
    calls = (upstreams.unary(server.address, "/test/One", {}, body, None) for body in bodies)
    assert await asyncio.gather(*calls) == bodies


async def test_a_stream_goes_both_ways(server: Server, upstreams: Upstreams) -> None:
    async with upstreams.stream(server.address, "/test/Many", METADATA) as call:
        for body in (b"", b"one", bytes(3 << 20)):
            await call.write(body)
            assert await call.read() == body
        call.end()
        assert await call.read() is None
    assert upstreams.answers.held == 0
