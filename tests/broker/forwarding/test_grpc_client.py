"""One connection to another endpoint, on a stream that the test holds."""

from __future__ import annotations

import asyncio

import pytest

from skylarkmq.broker.forwarding.grpc_client import (
    IDLE_S,
    SIGN_LIMIT_S,
    SILENCE_S,
    Answers,
    GrpcClient,
    UpstreamError,
    UpstreamStream,
)
from skylarkmq.protocol.http2.frames import ACK, FrameType, frame, header_block, settings_frame
from skylarkmq.protocol.http2.grpc import GrpcStatus
from tests.support.manual_clock import ManualClock, settle

BLOCK = header_block(((b":method", b"POST"), (b":path", b"/a/B")))
PING, PONG = (frame(FrameType.PING, flags, 0, bytes(8)) for flags in (0, ACK))


class Stream:
    """Takes what is written.

    Attributes:
        ended: how it was ended.
    """

    local_ip = ""
    unsent_size = 0

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.ended = ""

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.ended = "close"

    def abort(self) -> None:
        self.ended = "abort"

    def take(self) -> bytes:
        """What was written since the last call."""
        data, self.written = b"".join(self.written), []
        return data


class Line:
    """An open connection and what is about it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.stream = Stream()
        self.closed: list[GrpcClient] = []
        self.client = GrpcClient("peer:1", self.clock, self.closed.append)

    async def connect(self, address: str, receiver: asyncio.Protocol) -> Stream:
        return self.stream

    async def open(self) -> None:
        opening = asyncio.ensure_future(self.client.open(self))
        await settle()
        assert not opening.done()
        self.client.data_received(settings_frame(()))
        await opening
        self.stream.take()

    def scan(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.client.scan(self.clock.monotonic())


@pytest.fixture
async def line() -> Line:
    made = Line()
    await made.open()
    return made


def ask(line: Line) -> asyncio.Task[bytes]:
    call = UpstreamStream(Answers(), None)
    return asyncio.ensure_future(call.ask(line.client, BLOCK, b"request"))


async def test_a_silent_end_gives_signs_of_life(line: Line) -> None:
    call = ask(line)
    await settle()
    assert b"request" in line.stream.take()
    for _ in range(20):
        line.scan(SILENCE_S - 0.1)
        await settle()
        assert not line.stream.take()
        line.scan(0.1)
        await settle()
        assert line.stream.take() == PING
        line.scan(SIGN_LIMIT_S - 0.1)
        line.client.data_received(PONG)
    assert not call.done()
    line.scan(SILENCE_S)
    line.scan(SIGN_LIMIT_S)
    await settle()
    assert line.stream.ended == "abort"
    assert line.closed == [line.client]
    with pytest.raises(UpstreamError, match="no sign of life") as caught:
        await call
    assert (caught.value.status, caught.value.reached) == (GrpcStatus.UNAVAILABLE, True)


async def test_without_a_call_nothing_is_asked(line: Line) -> None:
    line.scan(IDLE_S - 1)
    await settle()
    assert not line.stream.take()
    call = ask(line)
    await settle()
    line.stream.take()
    line.scan(1)  # what was silent before does not count
    await settle()
    assert not line.stream.take()
    call.cancel()
    await settle()


async def test_one_that_is_not_used_is_closed(line: Line) -> None:
    line.scan(IDLE_S - 1)
    assert not line.stream.ended
    line.scan(1)
    assert line.stream.ended == "close"
    assert line.closed == [line.client]
    assert not line.client.has_room


async def test_a_writer_waits_while_the_other_end_is_behind(line: Line) -> None:
    call = UpstreamStream(Answers(), None)
    call.begin(line.client, BLOCK)
    await call.write(b"one")
    await settle()
    line.client.pause_writing()
    writing = asyncio.ensure_future(call.write(b"two"))
    await settle()
    assert not writing.done()
    line.stream.unsent_size = 17
    assert line.client.unsent_size == 17
    line.client.resume_writing()
    await writing
    line.client.pause_writing()
    writing = asyncio.ensure_future(call.write(b"three"))
    await settle()
    line.client.connection_lost(ConnectionResetError("reset"))
    with pytest.raises(UpstreamError, match="the connection was lost: reset"):
        await writing


async def test_all_who_write_go_on_when_there_is_room(line: Line) -> None:
    call = UpstreamStream(Answers(), None)
    call.begin(line.client, BLOCK)
    for end in (line.client.resume_writing, call.close):
        line.client.pause_writing()
        writing = [asyncio.ensure_future(call.write(b"%d" % number)) for number in range(3)]
        await settle()
        writing[1].cancel()
        await settle()
        assert [each.done() for each in writing] == [False, True, False]
        end()
        await settle()
        assert all(each.done() for each in writing)


async def test_what_many_write_in_a_turn_leaves_at_once(line: Line) -> None:
    calls = [ask(line) for _ in range(10)]
    await settle()
    assert len(line.stream.written) == 1
    for call in calls:
        call.cancel()
    await settle()
    assert len(line.stream.written) == 2


async def test_one_that_ends_before_it_has_greeted(line: Line) -> None:
    other = Line()
    opening = asyncio.ensure_future(other.client.open(other))
    await settle()
    other.client.connection_lost(None)
    with pytest.raises(ConnectionError, match="it was closed"):
        await opening
