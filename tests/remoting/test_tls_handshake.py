"""A TLS handshake that is cut, stalls, or meets a peer that dies: an error at once, or in time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from skylarkmq.client.errors import ConnectionFailed
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.client import CONNECT_TIMEOUT_S, RemotingClient
from skylarkmq.remoting.stream import AsyncioNetwork
from skylarkmq.remoting.tls import ClientTls
from tests.remoting.test_tls import answer_all, authority, echo, remoting, serving
from tests.support.certificates import Authority
from tests.support.manual_clock import ManualClock

__all__ = ["authority"]


@asynccontextmanager
async def cutting(target: str, limit: int) -> AsyncIterator[str]:
    """A relay to `target` that hangs up when the peer has said `limit` bytes."""
    left = limit

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        host, _, port = target.rpartition(":")
        back, forth = await asyncio.open_connection(host, int(port))

        async def answers() -> None:
            nonlocal left
            while left > 0 and (data := await back.read(left)):
                writer.write(data)
                left -= len(data)
            await writer.drain()
            writer.close()

        talking = asyncio.create_task(answers())
        try:
            while data := await reader.read(65536):
                forth.write(data)
        except ConnectionError:
            pass
        finally:
            talking.cancel()
            forth.transport.abort()
            writer.close()

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_cut_at_any_byte_of_the_handshake_or_behind(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    context = authority.server_context("127.0.0.1")
    context.maximum_version = version
    async with serving(context, answer_all) as target:
        async with cutting(target, 1_000_000) as address:
            assert await echo(address, authority.client_context()) == b"x"
        for limit in (0, 1, 5, 6, 90, 200, 400, 600, 700, 800):
            async with cutting(target, limit) as address:
                with pytest.raises(ConnectionFailed) as caught:
                    await echo(address, authority.client_context())
                assert address in str(caught.value), f"cut after {limit} bytes"


async def test_a_handshake_that_stalls_has_a_deadline(authority: Authority) -> None:
    reached, done = asyncio.Event(), asyncio.Event()

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        reached.set()
        await done.wait()
        writer.close()

    clock = ManualClock()
    network = AsyncioNetwork(ClientTls(authority.client_context()))
    async with serving(None, stall) as address:
        it = RemotingClient(network, clock, Random(1), "json", lambda *_: None)
        attempt = asyncio.create_task(it.connection(address))
        await reached.wait()
        clock.advance(CONNECT_TIMEOUT_S)
        with pytest.raises(ConnectionFailed, match="no connection within 3 s"):
            await attempt
        done.set()
        await it.stop()
        assert clock.pending_count == 0


async def test_a_peer_that_dies_between_two_calls_is_connected_again(authority: Authority) -> None:
    connected = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connected
        connected += 1
        if connected > 1:
            await answer_all(reader, writer)
            return
        answering = asyncio.create_task(answer_all(reader, writer))
        await asyncio.sleep(0)
        hung_up.append(writer.transport)
        await answering

    hung_up: list[asyncio.WriteTransport] = []
    async with (
        serving(authority.server_context("127.0.0.1"), once) as address,
        remoting(authority.client_context()) as it,
    ):
        assert (await it.call(address, RemotingCommand.request(34), 20.0)).code == 0
        lost = it.ready(address)
        assert lost is not None
        hung_up[0].abort()
        await lost.wait_ended(20.0)
        assert it.ready(address) is None
        assert (await it.call(address, RemotingCommand.request(34), 20.0)).code == 0
        assert connected == 2
