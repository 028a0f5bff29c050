"""Calls of another endpoint of ours while connections are cut, calls cancelled, streams left."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from skylarkmq.broker.base.clock import SystemClock
from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.forwarding import grpc_client, upstream
from skylarkmq.broker.forwarding.upstream import UpstreamError, Upstreams
from skylarkmq.broker.grpc.connection import GrpcConnection, GrpcStream, Method, OpenCalls
from skylarkmq.broker.net.addresses import bind
from skylarkmq.broker.net.server import PeerServer
from skylarkmq.protocol.http2.grpc import GrpcError, GrpcStatus
from tests.support.patience import LIMIT_S, until

WORKERS, CALLS_EACH = 12, 30


class Echo:
    """Answers with what it gets, or refuses it."""

    size_max = 4 << 20

    def __init__(self, *, takes_many: bool) -> None:
        self.takes_many = self.needs_task = takes_many

    async def serve(self, stream: GrpcStream) -> None:
        while (message := await stream.read()) is not None:
            if message == b"no":
                raise GrpcError(GrpcStatus.INVALID_ARGUMENT, "no")
            await stream.write(message)


class Chaos:
    """Another endpoint, and what is done with it."""

    def __init__(self, seed: int, upstreams: Upstreams) -> None:
        self.rng = random.Random(seed)
        self.upstreams = upstreams
        self.open_calls = OpenCalls()
        self.answered = 0
        methods: dict[str, Method] = {
            "/a/One": Echo(takes_many=False),
            "/a/Many": Echo(takes_many=True),
        }
        self.server = PeerServer(
            upstreams.clock,
            BrokerStats(),
            lambda: GrpcConnection(methods, self.server, self.open_calls),
        )
        self.address = ""

    async def listen(self) -> None:
        bound = bind("127.0.0.1", 0)
        self.address = f"127.0.0.1:{bound.getsockname()[1]}"
        await self.server.serve(bound)

    def body(self) -> bytes:
        return self.rng.randbytes(self.rng.choice((0, 1, 300, 20_000, 70_000, 1 << 20)))

    async def work(self) -> None:
        for _ in range(CALLS_EACH):
            what = self.rng.choice((*[self.one] * 6, *[self.many] * 4, self.cut))
            call = asyncio.ensure_future(what())
            if self.rng.random() < 0.3:
                for _ in range(self.rng.randrange(12)):
                    await asyncio.sleep(0)
                call.cancel()
            with suppress(UpstreamError, asyncio.CancelledError):
                await call

    async def one(self) -> None:
        body = self.rng.choice((b"no", self.body()))
        answer = await self.upstreams.unary(self.address, "/a/One", {}, body, 60.0)
        assert answer == body
        self.answered += 1

    async def many(self) -> None:
        bodies = [self.body() for _ in range(self.rng.randrange(5))]
        async with self.upstreams.stream(self.address, "/a/Many", {}) as call:
            for body in bodies:
                await call.write(body)
                if self.rng.random() < 0.1:
                    return
                assert await call.read() == body
            call.end()
            assert await call.read() is None
        self.answered += 1

    async def cut(self) -> None:
        connections = list(self.server.connections)
        if connections:
            connection = self.rng.choice(connections)
            if self.rng.random() < 0.5:
                connection.close("test")
            else:
                connection.abort("test")


@pytest.mark.parametrize("seed", range(6))
async def test_each_call_ends_and_nothing_is_left(
    seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(grpc_client, "CALLS_MAX", 4)
    monkeypatch.setattr(upstream, "LEFT_ALONE_S", 0.0)  # a connection may be cut at its begin
    upstreams = Upstreams(SystemClock(asyncio.get_running_loop()), None)
    upstreams.start()
    chaos = Chaos(seed, upstreams)
    await chaos.listen()
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*(chaos.work() for _ in range(WORKERS)))
        assert chaos.answered > WORKERS * CALLS_EACH // 10
        assert upstreams.answers.held == 0
        await until(lambda: chaos.open_calls.count == 0, "the other end's calls")
        upstreams.stop()
        await until(lambda: not chaos.server.connections, "the connections' end")
    await chaos.server.stop()
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]
