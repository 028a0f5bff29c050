"""Flow control of one connection: what waits, what stops the reading, what ends it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skylarkmq.broker.connection import OUTBOUND_MAX, PAUSE_SIZE, Connection
from skylarkmq.broker.stats import BrokerStats
from skylarkmq.protocol.clock import Clock
from skylarkmq.protocol.command import RemotingCommand, encode_command
from skylarkmq.protocol.frame import RawFrame
from tests.support.manual_clock import ManualClock

FRAME = encode_command(RemotingCommand.request(11))


class FakeTransport(asyncio.Transport):
    """Takes everything, and says so or not."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5)})
        self.written: list[bytes] = []
        self.reading = True
        self.unsent_size = 0
        self.aborted = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unsent_size

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        pass


class Owner:
    """A server that keeps nothing."""

    def __init__(self) -> None:
        self.stats = BrokerStats()
        self.clock: Clock = ManualClock()
        self.unfinished_size = 0

    def opened(self, connection: Connection) -> bool:
        return True

    def closed(self, connection: Connection) -> None:
        pass


class BigAnswers:
    """Answers each frame with 600 KiB, as a router does."""

    def __init__(self) -> None:
        self.handled = 0

    def handle(self, connection: Connection, frames: list[RawFrame]) -> list[RawFrame]:
        remaining = iter(frames)
        for _ in remaining:
            self.handled += 1
            connection.send(bytes(600 << 10))
            if connection.congested:
                break
        return list(remaining)


@pytest.fixture
async def peer() -> tuple[Connection, FakeTransport, BigAnswers]:
    handler, transport = BigAnswers(), FakeTransport()
    connection = Connection(handler, Owner())
    connection.connection_made(transport)
    return connection, transport, handler


Peer = tuple[Connection, FakeTransport, BigAnswers]


async def test_requests_wait_until_the_answers_before_them_are_out(peer: Peer) -> None:
    connection, transport, handler = peer
    connection.data_received(FRAME * 5)
    assert (handler.handled, transport.reading) == (2, False)
    assert [len(data) for data in transport.written] == [1200 << 10]
    connection.data_received(FRAME)  # was on its way when the reading stopped
    assert handler.handled == 2
    for _ in range(5):
        await asyncio.sleep(0)
    assert (handler.handled, transport.reading) == (6, True)
    assert max(len(data) for data in transport.written) <= PAUSE_SIZE + (600 << 10)


async def test_while_the_peer_does_not_read_nothing_goes_on(peer: Peer) -> None:
    connection, transport, handler = peer
    connection.data_received(FRAME * 4)
    connection.pause_writing()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (handler.handled, transport.reading) == (2, False)
    connection.resume_writing()
    assert not transport.reading, "there are requests that wait"
    for _ in range(5):
        await asyncio.sleep(0)
    assert (handler.handled, transport.reading) == (4, True)


async def test_what_waits_goes_with_its_connection(peer: Peer) -> None:
    connection, _, handler = peer
    connection.data_received(FRAME * 4)
    connection.connection_lost(None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert handler.handled == 2


async def test_answers_that_come_by_themselves_are_bounded(peer: Peer) -> None:
    """Held pulls that a message wakes do not ask whether there is room."""
    connection, transport, _ = peer
    for _ in range(OUTBOUND_MAX // (1 << 20) + 2):
        connection.send(bytes(1 << 20))
    assert transport.aborted
    assert connection.closed
    await asyncio.sleep(0)
    assert transport.written == []
