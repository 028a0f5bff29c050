"""What a peer may leave unfinished."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylarkmq.broker import connection as connection_module
from skylarkmq.protocol.command import RemotingCommand, encode_command
from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient, send_fields

SEND, MAX_OFFSET = 310, 30


async def test_unfinished_frames_are_bounded_over_all_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "UNFINISHED_MAX", 1_000_000)
    async with live_broker(tmp_path) as broker:
        server = broker._server  # pyright: ignore[reportPrivateUsage]
        assert server is not None
        canary = await RawClient.open(broker.listen_address)
        fields = send_fields("T")
        frame = encode_command(RemotingCommand.request(SEND, fields, b"x" * 700_000, opaque=1))

        first = await RawClient.open(broker.listen_address)
        first.writer.write(frame[:-1])
        await _until(canary, lambda: server.unfinished_size == len(frame) - 1)
        second = await RawClient.open(broker.listen_address)
        second.writer.write(frame[:-1])
        await second.closed()
        await _until(canary, lambda: server.unfinished_size == len(frame) - 1)
        assert server.stats.connections_closed["limit"] == 1

        first.writer.write(frame[-1:])  # who came earlier can finish
        assert (await first.answer(1)).code == 0
        assert server.unfinished_size == 0
        await first.close()
        await canary.close()


async def test_the_time_of_a_frame_runs_from_its_first_byte(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        server = broker._server  # pyright: ignore[reportPrivateUsage]
        assert server is not None
        client = await RawClient.open(broker.listen_address)
        await client.call(MAX_OFFSET, {"topic": "T", "queueId": "0"})
        (peer,) = server.connections
        assert peer.unfinished_since_s == 0.0
        frame = encode_command(RemotingCommand.request(SEND, send_fields("T"), b"body", opaque=9))
        canary = await RawClient.open(broker.listen_address)

        client.writer.write(frame[:10])
        await _until(canary, lambda: peer.unfinished_since_s > 0.0)
        since_s = peer.unfinished_since_s
        client.writer.write(frame[10:20])  # more of the same frame moves nothing
        await _until(canary, lambda: server.unfinished_size == 20)
        assert peer.unfinished_since_s == since_s
        peer.park(connection_module.PARKED_MAX + 1)
        client.writer.write(frame[20:25])
        await _until(canary, lambda: server.unfinished_size == 25)
        peer._update_reading()  # pyright: ignore[reportPrivateUsage]
        assert peer.unfinished_since_s == 0.0  # we do not read, so the peer owes nothing
        peer.park(-connection_module.PARKED_MAX - 1)
        assert peer.unfinished_since_s > 0.0
        client.writer.write(frame[25:])
        assert (await client.answer(9)).code == 0
        assert peer.unfinished_since_s == 0.0
        await client.close()
        await canary.close()


async def _until(canary: RawClient, holds: object) -> None:
    """Let the broker's loop turn until something holds; each turn is a question and its answer."""
    assert callable(holds)
    for _ in range(10_000):
        if holds():
            return
        await canary.call(MAX_OFFSET, {"topic": "T", "queueId": "0"})
    raise AssertionError("it does not come to hold")
