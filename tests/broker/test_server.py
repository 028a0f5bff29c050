"""What the server does about peers that do not speak, or do not read."""

from __future__ import annotations

from typing import cast

from skylarkmq.broker.connection import Connection, FrameHandler
from skylarkmq.broker.server import DEAF_LIMIT_S, FRAME_LIMIT_S, SCAN_INTERVAL_S, RemotingServer
from skylarkmq.broker.stats import BrokerStats
from tests.support.manual_clock import ManualClock

IDLE_LIMIT_S = 120.0


class Peer:
    """A connection that keeps what it is asked to do; it never takes its last bytes."""

    def __init__(self, now_s: float) -> None:
        self.last_active_s = now_s
        self.paused_since_s = 0.0
        self.unfinished_since_s = 0.0
        self.remote_address = "127.0.0.1:1"
        self.close_reason = ""
        self.calls: list[str] = []

    def close(self, reason: str) -> None:
        self.close_reason = self.close_reason or reason
        self.calls.append("close")

    def abort(self, reason: str) -> None:
        self.close_reason = self.close_reason or reason
        self.calls.append("abort")


async def _server() -> tuple[RemotingServer, ManualClock, Peer]:
    clock = ManualClock()
    handler = cast(FrameHandler, object())
    server = RemotingServer(handler, clock, BrokerStats(), idle_limit_s=IDLE_LIMIT_S)
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
    clock.advance(DEAF_LIMIT_S)
    assert peer.calls == []
    clock.advance(SCAN_INTERVAL_S)
    assert (peer.calls, peer.close_reason) == (["abort"], "slow_reader")


async def test_a_peer_that_does_not_finish_a_frame_is_cut() -> None:
    _, clock, peer = await _server()
    peer.unfinished_since_s = clock.monotonic()
    clock.advance(FRAME_LIMIT_S)
    assert peer.calls == []
    clock.advance(SCAN_INTERVAL_S)
    assert (peer.calls, peer.close_reason) == (["abort"], "slow_sender")
