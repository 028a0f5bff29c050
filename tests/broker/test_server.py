"""What the server does about peers that do not speak, or do not read."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import cast

import pytest
import uvloop

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.net.addresses import bind, port_of
from skylarkmq.broker.net.connection import Connection, FrameHandler
from skylarkmq.broker.net.router import Router
from skylarkmq.broker.net.server import (
    FRAME_LIMIT_S,
    SCAN_INTERVAL_S,
    SLOW_READER_LIMIT_S,
    PeerLimits,
    RemotingServer,
)
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.host_address import HostAddress, network_at, network_of
from tests.broker import descriptors_child
from tests.support.manual_clock import ManualClock
from tests.support.patience import LIMIT_S, until
from tests.support.ports import free_ports
from tests.support.raw_client import RawClient

pytestmark = pytest.mark.timing

IDLE_LIMIT_S = 120.0


class Peer:
    """A connection that keeps what it is asked to do; it never takes its last bytes."""

    def __init__(self, now_s: float) -> None:
        self.last_active_s = now_s
        self.paused_since_s = 0.0
        self.unfinished_since_s = 0.0
        self.progress_s: list[float] = []
        self.remote_address = "127.0.0.1:1"
        self.host_bytes = bytes(8)
        self.close_reason = ""
        self.calls: list[str] = []

    def note_progress(self) -> None:
        if self.progress_s:
            self.paused_since_s = self.progress_s.pop()

    def close(self, reason: str) -> None:
        self.close_reason = self.close_reason or reason
        self.calls.append("close")

    def abort(self, reason: str) -> None:
        self.close_reason = self.close_reason or reason
        self.calls.append("abort")


async def _server() -> tuple[RemotingServer, ManualClock, Peer]:
    clock = ManualClock()
    handler = cast(FrameHandler, object())
    server = RemotingServer(handler, clock, BrokerStats(), limits=PeerLimits(idle_s=IDLE_LIMIT_S))
    await server.serve()
    peer = Peer(clock.monotonic())
    assert server.opened(cast(Connection, peer))
    return server, clock, peer


async def test_a_silent_peer_is_closed_once_and_then_cut() -> None:
    server, clock, peer = await _server()
    clock.advance(IDLE_LIMIT_S)
    assert peer.calls == []
    clock.advance(SCAN_INTERVAL_S)
    assert (peer.calls, peer.close_reason) == (["close"], "idle_timeout")
    clock.advance(SCAN_INTERVAL_S)
    assert peer.calls == ["close", "abort"]
    assert server.stats.protocol_errors["idle_timeout"] == 1


async def test_a_peer_that_was_to_end_and_does_not_read_is_cut() -> None:
    _, clock, peer = await _server()
    peer.close_reason = "protocol_error"
    clock.advance(IDLE_LIMIT_S + SCAN_INTERVAL_S)
    assert (peer.calls, peer.close_reason) == (["abort"], "protocol_error")


async def test_a_deaf_peer_is_cut() -> None:
    _, clock, peer = await _server()
    peer.paused_since_s = clock.monotonic()
    clock.advance(SLOW_READER_LIMIT_S)
    assert peer.calls == []
    clock.advance(SCAN_INTERVAL_S)
    assert (peer.calls, peer.close_reason) == (["abort"], "slow_reader")


async def test_a_peer_that_reads_slowly_is_not_deaf() -> None:
    _, clock, peer = await _server()
    peer.paused_since_s = clock.monotonic()
    clock.advance(SLOW_READER_LIMIT_S)
    peer.progress_s.append(clock.monotonic())
    clock.advance(SCAN_INTERVAL_S)
    assert peer.calls == []
    clock.advance(SLOW_READER_LIMIT_S)
    assert peer.close_reason == "slow_reader"


async def test_a_peer_that_does_not_finish_a_frame_is_cut() -> None:
    _, clock, peer = await _server()
    peer.unfinished_since_s = clock.monotonic()
    clock.advance(FRAME_LIMIT_S)
    assert peer.calls == []
    clock.advance(SCAN_INTERVAL_S)
    assert (peer.calls, peer.close_reason) == (["abort"], "slow_sender")


# Over real sockets

BIG = 15 << 20


async def listening(
    max_connections: int = 100, address_share: int = 100
) -> tuple[RemotingServer, tuple[str, int]]:
    """A server that answers code 1 with 15 MiB, and where it listens."""
    clock, stats = ManualClock(), BrokerStats()

    def big(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.reply(0, None, {}, bytes(BIG))

    router = Router({1: big}, stats, clock)
    server = RemotingServer(
        router,
        clock,
        stats,
        limits=PeerLimits(connections=max_connections, address_share=address_share),
    )
    bound = bind("127.0.0.1", 0)
    address = ("127.0.0.1", port_of(bound))
    await server.serve(bound)
    return server, address


async def test_peers_beyond_the_limit_are_closed_and_room_comes_back() -> None:
    server, address = await listening(max_connections=2)
    first, second = [await RawClient.open(address) for _ in range(2)]
    assert (await first.call(9)).code == (await second.call(9)).code == 3
    refused = await RawClient.open(address)
    await refused.closed()
    assert server.stats.connections_closed["limit"] == 1
    await first.close()
    await until(lambda: len(server.connections) == 1)
    again = await RawClient.open(address)
    assert (await again.call(9)).code == 3
    for client in (second, again, refused):
        await client.close()
    await server.stop()
    assert server.stats.connections_opened == 4


async def test_one_address_leaves_room_for_others(caplog: pytest.LogCaptureFixture) -> None:
    server, address = await listening(max_connections=4, address_share=2)
    crowd = [await RawClient.open(address) for _ in range(2)]
    assert (await crowd[0].call(9)).code == (await crowd[1].call(9)).code == 3
    refused = await RawClient.open(address)
    await refused.closed()
    _, writer = await asyncio.open_connection(*address, local_addr=("127.0.0.2", 0))
    await until(lambda: len(server.connections) == 3)
    server._scan_peers()
    assert "1 connections from 127.0.0.1 were refused" in caplog.text
    await crowd[0].close()
    await until(lambda: len(server.connections) == 2)
    again = await RawClient.open(address)
    assert (await again.call(9)).code == 3
    writer.close()
    for client in (crowd[1], again, refused):
        await client.close()
    await until(lambda: not server.connections)
    assert not server._by_address
    await server.stop()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
    ],
)
def test_what_counts_as_one_address(one: str, other: str, same: bool) -> None:
    def network(ip: str) -> bytes:
        assert network_at(f"{ip}:5") == network_of(HostAddress(ip, 5).pack())
        return network_at(f"{ip}:5")

    assert (network(one) == network(other)) is same
    assert network_at("somewhere:5") == b"somewhere"


async def test_the_stop_waits_for_answers_that_peers_still_take() -> None:
    server, address = await listening()
    early = await RawClient.open(address)
    await early.call(9)
    await early.close()
    await until(lambda: not server.connections)  # nobody was there for a moment
    client = await RawClient.open(address)
    opaque = client.send(1)
    await until(lambda: any(each.unsent_size for each in server.connections))
    stop = asyncio.ensure_future(server.stop())
    answer = await client.answer(opaque)
    assert len(answer.body) == BIG
    await client.closed()
    await stop
    assert server.stats.connections_closed["shutdown"] == 1
    await client.close()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_without_descriptors_it_waits_and_serves_those_it_has(loop: str) -> None:
    child = [sys.executable, "-m", descriptors_child.__name__, loop]
    ended = subprocess.run(child, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_port_that_another_program_listens_on_since_it_was_bound_is_named(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    (port,) = free_ports()
    bound = bind("127.0.0.1", port)

    async def serve() -> None:
        server = RemotingServer(cast(FrameHandler, None), ManualClock(), BrokerStats())
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: ") as caught:
            await server.serve(bound)
        assert caught.value.errno == errno.EADDRINUSE

    with bind("127.0.0.1", port) as other, bound, asyncio.Runner(loop_factory=loop) as runner:
        other.listen()
        runner.run(serve())


async def test_after_the_stop_nobody_is_let_in() -> None:
    server, address = await listening()
    client = await RawClient.open(address)
    await client.call(9)
    await server.stop()
    await client.closed()
    with pytest.raises(OSError):
        await RawClient.open(address)
    assert not server.connections
    await client.close()


async def test_a_peer_that_ends_its_side_is_gone_with_everything_of_its() -> None:
    server, address = await listening()
    client = await RawClient.open(address)
    await client.call(9)
    left: list[Connection] = []
    connection = cast(Connection, next(iter(server.connections)))
    connection.add_close_listener(left.append)
    client.writer.write_eof()
    await client.closed()
    await until(lambda: not server.connections)
    assert left == [connection]
    assert server.stats.connections_closed["peer"] == 1
    await client.close()
    await server.stop()


async def test_a_storm_of_resets_leaves_nothing() -> None:
    server, address = await listening()
    for number in range(50):
        raw = socket.create_connection(address)
        raw.sendall(b"\x00\x00\x01\x00\x00\x00\x00\x50half a frame"[: number % 16])
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raw.close()
    client = await RawClient.open(address)
    assert (await client.call(9)).code == 3
    await until(lambda: len(server.connections) == 1)
    assert server.inbound.size == 0
    await client.close()
    await server.stop()
